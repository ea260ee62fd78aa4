"""The part ``lives``, with both releases: 200 stores at fixed seeds; new ones are what ``make lab`` plays.

A seed that nobody has played may find what no test was written for, and would end a run that has nothing to do with it.
"""

from pathlib import Path

import pytest

from rmq_offline.verify.consumequeue import QueueCheck
from tests.interop import peer
from tests.lab.lives import schedule as lives
from tests.lab.rounds import Round, ViolationError

SEEDS = (17, 18)
# The original plays fifty lives in a minute, and on a machine with much else to do in several.
pytestmark = [pytest.mark.peer, pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("release", peer.VERSIONS)
def test_what_the_original_leaves_verify_and_repair_leave(release: str, seed: int, tmp_path: Path) -> None:
    one = Round("lives", seed, tmp_path)
    try:
        with peer.running(release):
            lives.play(one)
    except Exception as error:
        again = f"PEER_VERSION={release} make lab PARTS=lives SEED={seed} ROUNDS=1"
        pytest.fail("\n".join([f"{type(error).__name__}: {error}", *one.trace, f"again: {again}"]))
    assert one.tally.cases >= lives.STORES * 0.8
    assert one.tally.faults >= lives.STORES * 0.7


def test_a_verify_that_takes_the_log_alone_for_the_truth_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "STORES", 8)
    monkeypatch.setattr(QueueCheck, "_merge", lambda _self, _read, _unit_count: None)
    with peer.running(peer.OLDEST), pytest.raises(ViolationError):
        lives.play(Round("lives", SEEDS[0], tmp_path))
