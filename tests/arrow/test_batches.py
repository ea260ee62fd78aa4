"""Arrow columns of records: every column equals the plain decoder, whatever the record holds."""

import base64
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_formats.arrow.batches import record_batches
from rmq_formats.arrow.builder import MAX_ROWS, BatchBuilder
from rmq_formats.arrow.rows import FrameRows
from rmq_formats.arrow.schema import COMMITLOG, Mode, schema_of
from rmq_formats.codecs.compression import Compression, compress
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.layout import FLAG_TRANSACTION_PREPARED
from rmq_formats.codecs.record import MessageToStore, StoredMessage, decode_record
from rmq_formats.codecs.record_frame import DamageCode
from rmq_formats.errors import FormatError, OptionError
from rmq_formats.kernels.columns.gather import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from rmq_formats.scan.segment import scan_segment
from rmq_formats.storage.store_files import open_store
from tests.kernels.guarded_memory import guarded
from tests.support.stores.record_strategies import encode_segment, messages, plain_message
from tests.support.stores.store_files import InMemory

Row = dict[str, Any]
FILE_OFFSET = 5 << 30
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    rows = []
    for batch in batches:
        batch.validate(full=True)
        rows += batch.to_pylist(maps_as_pydicts="strict")
    return rows


def segment_rows(data: bytes, *, window_bytes: int = 8192, **options: Any) -> list[Row]:
    schema = options.pop("schema", COMMITLOG)
    frames = scan_segment(InMemory(data), FILE_OFFSET, len(data), window_bytes=window_bytes)
    return rows_of(record_batches(frames, schema, **options))


def store_rows(root: Path, **options: Any) -> list[Row]:
    files = open_store(str(root))
    rows = []
    for segment in files.segments:
        with files.storage.open(segment.path) as file:
            frames = scan_segment(file, segment.start_offset, segment.size_bytes, window_bytes=65536)
            rows += rows_of(record_batches(frames, COMMITLOG, path=segment.path, **options))
    return rows


def moment(timestamp_ms: int) -> datetime | None:
    inside = MIN_TIMESTAMP_MS <= timestamp_ms <= MAX_TIMESTAMP_MS
    return EPOCH + timedelta(milliseconds=timestamp_ms) if inside else None


def expected_row(message: StoredMessage) -> Row:
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "size": message.size,
        "tags": message.tags,
        "keys": message.keys,
        "uniq_key": message.uniq_key,
        "msg_id": message.msg_id,
        "body": message.body,
        "properties": message.properties,
        "store_timestamp": moment(message.store_timestamp_ms),
        "born_timestamp": moment(message.born_timestamp_ms),
        "born_host": message.born_host.text,
        "store_host": message.store_host.text,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "body_crc": message.body_crc,
        "version": message.version,
        "record_error": None,
    }


def expected_rows(data: bytes, places: list[tuple[int, int]]) -> list[Row]:
    return [expected_row(decode_record(data, at, physical_offset=FILE_OFFSET + at)) for at, _ in places]


