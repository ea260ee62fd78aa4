"""Two rebuilds into one target: one is refused, and what another one left when it died is in nobody's way."""

import contextlib
import errno
import json
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from rmq_formats.errors import StoreError, StoreLockedError
from rmq_formats.read.dirty import dirty_reason
from rmq_formats.storage.store_files import open_store
from rmq_formats.storage.store_lock import LOCK_NAME, directory_lock, is_locked_by_broker, store_lock
from rmq_offline.offsets import changes
from rmq_offline.offsets.changes import Selection
from rmq_offline.tasks import object_lease
from rmq_offline.tasks.object_lease import lease
from tests.support.stores.rebuilt_stores import rebuild, small_store


class Directory:
    """LeaseObjectStore that are files, and may fail."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fault: Exception | None = None  # of puts
        self.keeps = False
        self.puts = 0

    def names(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir())

    def read(self, name: str) -> str | None:
        path = self.path / name
        return path.read_text() if path.exists() else None

    def put(self, name: str, text: str) -> None:
        self.puts += 1
        if self.fault:
            raise self.fault
        temporary = self.path.with_name(name)
        temporary.write_text(text)
        temporary.replace(self.path / name)

    def delete(self, name: str) -> None:
        if self.keeps:
            raise StoreError("no network")
        (self.path / name).unlink(missing_ok=True)


@pytest.fixture
def notes(tmp_path: Path) -> Directory:
    (tmp_path / "leases").mkdir()
    return Directory(tmp_path / "leases")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_BEAT_S", 0.05), ("_SILENCE_S", 1.0), ("_LOOK_S", 0.1)):
        monkeypatch.setattr(object_lease, name, seconds)


def of_another_machine(text: str) -> str:
    return json.dumps(json.loads(text) | {"process": "another boot 17 4711", "host": "elsewhere", "pid": 17})


def test_a_second_one_is_refused_and_a_third_is_not(notes: Directory) -> None:
    with lease(notes, "s3://bucket/out") as check:
        with (
            pytest.raises(StoreLockedError, match=f"s3://bucket/out: .*process {os.getpid()} on "),
            lease(notes, "s3://bucket/out"),
        ):
            pass
        check()
    assert notes.names() == []
    with lease(notes, "s3://bucket/out"):
        pass


def die_holding(path: Path) -> None:
    with lease(Directory(path), "out"):
        os._exit(9)


def test_one_whose_process_has_died_here_is_passed_over_at_once(notes: Directory) -> None:
    process = get_context("fork").Process(target=die_holding, args=(notes.path,))
    process.start()
    process.join()
    assert len(notes.names()) == 1
    begin = time.monotonic()
    with lease(notes, "out"):
        assert len(notes.names()) == 1
    assert time.monotonic() - begin < object_lease._SILENCE_S
    assert notes.names() == []


@pytest.mark.usefixtures("quick")
def test_one_of_another_machine_is_dead_when_it_is_silent(notes: Directory) -> None:
    notes.put("theirs", of_another_machine(json.dumps({"beats": 3})))
    notes.put("unreadable", "\0")
    with lease(notes, "out"):
        assert "theirs" not in notes.names()
        assert "unreadable" not in notes.names()


@pytest.mark.usefixtures("quick")
def test_one_of_another_machine_lives_while_it_beats(notes: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_lease, "_SILENCE_S", 600.0)
    monkeypatch.setattr(object_lease, "_lives", lambda _: None)
    with (
        lease(notes, "out"),
        pytest.raises(StoreLockedError, match="let it end first"),
        lease(notes, "out"),
    ):
        pass


class Turns:
    """LeaseObjectStore of several threads, whose steps come in an order of their own, one at a time."""

    def __init__(self, seed: int, threads: int) -> None:
        self.texts: dict[str, str] = {}
        self._random = random.Random(seed)
        self._running = threads
        self._waiting: list[threading.Event] = []
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        self._wait()
        return sorted(self.texts)

    def read(self, name: str) -> str | None:
        self._wait()
        return self.texts.get(name)

    def put(self, name: str, text: str) -> None:
        self._wait()
        self.texts[name] = text

    def delete(self, name: str) -> None:
        self._wait()
        self.texts.pop(name, None)

    def end(self) -> None:
        """A thread has no more steps."""
        with self._lock:
            self._running -= 1
            self._next()

    def _wait(self) -> None:
        turn = threading.Event()
        with self._lock:
            self._waiting.append(turn)
            self._running -= 1
            self._next()
        assert turn.wait(60)

    def _next(self) -> None:
        if not self._running and self._waiting:
            self._running = 1
            self._waiting.pop(self._random.randrange(len(self._waiting))).set()


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_of_those_that_begin_at_once_one_goes_on(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(object_lease, "_LOOK_S", 0.0)
    monkeypatch.setattr(object_lease, "_BEAT_S", 600.0)
    monkeypatch.setattr(object_lease, "_talking", contextlib.nullcontext())  # who has it would wait for a turn
    monkeypatch.setattr(object_lease, "_process", lambda pid: f"boot 17 {pid}")
    for seed in range(300):
        notes = Turns(seed, threads)
        inside: list[int] = []
        ended: list[str] = []

        def take(notes: Turns = notes, inside: list[int] = inside, ended: list[str] = ended) -> None:
            try:
                with lease(notes, "out") as check:
                    inside.append(1)
                    check()
                    assert len(inside) == 1
                    inside.pop()
                    ended.append("done")
            except StoreLockedError:
                ended.append("refused")
            finally:
                notes.end()

        runs = [threading.Thread(target=take) for _ in range(threads)]
        for run in runs:
            run.start()
        for run in runs:
            run.join()
        assert len(ended) == threads, seed
        assert "done" in ended, seed
        assert notes.texts == {}


@pytest.mark.usefixtures("quick")
def test_who_was_taken_for_dead_is_told_before_it_publishes(notes: Directory) -> None:
    with lease(notes, "out") as check:
        notes.fault = StoreError("no network")
        for name in notes.names():
            notes.delete(name)
        with pytest.raises(StoreLockedError, match="nothing was published"):
            check()


def test_one_that_this_process_could_not_delete_locks_nobody_out(notes: Directory) -> None:
    with lease(notes, "out"):
        (left,) = notes.names()
        notes.keeps = True
    notes.keeps = False
    assert notes.names() == [left]
    with lease(notes, "out"):
        assert left not in notes.names()
        with pytest.raises(StoreLockedError, match=f"process {os.getpid()} on "), lease(notes, "out"):
            pass
    assert notes.names() == []


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("fault", [StoreError("no network"), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))])
def test_beats_go_on_after_one_that_failed(notes: Directory, fault: Exception) -> None:
    with lease(notes, "out") as check:
        (own,) = notes.names()
        notes.fault = fault
        failed = notes.puts + 1
        wait_until(lambda: notes.puts >= failed)
        notes.fault = None
        before = notes.read(own)
        wait_until(lambda: notes.read(own) != before)
        check()


def wait_until(come: Callable[[], bool]) -> None:
    """Look again and again, for a minute."""
    deadline = time.monotonic() + 60
    while not come():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_directory_takes_one_rebuild_at_a_time(tmp_path: Path) -> None:
    store, out = small_store(tmp_path / "store", 30), tmp_path / "deep" / "out"
    process = get_context("fork").Process(target=_hold, args=(out, tmp_path / "held"))
    process.start()
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    with pytest.raises(StoreLockedError, match="another rebuild writes there"):
        rebuild(store, out)
    assert [path.name for path in out.iterdir()] == [LOCK_NAME]
    process.kill()
    process.join()
    assert rebuild(store, out).messages == 30
    assert sorted(path.name for path in out.iterdir()) == ["consumequeue", "index"]


def _hold(out: Path, held: Path) -> None:
    with directory_lock(str(out)):
        held.touch()
        time.sleep(600)


def is_refused_elsewhere(lock: Callable[[str], AbstractContextManager[None]], root: Path) -> bool:
    """Whether another process is refused the lock."""
    child = os.fork()
    if child == 0:
        try:
            with lock(str(root)):
                os._exit(1)
        except StoreLockedError:
            os._exit(0)
        finally:
            os._exit(2)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in {0, 1}
    return code == 0


@pytest.mark.parametrize("is_broker", [True, False])
def test_a_look_at_a_lock_of_this_process_keeps_it(tmp_path: Path, is_broker: bool) -> None:
    store = small_store(tmp_path / "store", 30)
    (store / "abort").write_text(str(os.getpid()))
    with store_lock(str(store), is_broker=is_broker):
        assert is_locked_by_broker(str(store)) is is_broker
        assert (dirty_reason(open_store(str(store))) is None) is is_broker
        assert is_refused_elsewhere(store_lock, store)
    assert not is_refused_elsewhere(store_lock, store)


@pytest.mark.parametrize("lock", [store_lock, directory_lock])
def test_a_process_locks_once_and_a_refusal_keeps_the_lock(
    tmp_path: Path, lock: Callable[[str], AbstractContextManager[None]]
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with lock(str(tmp_path)):
        for root in (tmp_path, tmp_path / "link"):
            with pytest.raises(StoreLockedError), lock(str(root)):
                pass
        assert is_refused_elsewhere(lock, tmp_path)
    assert not is_refused_elsewhere(lock, tmp_path)


def test_a_process_whose_lock_file_was_deleted_locks_no_new_one(tmp_path: Path) -> None:
    with store_lock(str(tmp_path)):
        (tmp_path / "lock").unlink()
        with pytest.raises(StoreLockedError, match="this process"), store_lock(str(tmp_path)):
            pass
    assert not (tmp_path / "lock").exists()
    with store_lock(str(tmp_path)):
        pass


def test_offsets_are_written_under_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = small_store(tmp_path / "store", 30)
    (store / "abort").write_text("1")  # the broker was killed, so that the queues are compared with the log
    (store / "config").mkdir(exist_ok=True)
    (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"Topic0@g":{0:1}}}')
    write, refused = changes._write, []

    def looked_at(*arguments: Any) -> Any:
        refused.append(is_refused_elsewhere(store_lock, store))
        return write(*arguments)

    monkeypatch.setattr(changes, "_write", looked_at)
    changes.apply_changes(str(store), Selection("g", "Topic0", None), lambda _: 0)
    assert refused == [True]


def test_the_lock_of_another_tool_is_that_of_no_broker(tmp_path: Path) -> None:
    """The queues of a killed broker are not complete because a tool holds the lock."""
    store = small_store(tmp_path / "store", 30)
    (store / "abort").write_text("1")

    def looks_dirty() -> bool:
        child = os.fork()
        if child == 0:
            os._exit(int(dirty_reason(open_store(str(store))) is not None))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1

    with store_lock(str(store)):
        assert looks_dirty()
    with store_lock(str(store), is_broker=True):
        assert not looks_dirty()
