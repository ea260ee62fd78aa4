"""Builds Arrow record batches from frame rows, column buffer by column buffer.

Windows fit a processor's cache, and batches have a size for Spark: kernels append window by window to each column's
buffer. Only the columns of the schema are computed. Buffers come from Arrow's memory pool, which reuses memory; numpy
requests new memory of the system each time.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_formats.arrow.rows import FrameRows
from rmq_formats.arrow.schema import TIMESTAMP
from rmq_formats.codecs import record_layout
from rmq_formats.codecs.layout import RECORD_VERSIONS
from rmq_formats.codecs.record_frame import DamageCode
from rmq_formats.kernels import scan
from rmq_formats.kernels.columns import gather as kernel
from rmq_formats.kernels.columns import hosts as host_kernel
from rmq_formats.kernels.columns import text as text_kernel

MAX_ROWS: Final = 1 << 16
_FIRST_BYTES: Final = 1 << 16

# Anchor and distance, in bytes, of each integer in a record; after the hosts, the anchor is the body.
_NARROW: Final = {
    "queue_id": (kernel.ANCHOR_RECORD, record_layout.RECORD_QUEUE_ID_AT),
    "size": (kernel.ANCHOR_RECORD, record_layout.RECORD_SIZE_AT),
    "flag": (kernel.ANCHOR_RECORD, record_layout.RECORD_FLAG_AT),
    "sys_flag": (kernel.ANCHOR_RECORD, record_layout.RECORD_SYS_FLAG_AT),
    "reconsume_times": (kernel.ANCHOR_BODY, record_layout.RECORD_RECONSUME_TIMES_AT - record_layout.RECORD_HEAD_BYTES),
    "body_crc": (kernel.ANCHOR_RECORD, record_layout.RECORD_BODY_CRC_AT),
    "version": (kernel.ANCHOR_RECORD, record_layout.RECORD_MAGIC_AT),
}
_WIDE: Final = {
    "queue_offset": (kernel.ANCHOR_RECORD, record_layout.RECORD_QUEUE_OFFSET_AT),
    "physical_offset": (kernel.ANCHOR_RECORD, record_layout.RECORD_PHYSICAL_OFFSET_AT),
    "store_timestamp": (kernel.ANCHOR_STORE_TIMESTAMP, 0),
    "born_timestamp": (kernel.ANCHOR_RECORD, record_layout.RECORD_BORN_TIMESTAMP_AT),
    "prepared_transaction_offset": (
        kernel.ANCHOR_BODY,
        record_layout.RECORD_PREPARED_OFFSET_AT - record_layout.RECORD_HEAD_BYTES,
    ),
}
_NULLABLE_COLUMNS: Final = frozenset({"tags", "uniq_key"})
_LIST_COLUMNS: Final = frozenset({"keys", "properties"})
_PROPERTY_COLUMNS: Final = _NULLABLE_COLUMNS | _LIST_COLUMNS
_STRING_COLUMNS: Final = _PROPERTY_COLUMNS | {"topic", "msg_id", "body", "born_host", "store_host"}


class _Strings:
    """A growing string or binary array."""

    def __init__(self, rows: int, first_bytes: int, *, nullable: bool = False) -> None:
        self._offsets_buffer = pa.allocate_buffer(4 * (rows + 1))
        self.offsets = np.frombuffer(self._offsets_buffer, dtype=np.int32)
        self.offsets[0] = 0
        self._buffer = pa.allocate_buffer(first_bytes)
        self.out = np.frombuffer(self._buffer, dtype=np.uint8)
        self.valid = np.empty(rows if nullable else 0, dtype=np.bool_)
        self.used = 0

    def reserve(self, byte_count: int) -> None:
        """Grow the value buffer by room for so many more bytes."""
        needed = self.used + byte_count + kernel.SLACK_BYTES
        if needed > len(self.out):
            buffer = pa.allocate_buffer(max(needed, 2 * len(self.out)))
            out = np.frombuffer(buffer, dtype=np.uint8)
            out[: self.used] = self.out[: self.used]
            self._buffer, self.out = buffer, out

    def reserve_rows(self, rows: int) -> None:
        """Grow the offsets to room for so many rows in all."""
        if rows >= len(self.offsets):
            buffer = pa.allocate_buffer(8 * (rows + 1))
            offsets = np.frombuffer(buffer, dtype=np.int32)
            offsets[: len(self.offsets)] = self.offsets
            self._offsets_buffer, self.offsets = buffer, offsets

    def append(self, data: NDArray[np.uint8], table: NDArray[np.int64], column: int, at: int) -> None:
        """Append the byte strings of a table of spans after the first ``at`` rows."""
        self.reserve(int(kernel.total_bytes(table, column)))
        self.used = kernel.append_spans(data, table, column, at, self.offsets, self.out, self.used)
        if len(self.valid):
            kernel.append_valid(table, column, at, self.valid)

    def array(self, rows: int, kind: pa.DataType) -> pa.Array:
        """Return the first ``rows`` values as an Arrow array."""
        validity = bitmap(self.valid[:rows]) if len(self.valid) else None
        return pa.Array.from_buffers(kind, rows, [validity, self._offsets_buffer, self._buffer])


class _Lists:
    """Offsets buffer of a growing list or map column, and the item count of all rows."""

    def __init__(self, rows: int) -> None:
        self.offsets = np.zeros(rows + 1, dtype=np.int32)
        self.count = 0

    def array(self, rows: int) -> pa.Array:
        return numbers_array(self.offsets[: rows + 1])


def arrow_buffer(values: NDArray[Any]) -> pa.Buffer:
    """Copy values to memory of Arrow's own.

    A thread of Arrow's that frees numpy's memory needs the interpreter, and aborts the process after its end.
    """
    buffer = pa.allocate_buffer(values.nbytes)
    np.frombuffer(buffer, dtype=values.dtype)[:] = values
    return buffer


def numbers_array(values: NDArray[Any]) -> pa.Array:
    """Copy numbers to an Arrow array."""
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, arrow_buffer(values)])


def bitmap(valid: NDArray[np.bool_]) -> pa.Buffer | None:
    """Return Arrow's validity bitmap; None where all are valid."""
    return None if valid.all() else arrow_buffer(np.packbits(valid, bitorder="little"))