def test_every_column_of_a_golden_store_is_what_the_plain_decoder_says(golden_dir: Path, golden_name: str) -> None:
    root = golden_dir / golden_name / "store"
    rows = store_rows(root)
    files = {int(path.name): path.read_bytes() for path in (root / "commitlog").iterdir()}
    size = len(files[0])
    for row in rows:
        at = row["physical_offset"]
        message = decode_record(files[at // size * size], at % size, physical_offset=at)
        assert row == expected_row(message)


def test_a_golden_store_has_the_rows_that_javas_decoder_lists(golden_dir: Path, golden_name: str) -> None:
    rows = store_rows(golden_dir / golden_name / "store")
    listed = (golden_dir / golden_name / "expected" / "messages.jsonl").read_text().splitlines()
    same = (
        "physical_offset", "size", "topic", "queue_id", "queue_offset", "properties", "msg_id", "born_host",
        "store_host", "flag", "sys_flag", "reconsume_times", "prepared_transaction_offset", "body_crc",
    )  # fmt: skip
    for row, line in zip(rows, listed, strict=True):
        expected = json.loads(line)
        assert {name: row[name] for name in same} == {name: expected[name] for name in same}
        assert row["body"] == base64.b64decode(expected["body_base64"])
        assert row["store_timestamp"] == moment(expected["store_timestamp"])
        assert row["born_timestamp"] == moment(expected["born_timestamp"])


@settings(deadline=None)
@given(st.lists(messages, max_size=12), st.sampled_from([2048, 4096, 65536]), st.booleans())
@pytest.mark.long
def test_every_column_of_any_record_is_what_the_plain_decoder_says(
    stored: list[MessageToStore], window_bytes: int, crc: bool
) -> None:
    data, places = encode_segment(stored, FILE_OFFSET, 300, blank=True, crc=crc)
    assert segment_rows(data, window_bytes=window_bytes) == expected_rows(data, places)


@settings(deadline=None)
@given(st.binary(max_size=40), st.binary(max_size=60))
def test_text_that_is_no_utf8_is_replaced_as_python_and_java_do(topic: bytes, block: bytes) -> None:
    topic, data = topic or b"T", b""
    message = plain_message("x" * len(topic), properties_bytes=b"y" * len(block))
    data, places = encode_segment([message, plain_message(), message], FILE_OFFSET, 8, blank=False)
    for at, size in (places[0], places[2]):  # neither topic nor properties are under the body's checksum
        end = at + size
        head = data[: end - len(block) - 2 - len(topic)]
        data = head + topic + data[len(head) + len(topic) : end - len(block)] + block + data[end:]
    rows = segment_rows(data)
    assert rows == expected_rows(data, places)
    assert rows[0]["topic"] == topic.decode("utf-8", "replace")


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "a", "b" * 9, "é", "b" * 9 + "c"]), st.text(max_size=12)
        ),
        max_size=40,
    ),
    st.sampled_from(["", "\x02", "\x01", "\x02\x02\x01x\x02", "TAGS", "TAGS\x01z"]),
)
def test_repeated_and_broken_properties_read_as_java_reads_them(pairs: list[tuple[str, str]], rest: str) -> None:
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs) + rest
    block = text.encode("utf-8", "replace")
    data, places = encode_segment([plain_message(properties_bytes=block)] * 2, FILE_OFFSET, 8, blank=False)
    assert segment_rows(data) == expected_rows(data, places)


def test_a_block_full_of_properties_is_read_whole() -> None:
    names = [f"{number:04x}" for number in range(5000)]
    block = "".join(f"{name}\x01{name}\x02" for name in names[:2900]).encode()
    repeated = "".join(f"k\x01{number}\x02" for number in range(4500)).encode()
    stored = [plain_message(properties_bytes=block), plain_message(properties_bytes=repeated)]
    data, _ = encode_segment(stored, FILE_OFFSET, 8, blank=False)
    rows = segment_rows(data, window_bytes=65536)
    assert rows[0]["properties"] == {name: name for name in names[:2900]}
    assert rows[1]["properties"] == {"k": "4499"}


def test_keys_are_split_at_spaces_and_what_is_missing_is_null_or_empty() -> None:
    stored = [
        plain_message(properties_bytes=b"KEYS\x01 a  bc \x02TAGS\x01t\x02UNIQ_KEY\x01u\x02"),
        plain_message(),
        plain_message(properties_bytes=b"KEYS\x01  \x02TAGS\x01\x02"),
    ]
    data, _ = encode_segment(stored, FILE_OFFSET, 8, blank=False)
    rows = segment_rows(data, schema=schema_of(["keys", "tags", "uniq_key"]))
    assert rows == [
        {"keys": ["a", "bc"], "tags": "t", "uniq_key": "u"},
        {"keys": [], "tags": None, "uniq_key": None},
        {"keys": [], "tags": None, "uniq_key": None},
    ]


