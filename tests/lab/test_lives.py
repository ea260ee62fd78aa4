"""The part ``lives``, with both releases: 200 stores, each at a fixed seed or at a fresh one."""

import secrets
from pathlib import Path

import pytest

from rmq_formats.verify.queue import QueueCheck
from tests.interop import peer
from tests.lab.lives import schedule as lives
from tests.lab.rounds import Round, ViolationError

FIXED_SEED = 17
STORES = 50

pytestmark = [pytest.mark.peer, pytest.mark.long]


@pytest.mark.parametrize("seed", [FIXED_SEED, None], ids=["fixed", "fresh"])
@pytest.mark.parametrize("release", peer.VERSIONS)
def test_what_the_original_leaves_verify_and_repair_leave(
    release: str, seed: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "STORES", STORES)
    one = Round("lives", secrets.randbits(40) if seed is None else seed, tmp_path)
    try:
        with peer.running(release):
            lives.play(one)
    except ViolationError as error:
        pytest.fail(f"{error} (seed {one.seed}, {STORES} stores, {release})\n" + "\n".join(one.trace))
    assert one.tally.cases >= STORES * 0.9
    assert one.tally.faults >= STORES * 0.8


def test_a_verify_that_takes_the_log_alone_for_the_truth_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "STORES", 8)
    monkeypatch.setattr(QueueCheck, "_merge", lambda _self, _read, _unit_count: None)
    with peer.running(peer.OLDEST), pytest.raises(ViolationError):
        lives.play(Round("lives", FIXED_SEED, tmp_path))
