"""A disk that is full, broken or closed, and a process out of descriptors: errors are told, nothing is lost."""

import errno
import gc
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmq_core.store.files.disk import Disk
from rmq_core.store.results import PutStatus
from rmq_core.store.store import MessageStore
from rmq_formats.errors import RmqError
from tests.store.conftest import Opener
from tests.store.derived_from_log import check_derived
from tests.store.small_stores import QuickDisk, config_of, cut_log, fill, log_records, opened, put, read_all
from tests.support.stores.store_files import tree

NOBODY = 65534


class FailingDisk(QuickDisk):
    """A disk whose changes fail where a test says so.

    Attributes:
        error: number of the error; None while all is well.
        places: parts of the paths at which it is met; all by default.
        kinds: changes that it is met by; all by default.
        met: how often it was met.
        forced_directories: in order.
    """

    def __init__(self) -> None:
        self.error: int | None = None
        self.places: tuple[str, ...] = ("",)
        self.kinds = ("create", "allocate", "write", "replace", "make_directory")
        self.met = 0
        self.forced_directories: list[str] = []

    def _check(self, kind: str, path: str) -> None:
        if self.error is not None and kind in self.kinds and any(place in path for place in self.places):
            self.met += 1
            raise OSError(self.error, os.strerror(self.error), path)

    def create(self, path: str, size: int, *, allocate: bool) -> int:
        self._check("create", path)
        return super().create(path, size, allocate=allocate)

    def allocate(self, descriptor: int, offset: int, size: int) -> None:
        self._check("allocate", os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115 # a descriptor's
        super().allocate(descriptor, offset, size)

    def write(self, descriptor: int, data: Any, offset: int) -> None:
        self._check("write", os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115 # a descriptor's
        super().write(descriptor, data, offset)

    def replace(self, path: str, data: bytes) -> None:
        self._check("replace", path)
        super().replace(path, data)

    def sync_directory(self, path: str) -> None:
        self._check("sync_directory", path)
        super().sync_directory(path)
        self.forced_directories.append(path)

    def make_directory(self, path: str) -> list[str]:
        self._check("make_directory", path)
        return super().make_directory(path)


def nearly_fill(store: MessageStore) -> None:
    """Leave room for a small message in the log's first file."""
    while store.max_physical_offset < 15_000:
        put(store, body=bytes(400))


def test_a_full_disk_at_a_new_log_file_is_an_answer_and_heals(
    open_store: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FailingDisk()
    store = open_store(disk=disk, preallocate=False)
    nearly_fill(store)
    disk.error = errno.ENOSPC
    for _ in range(3):
        refused = put(store, body=bytes(2000))
        assert (refused.status, refused.physical_offset) == (PutStatus.CREATE_MAPPED_FILE_FAILED, -1)
    assert caplog.text.count("No space left") == 1, "told once"
    assert put(store, body=b"fits").status is PutStatus.PUT_OK
    disk.error = None
    assert put(store, body=bytes(2000)).physical_offset == 16384
    assert store.shutdown()
    check_derived(store.config)


@pytest.mark.parametrize("place", ["watermark", "checkpoint"])
def test_a_full_disk_under_the_marks_is_no_fault(open_store: Opener, place: str) -> None:
    disk = FailingDisk()
    store = open_store(disk=disk, flush_consumequeue_interval_ms=60_000)
    put(store, properties=b"KEYS\x01k\x02")
    store.dispatch()
    disk.error, disk.places = errno.ENOSPC, (place,)
    if place == "watermark":
        assert not store.flush()
        assert disk.met
    disk.error = None
    assert store.flush()
    assert store.fault is None
    assert put(store).status is PutStatus.PUT_OK


def test_names_that_could_not_be_forced_are_forced_the_next_time(open_store: Opener) -> None:
    disk = FailingDisk()
    store = open_store(disk=disk, flush_consumequeue_interval_ms=60_000)
    assert store.flush()
    put(store)
    store.dispatch()
    disk.error, disk.kinds = errno.EMFILE, ("sync_directory",)
    assert not store.flush()
    assert store.fault is None
    disk.error = None
    before = len(disk.forced_directories)
    assert store.flush()
    root = store.config.root
    assert {f"{root}/consumequeue/T/0", f"{root}/consumequeue/T"} <= set(disk.forced_directories[before:])


def test_a_crash_between_the_files_of_ext_and_of_the_queue_does_not_stop_the_next_start(open_store: Opener) -> None:
    disk = FailingDisk()
    store = open_store(disk=disk, consumequeue_ext_enabled=True)
    put(store)
    disk.error, disk.places = errno.ENOSPC, ("consumequeue/",)
    assert not store.dispatch()
    assert (Path(store.config.root) / "consumequeue_ext/T/0").is_dir()
    assert not store.shutdown()
    again = open_store(consumequeue_ext_enabled=True)
    assert len(read_all(again)) == 1
    assert again.shutdown()


def test_a_queue_whose_first_file_could_not_be_written_begins_where_its_first_message_is(open_store: Opener) -> None:
    disk = FailingDisk()
    store = open_store(disk=disk)
    queue = store.appender.queue("T", 0)
    assert queue is not None
    queue.next_offset = 7  # those before it are no longer in the log
    put(store)
    disk.error, disk.places, disk.kinds = errno.ENOSPC, ("consumequeue/",), ("write",)
    assert not store.dispatch()
    disk.error = None
    assert store.dispatch()
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (7, 8)
    assert store.shutdown()
    check_derived(store.config)


class LateDisk(QuickDisk):
    """A disk that breaks once the store counts as shut down in order."""

    def remove(self, path: str) -> None:
        super().remove(path)
        if path.endswith("/abort"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)


def test_a_disk_that_breaks_at_the_very_end_of_a_shutdown_is_told(
    open_store: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(disk=LateDisk())
    put(store)
    assert not store.shutdown()
    assert "not shut down in order" in caplog.text
    assert len(read_all(open_store())) == 1  # its lock was let go


@pytest.mark.parametrize("place", ["consumequeue", "index", "watermark"])
def test_a_broken_disk_ends_writing_for_good(open_store: Opener, place: str) -> None:
    disk = FailingDisk()
    store = open_store(disk=disk, flush_consumequeue_interval_ms=60_000)
    put(store, properties=b"KEYS\x01k\x02")
    store.dispatch()
    disk.error, disk.places = errno.EIO, (place,)
    put(store, "New", properties=b"KEYS\x01k\x02")
    dispatched, flushed = store.dispatch(), store.flush()
    assert not (dispatched and flushed) or place == "index"
    assert len(read_all(store)) >= 1
    disk.error = None
    if store.fault is None:
        assert store.dispatch(), "what could not be written can be now, and was not acknowledged as forced"
    store.shutdown()
    again = open_store()
    assert len(read_all(again)) == 2
    assert again.shutdown()
    check_derived(again.config)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_start_that_fails_changes_no_message_and_can_be_done_again(tmp_path: Path, error: int) -> None:
    config = config_of(tmp_path / "store")
    store = opened(config)
    assert len(list(fill(store, 100))) == 100
    assert store.shutdown()
    offset, _ = log_records(config)[40]
    path = Path(config.commitlog_path) / f"{offset - offset % 16384:020d}"
    image = bytearray(path.read_bytes())
    image[offset % 16384 + 4] ^= 0xFF  # damage, to be copied aside before the log is touched
    path.write_bytes(image)
    before = tree(Path(config.commitlog_path))
    disk = FailingDisk()
    disk.error = error
    with pytest.raises(OSError, match=os.strerror(error)):
        opened(config, disk=disk)
    assert tree(Path(config.commitlog_path)) == before
    store = opened(config)
    assert [damage.physical_offset for damage in store.recovery.damages] == [offset]
    assert store.shutdown()


def test_a_broken_record_under_a_full_disk_is_not_cut_off(tmp_path: Path) -> None:
    config = config_of(tmp_path / "store")
    store = opened(config)
    assert len(list(fill(store, 20))) == 20
    assert store.shutdown()
    offset, _ = log_records(config)[-1]
    cut_log(config, offset + 60)
    before = tree(Path(config.commitlog_path))
    disk = FailingDisk()
    disk.error, disk.places = errno.ENOSPC, ("quarantine",)
    with pytest.raises(OSError, match="No space left"):
        opened(config, disk=disk)
    assert tree(Path(config.commitlog_path)) == before


def in_child(action: Callable[[], object]) -> str:
    """What an action raises in a process of its own; empty where it does not."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        text = ""
        try:
            action()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode()
    return text if status == 0 else f"{text}: the process ended with status {status}"


def give_up_root() -> None:
    """Let the process have the rights of nobody, where it has those of root."""
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)


@pytest.fixture
def public(tmp_path: Path) -> Iterator[Path]:
    """A directory that others can reach, too."""
    directory = Path("/tmp") / f"rmq-store-{os.getpid()}"
    directory.mkdir()
    yield directory
    for path in [directory, *directory.rglob("*")]:
        path.chmod(0o755)
    shutil.rmtree(directory)


@pytest.mark.parametrize("part", ["", "store"])
def test_a_directory_that_may_not_be_written_is_told_in_one_line(public: Path, part: str) -> None:
    if part:
        store = opened(config_of(public / "store"))
        put(store)
        assert store.shutdown()
    for path in public.rglob("*"):
        path.chmod(0o777)
    for path in [public / part, *((public / part).glob("*") if part == "store" else [])]:
        path.chmod(0o555)

    def start() -> None:
        give_up_root()
        opened(config_of(public / "store"))

    told = in_child(start)
    assert told
    assert "\n" not in told
    assert str(public) in told
    assert "ermission denied" in told


@contextmanager
def few_descriptors() -> Iterator[None]:
    """Let the process open nothing more; only in a child, where no thread and no garbage of other tests closes any."""
    gc.disable()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208
    held = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, hard))
        while True:
            try:
                held.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                break
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)
        gc.enable()


def test_a_process_out_of_descriptors_takes_no_more_until_it_has_some(open_store: Opener) -> None:
    def send_without_descriptors() -> None:
        store = open_store(flush_consumequeue_interval_ms=60_000, flush_interval_ms=60_000)
        put(store)
        store.dispatch()
        with few_descriptors():
            assert put(store, "New").status is PutStatus.PUT_OK
            assert not store.dispatch()
            assert "Too many open files" in store.refusals["dispatch"]
            assert put(store).status is PutStatus.SERVICE_NOT_AVAILABLE
            assert len(read_all(store)) == 1
        assert store.dispatch()
        assert store.refusals == {}
        assert len(read_all(store)) == 2
        assert store.flush()
        assert store.fault is None
        assert store.shutdown()
        check_derived(store.config)

    assert in_child(send_without_descriptors) == ""


def test_a_new_log_file_waits_for_a_descriptor(open_store: Opener) -> None:
    def fill_without_descriptors() -> None:
        store = open_store(flush_consumequeue_interval_ms=60_000, flush_interval_ms=60_000, preallocate=False)
        nearly_fill(store)
        with few_descriptors():
            assert put(store, body=bytes(2000)).status is PutStatus.CREATE_MAPPED_FILE_FAILED
        assert put(store, body=bytes(2000)).status is PutStatus.PUT_OK

    assert in_child(fill_without_descriptors) == ""


def test_a_start_out_of_descriptors_is_told_in_one_line_and_leaves_no_lock(tmp_path: Path) -> None:
    def start() -> MessageStore:
        return opened(config_of(tmp_path / "store"), disk=Disk())

    def start_without_descriptors() -> None:
        start().shutdown()
        with few_descriptors(), pytest.raises((OSError, RmqError), match="Too many open files"):
            start()
        assert start().shutdown()

    assert in_child(start_without_descriptors) == ""
