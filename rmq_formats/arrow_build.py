"""Fills Arrow columns with rows of one window after the other, and makes record batches of them.

Windows are as small as a processor's cache, batches as large as suits Spark: each column is a buffer that
kernels write on to, window by window. A column is computed only if it is in the schema.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_formats.arrow_rows import FrameRows
from rmq_formats.arrow_schema import TIMESTAMP
from rmq_formats.damage import DamageCode
from rmq_formats.kernels import columns as kernel
from rmq_formats.kernels import columns_hosts as host_kernel
from rmq_formats.kernels import columns_text as text_kernel
from rmq_formats.kernels import scan
from rmq_formats.layout import (
    MAGIC_V1,
    RECORD_BODY_CRC_AT,
    RECORD_BORN_TIMESTAMP_AT,
    RECORD_FLAG_AT,
    RECORD_MAGIC_AT,
    RECORD_PHYSICAL_OFFSET_AT,
    RECORD_QUEUE_ID_AT,
    RECORD_QUEUE_OFFSET_AT,
    RECORD_SIZE_AT,
    RECORD_SYS_FLAG_AT,
)

MAX_ROWS: Final = 1 << 16
_FIRST_BYTES: Final = 1 << 16

# Anchor and distance, in bytes, of each integer in a record. Before a body stand the reconsume times (4), the
# prepared transaction offset (8) and the body's length (4).
_NARROW: Final = {
    "queue_id": (kernel.ANCHOR_RECORD, RECORD_QUEUE_ID_AT),
    "size": (kernel.ANCHOR_RECORD, RECORD_SIZE_AT),
    "flag": (kernel.ANCHOR_RECORD, RECORD_FLAG_AT),
    "sys_flag": (kernel.ANCHOR_RECORD, RECORD_SYS_FLAG_AT),
    "reconsume_times": (kernel.ANCHOR_BODY, -16),
    "body_crc": (kernel.ANCHOR_RECORD, RECORD_BODY_CRC_AT),
    "version": (kernel.ANCHOR_RECORD, RECORD_MAGIC_AT),
}
_WIDE: Final = {
    "queue_offset": (kernel.ANCHOR_RECORD, RECORD_QUEUE_OFFSET_AT),
    "physical_offset": (kernel.ANCHOR_RECORD, RECORD_PHYSICAL_OFFSET_AT),
    "store_timestamp": (kernel.ANCHOR_STORE_TIMESTAMP, 0),
    "born_timestamp": (kernel.ANCHOR_RECORD, RECORD_BORN_TIMESTAMP_AT),
    "prepared_transaction_offset": (kernel.ANCHOR_BODY, -12),
}
_PROPERTY_COLUMNS: Final = frozenset({"tags", "keys", "uniq_key", "properties"})


def _pooled(byte_count: int) -> pa.Buffer:
    """Memory of Arrow's pool, which is used again; numpy's would come fresh from the system each time."""
    return pa.allocate_buffer(byte_count)


class _Strings:
    """A growing string or binary array."""

    def __init__(self, rows: int, first_bytes: int, *, nullable: bool = False) -> None:
        self._offsets_buffer = _pooled(4 * (rows + 1))
        self.offsets = np.frombuffer(self._offsets_buffer, dtype=np.int32)
        self.offsets[0] = 0
        self._buffer = _pooled(first_bytes)
        self.out = np.frombuffer(self._buffer, dtype=np.uint8)
        self.valid = np.empty(rows if nullable else 0, dtype=np.bool_)
        self.used = 0

    def reserve(self, byte_count: int) -> None:
        """Have room for that many bytes more."""
        needed = self.used + byte_count + kernel.SLACK_BYTES
        if needed > len(self.out):
            buffer = _pooled(max(needed, 2 * len(self.out)))
            out = np.frombuffer(buffer, dtype=np.uint8)
            out[: self.used] = self.out[: self.used]
            self._buffer, self.out = buffer, out

    def reserve_rows(self, rows: int) -> None:
        """Have room for that many rows in all."""
        if rows >= len(self.offsets):
            buffer = _pooled(8 * (rows + 1))
            offsets = np.frombuffer(buffer, dtype=np.int32)
            offsets[: len(self.offsets)] = self.offsets
            self._offsets_buffer, self.offsets = buffer, offsets

    def append(self, data: NDArray[np.uint8], table: NDArray[np.int64], column: int, at: int) -> None:
        """Append the byte strings of a table of spans; ``at`` is how many rows there are."""
        self.reserve(int(kernel.total_bytes(table, column)))
        self.used = kernel.append_spans(data, table, column, at, self.offsets, self.out, self.used)
        if len(self.valid):
            kernel.append_valid(table, column, at, self.valid)

    def array(self, rows: int, kind: pa.DataType) -> pa.Array:
        """The first ``rows`` as an Arrow array."""
        validity = bitmap(self.valid[:rows]) if len(self.valid) else None
        return pa.Array.from_buffers(kind, rows, [validity, self._offsets_buffer, self._buffer])


@dataclass(slots=True)
class _Lists:
    """The offsets of a list or map column, and how many items there are in all rows."""

    offsets: NDArray[np.int32]
    count: int = 0

    @classmethod
    def of(cls, rows: int) -> "_Lists":
        return cls(np.zeros(rows + 1, dtype=np.int32))

    def array(self, rows: int) -> pa.Array:
        return pa.array(self.offsets[: rows + 1])


def bitmap(valid: NDArray[np.bool_]) -> pa.Buffer | None:
    """Arrow's validity bitmap; None where all are valid."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def timestamps_array(timestamps_ms: NDArray[np.int64]) -> pa.Array:
    """Milliseconds as Spark's TIMESTAMP; null outside of its years, 1 to 9999."""
    out = np.empty(len(timestamps_ms), dtype=np.int64)
    valid = np.empty(len(timestamps_ms), dtype=np.bool_)
    kernel.to_microseconds(timestamps_ms, out, valid)
    return pa.Array.from_buffers(TIMESTAMP, len(out), [bitmap(valid), pa.py_buffer(out)])


