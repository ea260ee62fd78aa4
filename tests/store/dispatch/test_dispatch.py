"""Dispatch: queues and Index say what the log says, and nothing that is not there yet."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_core.store.config import FlushDiskType
from rmq_core.store.files.disk import Disk
from rmq_core.store.results import Arrival, GetStatus, PutStatus
from rmq_formats.codecs.hashing import tags_code
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.tasks.store_sizes import StoreSizes
from tests.store.conftest import Opener
from tests.store.derived_from_log import check_derived, found, records
from tests.store.small_stores import NOW_MS, QuickDisk, fill, put, read_all


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("batch", [1, 4, 200])
def test_queues_and_index_are_those_of_a_fresh_rebuild(open_store: Opener, seed: int, batch: int) -> None:
    store = open_store(append_crc_property=seed == 1)
    results = list(fill(store, 400, seed, batch=batch))
    assert store.dispatched_offset == store.max_physical_offset
    assert store.shutdown()
    check_derived(store.config)
    assert len(records(store.config)) == sum(result.message_count for result in results)


def test_queues_and_index_are_those_of_rmq_rebuild(open_store: Opener, tmp_path: Path) -> None:
    store = open_store()
    for _ in fill(store, 400):
        pass
    assert store.shutdown()
    config = store.config
    sizes = StoreSizes(
        1 << 30, config.consumequeue_file_bytes, 0, config.index_slots, config.index_entries, (1000, 5000)
    )
    options = RebuildOptions(True, True, sizes)
    out = tmp_path / "out"
    out.mkdir()
    rebuild_store(config.root, str(out), options, ProcessRunner(1))
    assert found(config) == found(replace(config, root=str(out)))


def test_without_an_index_there_is_none(open_store: Opener) -> None:
    store = open_store(index_enabled=False)
    list(fill(store, 50))
    assert store.query("Orders", "a", 10).records == []
    store.shutdown()
    check_derived(store.config)


def test_a_message_without_a_key_behind_the_last_that_fits_makes_a_file_as_in_a_rebuild(open_store: Opener) -> None:
    store = open_store(index_entries=4)
    for number in range(3):
        put(store, properties=b"KEYS\x01k%d\x02" % number)
        if number == 0:
            store.dispatch()
    put(store, properties=b"TAGS\x01t\x02")
    store.dispatch()
    assert store.shutdown()
    check_derived(store.config)
    assert len(found(store.config)[1]) == 2


def test_an_index_can_be_had_later(open_store: Opener) -> None:
    store = open_store(index_enabled=False)
    list(fill(store, 200))
    store.shutdown()
    store = open_store()
    assert store.shutdown()
    check_derived(store.config)


def test_the_newest_of_many_queues_gets_messages_after_a_start(open_store: Opener) -> None:
    """A start walks the log's last files: the table of targets has to grow to any row at once, not twofold."""
    count = 1100
    store = open_store(commitlog_file_bytes=1 << 20, consumequeue_file_bytes=20 * 10)
    for queue_id in range(count):
        put(store, queue_id=queue_id)
    store.dispatch()
    assert store.shutdown()
    store = open_store(commitlog_file_bytes=1 << 20, consumequeue_file_bytes=20 * 10)
    for queue_id in (count - 1, 0, count - 1):
        put(store, queue_id=queue_id)
    store.dispatch()
    assert [store.max_offset("T", queue_id) for queue_id in (0, 1, count - 1)] == [2, 1, 3]
    assert store.shutdown()
    check_derived(store.config)


def test_hundreds_of_queues_grow_the_tables(open_store: Opener) -> None:
    store = open_store(commitlog_file_bytes=1 << 20)
    for number in range(1500):
        put(store, f"Topic{number % 7}", number, properties=b"KEYS\x01k%d\x02" % number)
        if number % 311 == 0:
            store.dispatch()
    store.dispatch()
    assert sum(len(ids) for ids in store.topics().values()) == 1500
    assert store.max_offset("Topic3", 1403) == 1
    store.shutdown()
    check_derived(store.config)


def test_few_maps_serve_many_queues(open_store: Opener) -> None:
    store = open_store(commitlog_file_bytes=1 << 20)
    store._queues.open_files.limit = 5
    for number in range(600):
        put(store, "T", number % 40)
        store.dispatch()
    store.shutdown()
    check_derived(store.config)


@pytest.mark.long
def test_a_record_with_thousands_of_keys_is_indexed_whole(open_store: Opener) -> None:
    store = open_store(commitlog_file_bytes=1 << 20)
    keys = " ".join(str(number) for number in range(5000))
    for _ in range(15):
        put(store, properties=b"KEYS\x01" + keys.encode() + b"\x02")
    store.dispatch()
    assert len(store.query("T", "4711", 64).records) == 15
    store.shutdown()
    check_derived(store.config)


def test_listeners_hear_of_each_queue_once_a_batch(open_store: Opener) -> None:
    store = open_store()
    heard: list[list[Arrival]] = []
    store.on_dispatched(heard.append, lambda: True)
    for number in range(5):
        put(store, "T", number % 2, properties=b"TAGS\x01Tag%d\x02" % number)
    put(store, "Half", 0, sys_flag=0x4)
    store.dispatch()
    store.dispatch()
    codes = [tags_code(f"Tag{number}") for number in range(5)]
    assert heard == [[Arrival("T", 0, 3, codes[0::2]), Arrival("T", 1, 2, codes[1::2])]]


