"""BatchConsumeQueues and inner batches: records, units, reads and ends, as the original has them."""

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_core.store.config import FlushDiskType, StoreConfig
from rmq_core.store.results import Boundary, GetStatus, PutResult, PutStatus
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.batch_consumequeue import inner_messages, is_inner_batch
from rmq_formats.codecs.record import StoredMessage, decode_record
from rmq_formats.errors import OptionError, StoreLayoutError
from tests.conftest import LAYOUT_STORES
from tests.store.conftest import Opener
from tests.store.derived_from_log import check_derived, check_rebuilt, found, records
from tests.store.small_stores import (
    BATCH_TOPIC,
    HOST,
    NOW_MS,
    FullDisk,
    batch_of,
    config_of,
    log_records,
    name_batch_topics,
    opened,
    put,
    put_copy,
    start_without,
)
from tests.store.test_golden_stores import config_for
from tests.support.stores.store_files import tree

TOPIC, FILE_BYTES = BATCH_TOPIC, 230
UNWRAPPED = ("INNER_NUM", "INNER_BASE")


@pytest.fixture
def open_batches(open_store: Opener, tmp_path: Path) -> Opener:
    """Opens a store whose topic has batch queues with files of five units."""
    name_batch_topics(tmp_path / "store", TOPIC)
    return lambda **changes: open_store(batchconsumequeue_file_bytes=FILE_BYTES, **changes)


def put_batch(
    store: MessageStore, count: int, queue_id: int = 0, now_ms: int = NOW_MS, topic: str = TOPIC
) -> PutResult:
    """Append an inner batch."""
    batch = batch_of([(b"%d" % number, b"TAGS\x01t%d\x02" % number) for number in range(count)])
    return store.bulk.put_inner_batch(topic, queue_id, batch, b"UNIQ_KEY\x01u\x02", now_ms - 5, HOST, now_ms)


def put_some(store: MessageStore, source: random.Random, count: int) -> None:
    """Append batches and single messages, also of other topics, dispatching now and then."""
    for number in range(count):
        now_ms = NOW_MS + number * 10
        if source.randrange(3) == 0:
            put(store, source.choice([TOPIC, "Plain"]), source.randrange(2), properties=b"TAGS\x01s\x02", now_ms=now_ms)
        else:
            put_batch(store, source.randrange(1, 6), source.randrange(2), now_ms)
        if source.randrange(5) == 0:
            store.dispatch()
    store.dispatch()


def expected_units(message: StoredMessage) -> tuple[int, int]:
    """Base and number of messages of a record."""
    if is_inner_batch(message):
        return int(message.properties["INNER_BASE"]), int(message.properties["INNER_NUM"])
    return message.queue_offset, 1


def check_batches(config: StoreConfig) -> None:
    """The queues are what the log says, and no plain one is of the topic with batch queues."""
    check_derived(config, batch_topics=(TOPIC,))


# --- as the original has it -------------------------------------------------------------
@pytest.fixture
def copied(golden: Callable[[str], Path], tmp_path: Path) -> tuple[Path, StoreConfig]:
    """The original's store with batch queues: its directory, and the settings of a copy."""
    shutil.copytree(golden("bcq") / "store", tmp_path / "store")
    settings = config_for(tmp_path / "store", LAYOUT_STORES["bcq"])
    return golden("bcq"), replace(settings, batchconsumequeue_file_bytes=LAYOUT_STORES["bcq"].batch_file_bytes)


@pytest.mark.parametrize("without", [(), ("abort",), ("consumequeue", "batchconsumequeue", "index", "checkpoint")])
def test_a_start_leaves_what_the_original_would_rebuild(
    copied: tuple[Path, StoreConfig], without: tuple[str, ...]
) -> None:
    directory, config = copied
    root = Path(config.root)
    start_without(config, without)
    assert tree(root / "batchconsumequeue") == tree(directory / "expected" / "batchconsumequeue")
    check_rebuilt(config, directory)


