"""Fuzz targets: the bytes of a store's files and of SQL92 expressions."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

from rmq_core.store.files.watermark import Watermark
from rmq_formats import sql92
from rmq_formats.codecs import (
    compression,
    consumequeue,
    consumequeue_ext,
    controller,
    dledger,
    fastjson,
    hosts,
    index,
    message_id,
    paths,
    properties,
    timer,
    topics_json,
)
from rmq_formats.codecs.batch_consumequeue import count_messages, inner_messages, is_batch_queue_file, is_inner_batch
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.consumequeue_ext import ExtUnit
from rmq_formats.codecs.layout import INDEX_SLOT_BYTES
from rmq_formats.codecs.record import StoredMessage, decode_record, encode_record
from rmq_formats.codecs.record_frame import FrameShape, crc_fault, frame_shape, record_properties
from rmq_formats.codecs.trace import decode_trace
from rmq_formats.errors import FormatError
from rmq_formats.read.index_lookup import IndexFile
from rmq_formats.storage import store_layouts
from tests.lab.decoders.samples import files_under, golden_files, records
from tests.lab.decoders.target import Read, Target
from tests.lab.rounds import ViolationError
from tests.sql92.test_sql92 import FALSE, MORE_FALSE, MORE_PROPERTIES, MORE_TRUE, TRUE, cases
from tests.support.stores.store_files import InMemory

_LARGEST_INFLATED = 1 << 16
_SLOTS, _ENTRIES = 50, 200  # of the golden stores' IndexFiles


def targets() -> list[Target]:
    """All of them."""
    return [*_of_the_log(), *_of_queues_and_index(), *_of_small_files(), *_of_texts()]


def _alone(read: Callable[[bytes], object]) -> Read:
    return lambda data, _dice: read(data)


def _of_text(read: Callable[[str], object]) -> Read:
    return lambda data, _dice: read(data.decode("utf-8", "replace"))


def _of_the_log() -> list[Target]:
    samples = [record for _, record in records("exotic", "exotic_crc", "mixed")]
    blocks = [decode_record(record).properties_bytes for record in samples]
    bodies = [compression.compress(b"a body, " * 30, codec) for codec in compression.Compression]
    batches = [one.body for one in (decode_record(data) for _, data in records("bcq")) if is_inner_batch(one)]
    traces = [decode_record(data).body for data in samples[:4]] + [
        b"Pub\x01 1700000000000\x01DefaultRegion\x01pg\x01T\x017F00\x01TagA\x01k\x01127.0.0.1:10911\x0112\x013\x010\x01"
        b"7F00\x01true\x02SubBefore\x011700000000000\x01r\x01cg\x01id\x017F00\x010\x01k\x02".replace(b" ", b""),
    ]
    return [
        Target("record", samples, _read_record, share=3),
        Target("frame", samples, _alone(_read_frame)),
        Target("properties", blocks, _alone(_read_properties)),
        Target("compressed body", bodies, _inflate),
        Target("trace", traces, _alone(decode_trace)),
        Target("inner batch", batches, _alone(_read_inner_batch)),
        Target("host", [b"\x7f\0\0\1\0\0*\x9f", bytes(range(20))], lambda data, dice: hosts.Host.from_bytes(
            data, 0, dice.random() < 0.5).text if len(data) >= 20 else None),
    ]  # fmt: skip


def _read_record(data: bytes, dice: random.Random) -> None:
    """What decodes must encode to the same bytes, sums aside: a decoder that is too tolerant shows here."""
    message = decode_record(data, verify_crc=dice.random() < 0.5) if dice.random() < 0.5 else decode_record(data)
    _look(message)


def _read_inner_batch(data: bytes) -> None:
    """A broker that counts a batch's messages and a client that takes it apart must agree."""
    _, record = records("bcq")[0]
    try:
        found = len(inner_messages(replace(decode_record(record), body=data)))
    except FormatError:
        found = 0
    if count_messages(data, len(data)) != found:
        raise ViolationError(f"{found} messages were counted as {count_messages(data, len(data))}")