def test_a_listener_that_does_not_wait_hears_of_what_comes_once_it_does(open_store: Opener) -> None:
    store = open_store()
    heard: list[list[Arrival]] = []
    waits: list[bool] = []
    store.on_dispatched(heard.append, lambda: bool(waits))
    put(store, "T", 0)
    store.dispatch()
    assert not heard
    waits.append(True)
    put(store, "T", 0, properties=b"TAGS\x01a\x02")
    store.dispatch()
    assert heard == [[Arrival("T", 0, 2, [tags_code("a")])]]


def test_delayed_messages_have_their_time_for_a_tags_code(open_store: Opener) -> None:
    store = open_store()
    heard: list[list[Arrival]] = []
    store.on_dispatched(heard.append, lambda: True)
    for delay in (b"1", b"2", b"9", b"0", b"x"):
        put(store, "SCHEDULE_TOPIC_XXXX", 0, properties=b"DELAY\x01" + delay + b"\x02TAGS\x01t\x02")
    store.dispatch()
    assert heard[0][0].tags_codes == [NOW_MS + 1000, NOW_MS + 5000, NOW_MS + 5000, tags_code("t"), tags_code("t")]


def test_nothing_is_readable_before_it_is_dispatched(open_store: Opener) -> None:
    store = open_store()
    put(store)
    assert store.get("T", 0, 0, 32).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    store.dispatch()
    assert store.get("T", 0, 0, 32).status is GetStatus.FOUND


def test_with_synchronous_flush_only_what_is_forced_is_readable(open_store: Opener) -> None:
    class Stuck(Disk):
        is_stuck = False

        def sync(self, descriptor: int) -> None:
            while self.is_stuck:
                pass
            super().sync(descriptor)

    disk = Stuck()
    store = open_store(flush_disk_type=FlushDiskType.SYNC, disk=disk)
    disk.is_stuck = True
    result = put(store)
    store.dispatch()
    assert not store.wait_flushed(result.end_offset, 0.05)
    store.dispatch()
    assert store.max_offset("T", 0) == 0
    disk.is_stuck = False
    assert store.wait_flushed(result.end_offset, 10)
    store.dispatch()
    assert store.max_offset("T", 0) == 1


class FullDisk(QuickDisk):
    """A disk that can be full at one of the sites where something is written."""

    def __init__(self) -> None:
        self.full_at: str | None = None

    def _check(self, site: str) -> None:
        if self.full_at == site:
            raise OSError(28, "No space left on device")

    def create(self, path: str, size: int, *, allocate: bool) -> int:
        self._check("create")
        return super().create(path, size, allocate=allocate)

    def allocate(self, descriptor: int, offset: int, size: int) -> None:
        self._check("allocate")
        super().allocate(descriptor, offset, size)

    def write(self, descriptor: int, data: Any, offset: int) -> None:
        self._check("write")
        super().write(descriptor, data, offset)


@pytest.mark.parametrize("site", ["create", "allocate", "write"])
@pytest.mark.parametrize("seed", range(3))
def test_a_full_disk_heals_by_itself_wherever_it_was_met(open_store: Opener, site: str, seed: int) -> None:
    disk = FullDisk()
    store = open_store(disk=disk, preallocate=False, index_entries=30, index_slots=10)
    source = random.Random(seed)
    put_count = refused = 0
    for number in range(1500):
        disk.full_at = site if number // 70 % 2 else None
        result = put(store, "T", number % 30, source.randbytes(60), properties=b"KEYS\x01k%d\x02" % number)
        put_count += result.status is PutStatus.PUT_OK
        refused += result.status in {PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.CREATE_MAPPED_FILE_FAILED}
        if source.randrange(3) == 0:
            store.dispatch()
    disk.full_at = None
    assert store.dispatch()
    assert put(store).status is PutStatus.PUT_OK
    assert refused > 0
    assert store.refusals == {}
    assert store.shutdown()
    assert len(records(store.config)) == put_count + 1
    check_derived(store.config)


def test_what_cannot_be_dispatched_keeps_the_mark_of_a_crash(open_store: Opener) -> None:
    disk = FullDisk()
    store = open_store(disk=disk)
    put(store)
    disk.full_at = "create"
    assert not store.dispatch()
    assert list(store.refusals) == ["dispatch"]
    assert put(store).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert not store.shutdown()
    assert (Path(store.config.root) / "abort").exists()
    assert open_store().max_offset("T", 0) == 1


def test_damage_that_a_master_sends_is_stepped_over(open_store: Opener) -> None:
    master = open_store(name="master")
    for number in range(30):
        put(master, body=b"%04d" % number)
    data = bytearray(master.read_log_range(0, 1 << 20) or b"")
    data[964:967] = b"\xff\xff\xff"
    slave = open_store(name="slave")
    assert slave.append_to_commit_log(0, bytes(data))
    slave.dispatch()
    assert slave.dispatched_offset == slave.max_physical_offset
    assert len(read_all(slave)) == 29
