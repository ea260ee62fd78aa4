"""A rebuild that is killed at any instant leaves the old directories or the new ones; the next run ends it."""

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from rmq_formats.offline import publish, rebuild_store
from rmq_formats.offline.rebuild_store import WORK_DIRECTORY
from rmq_formats.offline.runner import ProcessRunner
from tests.offline.crashing import NoExchange, run_and_die
from tests.offline.rebuilding import (
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
from tests.stores import tree

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


def check_finished(store: Path, new: dict[str, dict[str, bytes]]) -> None:
    for name, expected in new.items():
        assert tree(store / name) == expected
    assert {path.name for path in store.iterdir()} == {"commitlog", "consumequeue", "index", "lock"}


def change_count(store: Path, tmp_path: Path) -> int:
    """Changes of the file system that a whole rebuild makes."""
    count = run_and_die(lambda: rebuild(store, tmp_path / "counted", SMALL, RUNNER))
    assert count is not None
    return count


def begin_of_publication(store: Path, tmp_path: Path) -> int:
    """The number of the first change that publishing makes, in a rebuild into ``tmp_path / "out"``."""
    out = tmp_path / "searched"
    low, high = 1, change_count(store, tmp_path)
    while low < high:
        middle = (low + high) // 2
        run_and_die(lambda: rebuild(store, out, SMALL, RUNNER), middle)
        published = (out / WORK_DIRECTORY / "publish.json").exists() or not (out / WORK_DIRECTORY).exists()
        low, high = (low, middle) if published else (middle + 1, high)
        run_and_die(lambda: rebuild(store, out, SMALL, RUNNER))
    return low


def moments(count: int, begin: int, step: int) -> Iterator[int]:
    """Each step before a place, each change from there on."""
    yield from range(1, begin, step)
    yield from range(begin, count + 3)


def test_killed_before_any_change_it_leaves_old_or_new_and_the_next_run_ends_it(store: Path, tmp_path: Path) -> None:
    new = new_trees(store, tmp_path / "undisturbed")
    count, begin = change_count(store, tmp_path), begin_of_publication(store, tmp_path)
    assert 20 < begin < count
    for at in moments(count, begin - 4, 14):
        run_and_die(lambda: rebuild(store, None, SMALL, RUNNER), at)
        check_old_or_new(store, new)
        rebuild(store, None, SMALL, RUNNER)
        check_finished(store, new)
        restore_old(store)


def restore_old(store: Path) -> None:
    for name in ("consumequeue", "index"):
        remove(store / name)
    put_old(store)


def remove(directory: Path) -> None:
    for path in sorted(directory.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    directory.rmdir()


def test_killed_again_and_again_it_gets_there(store: Path, tmp_path: Path) -> None:
    new = new_trees(store, tmp_path / "undisturbed")
    chance = random.Random(11)
    for _ in range(4):
        for _ in range(6):
            run_and_die(lambda: rebuild(store, None, SMALL, RUNNER), chance.randrange(1, 60))
            check_old_or_new(store, new)
        rebuild(store, None, SMALL, RUNNER)
        check_finished(store, new)
        restore_old(store)


def test_a_run_with_other_options_ends_a_publication_too(store: Path, tmp_path: Path) -> None:
    new = new_trees(store, tmp_path / "undisturbed")
    only_index = replace(SMALL, consumequeue=False)
    count, begin = change_count(store, tmp_path), begin_of_publication(store, tmp_path)
    for at in range(begin, count + 3, 3):
        run_and_die(lambda: rebuild(store, None, SMALL, RUNNER), at)
        rebuild(store, None, only_index, RUNNER)
        assert tree(store / "index") == new["index"]
        assert tree(store / "consumequeue") in (new["consumequeue"], old_trees()["consumequeue"])
        assert not (store / WORK_DIRECTORY).exists()
        restore_old(store)


def test_an_operator_may_delete_the_directories_after_a_kill(store: Path, tmp_path: Path) -> None:
    new = new_trees(store, tmp_path / "undisturbed")
    count, begin = change_count(store, tmp_path), begin_of_publication(store, tmp_path)
    for at in range(begin + 4, count + 3, 3):
        run_and_die(lambda: rebuild(store, None, SMALL, RUNNER), at)
        restore_old(store)
        run_and_die(lambda: rebuild(store, None, SMALL, RUNNER), 3)
        check_old_or_new(store, new)
        rebuild(store, None, SMALL, RUNNER)
        check_finished(store, new)
        restore_old(store)


def test_without_an_exchange_the_next_run_still_ends_it(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "_LIBC", NoExchange())
    new = new_trees(store, tmp_path / "undisturbed")
    count, begin = change_count(store, tmp_path), begin_of_publication(store, tmp_path)
    for at in range(begin, count + 3):
        run_and_die(lambda: rebuild(store, None, SMALL, RUNNER), at)
        for name, old in old_trees().items():
            assert tree(store / name) in ({}, old, new[name]), "it may be absent for a moment, never half"
        rebuild(store, None, SMALL, RUNNER)
        check_finished(store, new)
        restore_old(store)


def test_what_a_killed_run_read_is_not_used_for_another_log(store: Path, tmp_path: Path) -> None:
    count = change_count(store, tmp_path)
    for at in range(8, count - 20, 12):
        run_and_die(lambda: rebuild(store, None, SMALL, RUNNER), at)
        victim = list(stored_messages(store))[at % 40]
        original = (store / "commitlog" / f"{victim.physical_offset // 4096 * 4096:020d}").read_bytes()
        patch(store, victim.physical_offset + 88, b"\0")
        rebuild(store, None, SMALL, RUNNER)
        assert built(store) == by_codecs(store), "a file that a replica replaced is read again"
        (store / "commitlog" / f"{victim.physical_offset // 4096 * 4096:020d}").write_bytes(original)


def rebuild_in_two_processes(store: Path) -> None:
    rebuild(store, None, SMALL, Splits(12, ProcessRunner(2)))


def test_killed_at_random_moments_it_leaves_old_or_new_and_the_next_run_ends_it(store: Path, tmp_path: Path) -> None:
    new = new_trees(store, tmp_path / "undisturbed")
    began = time.monotonic()
    rebuild_in_two_processes(store)
    seconds = time.monotonic() - began
    chance = random.Random(5)
    for _ in range(10):
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


def test_a_run_that_was_killed_while_it_cleared_another_s_work_leaves_none_of_it(store: Path, tmp_path: Path) -> None:
    new = new_trees(store, tmp_path / "undisturbed")
    other = replace(SMALL, index_slots=60, consumequeue_file_bytes=800)
    begin = begin_of_publication(store, tmp_path)
    for at in range(1, 60, 7):
        run_and_die(lambda: rebuild(store, None, SMALL, RUNNER), begin)
        restore_old(store)
        remove(store / "consumequeue")
        remove(store / "index")
        run_and_die(lambda: rebuild(store, None, other, RUNNER), at)
        rebuild(store, None, SMALL, RUNNER)
        check_finished(store, new)


def test_after_a_reboot_nothing_unflushed_is_trusted(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = new_trees(store, tmp_path / "undisturbed")
    run_and_die(lambda: rebuild(store, None, SMALL, RUNNER), begin_of_publication(store, tmp_path))
    for path in (store / WORK_DIRECTORY / "new").rglob("0" * 20):
        path.write_bytes(b"")
    monkeypatch.setattr(rebuild_store, "_boot", lambda: "another")
    rebuild(store, None, SMALL, RUNNER)
    check_finished(store, new)
