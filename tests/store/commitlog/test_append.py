"""Appends: the bytes, the limits, the places."""

import errno
import os
import random
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq_core.store.results import PutStatus
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.layout import FLAG_TRANSACTION_PREPARED, MAX_PROPERTIES_BYTES
from rmq_formats.codecs.message_id import decode_message_id
from rmq_formats.codecs.properties import decode_properties
from rmq_formats.codecs.record import MessageToStore, decode_record, encode_record
from tests.store.conftest import Opener
from tests.store.derived_from_log import check_derived
from tests.store.small_stores import (
    HOST,
    LONG_TOPIC,
    NOW_MS,
    STORE_HOST,
    V6_HOST,
    QuickDisk,
    batch_of,
    config_of,
    opened,
    put,
)

hosts = st.sampled_from([HOST, V6_HOST])
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)


def host_of(data: bytes) -> Host:
    return Host.from_bytes(data, 0, len(data) != 8)


def stored(store: MessageStore, offset: int) -> bytes:
    record = store.record(offset)
    assert record is not None
    return bytes(record)


@pytest.mark.parametrize("append_crc", [False, True])
def test_a_record_is_that_of_the_codec(open_store: Opener, append_crc: bool) -> None:
    store = open_store(append_crc_property=append_crc, commitlog_file_bytes=1 << 20)

    @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        st.sampled_from(["T", "a|b%c", LONG_TOPIC]),
        st.integers(0, 3),
        st.binary(min_size=1, max_size=200),
        st.binary(max_size=60),
        hosts,
        st.one_of(st.none(), hosts),
        int32,
        int32,
        int32,
        int64,
        int64,
    )
    def check(
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        born: bytes,
        store_host: bytes | None,
        flag: int,
        sys_flag: int,
        times: int,
        prepared: int,
        born_ms: int,
    ) -> None:
        result = store.appender.put(
            topic,
            queue_id,
            body,
            properties,
            born_ms,
            born,
            NOW_MS,
            flag=flag,
            sys_flag=sys_flag,
            reconsume_times=times,
            prepared_transaction_offset=prepared,
            store_host=store_host,
        )
        message = MessageToStore(
            topic=topic,
            queue_id=queue_id,
            body=body,
            properties_bytes=properties,
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp_ms=born_ms,
            born_host=host_of(born),
            store_host=host_of(store_host or STORE_HOST.to_bytes()),
            reconsume_times=times,
            prepared_transaction_offset=prepared,
        )
        assert stored(store, result.physical_offset) == encode_record(
            message,
            queue_offset=result.queue_offset,
            physical_offset=result.physical_offset,
            store_timestamp_ms=NOW_MS,
            append_crc_property=append_crc,
        )
        assert result.end_offset == store.max_physical_offset

    check()


@pytest.mark.parametrize("append_crc", [False, True])
def test_a_batch_becomes_records_that_follow_each_other(open_store: Opener, append_crc: bool) -> None:
    store = open_store(append_crc_property=append_crc)
    inner = [(b"one", b"TAGS\x01a"), (b"two", b"KEYS\x01k\x02"), (b"three", b"")]
    put(store, "B", 1)
    result = store.bulk.put_batch("B", 1, batch_of(inner), b"UNIQ_KEY\x01U\x02", 5, HOST, NOW_MS, sys_flag=0x301)
    assert (result.status, result.queue_offset, result.message_count) == (PutStatus.PUT_OK, 1, 3)
    messages = [decode_record(stored(store, offset), physical_offset=offset) for offset in result.physical_offsets]
    assert [message.body for message in messages] == [b"one", b"two", b"three"]
    assert [message.queue_offset for message in messages] == [1, 2, 3]
    assert [message.flag for message in messages] == [7, 7, 7]
    properties = [decode_properties(message.properties_bytes) for message in messages]
    for found in properties:
        found.pop("__CRC32#", None)
    assert properties == [{"TAGS": "a", "UNIQ_KEY": "U"}, {"KEYS": "k", "UNIQ_KEY": "U"}, {"UNIQ_KEY": "U"}]
    assert store.next_offset("B", 1) == 4
    assert result.msg_id == ",".join(message.msg_id for message in messages)
    assert sum(message.size for message in messages) == result.size