def append_again(store: MessageStore, message: StoredMessage) -> PutResult:
    if is_inner_batch(message):
        properties = message.properties_bytes
        for name in UNWRAPPED:  # the store tells them itself, behind the others
            entry = f"{name}\x01{message.properties[name]}\x02".encode()
            properties = properties.replace(entry, b"")
        return store.bulk.put_inner_batch(
            message.topic,
            message.queue_id,
            message.body,
            properties,
            message.born_timestamp_ms,
            message.born_host.to_bytes(),
            message.store_timestamp_ms,
            flag=message.flag,
            sys_flag=message.sys_flag & ~0xC0,
        )
    return put_copy(store, message)


def test_the_same_messages_at_the_same_times_become_the_same_records_and_units(
    copied: tuple[Path, StoreConfig], tmp_path: Path
) -> None:
    """But for the order of a batch's properties, which the original has from a hash table."""
    _, config = copied
    ours = replace(config, root=str(tmp_path / "ours"), commitlog_path="")
    shutil.copytree(Path(config.root) / "config", tmp_path / "ours" / "config")
    store = opened(ours)
    count = 0
    for offset, record in log_records(config):
        theirs = decode_record(record, physical_offset=offset)
        result = append_again(store, theirs)
        assert (result.status, result.physical_offset, result.size) == (PutStatus.PUT_OK, offset, theirs.size)
        got = store.message(offset)
        assert got is not None
        count += is_inner_batch(theirs)
        for name in ("queue_offset", "sys_flag", "body", "properties"):
            assert getattr(got, name) == getattr(theirs, name)
    assert count > 50
    assert store.shutdown()
    assert opened(config).shutdown()
    assert tree(tmp_path / "ours" / "batchconsumequeue") == tree(Path(config.root) / "batchconsumequeue")
    assert found(ours) == found(config)


# --- reads ------------------------------------------------------------------------------
def test_batches_take_as_many_places_as_they_have_messages(open_batches: Opener) -> None:
    store = open_batches()
    first = put_batch(store, 3)
    single = put(store, TOPIC)
    last = put_batch(store, 2)
    assert [(one.queue_offset, one.message_count) for one in (first, single, last)] == [(0, 3), (3, 1), (4, 2)]
    assert store.next_offset(TOPIC, 0) == 6
    store.dispatch()
    assert (store.min_offset(TOPIC, 0), store.max_offset(TOPIC, 0)) == (0, 6)
    record = store.message(first.physical_offset)
    assert record is not None
    assert (record.sys_flag & 0xC0, record.properties) == (0xC0, {"UNIQ_KEY": "u", "INNER_NUM": "3", "INNER_BASE": "0"})
    assert [one.body for one in inner_messages(record)] == [b"0", b"1", b"2"]


def test_each_offset_in_a_batch_gives_all_of_it(open_batches: Opener) -> None:
    source, store = random.Random(1), open_batches(max_transfer_count_in_memory=1000)
    put_some(store, source, 80)
    wanted = {
        queue_id: [one for one in records(store.config) if (one.topic, one.queue_id) == (TOPIC, queue_id)]
        for queue_id in range(2)
    }
    for queue_id, own in wanted.items():
        places = [(message, *expected_units(message)) for message in own]
        assert store.max_offset(TOPIC, queue_id) == places[-1][1] + places[-1][2]
        for message, base, count in places:
            for offset in range(base, base + count):
                result = store.get(TOPIC, queue_id, offset, 1)
                assert (result.status, result.message_count, result.next_offset) == (
                    GetStatus.FOUND,
                    count,
                    base + count,
                )
                assert decode_record(result.slices[0]).physical_offset == message.physical_offset
                assert store.store_timestamp_ms(TOPIC, queue_id, offset) == message.store_timestamp_ms
                assert store.is_in_memory(TOPIC, queue_id, offset)
        end = store.max_offset(TOPIC, queue_id)
        assert store.get(TOPIC, queue_id, end, 1).status is GetStatus.OFFSET_OVERFLOW_ONE
        assert store.get(TOPIC, queue_id, end + 1, 1).next_offset == end
        assert store.store_timestamp_ms(TOPIC, queue_id, end) is None
        at, read = 0, []
        while at < end:
            result = store.get(TOPIC, queue_id, at, 7)
            assert result.message_count <= 7 or len(result.slices) == 1
            read += [decode_record(one).physical_offset for one in result.slices]
            at = result.next_offset
        assert read == [message.physical_offset for message in own]


