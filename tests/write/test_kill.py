"""A write that is killed at any instant leaves the old log or the new one, whole; the next write goes on from there."""

import random
import shutil
from pathlib import Path

import pytest

from jobs import import_delta
from rmq_formats.errors import StoreError
from rmq_formats.storage.segments import WRITE_DIRECTORY
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.tasks import publish
from rmq_offline.tasks.publish import is_publishing
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.write.commitlog import WriteOptions, begin_write, commit_write
from rmq_offline.write.piece import write_pieces
from tests.support.processes.dying_processes import run_and_die
from tests.support.stores.rebuilt_stores import built, by_codecs, rebuild, small_store
from tests.support.stores.store_files import tree
from tests.support.stores.written_stores import SMALL_DISPATCH, batches_of, rows, write
from tests.support.torture import rounds

ROUNDS = len(rounds(12))
TIME_US = 1_800_000_000_000_000  # else it would be that of the write, and no two logs the same
NEW = rows(
    topic=["New", "Topic1", "New"],
    body=[b"1", b"2" * 3000, b"3" * 3000],
    queue_id=[0, 1, 0],
    tags=["a"] * 3,
    born_timestamp=[TIME_US] * 3,
    store_timestamp=[TIME_US] * 3,
)


def run(store: Path, *, overwrite: bool) -> None:
    write(store, [[NEW.slice(0, 1)], [NEW.slice(1)]], overwrite=overwrite, file_bytes=4096, dispatch=SMALL_DISPATCH)


def log_of(store: Path) -> dict[str, bytes]:
    return tree(store / "commitlog")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A store with its queues and Index."""
    store = small_store(tmp_path / "old", 60)
    rebuild(store)
    return store


@pytest.mark.torture
@pytest.mark.parametrize("overwrite", [False, True], ids=["append", "overwrite"])
def test_a_killed_write_leaves_one_of_two_logs(old: Path, tmp_path: Path, overwrite: bool) -> None:
    whole = shutil.copytree(old, tmp_path / "whole")
    changes = run_and_die(lambda: run(whole, overwrite=overwrite))
    assert changes is not None
    before, after = log_of(old), log_of(whole)
    seen = set()
    for at in [*sorted(random.sample(range(1, changes), min(ROUNDS, changes - 1))), changes - 2, changes]:
        store = shutil.copytree(old, tmp_path / f"killed-{at}")
        assert run_and_die(lambda store=store: run(store, overwrite=overwrite), at) is None
        found = log_of(store)
        assert found in (before, after), f"killed before change {at} of {changes}"
        if is_publishing(store / WRITE_DIRECTORY):
            found = after
        seen.add(found == after)
        write(store, [[]], file_bytes=None, dispatch=SMALL_DISPATCH)  # ends what was begun, or clears it
        assert log_of(store) == found
        assert built(store) == by_codecs(store, SMALL_DISPATCH)
        assert not (store / WRITE_DIRECTORY).exists()
        shutil.rmtree(store)
    assert seen == {False, True}


def test_a_write_after_a_killed_one_is_that_of_an_undisturbed_one(old: Path, tmp_path: Path) -> None:
    whole = shutil.copytree(old, tmp_path / "whole")
    changes = run_and_die(lambda: run(whole, overwrite=True))
    assert changes is not None
    assert run_and_die(lambda: run(old, overwrite=True), changes // 2) is None
    run(old, overwrite=True)
    assert log_of(old) == log_of(whole)
    assert built(old) == built(whole)


def test_a_task_that_ran_twice_counts_once(tmp_path: Path) -> None:
    source = small_store(tmp_path / "source", 60)
    begun = begin_write(WriteOptions(str(tmp_path / "store"), True, 4096))
    _, second = (write_pieces(batches_of(source), begun.job.pieces, begun.encoding) for _ in range(2))
    commit_write(
        begun, [second], ProcessRunner(1)
    )  # of the other one, by speculation or of a lost executor, nobody is told
    assert log_of(tmp_path / "store") == log_of(source)


def fail(*_arguments: object) -> None:
    raise StoreError("Input/output error")


def run_and_fail(store: Path, *, overwrite: bool, dispatch: RebuildOptions | None) -> None:
    """What Spark does with a commit that fails."""
    begun = begin_write(WriteOptions(str(store), overwrite, 4096, dispatch=dispatch))
    task = write_pieces([NEW], begun.job.pieces, begun.encoding)
    with pytest.raises(StoreError, match="Input/output error"):
        commit_write(begun, [task], ProcessRunner(1))
    begun.job.abort()


@pytest.mark.parametrize("overwrite", [False, True], ids=["append", "overwrite"])
@pytest.mark.parametrize("step", ["sync_file_system", "_exchange"])
def test_a_write_that_cannot_be_published_leaves_all_as_it_was(
    old: Path, monkeypatch: pytest.MonkeyPatch, step: str, overwrite: bool
) -> None:
    (old / "checkpoint").write_bytes(bytes(4096))
    before = {name: data for name, data in tree(old).items() if name != "lock"}
    with monkeypatch.context() as patched:
        patched.setattr(publish, step, fail)
        run_and_fail(old, overwrite=overwrite, dispatch=None)
    shutil.rmtree(old / "config")  # its topics are added before
    assert {name: data for name, data in tree(old).items() if name != "lock"} == before
    assert not (old / WRITE_DIRECTORY).exists()


def test_a_write_that_is_published_by_half_is_finished_by_the_next(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = publish._exchange
    with monkeypatch.context() as patched:
        patched.setattr(publish, "_exchange", lambda *pair: (whole if pair[2] == "commitlog" else fail)(*pair))
        run_and_fail(old, overwrite=False, dispatch=SMALL_DISPATCH)
    found = log_of(old)
    assert is_publishing(old / WRITE_DIRECTORY)
    write(old, [[]], file_bytes=None)
    assert log_of(old) == found
    assert built(old) == by_codecs(old, SMALL_DISPATCH)
    assert not (old / WRITE_DIRECTORY).exists()


def test_an_import_that_finds_one_published_by_half_completes_it_and_adds_nothing(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = publish._exchange
    with monkeypatch.context() as patched:
        patched.setattr(publish, "_exchange", lambda *pair: (whole if pair[2] == "commitlog" else fail)(*pair))
        run_and_fail(old, overwrite=False, dispatch=SMALL_DISPATCH)
    found = log_of(old)
    given = import_delta.parser().parse_args(["--table", "none", "--store", str(old), "--mode", "append"])
    with pytest.raises(StoreError, match="an earlier write that was killed has been completed"):
        import_delta.check(given)
    import_delta.check(given)
    assert log_of(old) == found
    assert built(old) == by_codecs(old, SMALL_DISPATCH)