@pytest.mark.parametrize("append_crc", [False, True])
def test_each_message_of_a_batch_is_the_record_that_it_would_be_alone(open_store: Opener, append_crc: bool) -> None:
    store = open_store(append_crc_property=append_crc, commitlog_file_bytes=65536)
    source = random.Random(4)
    inner = [(source.randbytes(1 + source.randrange(50)), b"K\x01v\x02") for _ in range(20)]
    result = store.bulk.put_batch(LONG_TOPIC, 0, batch_of(inner), b"W\x01x\x02", 5, V6_HOST, NOW_MS, reconsume_times=2)
    for number, offset in enumerate(result.physical_offsets):
        message = MessageToStore(
            topic=LONG_TOPIC,
            queue_id=0,
            body=inner[number][0],
            properties_bytes=b"K\x01v\x02W\x01x\x02",
            flag=7,
            born_timestamp_ms=5,
            born_host=host_of(V6_HOST),
            store_host=STORE_HOST,
            reconsume_times=2,
        )
        assert stored(store, offset) == encode_record(
            message,
            queue_offset=number,
            physical_offset=offset,
            store_timestamp_ms=NOW_MS,
            append_crc_property=append_crc,
        )


def test_message_ids_lead_back_to_the_message(open_store: Opener) -> None:
    store = open_store()
    put(store)
    result = put(store, body=b"second")
    assert decode_message_id(result.msg_id) == (STORE_HOST, result.physical_offset)
    message = store.message(result.physical_offset)
    assert message is not None
    assert message.body == b"second"


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "../../etc", "nul\0", "x" * 256, "\udc80"])
def test_a_topic_that_could_name_another_place_is_refused(open_store: Opener, tmp_path: Path, topic: str) -> None:
    store = open_store()
    assert put(store, topic).status is PutStatus.MESSAGE_ILLEGAL
    assert store.bulk.put_batch(topic, 0, batch_of([(b"x", b"")]), b"", 1, HOST, 1).status is PutStatus.MESSAGE_ILLEGAL
    assert store.max_physical_offset == 0
    assert not list(tmp_path.rglob("etc"))


@pytest.mark.parametrize(
    "changes",
    [
        {"queue_id": -1},
        {"queue_id": 1 << 31},
        {"body": b""},
        {"body": bytes(501)},
        {"flag": 1 << 31},
        {"sys_flag": -(1 << 31) - 1},
        {"reconsume_times": 1 << 40},
        {"prepared_transaction_offset": 1 << 63},
    ],
)
def test_what_a_record_cannot_hold_is_refused_and_leaves_nothing(open_store: Opener, changes: dict[str, Any]) -> None:
    store = open_store(max_message_bytes=500)
    assert put(store, **changes).status is PutStatus.MESSAGE_ILLEGAL
    assert store.max_physical_offset == 0
    assert put(store).queue_offset == 0


@pytest.mark.parametrize("append_crc", [False, True])
def test_properties_have_their_limit(open_store: Opener, append_crc: bool) -> None:
    store = open_store(append_crc_property=append_crc, commitlog_file_bytes=1 << 20)
    room = MAX_PROPERTIES_BYTES - 20 * append_crc
    assert put(store, properties=b"p" * (room - 1) + b"\x02").status is PutStatus.PUT_OK
    assert put(store, properties=b"p" * room + b"\x02").status is PutStatus.PROPERTIES_SIZE_EXCEEDED


def test_a_record_that_no_file_can_hold_is_refused(open_store: Opener) -> None:
    store = open_store(commitlog_file_bytes=1000)
    assert put(store, body=bytes(1000 - 8 - 91 - 1)).status is PutStatus.PUT_OK
    assert put(store, body=bytes(1000 - 8 - 91)).status is PutStatus.MESSAGE_ILLEGAL
    inner = batch_of([(bytes(410), b""), (bytes(410), b"")])
    assert store.bulk.put_batch("T", 0, inner, b"", 1, HOST, 1).status is PutStatus.MESSAGE_ILLEGAL
    assert put(store).queue_offset == 1


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        b"\0" * 21,
        batch_of([(b"x", b"")])[:-1],
        batch_of([(b"x", b"")]) + b"\0",
        struct.pack(">iiiiih", 22, 0, 0, 0, -1, 0),
        struct.pack(">iiiiih", 22, 0, 0, 0, 1 << 30, 0),
        struct.pack(">iiiiih", 22, 0, 0, 0, 0, -1),
        struct.pack(">iiiiih", 23, 0, 0, 0, 0, 0),
    ],
)
def test_a_batch_whose_lengths_lie_is_refused_whole(open_store: Opener, batch: bytes) -> None:
    store = open_store()
    sound = batch_of([(b"sound", b"")])
    for wrong in (batch, sound + batch) if batch else (batch,):
        assert store.bulk.put_batch("T", 0, wrong, b"", 1, HOST, 1).status is PutStatus.MESSAGE_ILLEGAL
    assert store.max_physical_offset == 0


