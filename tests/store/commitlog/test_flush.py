"""Flushing: one wait for many, acknowledgements that are promises, and a failed force that is final."""

import errno
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest

from rmq_core.store.config import FlushDiskType
from rmq_core.store.results import GetStatus, PutStatus
from tests.store.conftest import Opener
from tests.store.derived_from_log import check_derived
from tests.store.small_stores import QuickDisk, fill, log_records, put, read_all

SYNC = FlushDiskType.SYNC


class GatedDisk(QuickDisk):
    """A disk whose forces wait for a gate, and are counted; it can be broken."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.count = 0
        self.broken: int | None = None

    def sync(self, descriptor: int) -> None:
        self.gate.wait(30)
        self.count += 1
        if self.broken is not None:
            raise OSError(self.broken, "the disk failed")
        super().sync(descriptor)


def test_one_force_serves_many_appends(open_store: Opener) -> None:
    disk = GatedDisk()
    store = open_store(flush_disk_type=SYNC, disk=disk, flush_consumequeue_interval_ms=60_000)
    heard: list[int] = []
    store.on_flushed(heard.append)
    disk.gate.clear()
    put(store)
    store.dispatch()  # the thread takes this one along, and waits at the gate
    time.sleep(0.1)
    ends = [put(store, queue_id=number % 3).end_offset for number in range(64)]
    store.dispatch()
    before = disk.count
    assert store.flushed_offset == 0
    disk.gate.set()
    assert store.wait_flushed(ends[-1], 10)
    assert disk.count - before <= 3
    assert heard[-1] == ends[-1]
    assert heard == sorted(heard)


def test_who_appends_and_dispatches_does_not_wait_for_the_disk(open_store: Opener) -> None:
    class Noting(QuickDisk):
        by_caller = 0
        directories: ClassVar[set[str]] = set()

        def sync(self, descriptor: int) -> None:
            self.by_caller += threading.current_thread() is threading.main_thread()
            super().sync(descriptor)

        def sync_directory(self, path: str) -> None:
            self.by_caller += threading.current_thread() is threading.main_thread()
            self.directories.add(Path(path).name)
            super().sync_directory(path)

    disk = Noting()
    store = open_store(disk=disk, commitlog_file_bytes=1 << 20, flush_consumequeue_interval_ms=60_000)
    put(store)  # the log's first file is not made ahead
    disk.by_caller = 0
    disk.directories.clear()
    for number in range(250):  # three IndexFiles, a file for each twenty units
        put(store, f"Topic{number % 3}", properties=b"KEYS\x01k%d\x02" % number)
        assert store.dispatch()
    assert disk.by_caller == 0
    assert len(list((Path(store.config.root) / "index").iterdir())) == 3
    assert store.flush()
    assert {"store", "index", "consumequeue", "Topic1", "0"} <= disk.directories


def test_all_that_is_acknowledged_was_forced_before(open_store: Opener) -> None:
    class Watching(QuickDisk):
        forced = 0

        def sync(self, descriptor: int) -> None:
            if stores:
                Watching.forced = max(Watching.forced, seen_before_force)
            super().sync(descriptor)

    stores: list[object] = []
    seen_before_force = 0
    store = open_store(flush_disk_type=SYNC, disk=Watching())
    stores.append(store)
    for number in range(50):
        result = put(store, body=b"%d" % number)
        seen_before_force = result.end_offset
        assert store.wait_flushed(result.end_offset, 10)
        assert Watching.forced >= result.end_offset


def test_asynchronous_flush_forces_by_itself(open_store: Opener) -> None:
    store = open_store(flush_interval_ms=10)
    result = put(store)
    store.dispatch()
    assert store.max_offset("T", 0) == 1, "readable before it is forced"
    deadline = time.monotonic() + 10
    while store.flushed_offset < result.end_offset and time.monotonic() < deadline:
        time.sleep(0.005)
    assert store.flushed_offset == result.end_offset


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_a_failed_force_ends_writing_and_acknowledges_nothing(open_store: Opener, flush: FlushDiskType) -> None:
    disk = GatedDisk()
    store = open_store(flush_disk_type=flush, disk=disk, flush_interval_ms=10)
    faults: list[OSError] = []
    store.on_fault(faults.append)
    good = put(store, body=b"good")
    assert store.wait_flushed(good.end_offset, 10)
    store.dispatch()
    disk.broken = errno.EIO
    lost = put(store, body=b"not acknowledged")
    store.dispatch()
    assert not store.wait_flushed(lost.end_offset, 10)
    disk.broken = None  # a second fsync would succeed, and mean nothing
    assert not store.wait_flushed(lost.end_offset, 0.2)
    assert store.flushed_offset == good.end_offset
    assert put(store).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert [error.errno for error in faults] == [errno.EIO]
    assert store.fault is faults[0]
    assert "the disk failed" in store.refusals["fault"]
    assert store.get("T", 0, 0, 32).status is GetStatus.FOUND, "reads go on"
    if flush is SYNC:
        store.dispatch()
        assert store.max_offset("T", 0) == 1, "no one sees what may be lost"
    assert not store.flush()
    assert not store.shutdown()
    assert (Path(store.config.root) / "abort").exists()
    again = open_store(flush_disk_type=flush)
    assert not again.recovery.is_clean
    assert again.max_physical_offset >= good.end_offset
    assert put(again).status is PutStatus.PUT_OK
    assert again.shutdown()
    check_derived(again.config)


def test_a_failed_force_of_a_queue_ends_writing_too(open_store: Opener) -> None:
    class BrokenQueues(QuickDisk):
        broken = False

        def sync(self, descriptor: int) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if self.broken and "consumequeue" in path.parts:
                raise OSError(errno.EIO, "the disk failed")
            super().sync(descriptor)

    disk = BrokenQueues()
    store = open_store(disk=disk)
    put(store)
    store.dispatch()
    disk.broken = True
    assert not store.flush()
    assert put(store).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert not store.shutdown()
    assert len(read_all(open_store())) == 1


def test_files_are_forced_in_the_order_of_the_log(open_store: Opener) -> None:
    forced: list[str] = []

    class Noting(QuickDisk):
        def sync(self, descriptor: int) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if path.parent.name == "commitlog":
                forced.append(path.name)
            super().sync(descriptor)

    store = open_store(disk=Noting(), flush_interval_ms=60_000, flush_consumequeue_interval_ms=60_000)
    for _ in fill(store, 200):
        pass
    forced.clear()
    assert store.flush()
    assert len(forced) > 3
    assert forced == sorted(forced)


def test_a_file_is_filled_up_with_a_blank_and_the_next_made_ahead(open_store: Opener) -> None:
    store = open_store()
    for _ in fill(store, 300):
        pass
    assert store.shutdown()
    files = sorted(Path(store.config.commitlog_path).iterdir())
    starts = [int(path.name) for path in files]
    assert starts == [number * 16384 for number in range(len(files))]
    assert len(files) > 5
    assert {path.stat().st_size for path in files} == {16384}
    found = log_records(store.config)
    for path, start in zip(files[:-1], starts, strict=False):
        end = max(offset + len(record) for offset, record in found if offset < start + 16384) - start
        image = path.read_bytes()
        assert image[end : end + 8] == (16384 - end).to_bytes(4, "big") + bytes.fromhex("cbd43194")
        assert not any(image[end + 8 :])
    assert starts[-1] <= store.max_physical_offset <= starts[-1] + 16384, "one made ahead and not used is gone"


def test_a_flush_by_the_clock_waits_for_its_pages_or_for_long(open_store: Opener) -> None:
    store = open_store(
        flush_interval_ms=60_000,
        flush_consumequeue_interval_ms=60_000,
        flush_least_pages=4,
        flush_log_thorough_interval_ms=60_000,
    )
    flusher, background = store._flusher, store._background
    put(store)
    store.dispatch()
    flusher._run_once()
    background.flush_if_due()
    assert store.flushed_offset == 0
    while store.max_physical_offset < 4 * 4096:
        put(store)
    flusher._run_once()
    assert (end := store.flushed_offset) == store.max_physical_offset
    put(store)
    flusher._run_once()
    assert store.flushed_offset == end
    flusher._flushed_at -= 61  # the thorough interval is over
    flusher._run_once()
    assert store.flushed_offset == store.max_physical_offset
    assert store.wait_flushed(put(store).end_offset, 10)  # a request waits for no page


def test_without_the_clock_each_batch_is_flushed(open_store: Opener) -> None:
    store = open_store(flush_interval_ms=60_000, flush_consumequeue_interval_ms=60_000, flush_timed=False)
    flushed = threading.Event()
    store.on_flushed(lambda _: flushed.set())
    end = put(store).end_offset
    store.dispatch()
    assert flushed.wait(30)
    assert store.flushed_offset == end


def test_queues_wait_for_their_pages_or_for_long(open_store: Opener) -> None:
    store = open_store(
        flush_interval_ms=60_000,
        flush_consumequeue_interval_ms=60_000,
        flush_consumequeue_least_pages=2,
        flush_thorough_interval_ms=60_000,
    )
    background = store._background
    put(store)
    store.dispatch()
    background.flush_if_due()
    assert background.watermark.dispatched == 0
    for _ in range(2 * 4096 // 20):
        put(store)
    store.dispatch()
    background.flush_if_due()
    assert background.watermark.dispatched == store.max_physical_offset
    put(store)
    store.dispatch()
    background._thorough_at -= 61
    background.flush_if_due()
    assert background.watermark.dispatched == store.max_physical_offset