def test_inner_batches_pass_where_tags_are_asked_for(open_batches: Opener) -> None:
    """Their tags are those of their messages, at which clients look; the original gives none."""
    store = open_batches()
    put_batch(store, 2)
    put(store, TOPIC, properties=b"TAGS\x01s\x02")
    put(store, TOPIC, properties=b"TAGS\x01other\x02")
    store.dispatch()
    result = store.get(TOPIC, 0, 0, 32, tags_codes={115})
    assert (result.message_count, result.next_offset) == (3, 4)
    assert store.get(TOPIC, 0, 3, 32, tags_codes={115}).status is GetStatus.NO_MATCHED_MESSAGE
    assert store.get(TOPIC, 0, 0, 32, matches=lambda record: b"other" in bytes(record)).message_count == 1


def test_times_lead_to_the_first_message_of_a_record(open_batches: Opener) -> None:
    store = open_batches()
    assert store.offset_by_time(TOPIC, 0, NOW_MS) == 0
    assert store.min_offset(TOPIC, 0) == -1
    for number in range(12):  # three files
        put_batch(store, 3, now_ms=NOW_MS + number // 2 * 100)
    store.dispatch()
    lower = [store.offset_by_time(TOPIC, 0, NOW_MS + after) for after in (-1, 0, 1, 100, 499, 500, 501)]
    assert lower == [0, 0, 6, 6, 30, 30, 33]  # and the last one, where none is so late
    upper = [store.offset_by_time(TOPIC, 0, NOW_MS + after, Boundary.UPPER) for after in (-1, 0, 99, 100, 600)]
    assert upper == [0, 3, 3, 9, 33]


def test_what_is_no_batch_is_refused(open_batches: Opener) -> None:
    store = open_batches()
    for batch in (b"", b"\0" * 30, batch_of([(b"one", b"")])[:-1]):
        result = store.bulk.put_inner_batch(TOPIC, 0, batch, b"", NOW_MS, HOST, NOW_MS)
        assert result.status is PutStatus.MESSAGE_ILLEGAL
    many = batch_of([(b"x", b"")] * 32_768)
    assert store.bulk.put_inner_batch(TOPIC, 0, many, b"", NOW_MS, HOST, NOW_MS).status is PutStatus.MESSAGE_ILLEGAL
    assert store.max_physical_offset == 0
    with pytest.raises(OptionError, match="multiple of 46"):
        config_of("/none", batchconsumequeue_file_bytes=100)


# --- ends -------------------------------------------------------------------------------
@pytest.mark.parametrize("lost", ["", "abort", "batchconsumequeue", "watermark", "checkpoint", "one file", "unit"])
def test_the_queues_are_those_of_the_log_after_each_start(open_batches: Opener, tmp_path: Path, lost: str) -> None:
    source = random.Random(7)
    for _ in range(3):
        store = open_batches()
        put_some(store, source, 60)
        ends = [store.max_offset(TOPIC, queue_id) for queue_id in range(2)]
        assert store.shutdown()
        check_batches(store.config)
        root = tmp_path / "store"
        if lost == "abort":
            (root / lost).write_text("1")
            (root / "watermark").unlink()
        elif lost == "batchconsumequeue":
            shutil.rmtree(root / lost)
        elif lost == "one file":
            sorted((root / "batchconsumequeue" / TOPIC / "0").iterdir())[1].unlink()
        elif lost == "unit":
            last = sorted((root / "batchconsumequeue" / TOPIC / "1").iterdir())[-1]
            last.write_bytes(last.read_bytes()[:10].ljust(FILE_BYTES, b"\0"))
            (root / "abort").write_text("1")
            (root / "watermark").unlink()
        elif lost:
            (root / lost).unlink()
        store = open_batches()
        assert [store.max_offset(TOPIC, queue_id) for queue_id in range(2)] == ends
        assert [store.next_offset(TOPIC, queue_id) for queue_id in range(2)] == ends
        assert store.shutdown()
        check_batches(store.config)


def test_units_of_a_lost_end_of_the_log_are_cut(open_batches: Opener, tmp_path: Path) -> None:
    store = open_batches(flush_disk_type=FlushDiskType.SYNC)
    put_batch(store, 4)
    kept = put_batch(store, 4)
    lost = put_batch(store, 4)
    store.wait_flushed(lost.end_offset, 60)
    store.dispatch()
    assert store.shutdown()
    path = tmp_path / "store" / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[lost.physical_offset :] = bytes(len(data) - lost.physical_offset)
    path.write_bytes(data)
    (tmp_path / "store" / "watermark").unlink()
    store = open_batches()
    assert store.max_physical_offset == kept.end_offset
    assert (store.max_offset(TOPIC, 0), store.next_offset(TOPIC, 0)) == (8, 8)
    assert put_batch(store, 2).queue_offset == 8
    assert store.shutdown()
    check_batches(store.config)


def test_a_damaged_batch_has_no_unit_and_its_places_are_not_given_again(open_batches: Opener, tmp_path: Path) -> None:
    store = open_batches()
    bad = [put_batch(store, 3) for _ in range(8)][2]
    assert store.shutdown()
    path = tmp_path / "store" / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[bad.physical_offset + 100] ^= 1
    path.write_bytes(data)
    for name in ("watermark", "checkpoint"):
        (tmp_path / "store" / name).unlink()
    store = open_batches()
    assert len(store.recovery.damages) == 1
    assert store.max_offset(TOPIC, 0) == 24
    for offset in (6, 7, 8, 9, 11):
        result = store.get(TOPIC, 0, offset, 1)
        assert (result.next_offset, result.message_count) == (12, 3), "the record behind the gap"
    assert store.get(TOPIC, 0, 5, 1).next_offset == 6
    assert store.get(TOPIC, 0, 7, 1, tags_codes={1}).next_offset == 12
    assert store.store_timestamp_ms(TOPIC, 0, 7) is None
    assert store.shutdown()


def test_old_files_go_and_the_number_stays(open_batches: Opener, tmp_path: Path) -> None:
    store = open_batches(file_reserved_hours=0)
    while store.max_physical_offset < 5 * 16_384:
        put_batch(store, 5)
    end = store.next_offset(TOPIC, 0)
    store.dispatch()
    assert store.flush()
    assert store.clean(NOW_MS * 2, manually=True).queue_files > 0
    low = store.min_offset(TOPIC, 0)
    assert 0 < low < end == store.max_offset(TOPIC, 0)
    assert decode_record(store.get(TOPIC, 0, low, 1).slices[0]).physical_offset >= store.min_physical_offset
    assert store.get(TOPIC, 0, low - 1, 1).status is GetStatus.OFFSET_TOO_SMALL
    assert store.shutdown()
    store = open_batches()
    assert (store.min_offset(TOPIC, 0), store.max_offset(TOPIC, 0)) == (low, end)


def test_a_topic_is_deleted_with_its_batch_queues(open_batches: Opener, tmp_path: Path) -> None:
    store = open_batches()
    put_batch(store, 3)
    store.dispatch()
    assert store.delete_topics([TOPIC]) == 1
    while store.remove_deleted(1.0):
        pass
    assert not (tmp_path / "store" / "batchconsumequeue" / TOPIC).exists()
    store.set_batch_topics([])
    put(store, TOPIC)
    store.dispatch()
    assert store.max_offset(TOPIC, 0) == 1
    assert store.shutdown()
    name_batch_topics(tmp_path / "store")
    store = open_batches()
    assert (store.max_offset(TOPIC, 0), store.batch_topics) == (1, frozenset())


def test_a_slave_makes_batch_queues_of_what_came_before_their_topic_s_name(tmp_path: Path) -> None:
    name_batch_topics(tmp_path / "store", TOPIC)
    master = opened(config_of(tmp_path / "store", batchconsumequeue_file_bytes=FILE_BYTES))
    put_some(master, random.Random(3), 60)
    whole = b"".join(
        bytes(master.read_log_range(at, 16_384) or b"") for at in range(0, master.max_physical_offset, 16_384)
    )
    assert master.shutdown()
    for is_killed in (False, True):
        config = config_of(tmp_path / f"slave{is_killed}", batchconsumequeue_file_bytes=FILE_BYTES, slave=True)
        slave = opened(config)
        half = len(whole) // 2
        assert slave.append_to_commit_log(0, whole[:half])
        slave.dispatch()
        if is_killed:
            slave.shutdown()
            name_batch_topics(Path(config.root), TOPIC)
            slave = opened(config)
        else:
            slave.set_batch_topics([TOPIC])
        half = slave.max_physical_offset  # of whole records, after the start
        assert slave.append_to_commit_log(half, whole[half:])
        slave.dispatch()
        assert slave.shutdown()
        check_batches(config)
        name_batch_topics(Path(config.root), TOPIC)
        again = opened(config)
        assert again.recovery.rebuilt is False
        assert again.shutdown()
        check_batches(config)


def test_a_slave_drops_batch_queues_of_a_topic_that_was_made_anew(tmp_path: Path) -> None:
    """Though the records of both come at once."""
    for name in ("store", "slave"):
        name_batch_topics(tmp_path / name, TOPIC)
    master = opened(config_of(tmp_path / "store", batchconsumequeue_file_bytes=FILE_BYTES))
    for _ in range(3):
        put(master, TOPIC)
    master.dispatch()
    assert master.delete_topics([TOPIC]) == 1
    put(master, TOPIC, body=b"new")
    whole = bytes(master.read_log_range(0, 16_384) or b"")
    assert master.shutdown()
    slave = opened(config_of(tmp_path / "slave", batchconsumequeue_file_bytes=FILE_BYTES, slave=True))
    assert slave.append_to_commit_log(0, whole)
    slave.dispatch()
    found = slave.get(TOPIC, 0, 0, 9)
    assert (found.max_offset, [decode_record(record).body for record in found.slices]) == (1, [b"new"])
    assert slave.shutdown()


def test_batch_queues_that_the_disk_did_not_take_are_made_at_the_next_try(tmp_path: Path) -> None:
    name_batch_topics(tmp_path / "store", TOPIC)
    master = opened(config_of(tmp_path / "store", batchconsumequeue_file_bytes=FILE_BYTES))
    put_some(master, random.Random(3), 40)
    whole = bytes(master.read_log_range(0, 16_384) or b"")
    assert master.shutdown()
    disk, config = FullDisk(), config_of(tmp_path / "slave", batchconsumequeue_file_bytes=FILE_BYTES, slave=True)
    slave = opened(config, disk=disk)
    assert slave.append_to_commit_log(0, whole)
    slave.dispatch()
    disk.is_full = True
    with pytest.raises(OSError, match="no space left"):
        slave.set_batch_topics({TOPIC})
    disk.is_full = False
    slave.set_batch_topics({TOPIC})
    slave.dispatch()
    assert slave.shutdown()
    check_batches(config)


def test_a_broker_without_the_config_does_not_guess(open_batches: Opener, tmp_path: Path) -> None:
    store = open_batches()
    put_batch(store, 3)
    assert store.shutdown()
    shutil.rmtree(tmp_path / "store" / "config")
    shutil.rmtree(tmp_path / "store" / "batchconsumequeue")
    before: dict[str, Any] = tree(tmp_path / "store" / "commitlog")
    with pytest.raises(StoreLayoutError, match="topic Batches has inner batches"):
        open_batches()
    assert tree(tmp_path / "store" / "commitlog") == before
    assert not (tmp_path / "store" / "abort").exists()


def test_units_that_the_original_has_cut_and_left_are_not_taken_for_the_queue_s(
    open_batches: Opener, tmp_path: Path
) -> None:
    store = open_batches()
    for _ in range(3):
        put_batch(store, 2)
    assert store.shutdown()
    path = tmp_path / "store" / "batchconsumequeue" / TOPIC / "0" / f"{0:020d}"
    data = path.read_bytes()
    path.write_bytes(data[:138] + data[46:92] + data[184:])  # one of an older log, behind the last
    (tmp_path / "store" / "watermark").unlink()
    store = open_batches()
    assert store.max_offset(TOPIC, 0) == 6
    assert store.shutdown()
    check_batches(store.config)


def test_records_of_batch_queues_have_no_units_in_light_queues(tmp_path: Path) -> None:
    """Though the original gives them places."""
    name_batch_topics(tmp_path / "java", "Other")
    light: dict[str, Any] = {"lmq_enabled": True, "multi_dispatch_enabled": True}
    java = config_of(tmp_path / "java", batchconsumequeue_file_bytes=FILE_BYTES, **light)
    store = opened(java)
    placed = put(store, TOPIC, properties=b"INNER_MULTI_DISPATCH\x01%LMQ%x\x02")
    none = put(store, "Other", properties=b"INNER_MULTI_DISPATCH\x01%LMQ%x\x02")
    message, other = store.message(placed.physical_offset), store.message(none.physical_offset)
    assert message is not None
    assert other is not None
    assert message.properties["INNER_MULTI_QUEUE_OFFSET"] == "0"
    assert "INNER_MULTI_QUEUE_OFFSET" not in other.properties
    assert store.shutdown()
    for name in ("consumequeue", "batchconsumequeue", "index", "config"):
        shutil.rmtree(tmp_path / "java" / name)
    name_batch_topics(tmp_path / "java", TOPIC, "Other")
    (tmp_path / "java" / "watermark").unlink()
    store = opened(java)
    assert sorted(store.topics()) == [TOPIC, "Other"]
    assert store.shutdown()


def test_a_record_of_a_batch_queue_brings_no_places_in_light_queues(tmp_path: Path) -> None:
    """They would be somebody else's, or far behind the end of that queue."""
    name_batch_topics(tmp_path / "store", TOPIC)
    light: dict[str, Any] = {"lmq_enabled": True, "multi_dispatch_enabled": True}
    store = opened(config_of(tmp_path / "store", batchconsumequeue_file_bytes=FILE_BYTES, **light))
    names = b"INNER_MULTI_DISPATCH\x01%LMQ%x\x02"
    put(store, "Other", properties=names)
    forged = put(store, TOPIC, properties=names + b"INNER_MULTI_QUEUE_OFFSET\x01100\x02")
    put(store, "Other", properties=names)
    message = store.message(forged.physical_offset)
    assert message is not None
    assert message.properties == {"INNER_MULTI_DISPATCH": "%LMQ%x"}
    assert store.dispatch()
    assert (store.max_offset("%LMQ%x", 0), store.get("%LMQ%x", 0, 0, 9).message_count) == (2, 2)
    assert store.shutdown()