def test_a_batch_has_no_transactions(open_store: Opener) -> None:
    store = open_store()
    result = store.bulk.put_batch("T", 0, batch_of([(b"x", b"")]), b"", 1, HOST, 1, sys_flag=FLAG_TRANSACTION_PREPARED)
    assert result.status is PutStatus.MESSAGE_ILLEGAL


def test_a_batch_that_does_not_fit_goes_to_the_next_file_whole(open_store: Opener) -> None:
    store = open_store(commitlog_file_bytes=1000)
    put(store, body=bytes(500))
    result = store.bulk.put_batch("T", 0, batch_of([(bytes(150), b""), (bytes(150), b"")]), b"", 1, HOST, 1)
    assert result.physical_offsets[0] == 1000
    blank = store.read_log_range(592, 100)
    assert blank is not None
    assert struct.unpack_from(">iI", blank, 0) == (1000 - 592, 0xCBD43194)


@pytest.mark.parametrize(("sys_flag", "counted"), [(0, True), (0x4, False), (0x8, True), (0xC, False)])
def test_half_messages_and_rollbacks_have_no_number(open_store: Opener, sys_flag: int, counted: bool) -> None:
    store = open_store()
    put(store)
    assert put(store, sys_flag=sys_flag).queue_offset == (1 if counted else 0)
    assert store.next_offset("T", 0) == (2 if counted else 1)


def test_every_file_keeps_room_for_a_blank(open_store: Opener) -> None:
    store = open_store(commitlog_file_bytes=1000)
    exact = 1000 - 8 - 92 - 100  # leaves 100 bytes and the blank's eight
    put(store, body=bytes(exact))
    assert put(store, body=bytes(8)).physical_offset == 892
    assert put(store, body=bytes(1)).physical_offset == 1000
    tail = store.read_log_range(992, 8)
    assert tail is not None
    assert bytes(tail) == struct.pack(">iI", 8, 0xCBD43194)


def test_a_slave_takes_its_masters_bytes_in_any_pieces(open_store: Opener) -> None:
    master = open_store(name="master", commitlog_file_bytes=1000)
    for number in range(40):
        put(master, queue_id=number % 3, body=bytes([number]) * (1 + number * 3))
    slave = open_store(name="slave", commitlog_file_bytes=1000)
    source, at = random.Random(3), 0
    while at < master.max_physical_offset:
        piece = master.read_log_range(at, 1 + source.randrange(300))
        assert piece is not None
        assert not slave.append_to_commit_log(at + 1, piece), "a gap"
        assert slave.append_to_commit_log(at, bytes(piece))
        at += len(piece)
        assert slave.dispatch()
    assert slave.max_physical_offset == master.max_physical_offset
    master.dispatch()
    assert slave.dispatched_offset == master.dispatched_offset
    for queue_id in range(3):
        ours, theirs = slave.get("T", queue_id, 0, 32), master.get("T", queue_id, 0, 32)
        assert b"".join(ours.slices) == b"".join(theirs.slices)
    assert slave.next_offset("T", 0) == master.next_offset("T", 0)


def test_an_empty_slave_may_begin_at_a_later_file(open_store: Opener) -> None:
    slave = open_store(commitlog_file_bytes=1000)
    assert not slave.append_to_commit_log(1001, b"x")
    assert slave.append_to_commit_log(3000, b"x")
    assert (slave.min_physical_offset, slave.max_physical_offset) == (3000, 3001)


