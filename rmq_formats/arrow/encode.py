"""Encodes rows of the Spark sources' columns as records, units and keys: the reverse of ``rmq_formats.arrow.batches``.

Rows of ``rmq_commitlog`` become CommitLog records without their offsets (``rmq_formats.kernels.encode.rows``), rows of
``rmq_consumequeue`` and ``rmq_index`` become tables of units and keys. Kernels encode a batch, and copy strings by
address and length in Arrow's buffers. Python runs only for each distinct host that is not IPv4.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_formats.arrow.functions import key_hashes
from rmq_formats.codecs import paths
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.layout import FLAG_BORN_HOST_V6, FLAG_STORE_HOST_V6
from rmq_formats.codecs.properties import KEY_SEPARATOR
from rmq_formats.codecs.record_layout import HOST_V4_BYTES, HOST_V6_BYTES
from rmq_formats.errors import DecodeError, StoreError
from rmq_formats.kernels import dispatch
from rmq_formats.kernels.encode import rows as kernel
from rmq_formats.scan.dispatch import QueueTable

NULL_TEXT: Final = (0, -1)
TEXT: Final = 2  # columns of a table of texts

Table = NDArray[np.int64]
DEFAULT_BORN_HOST: Final = Host(b"\x7f\0\0\1", 0)
DEFAULT_STORE_HOST: Final = Host(b"\x7f\0\0\1", 10911)

_FIRST_OUT_BYTES: Final = 2 << 20  # rows encoded at once; more than a core's L2 cache holds only costs time
_MS: Final = 1000  # microseconds
_NAME: Final = "[%|a-zA-Z0-9_-]+"  # TopicValidator#validateTopic
_TOPIC: Final = re.compile(rf"{_NAME}|%RETRY%{_NAME}\+{_NAME}")  # the last is KeyBuilder#buildPopRetryTopicV2
_NO_ORDER: Final = np.iinfo(np.int64).max  # key of a row without the ordering column, which goes to the end
_UNIT_COLUMNS: Final = {
    "queue_offset": dispatch.UNIT_QUEUE_OFFSET,
    "physical_offset": dispatch.UNIT_PHYSICAL_OFFSET,
    "size": dispatch.UNIT_SIZE,
    "tags_code": dispatch.UNIT_TAGS_CODE,
}
_REASONS: Final = {
    kernel.NO_TOPIC: "it has no topic",
    kernel.NO_BODY: "it has no body",
    kernel.TOPIC_TOO_LONG: "its topic is too long",
    kernel.PROPERTIES_TOO_LONG: "its properties take more than 32767 bytes",
    kernel.BAD_PROPERTY: "a property holds one of the characters \\u0001 and \\u0002, which separate properties",
}


def texts(array: pa.Array) -> Table:
    """Return address and length of each value of a string or binary array, int64[n, TEXT]; null has a negative length.

    The array must outlive the table.
    """
    table = np.empty((len(array), TEXT), dtype=np.int64)
    fill_texts(array, table)
    return table


def fill_texts(array: pa.Array, table: Table) -> None:
    """Write address and length of each value, as ``texts`` does, into two columns of a larger table."""
    if not len(array):
        return
    _, offsets_buffer, values = array.buffers()
    kind = np.int64 if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type) else np.int32
    offsets = np.frombuffer(offsets_buffer, dtype=kind)[array.offset : array.offset + len(array) + 1]
    np.add(offsets[:-1], values.address if values is not None else 0, out=table[:, 0], dtype=np.int64)
    np.subtract(offsets[1:], offsets[:-1], out=table[:, 1], dtype=np.int64)
    if array.null_count:
        table[array.is_null().to_numpy(zero_copy_only=False)] = NULL_TEXT


def list_offsets(array: pa.ListArray | pa.MapArray) -> Table:
    """Return the begin of each list's or map's items among all items, int64[n + 1]; null has no items."""
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32)[array.offset : array.offset + len(array) + 1]
    return offsets.astype(np.int64)


def numbers(array: pa.Array, default: int) -> Table:
    """Convert integers or timestamps to int64[n], with a default for null."""
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    if array.null_count:
        array = array.fill_null(default)
    values: Table = array.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return values


def check_topic(topic: str) -> None:
    """Refuse a topic name that no broker would create. Raises StoreError.

    Longer names are accepted, as version 2 records have room.
    """
    if not paths.is_safe_topic(topic):
        raise StoreError(f"topic {topic!r} cannot name a directory")
    if _TOPIC.fullmatch(topic) is None:
        raise StoreError(f"topic {topic!r} has other characters than %|a-zA-Z0-9_-")


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """Options of the encoder."""

    now_ms: int  # time of rows without a time
    crc_way: int = kernel.CRC_AS_GIVEN  # or CRC_ALWAYS, CRC_NEVER
    keep_offsets: bool = False  # retain physical offsets, queue offsets and sizes
    max_record_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class EncodedRecords:
    """Encoded records of some rows, and the table of their numbers."""

    records: NDArray[np.uint8]  # uint8[n], consecutive records; valid until the next piece
    rows: Table  # int64[rows, ENCODED_COLUMNS]; QUEUE is a row of ``RowEncoder.queue_names``


class RowEncoder(QueueTable):
    """Encoder of the record batches of one task."""

    def __init__(self, options: EncodeOptions) -> None:
        super().__init__()
        self._options = options
        self._out = np.empty(_FIRST_OUT_BYTES, dtype=np.uint8)
        self._result = np.zeros(3, dtype=np.int64)
        self._rows_before = 0
        self._checked_queues = 0

    def encode(self, batch: pa.RecordBatch) -> Iterator[EncodedRecords]:
        """Encode a batch in pieces, without rows with a ``record_error``. Raises StoreError: a row is no record."""
        if "record_error" in batch.schema.names and batch.column("record_error").null_count < len(batch):
            batch = batch.filter(pc.is_null(batch.column("record_error")))
        columns = _Columns(batch, self._options)
        encoded = np.empty((len(batch), kernel.ENCODED_COLUMNS), dtype=np.int64)
        done = 0
        while done < len(batch):
            status = kernel.encode_rows(
                columns.numbers,
                columns.texts,
                columns.entries,
                columns.entry_offsets,
                columns.parts,
                columns.part_offsets,
                done,
                self._options.crc_way,
                self._options.max_record_bytes,
                self._queues,
                self._slots,
                self._pool,
                self._used,
                self._out,
                encoded,
                self._result,
            )
            begin, (done, byte_count, needed) = done, self._result.tolist()
            if status == kernel.QUEUES_FULL:
                self._grow_queues()
            elif status == kernel.OUT_FULL and not byte_count:
                self._out = np.empty(needed, dtype=np.uint8)
            elif status not in {kernel.DONE, kernel.OUT_FULL}:
                raise self._error(status, columns, done)
            self._check_queues()
            if done > begin:
                yield EncodedRecords(self._out[:byte_count], encoded[begin:done])
        self._rows_before += len(batch)

    def _error(self, status: int, columns: "_Columns", row: int) -> StoreError:
        reason = _REASONS.get(status)
        if status == kernel.RECORD_TOO_LONG:
            size = int(self._result[2])
            reason = f"its record takes {size} bytes, a CommitLog file holds {self._options.max_record_bytes}"
        return StoreError(f"row {self._rows_before + row} of its partition{columns.names(row)}: {reason}")

    def _check_queues(self) -> None:
        """Refuse queues that cannot be directories, before a store has records of these."""
        if self._used[0] == self._checked_queues:
            return
        for topic, queue_id in self.queue_names()[self._checked_queues :]:
            check_topic(topic)
            if queue_id < 0:
                raise StoreError(f"topic {topic!r}: queue_id {queue_id} is negative")
        self._checked_queues = int(self._used[0])


class _Columns:
    """Column addresses of one batch as arguments of the encode kernel, with references to the buffers."""

    def __init__(self, batch: pa.RecordBatch, options: EncodeOptions) -> None:
        self._batch = batch
        self._kept: list[object] = []
        self._names = frozenset(batch.schema.names)
        count = len(batch)
        self.numbers = np.zeros((count, kernel.NUMBER_COLUMNS), dtype=np.int64)
        for at, name in (
            (kernel.QUEUE_ID, "queue_id"),
            (kernel.FLAG, "flag"),
            (kernel.SYS_FLAG, "sys_flag"),
            (kernel.RECONSUME_TIMES, "reconsume_times"),
            (kernel.PREPARED_TRANSACTION_OFFSET, "prepared_transaction_offset"),
            (kernel.VERSION, "version"),
        ):
            self.numbers[:, at] = self._number(name, 0)
        self.numbers[:, kernel.BORN_TIMESTAMP] = self._number("born_timestamp", options.now_ms * _MS) // _MS
        self.numbers[:, kernel.STORE_TIMESTAMP] = self._number("store_timestamp", options.now_ms * _MS) // _MS
        if options.keep_offsets:
            self._require_offsets()
        elif "physical_offset" in self._names:
            self.numbers[:, kernel.ORDER] = self._number("physical_offset", _NO_ORDER)
        else:
            self.numbers[:, kernel.ORDER] = self._number("queue_offset", _NO_ORDER)
        self.texts = np.empty((count, kernel.TEXT_COLUMNS), dtype=np.int64)
        columns = {"topic": kernel.TOPIC, "body": kernel.BODY, "tags": kernel.TAGS, "uniq_key": kernel.UNIQ_KEY}
        for name, at in columns.items():
            if name in self._names:
                fill_texts(batch.column(name), self.texts[:, at : at + 2])
            else:
                self.texts[:, at : at + 2] = NULL_TEXT
        for at, name, flag, default in (
            (kernel.BORN_HOST, "born_host", FLAG_BORN_HOST_V6, DEFAULT_BORN_HOST),
            (kernel.STORE_HOST, "store_host", FLAG_STORE_HOST_V6, DEFAULT_STORE_HOST),
        ):
            self.texts[:, at : at + 2] = self._hosts(name, flag, default)
        self.entries, self.entry_offsets = self._entries()
        self.parts, self.part_offsets = self._parts()

    def names(self, row: int) -> str:
        """Describe a row by topic and physical offset for errors."""
        parts = []
        for name in ("topic", "physical_offset"):
            value = self._batch.column(name)[row].as_py() if name in self._names else None
            if value is not None:
                parts.append(f"{name} {value!r}"[:80])
        return f" ({', '.join(parts)})" if parts else ""

    def _number(self, name: str, default: int) -> Table | int:
        return numbers(self._batch.column(name), default) if name in self._names else default

    def _require_offsets(self) -> None:
        for name in ("physical_offset", "queue_offset"):
            if self._batch.column(name).null_count:
                raise StoreError(f"column {name}: null in a row. keepOffsets needs an offset in every row.")
        self.numbers[:, kernel.ORDER] = self._number("physical_offset", 0)
        self.numbers[:, kernel.QUEUE_OFFSET] = self._number("queue_offset", 0)
        self.numbers[:, kernel.WANTED_BYTES] = self._number("size", 0)

    def _entries(self) -> tuple[Table, Table]:
        count = len(self._batch)
        if "properties" not in self._names:
            return np.zeros((0, 4), dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
        column = self._batch.column("properties")
        names, values = column.keys, column.items
        self._kept += [names, values]
        entries = np.empty((len(names), 4), dtype=np.int64)
        fill_texts(names, entries[:, :2])
        fill_texts(values, entries[:, 2:])
        return entries, list_offsets(column)

    def _parts(self) -> tuple[Table, Table]:
        count = len(self._batch)
        if "keys" not in self._names:
            return np.zeros((0, 2), dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
        column = self._batch.column("keys")
        check_keys(column.values)
        return texts(column.values), list_offsets(column)

    def _hosts(self, name: str, flag: int, default: Host) -> Table:
        """Encode a column of hosts; an IPv4 host in a row whose sys_flag names IPv6 is encoded as IPv6."""
        count = len(self._batch)
        host_texts = np.full((count, TEXT), NULL_TEXT, dtype=np.int64)
        if name in self._names:
            fill_texts(self._batch.column(name), host_texts)
        fallback = np.frombuffer(default.to_bytes(), dtype=np.uint8)
        out = np.empty(count * HOST_V4_BYTES + kernel.TEXT_ROOM, dtype=np.uint8)
        hosts = np.empty((count, 2), dtype=np.int64)
        self._kept += [fallback, out]
        if kernel.parse_v4_hosts(host_texts, fallback.ctypes.data, len(fallback), out, hosts):
            self._other_hosts(name, hosts)
        mapped = (
            (self.numbers[:, kernel.SYS_FLAG] & flag != 0) & (host_texts[:, 1] >= 0) & (hosts[:, 1] == HOST_V4_BYTES)
        )
        rows = np.flatnonzero(mapped)
        if len(rows):
            wide = np.zeros((len(rows), HOST_V6_BYTES), dtype=np.uint8)
            wide[:, 10:12] = 0xFF
            wide[:, 12:] = out[: count * HOST_V4_BYTES].reshape(-1, HOST_V4_BYTES)[rows]
            self._kept.append(wide)
            hosts[rows, 0] = wide.ctypes.data + np.arange(len(rows)) * HOST_V6_BYTES
            hosts[rows, 1] = HOST_V6_BYTES
        return hosts

    def _other_hosts(self, name: str, hosts: Table) -> None:
        rows = np.flatnonzero(hosts[:, 1] < 0)
        distinct = self._batch.column(name).take(pa.array(rows)).dictionary_encode()
        try:
            parsed = [Host.parse(text).to_bytes() for text in distinct.dictionary.to_pylist()]
        except DecodeError as error:
            raise StoreError(f"column {name}: {error}") from error
        wide = np.zeros((len(parsed), HOST_V6_BYTES), dtype=np.uint8)
        for number, host in enumerate(parsed):
            wide[number, : len(host)] = np.frombuffer(host, dtype=np.uint8)
        self._kept.append(wide)
        codes = distinct.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        hosts[rows, 0] = wide.ctypes.data + codes * HOST_V6_BYTES
        hosts[rows, 1] = np.array([len(host) for host in parsed])[codes]


class UnitRows:
    """Converter of rows to unit tables, which numbers the queues of all rows."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int], int] = {}

    def queue_names(self) -> list[tuple[str, int]]:
        """Return topic and queue id of each queue."""
        return list(self._numbers)

    def table(self, batch: pa.RecordBatch) -> Table:
        """Convert rows of ``rmq_consumequeue``'s columns to units, int64[rows, UNIT_COLUMNS].

        Raises StoreError: a null, an impossible number, or a batch queue's unit.
        """
        if "batch_size" in batch.schema.names and pc.any(pc.not_equal(batch.column("batch_size"), 1)).as_py():
            raise StoreError("column batch_size: a unit of a batch queue (BatchConsumeQueue), which is made of the log")
        for name in ("topic", "queue_id", *_UNIT_COLUMNS):
            _refuse_nulls(batch, name)
        units = np.zeros((len(batch), dispatch.UNIT_COLUMNS), dtype=np.int64)
        units[:, dispatch.UNIT_QUEUE] = self._queues(batch)
        for name, at in _UNIT_COLUMNS.items():
            units[:, at] = numbers(batch.column(name), 0)
            if name != "tags_code" and len(units) and units[:, at].min() < 0:
                raise StoreError(f"column {name}: {units[:, at].min()} is negative")
        return units

    def _queues(self, batch: pa.RecordBatch) -> Table:
        """Return the queue number of each row."""
        topics = batch.column("topic").dictionary_encode()
        names = topics.dictionary.to_pylist()
        codes = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        pairs, inverse = np.unique(codes << 32 | numbers(batch.column("queue_id"), 0), return_inverse=True)
        queue_names = [(names[pair >> 32], pair & 0xFFFFFFFF) for pair in pairs.tolist()]
        for topic, queue_id in queue_names:
            if queue_id >= 1 << 31:
                raise StoreError(f"topic {topic!r}: queue_id {queue_id - (1 << 32)} is negative")
        rows = [self._numbers.setdefault(queue, len(self._numbers)) for queue in queue_names]
        queues: Table = np.array(rows, dtype=np.int64)[inverse]
        return queues


