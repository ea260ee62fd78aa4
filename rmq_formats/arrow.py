"""Records as Arrow columns: what ``rmq_commitlog`` gives to Spark, and ``Store.arrow`` to anyone.

Kernels fill whole columns out of a window; there is no Python per record, except for what is broken (text
that is not UTF-8, checksums) and for bodies that are to be inflated. Only asked-for columns are computed.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_formats.arrow_rows import FrameRows
from rmq_formats.compression import decompress as inflate
from rmq_formats.damage import Damage, DamageCode
from rmq_formats.errors import FormatError, OptionError
from rmq_formats.kernels import columns as kernel
from rmq_formats.kernels import columns_text as text_kernel
from rmq_formats.kernels import scan, text
from rmq_formats.layout import FLAG_COMPRESSED, MAGIC_V1, RECORD_BODY_CRC_AT, RECORD_FLAG_AT, RECORD_MAGIC_AT
from rmq_formats.scan import FrameBatch

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("physical_offset", pa.int64()),
        ("size", pa.int32()),
        ("tags", pa.string()),
        ("keys", pa.list_(pa.field("element", pa.string()))),
        ("uniq_key", pa.string()),
        ("msg_id", pa.string()),
        ("body", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("store_timestamp", TIMESTAMP),
        ("born_timestamp", TIMESTAMP),
        ("born_host", pa.string()),
        ("store_host", pa.string()),
        ("flag", pa.int32()),
        ("sys_flag", pa.int32()),
        ("reconsume_times", pa.int32()),
        ("prepared_transaction_offset", pa.int64()),
        ("body_crc", pa.int32()),
        ("version", pa.int32()),
        ("record_error", pa.string()),
    ]
)
COLUMNS: Final[tuple[str, ...]] = tuple(SCHEMA.names)

MAX_OFFSET: Final = (1 << 31) - 1  # Arrow's string and binary have offsets of 32 bits
INFLATED_BATCH_BYTES: Final = 16 << 20  # aimed size of a batch of inflated bodies

# Distances, in bytes, from a body to fields before it.
_RECONSUME_TIMES_BEFORE_BODY: Final = 16
_PREPARED_OFFSET_BEFORE_BODY: Final = 12


class Mode(StrEnum):
    """What becomes of a damaged stretch of the log; Spark's names for it."""

    PERMISSIVE = "PERMISSIVE"  # a row with record_error
    DROPMALFORMED = "DROPMALFORMED"  # left out
    FAILFAST = "FAILFAST"  # an error


class RowSelector(Protocol):
    """Which rows are wanted; see ``rmq_formats.access.selection``."""

    def rows(self, rows: FrameRows) -> NDArray[np.bool_]:
        """bool[n], the wanted rows."""
        ...

    def damage(self, damage: Damage) -> bool:
        """Whether a stretch without a record is wanted as a row."""
        ...


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of some columns.

    Raises:
        OptionError: a column that is not there.
    """
    for name in columns:
        if name not in COLUMNS:
            raise OptionError(f"unknown column {name!r}; there are {', '.join(COLUMNS)}")
    return pa.schema([SCHEMA.field(name) for name in columns])


def record_batches(
    batch: FrameBatch,
    schema: pa.Schema,
    *,
    mode: Mode = Mode.PERMISSIVE,
    decompress: bool = False,
    selector: RowSelector | None = None,
    path: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of a batch of frames, in log order.

    Args:
        batch: what a scan or point reads gave.
        schema: of the wanted columns, see ``schema_of``.
        mode: what becomes of damaged stretches.
        decompress: inflate bodies that the producer compressed. One that does not inflate stays as it is
            stored and has a record_error.
        selector: which rows; None is all.
        path: the file that errors name.

    Yields:
        Batches of at least one row; none shares memory with the window.

    Raises:
        FormatError: in FAILFAST, at the first damaged stretch, record or body.
    """
    if mode is Mode.FAILFAST:
        for damage in batch.all_damages()[:1]:
            raise FormatError(damage.code.text, damage.physical_offset, path)
    if mode is Mode.PERMISSIVE and batch.damages:
        wanted = [damage for damage in batch.damages if selector is None or selector.damage(damage)]
        if wanted:
            yield damage_batch(wanted, schema)
    rows = FrameRows(batch.data, batch.frames)
    if mode is Mode.DROPMALFORMED:
        rows = rows.take(rows.codes == scan.SOUND)
    if selector is not None and len(rows):
        rows = rows.take(selector.rows(rows))
    if decompress and "body" in schema.names:
        yield from _inflated_batches(rows, schema, mode, path)
    elif len(rows):
        yield record_batch(rows, schema)


def record_batch(rows: FrameRows, schema: pa.Schema) -> pa.RecordBatch:
    """One Arrow batch of all the rows; bodies are as stored."""
    return pa.RecordBatch.from_arrays([_BUILDERS[name](rows) for name in schema.names], schema=schema)


