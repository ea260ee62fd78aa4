"""A repair that is killed at any instant is brought to the same end by the next one."""

import json
import random
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from rmq_formats.errors import StoreError
from rmq_offline.repair import journal
from rmq_offline.repair.job import repair_store
from rmq_offline.tasks.runner import ProcessRunner
from tests.repair.damaged_logs import many_faults
from tests.support.processes.dying_processes import run_and_die
from tests.support.stores.store_files import tree
from tests.support.stores.verified_stores import SIZES, copied, patch, sound_store
from tests.support.torture import TIMES, rounds


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A store with a fault of every kind that a repair works on."""
    root = tmp_path / "damaged"
    sound_store(root, 120)
    many_faults(root)
    (root / "lock").write_bytes(b"")
    return root


def repair(store: Path) -> None:
    repair_store(str(store), SIZES, ProcessRunner(1), apply=True)


def undisturbed(damaged: Path, target: Path) -> dict[str, bytes]:
    """What a repair makes of it that nobody disturbs."""
    store = copied(damaged, target)
    repair(store)
    return tree(store)


def changes(damaged: Path, target: Path) -> int:
    count = run_and_die(lambda: repair(copied(damaged, target)))
    assert count is not None
    return count


@pytest.mark.torture
def test_killed_before_any_change_the_next_run_comes_to_the_same_end(damaged: Path, tmp_path: Path) -> None:
    expected = undisturbed(damaged, tmp_path / "undisturbed")
    count = changes(damaged, tmp_path / "counted")
    step = max(1, 9 // TIMES)  # each change, where there is time for it
    kills = 0
    for at in range(count % step + 1, count + 1, step):
        store = copied(damaged, tmp_path / f"at-{at}")
        kills += run_and_die(partial(repair, store), at) is None
        repair(store)
        assert tree(store) == expected, f"killed before change {at} of {count}"
    assert kills >= 10


@pytest.mark.torture
@pytest.mark.parametrize("seed", rounds(3))
def test_killed_again_and_again_it_gets_there(damaged: Path, tmp_path: Path, seed: int) -> None:
    expected = undisturbed(damaged, tmp_path / "undisturbed")
    chance = random.Random(seed)
    for _ in range(8):
        run_and_die(lambda: repair(damaged), chance.randrange(1, 160))
    repair(damaged)
    assert tree(damaged) == expected


@pytest.mark.torture
@pytest.mark.parametrize("seed", rounds(10))
def test_killed_at_random_moments_it_gets_there(damaged: Path, tmp_path: Path, seed: int) -> None:
    store = copied(damaged, tmp_path / "undisturbed")
    began = time.monotonic()
    repair(store)
    seconds = time.monotonic() - began
    process = get_context("fork").Process(target=repair, args=(damaged,))
    process.start()
    process.join(random.Random(seed).uniform(0, 1.1 * seconds))
    process.kill()
    process.join()
    process.close()
    repair(damaged)
    assert tree(damaged) == tree(store)


@pytest.mark.long
def test_a_write_that_was_cut_short_is_written_again(damaged: Path, tmp_path: Path) -> None:
    expected = undisturbed(damaged, tmp_path / "undisturbed")
    at = 1
    while not list((damaged / "quarantine").glob("0*/plan.json")):
        run_and_die(lambda: repair(damaged), at)
        at += 3
    for copy in (damaged / "quarantine").glob("*/commitlog/[0-9]*.*"):
        name, _, position = copy.name.partition(".")
        wanted = expected[f"commitlog/{name}"][int(position) :][: copy.stat().st_size // 2]
        patch(damaged / "commitlog" / name, int(position), wanted)
    repair(damaged)
    assert tree(damaged) == expected


def test_a_log_file_that_was_deleted_meanwhile_is_not_made_again(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(journal, "_overwrite", die)
    with pytest.raises(KeyboardInterrupt):
        repair(damaged)
    monkeypatch.undo()
    (plan,) = (damaged / "quarantine").glob("*/plan.json")
    deleted = damaged / json.loads(plan.read_text())["stretches"][0]["path"]
    deleted.unlink()
    before = tree(damaged)
    with pytest.raises(StoreError, match="was deleted since a repair began"):
        repair(damaged)
    assert tree(damaged) == before