def timestamps_array(timestamps_ms: NDArray[np.int64]) -> pa.Array:
    """Convert milliseconds to Spark's TIMESTAMP; null outside of its years, 1 to 9999."""
    out = np.empty(len(timestamps_ms), dtype=np.int64)
    valid = np.empty(len(timestamps_ms), dtype=np.bool_)
    kernel.to_microseconds(timestamps_ms, out, valid)
    return pa.Array.from_buffers(TIMESTAMP, len(out), [bitmap(valid), arrow_buffer(out)])


class BatchBuilder:
    """Accumulator of frame rows in column buffers that become record batches."""

    def __init__(self, schema: pa.Schema) -> None:
        """Create a builder of columns of ``rmq_formats.arrow.schema.COMMITLOG``."""
        self._schema = schema
        self._names = frozenset(schema.names)
        self._narrow_names = [name for name in schema.names if name in _NARROW]
        self._wide_names = [name for name in schema.names if name in _WIDE]
        self._narrow = np.array([_NARROW[name] for name in self._narrow_names], dtype=np.int64).reshape(-1, 2)
        self._wide = np.array([_WIDE[name] for name in self._wide_names], dtype=np.int64).reshape(-1, 2)
        self._separators = np.empty(text_kernel.MAX_BLOCK_BYTES, dtype=np.int32)
        self._slots = np.empty(text_kernel.NAME_SLOTS, dtype=np.int32)
        self._first_bytes: dict[str, int] = {}
        self._begin()

    def _begin(self) -> None:
        self.count = 0
        self.byte_count = 0
        self._strings: dict[str, _Strings] = {}
        self._lists: dict[str, _Lists] = {}
        self._errors: dict[int, str] = {}

    def _allocate(self) -> None:
        """Allocate buffers for a new batch; the last batch owns its buffers."""
        rows = MAX_ROWS
        self._narrow_buffer = pa.allocate_buffer(4 * rows * len(self._narrow) + 8)
        self._wide_buffer = pa.allocate_buffer(8 * rows * len(self._wide) + 8)
        narrow = np.frombuffer(self._narrow_buffer, dtype=np.int32, count=rows * len(self._narrow))
        wide = np.frombuffer(self._wide_buffer, dtype=np.int64, count=rows * len(self._wide))
        self._out_narrow = narrow.reshape(len(self._narrow), rows)
        self._out_wide = wide.reshape(len(self._wide), rows)
        values = {"properties.value"} if "properties" in self._names else set()
        for name in (self._names & _STRING_COLUMNS) | values:
            first_bytes = self._first_bytes.get(name, _FIRST_BYTES)
            self._strings[name] = _Strings(rows, first_bytes, nullable=name in _NULLABLE_COLUMNS)
        self._lists = {name: _Lists(rows) for name in self._names & _LIST_COLUMNS}

    def room_for(self, rows: FrameRows) -> bool:
        """Return whether the rows fit into this batch."""
        return self.count + len(rows) <= MAX_ROWS

    def append(self, rows: FrameRows) -> None:
        """Append rows; ``room_for`` must be True for them."""
        if not self.count:
            self._allocate()
        at = self.count
        if "topic" in self._names:
            rows.repair(scan.TOPIC_AT)
        if not self._names.isdisjoint(_PROPERTY_COLUMNS):
            self._append_properties(rows, at)
        if len(self._narrow) or len(self._wide):
            kernel.append_fixed(rows.data, rows.frames, self._narrow, self._wide, at, self._out_narrow, self._out_wide)
        if "topic" in self._names:
            self._strings["topic"].append(rows.data, rows.frames, scan.TOPIC_AT, at)
        if "body" in self._names:
            self._strings["body"].append(rows.data, *rows.bodies, at)
        self._append_hosts(rows, at)
        failed = rows.frames[:, scan.CODE]
        if failed.any():
            for row in np.flatnonzero(failed).tolist():
                self._errors[at + row] = DamageCode(int(failed[row])).text
        for row, reason in rows.errors.items():
            self._errors.setdefault(at + row, reason)
        self.count += len(rows)
        self.byte_count = sum(strings.used for strings in self._strings.values())

    def _append_hosts(self, rows: FrameRows, at: int) -> None:
        store_hosts = rows.hosts(born=False) if self._names & {"msg_id", "store_host"} else None
        if "msg_id" in self._names:
            ids = self._strings["msg_id"]
            ids.reserve(len(rows) * host_kernel.MAX_MESSAGE_ID_BYTES)
            ids.used = host_kernel.append_message_ids(
                rows.data, rows.frames, store_hosts, at, ids.offsets, ids.out, ids.used
            )
        for name in self._names & {"born_host", "store_host"}:
            hosts = store_hosts if name == "store_host" else rows.hosts(born=True)
            texts = self._strings[name]
            texts.reserve(len(rows) * host_kernel.MAX_HOST_TEXT_BYTES)
            texts.used = host_kernel.append_hosts(rows.data, hosts, at, texts.offsets, texts.out, texts.used)

    def _append_properties(self, rows: FrameRows, at: int) -> None:
        well_known = self._append_map(rows, at) if "properties" in self._names else rows.well_known
        if "tags" in self._names:
            self._strings["tags"].append(rows.data, well_known, text_kernel.TAGS_AT, at)
        if "uniq_key" in self._names:
            self._strings["uniq_key"].append(rows.data, well_known, text_kernel.UNIQ_KEY_AT, at)
        if "keys" in self._names:
            lists, strings = self._lists["keys"], self._strings["keys"]
            capacity = int(kernel.total_bytes(well_known, text_kernel.KEYS_AT)) // 2 + len(rows)
            parts = np.empty((capacity, 2), dtype=np.int64)
            count = text_kernel.split_spaces(
                rows.data, well_known, text_kernel.KEYS_AT, at, lists.count, lists.offsets, parts
            )
            strings.reserve_rows(lists.count + count)
            strings.append(rows.data, parts[:count], 0, lists.count)
            lists.count += count

    def _append_map(self, rows: FrameRows, at: int) -> NDArray[np.int64]:
        rows.repair(scan.PROPERTIES_AT)
        lists = self._lists["properties"]
        block_bytes = int(kernel.total_bytes(rows.frames, scan.PROPERTIES_AT))
        entries = np.empty(
            (block_bytes // text_kernel.ENTRY_MIN_BYTES + len(rows), text_kernel.ENTRY_COLUMNS), dtype=np.int64
        )
        well_known = np.empty((len(rows), text_kernel.WELL_KNOWN_COLUMNS), dtype=np.int64)
        count = text_kernel.parse_properties(
            rows.data,
            rows.frames,
            scan.PROPERTIES_AT,
            self._separators,
            self._slots,
            at,
            lists.count,
            lists.offsets,
            entries,
            well_known,
        )
        columns = (("properties", text_kernel.ENTRY_NAME_AT), ("properties.value", text_kernel.ENTRY_VALUE_AT))
        for name, column in columns:
            strings = self._strings[name]
            strings.reserve_rows(lists.count + count)
            strings.append(rows.data, entries[:count], column, lists.count)
        lists.count += count
        return well_known

    def finish(self) -> pa.RecordBatch:
        """Return the rows appended since the last call as a record batch."""
        arrays = [self._finish_column(field) for field in self._schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        for name, strings in self._strings.items():  # first guess of the next batch's buffer size
            self._first_bytes[name] = strings.used + strings.used // 8 + _FIRST_BYTES
        self._begin()
        return batch

    def _finish_column(self, field: pa.Field) -> pa.Array:
        name = field.name
        if name in _NARROW:
            numbers = self._out_narrow[self._narrow_names.index(name), : self.count]
            return numbers_array(_versions(numbers) if name == "version" else numbers)
        if name in _WIDE:
            longs = self._out_wide[self._wide_names.index(name), : self.count]
            return timestamps_array(longs) if field.type == TIMESTAMP else numbers_array(longs)
        if name == "record_error":
            if not self._errors:
                return pa.nulls(self.count, pa.string())
            return pa.array([self._errors.get(row) for row in range(self.count)], pa.string())
        if name not in self._lists:
            return self._strings[name].array(self.count, field.type)
        lists = self._lists[name]
        offsets, values = lists.array(self.count), self._strings[name].array(lists.count, pa.string())
        if name == "keys":
            return pa.ListArray.from_arrays(offsets, values)
        return pa.MapArray.from_arrays(
            offsets, values, self._strings["properties.value"].array(lists.count, pa.string())
        )


def _versions(magic: NDArray[np.int32]) -> NDArray[np.int32]:
    versions = np.zeros(len(magic), dtype=np.int32)
    for record_magic, version in RECORD_VERSIONS.items():
        versions[magic == record_magic] = version
    return versions