def _look(message: StoredMessage) -> None:
    message.properties, message.tags, message.keys, message.uniq_key, message.msg_id, message.version  # noqa: B018
    again = encode_record(
        message.to_store(),
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        store_timestamp_ms=message.store_timestamp_ms,
    )
    copied = decode_record(again)
    known: dict[str, Any] = {"body_crc": copied.body_crc, "magic": copied.magic, "size": copied.size,
                             "recorded_physical_offset": copied.recorded_physical_offset}  # fmt: skip
    if copied != replace(message, **known):
        raise ViolationError("a record is another one after it was encoded again")


def _read_frame(data: bytes) -> None:
    view = memoryview(data)
    shape = frame_shape(view, 0, None)
    if isinstance(shape, FrameShape):
        if not 0 <= shape.body_at <= shape.topic_at <= shape.properties_at <= shape.end <= len(data):
            raise ViolationError(f"a frame beyond its bytes: {shape}")
        crc_fault(view, shape)
        record_properties(view)


def _read_properties(data: bytes) -> None:
    properties.raw_property(data, b"KEYS")
    found = properties.decode_properties(data)
    properties.split_keys(found.get("KEYS", ""))


def _inflate(data: bytes, dice: random.Random) -> None:
    plain = compression.decompress(data, dice.choice([0x1, 0x101, 0x201, 0x301, 0x401]), max_bytes=_LARGEST_INFLATED)
    if len(plain) > _LARGEST_INFLATED:
        raise ViolationError(f"{len(plain)} bytes inflated")


def _of_queues_and_index() -> list[Target]:
    indexes = files_under("exotic", "index/")
    units = files_under("exotic", "consumequeue/", 400)
    ext = files_under("exotic_crc", "consumequeue_ext/", 2000)
    return [
        Target("index header", [data[:40] for data in indexes], _alone(_read_header)),
        Target("index entry", [data[240:260] for data in indexes], _alone(index.IndexEntry.decode)),
        Target("index chains", indexes, _walk_chains, share=0.4),
        Target("unit", [data[:20] for data in units], _alone(_read_unit)),
        Target("ext unit", ext, _alone(_read_ext)),
        Target("ext address", [b"\x80" + bytes(7), b"\xff" * 8, bytes(8)], _alone(_read_address)),
    ]


def _read_header(data: bytes) -> None:
    header = index.IndexHeader.decode(data)
    header.overlaps(0, 1)
    if index.IndexHeader.decode(header.encode()) != header:
        raise ViolationError("an Index header is another one after it was encoded again")


def _walk_chains(data: bytes, dice: random.Random) -> None:
    """Wild links: at slots and at entries' ``previous``, cycles included."""
    image = bytearray(data.ljust(4240, b"\0")[:4240])
    for _ in range(dice.randrange(20)):
        link = dice.randrange(-3, _ENTRIES + 3).to_bytes(4, "big", signed=True)
        at = (
            40 + dice.randrange(_SLOTS) * INDEX_SLOT_BYTES
            if dice.random() < 0.3
            else (index.entry_position(dice.randrange(_ENTRIES), _SLOTS) + 16)
        )
        image[at : at + 4] = link
    file = IndexFile(InMemory(bytes(image)), index.IndexHeader.decode(bytes(image[:40])), _SLOTS, _ENTRIES)
    for _ in range(5):
        found = list(islice(file.find(dice.randrange(1 << 31)), _ENTRIES + 1))
        if len(found) > _ENTRIES:
            raise ViolationError(f"{len(found)} entries of a file of {_ENTRIES}")


def _read_unit(data: bytes) -> None:
    unit = consumequeue.Unit.decode(data)
    unit.is_written, unit.names_no_record  # noqa: B018
    if consumequeue.Unit.decode(unit.encode()) != unit:
        raise ViolationError("a unit is another one after it was encoded again")


def _read_ext(data: bytes) -> None:
    at = 0
    for _ in range(100):
        unit = ExtUnit.decode(data, at)
        if unit is None:
            return
        at += unit.size


def _read_address(data: bytes) -> None:
    address = int.from_bytes(data[:8], "big", signed=True)
    if consumequeue_ext.is_ext_address(address) and consumequeue_ext.decode_ext_address(address) < 0:
        raise ViolationError("a negative place in ConsumeQueueExt")


