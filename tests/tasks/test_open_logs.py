"""A broker whose lock file was deleted still has its log open: nobody writes into its store."""

import fcntl
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rmq_formats.errors import StoreLockedError
from rmq_formats.storage import store_lock as locks
from rmq_formats.storage.store_files import LOG_PATHS_VARIABLE, use_log_directories
from rmq_formats.storage.store_lock import store_lock
from rmq_offline.convert.job import convert_store
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.support.stores.rebuilt_stores import rebuild, small_store
from tests.support.stores.store_files import tree

Hold = Callable[[Path], Any]


def mapped(path: Path) -> Any:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def opened(path: Path) -> Any:
    return path.open("r+b")


def read(path: Path) -> Any:
    with path.open("rb") as file:
        return file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


@contextmanager
def a_process(hold: Hold, store: Path) -> Iterator[int]:
    """A process that has the log's last file as a broker has it, and ``abort`` with its id."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            kept = hold(max((store / "commitlog").iterdir()))
            os.write(writing, b"x")
            while kept:
                time.sleep(60)
        os._exit(1)
    try:
        assert os.read(reading, 1) == b"x"
        (store / "abort").write_text(str(child))
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("hold", [mapped, opened])
@pytest.mark.parametrize("has_leases", [True, False])
def test_a_store_without_its_lock_file_is_refused(
    tmp_path: Path, hold: Hold, has_leases: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = small_store(tmp_path / "store", 30)
    if not has_leases:
        monkeypatch.setattr(locks, "is_open_for_writing", lambda _: None)
    with a_process(hold, store) as pid:
        before = tree(store)
        with pytest.raises(StoreLockedError, match=rf"process {pid} \(.*\) .* without the lock\. Stop it first"):
            rebuild(store)
        assert tree(store) == before
    rebuild(store)


def test_a_conversion_refuses_a_store_without_its_lock_file(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", 30)
    (store / "lock").unlink(missing_ok=True)
    with a_process(opened, store) as pid:
        before = tree(store)
        with pytest.raises(StoreLockedError, match=rf"process {pid} \(.*\) .* without the lock\. Stop it first"):
            convert_store(str(store), "rocksdb", str(tmp_path / "out"), VerifyOptions(), ProcessRunner(1))
        assert tree(store) == before
        assert not (tmp_path / "out").exists()


def test_without_abort_the_process_is_found_too(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", 30)
    with a_process(mapped, store) as pid:
        (store / "abort").unlink()
        with pytest.raises(StoreLockedError, match=f"process {pid} "), store_lock(str(store)):
            pass


def test_who_reads_a_log_is_in_nobodys_way(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", 30)
    with a_process(read, store):
        rebuild(store)


@pytest.mark.parametrize("content", ["1", "999999999", "-1", "x", "", "9" * 40])
def test_what_abort_says_of_others_is_no_reason(tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = small_store(tmp_path / "store", 30)
    (store / "abort").write_text(content)
    monkeypatch.setattr(locks, "is_open_for_writing", lambda _: None)
    rebuild(store)


def test_what_is_no_file_is_not_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    assert not locks.is_locked(str(tmp_path / "pipe"))
    assert locks.is_open_for_writing(str(tmp_path / "pipe")) is False
    assert locks.is_open_for_writing(str(tmp_path / "link")) is None
    assert locks.is_open_for_writing(str(tmp_path / "none")) is None


def test_a_log_elsewhere_that_a_process_writes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = small_store(tmp_path / "store", 30)
    monkeypatch.setenv(LOG_PATHS_VARIABLE, "{}")
    with a_process(opened, store):
        (store / "commitlog").rename(tmp_path / "log")
        use_log_directories(str(store), [str(tmp_path / "log")])
        with pytest.raises(StoreLockedError, match="has its log open"), store_lock(str(store)):
            pass


def test_who_opens_a_log_while_it_is_looked_at_ends_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel sends the holder of a lease a signal, whose default would end it."""
    (tmp_path / "log").write_bytes(b"x")
    control = fcntl.fcntl

    def fcntl_(descriptor: int, command: int, argument: int = 0) -> Any:
        answer = control(descriptor, command, argument)
        if (command, argument) == (fcntl.F_SETLEASE, fcntl.F_RDLCK):
            with suppress(BlockingIOError):
                os.close(os.open(tmp_path / "log", os.O_WRONLY | os.O_NONBLOCK))
        return answer

    monkeypatch.setattr(fcntl, "fcntl", fcntl_)
    assert locks.is_open_for_writing(str(tmp_path / "log")) is False
