"""A rebuild that is killed at any instant leaves the old directories or the new ones; the next run ends it."""

import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from rmq_offline.rebuild import job
from rmq_offline.tasks import publish
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.tasks.work_files import WORK_DIRECTORY
from tests.support.processes.dying_processes import NoExchange, run_and_die
from tests.support.stores.rebuilt_stores import (
    SMALL,
    Built,
    Splits,
    built,
    by_codecs,
    patch,
    rebuild,
    small_store,
    stored_messages,
)
from tests.support.stores.store_files import tree, with_sizes
from tests.support.torture import TIMES, rounds

OLD = {"consumequeue/Old/3/" + "0" * 20: b"q" * 400, "index/20200101000000000": b"i" * 640}
RUNNER = Splits(4)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store whose ConsumeQueue and Index are of another time."""
    root = small_store(tmp_path / "store", 60)
    put_old(root)
    return root


def put_old(root: Path) -> None:
    for path, data in OLD.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)


def new_trees(store: Path, out: Path) -> dict[str, dict[str, bytes]]:
    """What an undisturbed rebuild makes."""
    rebuild(store, out)
    return {name: tree(out / name) for name in ("consumequeue", "index")}


def old_trees() -> dict[str, dict[str, bytes]]:
    return {
        name: {path.removeprefix(f"{name}/"): data for path, data in OLD.items() if path.startswith(name)}
        for name in ("consumequeue", "index")
    }


def check_old_or_new(store: Path, new: dict[str, dict[str, bytes]]) -> None:
    for name, old in old_trees().items():
        assert tree(store / name) in (old, new[name]), f"{name} is half one thing and half another"


def check_finished(store: Path, new: dict[str, dict[str, bytes]], *, is_old_known: bool = True) -> None:
    for name, expected in new.items():
        assert tree(store / name) == expected
    assert {path.name for path in store.iterdir()} == {"commitlog", "consumequeue", "index", "lock", "quarantine"}
    if not is_old_known:
        return
    kept = sorted((store / "quarantine").iterdir())
    assert [path.name for path in kept] == [f"{number:04d}" for number in range(1, len(kept) + 1)]
    assert {name: tree(kept[0] / name) for name in new} == old_trees(), "the first one has what was there before"
    assert all(tree(path / name) == new[name] for path in kept[1:] for name in new), "the others what a killed run made"


@dataclass(frozen=True)
class Changes:
    """Changes of the file system that a whole rebuild makes, and the first of them that publishing makes."""

    count: int
    begin: int


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory) -> Changes:
    """Found out once, by killing a rebuild here and there."""
    directory = tmp_path_factory.mktemp("changes")
    store, out = small_store(directory / "store", 60), directory / "out"
    (store / "lock").write_bytes(b"")
    count = run_and_die(lambda: rebuild(store, None, SMALL, RUNNER))
    assert count is not None
    low, high = 1, count
    while low < high:
        middle = (low + high) // 2
        run_and_die(lambda: rebuild(store, out, SMALL, RUNNER), middle)
        published = (out / WORK_DIRECTORY / "publish.json").exists() or not (out / WORK_DIRECTORY).exists()
        low, high = (low, middle) if published else (middle + 1, high)
        shutil.rmtree(out, ignore_errors=True)
    assert 20 < low < count
    return Changes(count, low)


def moments(count: int, begin: int, step: int) -> Iterator[int]:
    """Each step before a place, each change from there on."""
    yield from range(1, begin, step)
    yield from range(begin, count + 3)


@pytest.mark.torture
def test_killed_before_any_change_it_leaves_old_or_new_and_the_next_run_ends_it(
    store: Path, tmp_path: Path, changes: Changes
) -> None:
    new = new_trees(store, tmp_path / "undisturbed")
    for at in moments(changes.count, changes.begin - 4, max(1, 14 // TIMES)):
        run_and_die(lambda: rebuild(store, None, SMALL, RUNNER), at)
        check_old_or_new(store, new)
        rebuild(store, None, SMALL, RUNNER)
        check_finished(store, new)
        restore_old(store)


def restore_old(store: Path) -> None:
    remove_both(store)
    shutil.rmtree(store / "quarantine", ignore_errors=True)
    put_old(store)


def remove_both(store: Path) -> None:
    for name in ("consumequeue", "index"):
        shutil.rmtree(store / name)


@pytest.mark.torture
def test_killed_again_and_again_it_gets_there(store: Path, tmp_path: Path) -> None:
    new = new_trees(store, tmp_path / "undisturbed")
    chance = random.Random(11)
    for _ in rounds(4):
        for _ in range(6):
            run_and_die(lambda: rebuild(store, None, SMALL, RUNNER), chance.randrange(1, 60))
            check_old_or_new(store, new)
        rebuild(store, None, SMALL, RUNNER)
        check_finished(store, new)
        restore_old(store)


def test_a_run_with_other_options_ends_a_publication_too(store: Path, tmp_path: Path, changes: Changes) -> None:
    new = new_trees(store, tmp_path / "undisturbed")
    only_index = replace(SMALL, consumequeue=False)
    for at in range(changes.begin, changes.count + 3, 3):
        run_and_die(lambda: rebuild(store, None, SMALL, RUNNER), at)
        rebuild(store, None, only_index, RUNNER)
        assert tree(store / "index") == new["index"]
        assert tree(store / "consumequeue") in (new["consumequeue"], old_trees()["consumequeue"])
        assert not (store / WORK_DIRECTORY).exists()
        restore_old(store)


@pytest.mark.long
def test_an_operator_may_delete_the_directories_after_a_kill(store: Path, tmp_path: Path, changes: Changes) -> None:
    new = new_trees(store, tmp_path / "undisturbed")
    for at in range(changes.begin + 4, changes.count + 3, 3):
        run_and_die(lambda: rebuild(store, None, SMALL, RUNNER), at)
        restore_old(store)
        run_and_die(lambda: rebuild(store, None, SMALL, RUNNER), 3)
        check_old_or_new(store, new)
        rebuild(store, None, SMALL, RUNNER)
        check_finished(store, new, is_old_known=False)
        restore_old(store)


@pytest.mark.long
def test_without_an_exchange_the_next_run_still_ends_it(
    store: Path, tmp_path: Path, changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "_LIBC", NoExchange())
    new = new_trees(store, tmp_path / "undisturbed")
    for at in range(changes.begin, changes.count + 3):
        run_and_die(lambda: rebuild(store, None, SMALL, RUNNER), at)
        for name, old in old_trees().items():
            assert tree(store / name) in ({}, old, new[name]), "it may be absent for a moment, never half"
        rebuild(store, None, SMALL, RUNNER)
        check_finished(store, new)
        restore_old(store)


def test_what_a_killed_run_read_is_not_used_for_another_log(store: Path, tmp_path: Path, changes: Changes) -> None:
    for at in range(8, changes.count - 20, 12):
        run_and_die(lambda: rebuild(store, None, SMALL, RUNNER), at)
        victim = list(stored_messages(store))[at % 40]
        original = (store / "commitlog" / f"{victim.physical_offset // 4096 * 4096:020d}").read_bytes()
        patch(store, victim.physical_offset + 88, b"\0")
        rebuild(store, None, SMALL, RUNNER)
        assert built(store) == by_codecs(store), "a file that a replica replaced is read again"
        (store / "commitlog" / f"{victim.physical_offset // 4096 * 4096:020d}").write_bytes(original)


def rebuild_in_two_processes(store: Path) -> None:
    rebuild(store, None, SMALL, Splits(12, ProcessRunner(2)))


@pytest.mark.torture
def test_killed_at_random_moments_it_leaves_old_or_new_and_the_next_run_ends_it(store: Path, tmp_path: Path) -> None:
    new = new_trees(store, tmp_path / "undisturbed")
    began = time.monotonic()
    rebuild_in_two_processes(store)
    seconds = time.monotonic() - began
    chance = random.Random(5)
    for _ in rounds(10):
        restore_old(store)
        process = get_context("fork").Process(target=rebuild_in_two_processes, args=(store,))
        process.start()
        process.join(chance.uniform(0, 1.1 * seconds))
        process.kill()
        process.join()
        process.close()
        check_old_or_new(store, new)
        rebuild_in_two_processes(store)
        check_finished(store, new)


def test_an_undisturbed_rebuild_is_that_of_the_codecs(store: Path) -> None:
    rebuild_in_two_processes(store)
    assert built(store) == by_codecs(store) != Built({}, [])


@pytest.mark.long
def test_a_run_that_was_killed_while_it_cleared_another_s_work_leaves_none_of_it(
    store: Path, tmp_path: Path, changes: Changes
) -> None:
    new = new_trees(store, tmp_path / "undisturbed")
    other = with_sizes(SMALL, index_slots=60, consumequeue_file_bytes=800)
    for at in range(1, 60, 7):
        run_and_die(lambda: rebuild(store, None, SMALL, RUNNER), changes.begin)
        remove_both(store)  # they are of the first run's sizes, and would be refused
        run_and_die(lambda: rebuild(store, None, other, RUNNER), at)
        rebuild(store, None, SMALL, RUNNER)
        check_finished(store, new, is_old_known=False)


def test_after_a_reboot_nothing_unflushed_is_trusted(
    store: Path, tmp_path: Path, changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = new_trees(store, tmp_path / "undisturbed")
    run_and_die(lambda: rebuild(store, None, SMALL, RUNNER), changes.begin)
    for path in (store / WORK_DIRECTORY / "new").rglob("0" * 20):
        path.write_bytes(b"")
    monkeypatch.setattr(job, "boot_id", lambda: "another")
    rebuild(store, None, SMALL, RUNNER)
    check_finished(store, new, is_old_known=False)