def check_keys(keys: pa.Array) -> None:
    """Refuse an element with a blank, which would become several keys. Raises StoreError."""
    has_blank = pc.match_substring(keys, KEY_SEPARATOR)
    if pc.any(has_blank).as_py():
        key = keys.filter(has_blank)[0].as_py()
        raise StoreError(f"column keys: {key[:80]!r} has a blank, which separates keys. Give each key an element")


def key_table(batch: pa.RecordBatch) -> Table:
    """Convert rows with ``topic``, ``key``, ``physical_offset``, ``store_timestamp`` to keys, int64[rows, KEY_COLUMNS].

    Raises StoreError: a null, or a negative physical offset.
    """
    for name in ("topic", "key", "physical_offset", "store_timestamp"):
        _refuse_nulls(batch, name)
    keys = np.zeros((len(batch), dispatch.KEY_COLUMNS), dtype=np.int64)
    keys[:, dispatch.KEY_HASH] = numbers(key_hashes(batch.column("topic"), batch.column("key")), 0)
    keys[:, dispatch.KEY_PHYSICAL_OFFSET] = numbers(batch.column("physical_offset"), 0)
    keys[:, dispatch.KEY_STORE_TIMESTAMP] = numbers(batch.column("store_timestamp"), 0) // _MS
    if len(keys) and keys[:, dispatch.KEY_PHYSICAL_OFFSET].min() < 0:
        raise StoreError(f"column physical_offset: {keys[:, dispatch.KEY_PHYSICAL_OFFSET].min()} is negative")
    return keys


def _refuse_nulls(batch: pa.RecordBatch, name: str) -> None:
    if batch.column(name).null_count:
        raise StoreError(f"column {name}: null in a row")