@pytest.mark.parametrize(
    "address",
    [
        "::",
        "::1",
        "1::",
        "1::2:0:0:3",
        "1:0:0:2::3",
        "2001:db8::1",
        "1:2:3:4:5:6:7:8",
        "0:0:1::",
        "1:0:2:3:4:5:6:7",
        "::ffff:10.0.0.1",
        "fe80::ffff:a00:1",
    ],
)
def test_ipv6_hosts_have_their_short_form(address: str) -> None:
    host = Host.parse(f"[{address}]:1")
    hosts = [replace(host, port=port) for port in (0, -1, 10911, 65535, -(1 << 31))]
    if len(host.address) == 4:  # parsed as IPv4, as a JVM does; the record has sixteen bytes
        hosts = [Host(bytes(10) + b"\xff\xff" + host.address, 7)]
    stored = [plain_message(born_host=own, store_host=own) for own in hosts]
    data, places = encode_segment(stored, FILE_OFFSET, 8, blank=False)
    assert segment_rows(data) == expected_rows(data, places)


@pytest.mark.parametrize("timestamp_ms", [MIN_TIMESTAMP_MS - 1, MAX_TIMESTAMP_MS + 1, (1 << 63) - 1, -(1 << 63)])
def test_times_outside_of_sparks_years_are_null(timestamp_ms: int) -> None:
    data, _ = encode_segment([plain_message(born_timestamp_ms=timestamp_ms)], FILE_OFFSET, 8, blank=False)
    (row,) = segment_rows(data)
    assert row["born_timestamp"] is None
    assert row["store_timestamp"] is not None


@pytest.mark.parametrize("name", COMMITLOG.names)
def test_each_column_comes_alone_and_in_any_order(golden_dir: Path, name: str) -> None:
    data = (golden_dir / "exotic" / "store" / "commitlog" / f"{0:020d}").read_bytes()
    whole = rows_of(record_batches(scan_segment(InMemory(data), 0, len(data)), COMMITLOG))
    others = [other for other in reversed(COMMITLOG.names) if other != name][:3]
    schema = schema_of([name, *others])
    batches = list(record_batches(scan_segment(InMemory(data), 0, len(data)), schema))
    assert all(batch.schema == schema for batch in batches)
    assert [row[name] for row in rows_of(batches)] == [row[name] for row in whole]


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(OptionError, match="'bodies'"):
        schema_of(["topic", "bodies"])
    with pytest.raises(OptionError, match="none twice"):
        schema_of(["topic", "topic"])
    with pytest.raises(OptionError, match="at least one"):
        schema_of([])


def damaged_segment() -> tuple[bytes, list[tuple[int, int]]]:
    """Six records: the second's body does not match its checksum, of the fourth the magic is gone."""
    data, places = encode_segment([plain_message(body=bytes(50)) for _ in range(6)], FILE_OFFSET, 100, blank=True)
    broken = bytearray(data)
    broken[places[1][0] + 88] ^= 1
    broken[places[3][0] + 4] ^= 1
    return bytes(broken), places


def test_permissive_gives_damaged_stretches_as_rows_with_what_is_wrong() -> None:
    data, places = damaged_segment()
    rows = segment_rows(data, window_bytes=200)
    assert [row["physical_offset"] - FILE_OFFSET for row in rows] == [at for at, _ in places]
    assert [row["size"] for row in rows] == [size for _, size in places]
    errors = [row["record_error"] for row in rows]
    assert errors == [None, DamageCode.BODY_CRC.text, None, DamageCode.MAGIC.text, None, None]
    assert rows[1]["topic"] == "TopicTest"
    assert {name for name, value in rows[3].items() if value is not None} == {"physical_offset", "size", "record_error"}


def test_dropmalformed_gives_the_sound_records_only() -> None:
    data, places = damaged_segment()
    rows = segment_rows(data, mode=Mode.DROPMALFORMED)
    assert [row["physical_offset"] - FILE_OFFSET for row in rows] == [places[number][0] for number in (0, 2, 4, 5)]
    assert all(row["record_error"] is None for row in rows)


def test_failfast_names_the_file_and_the_offset_of_the_first_damage() -> None:
    data, places = damaged_segment()
    with pytest.raises(FormatError) as raised:
        segment_rows(data, mode=Mode.FAILFAST, path="/log/0")
    assert raised.value.physical_offset == FILE_OFFSET + places[1][0]
    assert str(raised.value).startswith("/log/0: body CRC does not match at offset")
    only_magic = bytearray(data)
    only_magic[places[1][0] + 88] ^= 1
    with pytest.raises(FormatError, match=f"magic number at offset {FILE_OFFSET + places[3][0]}"):
        segment_rows(bytes(only_magic), mode=Mode.FAILFAST)