def damage_batch(damages: Sequence[Damage], schema: pa.Schema) -> pa.RecordBatch:
    """Stretches without a record: place, size and record_error; all else is null."""
    values: dict[str, list[Any]] = {
        "physical_offset": [damage.physical_offset for damage in damages],
        "size": [min(damage.size, MAX_OFFSET) for damage in damages],
        "record_error": [damage.code.text for damage in damages],
    }
    nothing = [None] * len(damages)
    arrays = [pa.array(values.get(field.name, nothing), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _inflated_batches(
    rows: FrameRows, schema: pa.Schema, mode: Mode, path: str | None
) -> Iterator[pa.RecordBatch]:
    """Batches with inflated bodies, cut where these grow large."""
    compressed = (rows.sys_flags & FLAG_COMPRESSED) != 0
    begin = 0
    bodies: dict[int, bytes] = {}
    errors: dict[int, str] = {}
    batch_bytes = 0
    sizes = rows.frames[:, scan.BODY_BYTES]
    for row in range(len(rows)) if compressed.any() else ():
        if batch_bytes > INFLATED_BATCH_BYTES:
            yield _with_bodies(rows.part(begin, row), schema, bodies, errors)
            begin, batch_bytes, bodies, errors = row, 0, {}, {}
        batch_bytes += int(sizes[row])
        if not compressed[row]:
            continue
        at = rows.frames[row, scan.BODY_AT]
        try:
            body = inflate(rows.data[at : at + sizes[row]].tobytes(), int(rows.sys_flags[row]))
        except FormatError as error:
            if mode is Mode.FAILFAST:
                raise FormatError(error.reason, int(rows.physical_offsets[row]), path) from error
            errors[row - begin] = error.reason
            continue
        bodies[row - begin] = body
        batch_bytes += len(body) - int(sizes[row])
    if begin < len(rows):
        yield _with_bodies(rows.part(begin, len(rows)), schema, bodies, errors)


def _with_bodies(
    rows: FrameRows, schema: pa.Schema, bodies: dict[int, bytes], errors: dict[int, str]
) -> pa.RecordBatch:
    batch = record_batch(rows, schema)
    if bodies:
        stored = batch.column("body")
        plain = pa.array([bodies.get(row, None) for row in range(len(rows))], pa.binary())
        inflated = np.zeros(len(rows), dtype=np.bool_)
        inflated[list(bodies)] = True
        body = pa.compute.if_else(pa.array(inflated), plain, stored)
        batch = batch.set_column(schema.get_field_index("body"), schema.field("body"), body)
    if errors and "record_error" in schema.names:
        texts = batch.column("record_error").to_pylist()
        for row, reason in errors.items():
            texts[row] = texts[row] or reason
        column = pa.array(texts, pa.string())
        batch = batch.set_column(schema.get_field_index("record_error"), schema.field("record_error"), column)
    return batch


def _buffer(byte_count: int) -> tuple[pa.Buffer, NDArray[np.uint8]]:
    """Memory out of Arrow's pool, which is used again; numpy's would come fresh from the system each time."""
    buffer = pa.allocate_buffer(max(byte_count, 1))
    return buffer, np.frombuffer(buffer, dtype=np.uint8)


def _bitmap(valid: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def spans_array(
    data: NDArray[np.uint8], table: NDArray[np.int64], column: int, kind: pa.DataType, *, nullable: bool = False
) -> pa.Array:
    """Byte strings of a table of spans (see ``rmq_formats.kernels.columns``) as a string or binary array.

    Args:
        data: uint8[n], the window.
        table: int64[rows, columns].
        column: that of the positions.
        kind: ``pa.string()`` (the bytes are valid UTF-8) or ``pa.binary()``.
        nullable: a negative position is null; else there is none.

    Raises:
        FormatError: more bytes than an Arrow array of this type can hold.
    """
    count = len(table)
    offsets = np.empty(count + 1, dtype=np.int32)
    total = kernel.span_offsets(table, column, offsets)
    if total > MAX_OFFSET:
        raise FormatError("more bytes than an Arrow batch can hold", actual=total)
    buffer, out = _buffer(total)
    kernel.gather_spans(data, table, column, out)
    validity = None
    if nullable:
        valid = table[:, column] >= 0
        validity = None if valid.all() else _bitmap(valid)
    return pa.Array.from_buffers(kind, count, [validity, pa.py_buffer(offsets), buffer])


def timestamps_array(timestamps_ms: NDArray[np.int64]) -> pa.Array:
    """Milliseconds as Spark's TIMESTAMP; null outside of its years, 1 to 9999."""
    out = np.empty(len(timestamps_ms), dtype=np.int64)
    valid = np.empty(len(timestamps_ms), dtype=np.bool_)
    invalid_count = kernel.to_microseconds(timestamps_ms, out, valid)
    validity = _bitmap(valid) if invalid_count else None
    return pa.Array.from_buffers(TIMESTAMP, len(out), [validity, pa.py_buffer(out)])


def _topic(rows: FrameRows) -> pa.Array:
    rows.repair(scan.TOPIC_AT)
    return spans_array(rows.data, rows.frames, scan.TOPIC_AT, pa.string())


def _well_known(name: int) -> Callable[[FrameRows], pa.Array]:
    def build(rows: FrameRows) -> pa.Array:
        spans = rows.well_known
        return spans_array(rows.data, spans, 2 * name, pa.string(), nullable=True)

    return build


def _keys(rows: FrameRows) -> pa.Array:
    spans = rows.well_known
    column = 2 * text.KEYS
    parts = np.empty((int(spans[:, column + 1].sum()) // 2 + len(rows), 2), dtype=np.int64)
    offsets = np.empty(len(rows) + 1, dtype=np.int32)
    count = text_kernel.split_spaces(rows.data, spans, column, offsets, parts)
    values = spans_array(rows.data, parts[:count], 0, pa.string())
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=SCHEMA.field("keys").type)


def _properties(rows: FrameRows) -> pa.Array:
    rows.repair(scan.PROPERTIES_AT)
    return properties_array(rows.data, rows.frames, scan.PROPERTIES_AT)


def properties_array(data: NDArray[np.uint8], table: NDArray[np.int64], column: int) -> pa.MapArray:
    """Property blocks of a table of spans as maps; the blocks are valid UTF-8."""
    capacity = int(table[:, column + 1].sum()) // text_kernel.ENTRY_MIN_BYTES + len(table)
    entries = np.empty((capacity, text_kernel.ENTRY_COLUMNS), dtype=np.int64)
    slots = np.zeros(text_kernel.MAX_PROPERTY_SLOTS, dtype=np.int64)
    offsets = np.empty(len(table) + 1, dtype=np.int32)
    count = text_kernel.parse_properties(data, table, column, slots, offsets, entries)
    names = spans_array(data, entries[:count], text_kernel.ENTRY_NAME_AT, pa.string())
    values = spans_array(data, entries[:count], text_kernel.ENTRY_VALUE_AT, pa.string())
    return pa.MapArray.from_arrays(pa.array(offsets), names, values)


def _msg_id(rows: FrameRows) -> pa.Array:
    offsets = np.empty(len(rows) + 1, dtype=np.int32)
    buffer, out = _buffer(len(rows) * text_kernel.MAX_MESSAGE_ID_BYTES)
    text_kernel.message_ids(rows.data, rows.frames, rows.store_hosts, offsets, out)
    return pa.Array.from_buffers(pa.string(), len(rows), [None, pa.py_buffer(offsets), buffer])


def _host(rows: FrameRows, hosts: NDArray[np.int64]) -> pa.Array:
    offsets = np.empty(len(rows) + 1, dtype=np.int32)
    buffer, out = _buffer(len(rows) * text_kernel.MAX_HOST_TEXT_BYTES)
    text_kernel.host_texts(rows.data, hosts, offsets, out)
    return pa.Array.from_buffers(pa.string(), len(rows), [None, pa.py_buffer(offsets), buffer])


def _record_error(rows: FrameRows) -> pa.Array:
    failed = rows.codes != scan.SOUND
    if not failed.any():
        return pa.nulls(len(rows), pa.string())
    texts = [DamageCode(code).text if code else None for code in rows.codes.tolist()]
    return pa.array(texts, pa.string())


def _version(rows: FrameRows) -> pa.Array:
    magics = rows.int32(scan.POSITION, RECORD_MAGIC_AT)
    return pa.array(np.where(magics == MAGIC_V1, 1, 2).astype(np.int32))


_BUILDERS: Final[dict[str, Callable[[FrameRows], pa.Array]]] = {
    "topic": _topic,
    "queue_id": lambda rows: pa.array(rows.queue_ids),
    "queue_offset": lambda rows: pa.array(rows.queue_offsets),
    "physical_offset": lambda rows: pa.array(rows.physical_offsets),
    "size": lambda rows: pa.array(rows.frames[:, scan.SIZE].astype(np.int32)),
    "tags": _well_known(text.TAGS),
    "keys": _keys,
    "uniq_key": _well_known(text.UNIQ_KEY),
    "msg_id": _msg_id,
    "body": lambda rows: spans_array(rows.data, rows.frames, scan.BODY_AT, pa.binary()),
    "properties": _properties,
    "store_timestamp": lambda rows: timestamps_array(rows.store_timestamps_ms),
    "born_timestamp": lambda rows: timestamps_array(rows.born_timestamps_ms),
    "born_host": lambda rows: _host(rows, rows.born_hosts),
    "store_host": lambda rows: _host(rows, rows.store_hosts),
    "flag": lambda rows: pa.array(rows.int32(scan.POSITION, RECORD_FLAG_AT)),
    "sys_flag": lambda rows: pa.array(rows.sys_flags),
    "reconsume_times": lambda rows: pa.array(rows.int32(scan.BODY_AT, -_RECONSUME_TIMES_BEFORE_BODY)),
    "prepared_transaction_offset": lambda rows: pa.array(
        rows.int64(scan.BODY_AT, -_PREPARED_OFFSET_BEFORE_BODY)
    ),
    "body_crc": lambda rows: pa.array(rows.int32(scan.POSITION, RECORD_BODY_CRC_AT)),
    "version": _version,
    "record_error": _record_error,
}
assert tuple(_BUILDERS) == COLUMNS
