"""Hex dumps on the pages under docs/formats, and their fields as the codecs decode them.

A hex dump on a page is a fenced block whose info string names what it shows::

    ```hex STORE/PATH@POSITION KIND
    00 00 00 fe      ; +0    size = 254  a note for people
    da a3 20 a7      ; +4    magic = 0xDAA320A7
    ```

STORE is a golden store, PATH a file in it, POSITION the first byte shown; where PATH is a RocksDB, of all its keys and
values one behind the other; KIND is a key of ``DECODERS``.
Behind the bytes stand their place in the block and, where KIND has fields, one field's name and value;
further lines of bytes belong to the same field, lines without bytes are for people.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from struct import Struct
from types import SimpleNamespace

import numpy as np

from rmq_formats.codecs import layout, rocksdb_queue
from rmq_formats.codecs.batch_consumequeue import BATCH_UNIT_DTYPE
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.consumequeue import Unit
from rmq_formats.codecs.consumequeue_ext import ExtUnit
from rmq_formats.codecs.controller import decode_epochs, encode_epochs
from rmq_formats.codecs.dledger import INDEX_UNIT_DTYPE, EntryHead
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.index import IndexEntry, IndexHeader
from rmq_formats.codecs.record import decode_record
from rmq_formats.codecs.rocksdb_config import decode_offset, decode_offset_key
from rmq_formats.codecs.timer import TimerCheckpoint
from tests.support.oracles.commitlog_walk import Blank, walk

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {path.stem: path.read_text("utf-8") for path in sorted((DOCS / "formats").glob("*.md"))}

Golden = Callable[[str], Path]
Value = int | str | bytes | Host
Field = tuple[str, Value, bytes]  # name, value as rmq_formats decodes it, the bytes that stand for it

BLOCK = re.compile(r"^```(\w+) ([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"\+(?P<position>\d+)\s*(?:(?P<name>\S+) = (?P<value>\"[^\"]*\"|\d+ bytes|\S+))?")


@dataclass(frozen=True)
class Line:
    """One field of a dump, as the page shows it."""

    position: int
    data: bytes
    name: str | None
    value: str | None


@dataclass(frozen=True)
class Dump:
    """One hex block of a page."""

    page: str
    store: str
    path: str
    position: int
    kind: str
    lines: list[Line]

    @property
    def data(self) -> bytes:
        return b"".join(line.data for line in self.lines)


def parse_dump(page: str, info: str, text: str) -> Dump:
    place, kind = info.split()
    store, path, position = re.fullmatch(r"(\w+)/(.+)@(\d+)", place).groups()
    lines: list[Line] = []
    for row in text.splitlines():
        digits, _, comment = row.partition(";")
        data = bytes.fromhex(digits)
        if not data:
            continue
        if comment:
            match = _COMMENT.match(comment.strip())
            assert match, f"{page}: {row}"
            lines.append(Line(int(match["position"]), data, match["name"], match["value"]))
        else:
            last = lines.pop()
            lines.append(Line(last.position, last.data + data, last.name, last.value))
    return Dump(page, store, path, int(position), kind, lines)


DUMPS = [
    parse_dump(page, info, body)
    for page, text in PAGES.items()
    for language, info, body in BLOCK.findall(text)
    if language == "hex"
]


def int_field(name: str, value: int, width: int) -> Field:
    return name, value, value.to_bytes(width, "big", signed=True)


def property_fields(properties_bytes: bytes) -> Iterator[Field]:
    for entry in properties_bytes.split(b"\x02")[:-1]:
        name, _, value = entry.partition(b"\x01")
        yield name.decode(), value.decode(), entry + b"\x02"


def record_fields(data: bytes, position: int, size: int) -> Iterator[Field]:
    """All fields of the record at a position, read by the codec."""
    message = decode_record(data, position)
    assert message.size == size
    topic, properties = message.topic.encode(), message.properties_bytes
    yield int_field("size", message.size, 4)
    yield int_field("magic", message.magic, 4)
    yield int_field("body_crc", message.body_crc, 4)
    yield int_field("queue_id", message.queue_id, 4)
    yield int_field("flag", message.flag, 4)
    yield int_field("queue_offset", message.queue_offset, 8)
    yield int_field("physical_offset", message.recorded_physical_offset, 8)
    yield int_field("sys_flag", message.sys_flag, 4)
    yield int_field("born_timestamp_ms", message.born_timestamp_ms, 8)
    yield "born_host", message.born_host, message.born_host.to_bytes()
    yield int_field("store_timestamp_ms", message.store_timestamp_ms, 8)
    yield "store_host", message.store_host, message.store_host.to_bytes()
    yield int_field("reconsume_times", message.reconsume_times, 4)
    yield int_field("prepared_transaction_offset", message.prepared_transaction_offset, 8)
    yield int_field("body_bytes", len(message.body), 4)
    yield "body", message.body, message.body
    yield int_field("topic_bytes", len(topic), message.version)
    yield "topic", topic, topic
    yield int_field("properties_bytes", len(properties), 2)
    yield from property_fields(properties)


def record_head_fields(data: bytes, position: int, size: int) -> Iterator[Field]:
    used = 0
    whole = int.from_bytes(data[position : position + 4], "big")
    for field in record_fields(data, position, whole):
        if used == size:
            return
        yield field
        used += len(field[2])


def blank_fields(data: bytes, position: int, size: int) -> Iterator[Field]:
    (blank,) = (item for item in walk(data, 0) if isinstance(item, Blank))
    assert (blank.physical_offset, size) == (position, layout.BLANK_BYTES)
    yield int_field("size", blank.size, 4)
    yield int_field("magic", layout.MAGIC_BLANK, 4)


def numbers(decode: Callable[[bytes, int], object], **widths: int) -> Callable[[bytes, int, int], Iterator[Field]]:
    """A decoder of one thing after the other, each of numbers of these widths, in the order on disk."""
    thing_bytes = sum(widths.values())

    def decoded(data: bytes, position: int, size: int) -> Iterator[Field]:
        assert size % thing_bytes == 0
        for at in range(position, position + size, thing_bytes):
            thing = decode(data, at)
            for name, width in widths.items():
                yield int_field(name, getattr(thing, name), width)

    return decoded


def ext_unit_fields(data: bytes, position: int, size: int) -> Iterator[Field]:
    end = position + size
    while position < end:
        unit = ExtUnit.decode(data, position)
        yield int_field("size", unit.size if unit else 0, 2)
        if unit is None:
            return
        yield int_field("tags_code", unit.tags_code, 8)
        yield int_field("store_timestamp_ms", unit.store_timestamp_ms, 8)
        yield int_field("bit_map_bytes", len(unit.bit_map), 2)
        position += unit.size


def rocksdb_config_fields(data: bytes, position: int, size: int) -> Iterator[Field]:
    """One pair of config of v2: the key of an offset, and its value."""
    pair = data[position : position + size]
    key = decode_offset_key(pair[:-8])
    for name, at, width in (("version", 0, 1), ("table", 1, 2), ("kind", 3, 1)):
        yield int_field(name, int.from_bytes(pair[at : at + width], "big"), width)
    for name, value in (("group", key.group.encode()), ("topic", key.topic.encode())):
        yield int_field(f"{name}_bytes", len(value), 2)
        yield name, value, value
        yield int_field("separator", 1, 1)
    yield int_field("queue_id", key.queue_id, 4)
    yield int_field("queue_offset", decode_offset(pair[-8:]), 8)


def rocksdb_unit_fields(data: bytes, position: int, size: int) -> Iterator[Field]:
    """One unit of a ConsumeQueue in RocksDB: its key, and its value."""
    key, value = data[position : position + size - 28], data[position + size - 28 : position + size]
    topic, queue_id, prefix = rocksdb_queue.split_unit_key(key)
    offsets, units = rocksdb_queue.decode_units(prefix, [key], [value])
    yield from _topic_fields(topic)
    yield int_field("queue_id", queue_id, 4)
    yield int_field("separator", 1, 1)
    yield int_field("queue_offset", int(offsets[0]), 8)
    for name in units.dtype.names:
        yield int_field(name, int(units[0][name]), units.dtype[name].itemsize)


def rocksdb_bound_fields(data: bytes, position: int, size: int) -> Iterator[Field]:
    """What a ConsumeQueue in RocksDB says of a queue's end: its key, and its value."""
    pair = data[position : position + size]
    bound = rocksdb_queue.QueueBound.decode(pair[-16:])
    topic_bytes = int.from_bytes(pair[:4], "big")
    topic, queue_id = pair[5 : 5 + topic_bytes].decode(), int.from_bytes(pair[-20:-16], "big")
    assert rocksdb_queue.bound_key(topic, queue_id) == pair[:-16]
    yield from _topic_fields(topic)
    yield "which", rocksdb_queue.MAX, rocksdb_queue.MAX
    yield int_field("separator", 1, 1)
    yield int_field("queue_id", queue_id, 4)
    yield int_field("physical_offset", bound.physical_offset, 8)
    yield int_field("queue_offset", bound.queue_offset, 8)


