"""What a rebuild refuses: one clear line, and nothing touched."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_formats.errors import OptionError, RmqError, StoreError, StoreLockedError, StoreNotFoundError, StoreSizeError
from rmq_formats.storage.store_lock import store_lock
from rmq_offline.rebuild import queue_sources
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.rebuild.options import options_from_arguments
from rmq_offline.rebuild.publication import PublishOptions
from rmq_offline.tasks.runner import ProcessRunner, Progress
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.support.processes import warm_processes
from tests.support.stores.rebuilt_stores import SMALL, Splits, built, by_codecs, live, rebuild, small_store, snapshot
from tests.support.stores.store_files import tree, with_sizes

HOLD_THE_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def broker_that_holds(lock: Path) -> Iterator[None]:
    """Another process with a POSIX lock on the file's first byte, as a broker has it."""
    arguments = [sys.executable, "-c", HOLD_THE_LOCK, str(lock)]
    with warm_processes.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            process.stdin.close()


def refused(error: type[RmqError], store: Path, *arguments: Any) -> str:
    """The line that a refusal says."""
    with pytest.raises(error) as caught:
        rebuild(store, *arguments)
    line = str(caught.value)
    assert line
    assert "\n" not in line
    return line


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = small_store(tmp_path / "store", 60)
    rebuild(root)
    (root / "lock").write_bytes(b"lock")
    return root


def test_a_store_that_a_broker_has_is_not_touched(store: Path, tmp_path: Path) -> None:
    before = snapshot(store)
    with broker_that_holds(store / "lock"):
        assert "stop it first" in refused(StoreLockedError, store)
        assert snapshot(store) == before
        rebuild(store, tmp_path / "out")
        assert snapshot(store) == before, "elsewhere it may be rebuilt, from a frozen look at the log"
    assert built(tmp_path / "out") == by_codecs(store)
    rebuild(store)


@pytest.mark.parametrize("way", ["{root}", "{link}", "{root}/../store", "{root}//", "file://{root}"])
def test_a_locked_store_is_refused_however_it_is_named(store: Path, tmp_path: Path, way: str) -> None:
    (tmp_path / "link").symlink_to(store)
    name = way.format(root=store, link=tmp_path / "link")
    before = snapshot(store)
    with broker_that_holds(store / "lock"):
        for source, out in ((name, None), (name, str(store)), (str(store), name), (name, name)):
            with pytest.raises(StoreLockedError):
                rebuild_store(source, out, SMALL, ProcessRunner(1))
    assert snapshot(store) == before


def test_another_store_that_a_broker_has_is_no_place_to_write_to(store: Path, tmp_path: Path) -> None:
    other = small_store(tmp_path / "other", 30)
    with broker_that_holds(store / "lock"):
        before = snapshot(store)
        refused(StoreLockedError, other, store)
        assert snapshot(store) == before


@pytest.mark.parametrize("out", ["consumequeue", "index", "index/below", "link"])
def test_no_directory_of_the_store_is_written_to(store: Path, out: str) -> None:
    (store / "link").symlink_to(store / "commitlog")
    before = snapshot(store)
    assert f"--out {store / out}: is in the store" in refused(OptionError, store, store / out)
    plan = PublishOptions(is_plan=True, work=str(store / out))
    with pytest.raises(OptionError, match=f"--work {store / out}: is in the store"):
        rebuild_store(str(store), None, SMALL, ProcessRunner(1), publishing=plan)
    assert snapshot(store) == before