class FullOnce(QuickDisk):
    """A disk that has no room for a file in mid-log, at first."""

    is_full = True

    def create(self, path: str, size: int, *, allocate: bool) -> int:
        if self.is_full and path.endswith("3000"):
            self.is_full = False
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().create(path, size, allocate=allocate)


def test_a_slave_that_has_no_room_for_its_first_file_is_empty_still(tmp_path: Path) -> None:
    slave = opened(config_of(tmp_path / "store", slave=True, commitlog_file_bytes=1000), disk=FullOnce())
    assert not slave.append_to_commit_log(3000, b"x")
    assert (slave.min_physical_offset, slave.max_physical_offset) == (0, 0)
    assert slave.append_to_commit_log(4000, b"x")
    assert (slave.min_physical_offset, slave.max_physical_offset) == (4000, 4001)
    slave.shutdown()


def test_a_slave_whose_first_file_holds_nothing_may_begin_at_a_later_one(tmp_path: Path) -> None:
    config = config_of(tmp_path / "store", slave=True, commitlog_file_bytes=1000)
    slave = opened(config)
    assert slave.append_to_commit_log(0, b"\0\0\1")  # what a loss of power leaves of a first record
    slave.shutdown()
    slave = opened(config)
    assert slave.max_physical_offset == 0
    assert slave.append_to_commit_log(3000, b"x")
    assert (slave.min_physical_offset, slave.max_physical_offset) == (3000, 3001)
    assert [path.name for path in Path(config.commitlog_path).iterdir()] == [f"{3000:020d}"]
    assert slave.flush()
    assert slave.shutdown() is False  # no whole record


class TakesAPart(QuickDisk):
    """A disk that has no room for some of the log; it may fail for good then."""

    def __init__(self, room: int, *, breaks: bool) -> None:
        self.room = room
        self.is_broken = False
        self._breaks = breaks

    def write(self, descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        if "commitlog" not in os.readlink(f"/proc/self/fd/{descriptor}"):  # noqa: PTH115 # a descriptor's
            super().write(descriptor, data, offset)
            return
        if self.is_broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().write(descriptor, data[: max(self.room - offset, 0)], offset)
        if offset + len(data) > self.room:
            self.is_broken = self._breaks
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def records_of(open_store: Opener, name: str, body: bytes) -> list[bytes]:
    """The records of a master's log, all of one size."""
    master = open_store(name=name)
    return [stored(master, put(master, body=body).physical_offset) for _ in range(3)]


@pytest.mark.parametrize("breaks", [False, True])
def test_records_of_a_push_that_failed_do_not_stand_behind_a_log_that_is_shut_down_in_order(
    open_store: Opener, tmp_path: Path, breaks: bool
) -> None:
    first, second, third = records_of(open_store, "master", b"body")
    config = config_of(tmp_path / "slave", slave=True)
    slave = opened(config, disk=TakesAPart(2 * len(first) + 9, breaks=breaks))
    assert slave.append_to_commit_log(0, first)
    assert not slave.append_to_commit_log(len(first), second + third)
    assert slave.max_physical_offset == len(first)
    assert slave.dispatch()
    assert slave.shutdown() is not breaks  # where the second one stays, the next start takes it in
    if not breaks:
        check_derived(config)
    slave = opened(config)
    assert slave.max_physical_offset == (1 + breaks) * len(first)
    assert slave.shutdown()
    check_derived(config)


def test_records_of_a_push_that_failed_do_not_come_back_behind_what_took_their_place(
    open_store: Opener, tmp_path: Path
) -> None:
    first, second, third = records_of(open_store, "master", b"body")
    other = records_of(open_store, "master_that_lost_its_end", b"ydob")[0]
    config = config_of(tmp_path / "slave", slave=True)
    disk = TakesAPart(2 * len(first) + 9, breaks=False)
    slave = opened(config, disk=disk)
    assert not slave.append_to_commit_log(0, first + second + third)
    assert slave.append_to_commit_log(0, other)
    shutil.copytree(config.root, tmp_path / "killed")
    slave.shutdown()
    slave = opened(replace(config, root=str(tmp_path / "killed"), commitlog_path=""))
    assert slave.max_physical_offset == len(other)
    slave.shutdown()