class BatchBuilder:
    """Collects rows until there are enough for a batch."""

    def __init__(self, schema: pa.Schema) -> None:
        """Begin.

        Args:
            schema: of the wanted columns, a part of ``rmq_formats.arrow_schema.COMMITLOG``.
        """
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
        """Buffers for a new batch; those of the last one are the batch's."""
        rows = MAX_ROWS
        self._narrow_buffer = _pooled(4 * rows * len(self._narrow) + 8)
        self._wide_buffer = _pooled(8 * rows * len(self._wide) + 8)
        narrow = np.frombuffer(self._narrow_buffer, dtype=np.int32, count=rows * len(self._narrow))
        wide = np.frombuffer(self._wide_buffer, dtype=np.int64, count=rows * len(self._wide))
        self._out_narrow = narrow.reshape(len(self._narrow), rows)
        self._out_wide = wide.reshape(len(self._wide), rows)
        for name in self._names & {"topic", "msg_id", "body", "born_host", "store_host"}:
            self._strings[name] = self._new_strings(name)
        for name in self._names & {"tags", "uniq_key"}:
            self._strings[name] = self._new_strings(name, nullable=True)
        for name in self._names & {"keys", "properties"}:
            self._lists[name] = _Lists.of(rows)
            self._strings[name] = self._new_strings(name)
        if "properties" in self._names:
            self._strings["properties.value"] = self._new_strings("properties.value")

    def _new_strings(self, name: str, *, nullable: bool = False) -> _Strings:
        return _Strings(MAX_ROWS, self._first_bytes.get(name, _FIRST_BYTES), nullable=nullable)

    def room_for(self, rows: FrameRows) -> bool:
        """Whether the rows, at most MAX_ROWS, still go into this batch."""
        return self.count + len(rows) <= MAX_ROWS

    def append(self, rows: FrameRows) -> None:
        """Add rows, for which there must be room."""
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
        found = self._append_map(rows, at) if "properties" in self._names else rows.well_known
        if "tags" in self._names:
            self._strings["tags"].append(rows.data, found, text_kernel.TAGS_AT, at)
        if "uniq_key" in self._names:
            self._strings["uniq_key"].append(rows.data, found, text_kernel.UNIQ_KEY_AT, at)
        if "keys" in self._names:
            lists, strings = self._lists["keys"], self._strings["keys"]
            capacity = int(kernel.total_bytes(found, text_kernel.KEYS_AT)) // 2 + len(rows)
            parts = np.empty((capacity, 2), dtype=np.int64)
            count = text_kernel.split_spaces(
                rows.data, found, text_kernel.KEYS_AT, at, lists.count, lists.offsets, parts
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
        found = np.empty((len(rows), text_kernel.WELL_KNOWN_COLUMNS), dtype=np.int64)
        count = text_kernel.parse_properties(
            rows.data, rows.frames, scan.PROPERTIES_AT, self._separators, self._slots,
            at, lists.count, lists.offsets, entries, found,
        )  # fmt: skip
        columns = (("properties", text_kernel.ENTRY_NAME_AT), ("properties.value", text_kernel.ENTRY_VALUE_AT))
        for name, column in columns:
            strings = self._strings[name]
            strings.reserve_rows(lists.count + count)
            strings.append(rows.data, entries[:count], column, lists.count)
        lists.count += count
        return found

    def finish(self) -> pa.RecordBatch:
        """The rows since the last call as a batch."""
        arrays = [_FINISHERS.get(field.name, _finish_string)(self, field) for field in self._schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        for name, strings in self._strings.items():  # the next batch will be much like this one
            self._first_bytes[name] = strings.used + strings.used // 8 + _FIRST_BYTES
        self._begin()
        return batch

    def narrow(self, name: str) -> NDArray[np.int32]:
        """A finished column of 32 bits."""
        return self._out_narrow[self._narrow_names.index(name), : self.count]

    def wide(self, name: str) -> NDArray[np.int64]:
        """A finished column of 64 bits."""
        return self._out_wide[self._wide_names.index(name), : self.count]

    def string(self, name: str, kind: pa.DataType, rows: int | None = None) -> pa.Array:
        """A finished column of byte strings."""
        return self._strings[name].array(self.count if rows is None else rows, kind)

    def keys(self) -> pa.Array:
        """The finished column of keys."""
        lists = self._lists["keys"]
        values = self.string("keys", pa.string(), lists.count)
        return pa.ListArray.from_arrays(lists.array(self.count), values)

    def properties(self) -> pa.Array:
        """The finished column of properties."""
        lists = self._lists["properties"]
        names, values = (self.string(name, pa.string(), lists.count) for name in ("properties", "properties.value"))
        return pa.MapArray.from_arrays(lists.array(self.count), names, values)

    def record_error(self) -> pa.Array:
        """The finished column of errors."""
        if not self._errors:
            return pa.nulls(self.count, pa.string())
        return pa.array([self._errors.get(row) for row in range(self.count)], pa.string())


def _finish_string(builder: BatchBuilder, field: pa.Field) -> pa.Array:
    return builder.string(field.name, field.type)


def _finish_narrow(builder: BatchBuilder, field: pa.Field) -> pa.Array:
    return pa.array(builder.narrow(field.name))


def _finish_wide(builder: BatchBuilder, field: pa.Field) -> pa.Array:
    return pa.array(builder.wide(field.name))


def _finish_timestamp(builder: BatchBuilder, field: pa.Field) -> pa.Array:
    return timestamps_array(builder.wide(field.name))


def _finish_version(builder: BatchBuilder, field: pa.Field) -> pa.Array:
    return pa.array(np.where(builder.narrow(field.name) == MAGIC_V1, 1, 2).astype(np.int32))


_FINISHERS: Final[dict[str, Callable[[BatchBuilder, pa.Field], pa.Array]]] = {
    **dict.fromkeys(_NARROW, _finish_narrow),
    **dict.fromkeys(_WIDE, _finish_wide),
    "store_timestamp": _finish_timestamp,
    "born_timestamp": _finish_timestamp,
    "version": _finish_version,
    "keys": lambda builder, _field: builder.keys(),
    "properties": lambda builder, _field: builder.properties(),
    "record_error": lambda builder, _field: builder.record_error(),
}