@pytest.mark.parametrize("out", ["file", "file/below"])
def test_a_place_that_cannot_be_written_is_a_store_error(store: Path, tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("in the way")
    assert "Not a directory" in refused(StoreError, store, tmp_path / out)
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_full_disk_is_a_store_error_and_the_next_run_goes_on(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: tree(store / name) for name in ("consumequeue", "index")}
    with monkeypatch.context() as patched:
        patched.setattr(queue_sources.QueueFileWriter, "_write_image", fail_with_a_full_disk)
        assert refused(StoreError, store) == "some/file: No space left on device"
    assert {name: tree(store / name) for name in before} == before
    rebuild(store)
    assert {name: tree(store / name) for name in before} == before
    assert sorted(path.name for path in store.iterdir()) == [
        "commitlog", "consumequeue", "index", "lock", "quarantine",
    ]  # fmt: skip


def fail_with_a_full_disk(*_arguments: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "some/file")


def test_a_rebuild_locks_the_store_while_it_writes(store: Path) -> None:
    code = HOLD_THE_LOCK.replace("sys.stdin.read()", "")
    arguments = [sys.executable, "-c", code, str(store / "lock")]
    with store_lock(str(store)):
        assert warm_processes.run(arguments, capture_output=True, check=False).returncode != 0
    assert warm_processes.run(arguments, capture_output=True, check=False).returncode == 0
    assert (store / "lock").read_bytes() == b"lock"


def test_a_lock_that_cannot_be_opened_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(StoreError, match="not a file"), store_lock(str(tmp_path)):
        pass


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert "no such store" in refused(StoreNotFoundError, tmp_path / "nowhere")
    assert "no such store" in refused(StoreNotFoundError, tmp_path / "nowhere", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "names", [[], ["commitlog"], ["commitlog/abc"], ["consumequeue/T/0"], ["commitlog/" + "0" * 20]]
)
def test_a_store_without_a_commitlog_is_not_touched(tmp_path: Path, names: list[str]) -> None:
    (tmp_path / "store").mkdir()
    for name in names:  # the last is a directory of a segment's name
        (tmp_path / "store" / name).mkdir(parents=True)
    before = snapshot(tmp_path)
    said = refused(StoreNotFoundError, tmp_path / "store")
    assert ("no CommitLog files" if names else "holds no store") in said
    assert snapshot(tmp_path) == before


def test_files_that_overlap_are_refused(store: Path) -> None:
    (store / "commitlog" / f"{4095:020d}").write_bytes(bytes(10))
    before = snapshot(store)
    assert "begins inside of" in refused(StoreSizeError, store)
    assert snapshot(store) == before


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"consumequeue_file_bytes": 800}, "--consumequeue-file-bytes 400"),
        ({"index_slots": 51}, "IndexFiles here have"),
        ({"index_entries": 21}, "IndexFiles here have"),
        ({"consumequeue_file_bytes": 0}, "must be a multiple of 20"),
        ({"consumequeue_file_bytes": -20}, "must be a multiple of 20"),
        ({"consumequeue_file_bytes": 401}, "must be a multiple of 20"),
        ({"consumequeue_ext_file_bytes": 20}, "no room for a unit"),
        ({"consumequeue_ext_file_bytes": 23}, "no room for a unit"),
        ({"consumequeue_ext_file_bytes": -1}, "no room for a unit"),
        ({"index_slots": 0}, "must be 1 or more"),
        ({"index_entries": 1}, "must be 2 or more"),
        ({"index_entries": 200_000_000}, "above 2 GiB"),
        ({"index_slots": 10**20}, "above 2 GiB"),
        ({"commitlog_file_bytes": 1 << 31}, "--commitlog-file-bytes 2147483648: must be at most 2147483647"),
        ({"consumequeue_file_bytes": 20 * 10**20}, "must be at most 2147483647"),
        ({"consumequeue_ext_file_bytes": 10**20}, "must be at most 2147483647"),
        ({"batchconsumequeue_file_bytes": 46 * 10**20}, "must be at most 2147483647"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(store: Path, changed: dict[str, int], says: str) -> None:
    before = snapshot(store)
    assert says in refused(StoreSizeError, store, None, with_sizes(SMALL, **changed))
    assert snapshot(store) == before


def test_the_option_with_the_wrong_size_is_named(store: Path) -> None:
    for slots, says in ((0, "--index-slots 0: must be 1 or more"), (1 << 40, "an IndexFile above 2 GiB")):
        with pytest.raises(StoreSizeError, match=says):
            options_from_arguments("all", VerifyOptions(index_slots=slots), str(store))


def test_other_sizes_are_accepted_if_the_store_s_own_files_stay(store: Path, tmp_path: Path) -> None:
    larger = with_sizes(SMALL, consumequeue_file_bytes=800, index_slots=51)
    rebuild(store, tmp_path / "out", larger)
    assert built(tmp_path / "out") == by_codecs(store, larger)
    rebuild(store, None, replace(with_sizes(larger, index_slots=50), consumequeue=False))
    rebuild(store, None, replace(with_sizes(SMALL, index_entries=30), index=False))


def test_sizes_that_a_broker_could_have_are_accepted() -> None:
    SMALL.sizes.check()
    StoreSizes(consumequeue_file_bytes=20, consumequeue_ext_file_bytes=24, index_slots=1, index_entries=2).check()
    StoreSizes(consumequeue_file_bytes=6_000_000, index_slots=5_000_000, index_entries=20_000_000).check()


@pytest.mark.parametrize("topics", [["Topic1"], ["Topic0", "Topic2", "Gone"], []])
def test_only_live_topics_are_rebuilt_on_request(store: Path, tmp_path: Path, topics: list[str]) -> None:
    options = live(SMALL, *topics)
    report = rebuild(store, tmp_path / "out", options)
    assert built(tmp_path / "out") == by_codecs(store, options)
    assert {path.split("/")[0] for path in tree(tmp_path / "out" / "consumequeue")} == set(topics) - {"Gone"}
    assert report.messages == 60


def arguments(store: Path, what: str = "all", ext: int | None = None, topics: Path | None = None) -> Any:
    return options_from_arguments(
        what, VerifyOptions(None, 400, ext, 50, 20, (1000, 5000)), str(store), str(topics) if topics else None
    )


def test_arguments_become_options(store: Path) -> None:
    sizes = replace(SMALL.sizes, commitlog_file_bytes=4096)
    asked = replace(SMALL, sizes=sizes, index_tags="no, as the Index has it")
    assert arguments(store) == asked
    assert arguments(store, "consumequeue") == replace(asked, index=False)
    assert arguments(store, "index") == replace(asked, consumequeue=False)
    with pytest.raises(OptionError, match="--what queues"):
        arguments(store, "queues")


def test_the_size_of_ext_files_is_that_of_the_store_s_own(store: Path) -> None:
    queue = store / "consumequeue_ext" / "T" / "0"
    queue.mkdir(parents=True)
    (store / "consumequeue_ext" / "stray").write_bytes(b"")
    assert arguments(store).sizes.consumequeue_ext_file_bytes == 0
    (queue / ("0" * 20)).write_bytes(bytes(4096))
    assert arguments(store).sizes.consumequeue_ext_file_bytes == 4096
    assert arguments(store, ext=0).sizes.consumequeue_ext_file_bytes == 0
    assert arguments(store, ext=80).sizes.consumequeue_ext_file_bytes == 80


def test_live_topics_come_out_of_a_topics_json(store: Path, tmp_path: Path) -> None:
    topics = tmp_path / "topics.json"
    topics.write_text('{"dataVersion":{},"topicConfigTable":{"Topic1":{"topicName":"Topic1"},"T2":{"topicName":"T2"}}}')
    assert arguments(store, topics=topics).live_topics == frozenset({"Topic1", "T2"})
    with pytest.raises(OptionError, match="no such file"):
        arguments(store, topics=tmp_path / "none.json")


def test_progress_is_reported_up_to_the_end(store: Path, tmp_path: Path) -> None:
    told: list[Progress] = []
    report = rebuild_store(str(store), str(tmp_path / "out"), SMALL, Splits(9), told.append)
    for phase in ("scan", "write"):
        own = [progress for progress in told if progress.phase == phase]
        assert own[-1].done == own[-1].total > 0
        assert [progress.done for progress in own] == sorted(progress.done for progress in own)
    fields = report.to_dict()
    assert (fields["job"], fields["messages"], fields["findings"]) == ("rebuild", 60, [])
    assert set(report.phases) == {"plan", "scan", "write", "publish"}