def _of_small_files() -> list[Target]:
    mixed = golden_files("mixed")
    tables = [data for name, data in mixed.items() if name.startswith("config/") and len(data) < 5000]
    unit = timer.TimerUnit(-1, 1, 1_700_000_000_000, 5000, 4096, 300, -77).encode()
    slot = timer.TimerSlot.decode(bytes(timer.SLOT_BYTES))
    marks = Watermark(sequence=7, log_flushed=4096, dispatched=4000, unit_total=30).encode()
    return [
        Target("checkpoint", [mixed["checkpoint"][:32]], _alone(lambda data: Checkpoint.decode(data).min_timestamp_ms)),
        Target("epochs", [b"2\n1906541172\n1-0\n5-93229\n", b"1\n0\n1-0\n"], _of_text(_read_epochs)),
        Target("broker identity", [b"GoldenCluster#golden-a#1"], _of_text(controller.decode_identity)),
        Target("watermark", [marks], _alone(_read_watermark)),
        Target("timer unit", [unit], _alone(timer.TimerUnit.decode)),
        Target("timer slot", [slot.encode(), unit[:32]], _alone(timer.TimerSlot.decode)),
        Target("timer checkpoint", [unit + bytes(12), bytes(56)], _alone(_read_timer_checkpoint)),
        Target("JSON table", tables, _of_text(fastjson.loads), share=0.4),
        Target("topics.json", tables, _of_text(topics_json.topic_configs), share=0.4),
        Target("head of another layout", [*tables[:2], marks, unit], _alone(_tell_layout)),
    ]  # fmt: skip


def _read_epochs(text: str) -> None:
    found = controller.decode_epochs(text)
    is_written = all(epoch.number >= 0 and epoch.start_offset >= 0 for epoch in found)
    if is_written and controller.decode_epochs(controller.encode_epochs(found)) != found:
        raise ViolationError("epochs are others after they were encoded again")


def _read_watermark(data: bytes) -> None:
    found = Watermark.decode(data)
    used = b"" if found is None else found.encode().rstrip(b"\0")  # nothing covers the zeros behind it
    if not data.startswith(used):
        raise ViolationError("a watermark that nobody wrote counts")


def _read_timer_checkpoint(data: bytes) -> None:
    timer.decode_done_offset(data)
    timer.TimerCheckpoint.decode(data).encode_file()


def _tell_layout(data: bytes) -> None:
    for tell in (
        is_batch_queue_file, store_layouts.is_rocksdb_table, dledger.begins_with_index, dledger.begins_with_entry,
    ):  # fmt: skip
        tell(data)


def _of_texts() -> list[Target]:
    expressions = [text.encode() for text in cases(TRUE) + cases(FALSE) + cases(MORE_TRUE) + cases(MORE_FALSE)]
    names = [b"00000000000000001024", b"20261121031411502", b"%RETRY%cg", b"Orders", b"../x"]
    return [
        Target("SQL92", expressions, _alone(_filter), share=2),
        Target("file name", names, _alone(_read_name)),
        Target("message id", [b"7F00000100002A9F0000000000000400", b"ab" * 28], _alone(
            lambda data: message_id.decode_message_id(data.decode("latin-1")))),
        Target("host text", [b"127.0.0.1:10911", b"[2001:db8::1]:9876"], _alone(
            lambda data: hosts.Host.parse(data.decode("latin-1")))),
        Target("delay levels", [b"1s 5s 10s 30s 1m 2h 1d"], _alone(
            lambda data: consumequeue.delay_levels_ms(data.decode("latin-1")))),
    ]  # fmt: skip


def _filter(data: bytes) -> None:
    sql92.compile_expression(data.decode("utf-8", "replace")).evaluate(MORE_PROPERTIES)


def _read_name(data: bytes) -> None:
    name = data.decode("utf-8", "replace")
    start = paths.parse_segment_name(name, 1024)
    if start is not None and paths.segment_name(start) != name:
        raise ViolationError(f"{name!r} names the segment at {start}")
    paths.is_index_file_name(name)
    paths.parse_queue_id(name)
    if paths.is_safe_topic(name) and ("/" in name or name in {".", "..", ""} or "\0" in name):
        raise ViolationError(f"{name!r} is taken for a topic")