def _topic_fields(topic: str) -> Iterator[Field]:
    yield int_field("topic_bytes", len(topic.encode()), 4)
    yield int_field("separator", 1, 1)
    yield "topic", topic, topic.encode()
    yield int_field("separator", 1, 1)


def text_fields(data: bytes, position: int, size: int) -> Iterator[Field]:
    text = data[position : position + size]
    yield "text", text.decode(), text


def epoch_fields(data: bytes, position: int, size: int) -> Iterator[Field]:
    """The lines of an ``epochFileCheckpoint``, which its codec decodes and encodes to the same."""
    text = data[position : position + size].decode()
    epochs = decode_epochs(text)
    assert encode_epochs(epochs) == text
    values = [("count", len(epochs)), ("checksum", int(text.splitlines()[1]))]
    values += [(f"epoch_{epoch.number}", epoch.start_offset) for epoch in epochs]
    for (name, value), line in zip(values, text.splitlines(keepends=True), strict=True):
        yield name, value, line.encode()


HEADER_WIDTHS = dict(zip((attribute.name for attribute in fields(IndexHeader)), (8, 8, 8, 8, 4, 4), strict=True))

DECODERS: dict[str, Callable[[bytes, int, int], Iterator[Field]] | None] = {
    "record": record_fields,
    "record_head": record_head_fields,
    "properties": lambda data, position, size: property_fields(data[position : position + size]),
    "blank": blank_fields,
    "units": numbers(Unit.decode, physical_offset=8, size=4, tags_code=8),
    "ext_units": ext_unit_fields,
    "index_header": numbers(lambda data, position: IndexHeader.decode(data[position:]), **HEADER_WIDTHS),
    "index_slot": numbers(lambda data, at: SimpleNamespace(entry=Struct(">i").unpack_from(data, at)[0]), entry=4),
    "index_entries": numbers(IndexEntry.decode, key_hash=4, physical_offset=8, seconds=4, previous=4),
    "checkpoint": numbers(
        lambda data, position: Checkpoint.decode(data[position:]),
        **{attribute.name: 8 for attribute in fields(Checkpoint)},
    ),
    "timercheck": numbers(
        lambda data, position: TimerCheckpoint.decode(data[position:]),
        **{attribute.name: 8 for attribute in fields(TimerCheckpoint)},
    ),
    "entry_heads": numbers(
        EntryHead.decode, magic=4, size=4, index=8, term=8, pos=8, channel=4, chain_crc=4, body_crc=4, body_bytes=4
    ),
    "entry_index_units": numbers(
        lambda data, at: SimpleNamespace(
            **{
                name: int(np.frombuffer(data, INDEX_UNIT_DTYPE, 1, at)[name][0])
                for name in INDEX_UNIT_DTYPE.names or ()
            }
        ),
        magic=4,
        pos=8,
        size=4,
        index=8,
        term=8,
    ),
    "batch_units": numbers(
        lambda data, at: SimpleNamespace(
            **{
                name: int(np.frombuffer(data, BATCH_UNIT_DTYPE, 1, at)[name][0])
                for name in BATCH_UNIT_DTYPE.names or ()
            }
        ),
        physical_offset=8,
        size=4,
        tags_code=8,
        store_timestamp=8,
        base_offset=8,
        batch_size=2,
        compacted_offset=4,
        reserved=4,
    ),
    "epochs": epoch_fields,
    "rocksdb_bound": rocksdb_bound_fields,
    "rocksdb_config_v2": rocksdb_config_fields,
    "rocksdb_unit": rocksdb_unit_fields,
    "text": text_fields,
    "bytes": None,  # and nothing else
    "json": None,  # likewise
    "zeros": None,
}


def says(shown: str, value: Value) -> bool:
    """Whether a value as a page shows it is the decoded one."""
    if isinstance(value, Host):
        return shown == value.text
    if isinstance(value, int):
        number = int(shown, 0)
        return number == value if not shown.startswith("0x") else number in {value % (1 << 32), value % (1 << 64)}
    if shown.endswith(" bytes"):
        return shown == f"{len(value)} bytes"
    return shown.strip('"') == (value.decode() if isinstance(value, bytes) else value)