def test_a_damaged_golden_store_keeps_all_other_rows(golden_dir: Path) -> None:
    data = bytearray((golden_dir / "mixed" / "store" / "commitlog" / f"{0:020d}").read_bytes())
    sound = rows_of(record_batches(scan_segment(InMemory(bytes(data)), 0, len(data)), COMMITLOG))
    for row in sound[10:200:17]:
        data[row["physical_offset"] + 5] ^= 0xFF
    rows = rows_of(record_batches(scan_segment(InMemory(bytes(data)), 0, len(data)), COMMITLOG))
    hit = {row["physical_offset"] for row in sound[10:200:17]}
    assert [row for row in rows if row["record_error"] is None] == [
        row for row in sound if row["physical_offset"] not in hit
    ]
    assert [row["physical_offset"] for row in rows] == [row["physical_offset"] for row in sound]


@pytest.mark.parametrize("codec", list(Compression))
def test_decompress_gives_the_plain_body_and_leaves_plain_ones(codec: Compression) -> None:
    body = b"compress me " * 500
    stored = [
        plain_message(body=compress(body, codec), sys_flag=codec.sys_flag),
        plain_message(body=b"plain"),
        plain_message(body=b"", sys_flag=codec.sys_flag),
    ]
    data, places = encode_segment(stored, FILE_OFFSET, 8, blank=False)
    rows = segment_rows(data, decompress=True)
    assert [row["body"] for row in rows] == [body, b"plain", b""]
    plain = expected_rows(data, places)
    assert [row | {"body": b""} for row in rows] == [row | {"body": b"", "sys_flag": 0} for row in plain]
    assert segment_rows(data) == plain


def test_an_inflated_body_is_not_called_compressed_and_other_flags_stay() -> None:
    compressed = {
        "body": compress(b"x" * 99, Compression.LZ4),
        "sys_flag": Compression.LZ4.sys_flag | FLAG_TRANSACTION_PREPARED,
    }
    stored = [plain_message(**compressed), plain_message(body=b"no lz4", sys_flag=Compression.LZ4.sys_flag)]
    data, _ = encode_segment(stored, FILE_OFFSET, 8, blank=False)
    rows = segment_rows(data, decompress=True)
    assert [row["sys_flag"] for row in rows] == [FLAG_TRANSACTION_PREPARED, Compression.LZ4.sys_flag]
    assert segment_rows(data, decompress=True, schema=schema_of(["sys_flag"]))[0]["sys_flag"] == compressed["sys_flag"]


def test_a_body_that_does_not_inflate_stays_as_it_is_and_says_so() -> None:
    stored = [plain_message(), plain_message(body=b"no zlib", sys_flag=Compression.ZLIB.sys_flag)]
    data, _ = encode_segment(stored, FILE_OFFSET, 8, blank=False)
    rows = segment_rows(data, decompress=True)
    assert rows[1]["body"] == b"no zlib"
    assert "does not decompress" in rows[1]["record_error"]
    assert rows[0]["record_error"] is None
    with pytest.raises(FormatError, match="does not decompress as zlib"):
        segment_rows(data, decompress=True, mode=Mode.FAILFAST)
    assert [row["body"] for row in segment_rows(data, decompress=True, schema=schema_of(["body"]))] == [
        b"Hello RocketMQ", b"no zlib",
    ]  # fmt: skip


def test_batches_of_inflated_bodies_are_cut_before_they_grow_without_bound() -> None:
    bomb = compress(bytes(1 << 20), Compression.ZSTD)
    stored = [plain_message(body=bomb, sys_flag=Compression.ZSTD.sys_flag) for _ in range(12)]
    data, _ = encode_segment(stored, FILE_OFFSET, 8, blank=False)
    frames = scan_segment(InMemory(data), FILE_OFFSET, len(data))
    batches = list(record_batches(frames, schema_of(["body"]), decompress=True, batch_bytes=2 << 20))
    assert [batch.num_rows for batch in batches] == [3, 3, 3, 3]


def test_batches_end_at_their_bytes_and_rows_are_none_the_fewer() -> None:
    data, places = encode_segment([plain_message(body=bytes(100))] * 200, FILE_OFFSET, 8, blank=True)
    frames = scan_segment(InMemory(data), FILE_OFFSET, len(data), window_bytes=1000)
    batches = list(record_batches(frames, COMMITLOG, batch_bytes=5000))
    assert len(batches) > 4
    assert all(batch.num_rows < 40 for batch in batches)
    assert rows_of(batches) == expected_rows(data, places)


@pytest.mark.parametrize("topics", [1, 3, 8, 9, 20])
def test_batches_by_topic_have_the_same_rows_and_each_topic_s_in_order(topics: int) -> None:
    stored = [plain_message(f"T{number * 7 % topics}", bytes(number % 90)) for number in range(400)]
    data, places = encode_segment(stored, FILE_OFFSET, 8, blank=True)
    broken = bytearray(data)
    broken[places[200][0] + 4] ^= 1
    expected = segment_rows(bytes(broken))
    frames = scan_segment(InMemory(bytes(broken)), FILE_OFFSET, len(data), window_bytes=4000)
    batches = list(record_batches(frames, COMMITLOG, batch_bytes=5000, by_topic=True))
    mixed = [batch for batch in batches if len(set(batch.column("topic").to_pylist())) > 1]
    assert bool(mixed) == (topics > 8)
    assert len(batches) > 4
    rows = rows_of(batches)
    for topic in {row["topic"] for row in expected}:
        assert [row for row in rows if row["topic"] == topic] == [row for row in expected if row["topic"] == topic]
    assert len(rows) == len(expected)


def test_a_batch_has_no_more_rows_than_its_columns_have_room_for() -> None:
    data, places = encode_segment([plain_message("T", b"")] * 3, FILE_OFFSET, 8, blank=False)
    (batch,) = [batch for batch in scan_segment(InMemory(data), FILE_OFFSET, len(data)) if len(batch.frames)]
    many = replace(batch, frames=np.tile(batch.frames, (MAX_ROWS // 2, 1)))
    batches = list(record_batches([many, batch], schema_of(["topic", "size", "keys"])))
    assert [found.num_rows for found in batches] == [MAX_ROWS, MAX_ROWS // 2 + 3]
    assert sum(batches[1].column("size").to_pylist()) == places[0][1] * batches[1].num_rows


def test_a_record_larger_than_a_window_is_one_row() -> None:
    data, places = encode_segment([plain_message(body=bytes(300_000)), plain_message()], FILE_OFFSET, 8, blank=False)
    assert segment_rows(data, window_bytes=4096) == expected_rows(data, places)


def test_no_rows_make_no_batch() -> None:
    assert list(record_batches([], COMMITLOG)) == []
    assert segment_rows(bytes(4096)) == []


@settings(deadline=None)
@given(st.lists(messages, min_size=1, max_size=4), st.booleans())
def test_no_kernel_reads_outside_of_its_window(stored: list[MessageToStore], at_end: bool) -> None:
    data, places = encode_segment(stored, FILE_OFFSET, 0, blank=False)
    frames = [batch.frames.copy() for batch in scan_segment(InMemory(data), FILE_OFFSET, len(data))]
    with guarded(data, at_end=at_end) as window:
        builder = BatchBuilder(COMMITLOG)
        for table in frames:
            if len(table):
                builder.append(FrameRows(window, table))
        rows = rows_of([builder.finish()])
    assert rows == expected_rows(data, places)


def test_batches_stay_as_they_are_when_the_window_is_used_again(golden: Callable[[str], Path]) -> None:
    data = (golden("mixed") / "store" / "commitlog" / f"{0:020d}").read_bytes()
    batches = list(
        record_batches(scan_segment(InMemory(data), 0, len(data), window_bytes=65536), COMMITLOG, batch_bytes=1)
    )
    assert len(batches) > 10
    whole = list(record_batches(scan_segment(InMemory(data), 0, len(data)), COMMITLOG))
    assert rows_of(batches) == rows_of(whole)
