"""Batch writer of the sink ``rmq``: sends rows as messages to a running cluster, at least once.

Columns: ``body`` binary or string; ``topic`` unless the option of that name is given; and, if there are, ``keys``
(string or array of strings), ``tags``, ``properties`` (map), ``flag``, ``sys_flag``, ``queue_id``, ``broker_name``.
Rows without a queue go to the topic's queues in turn. The compression bits of ``sys_flag`` travel with the body.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from rmq_formats.arrow.encode import check_keys
from rmq_formats.arrow.messages import (
    SET_BY_BROKERS,
    chunks_by_lane,
    encode_messages,
    encode_property_maps,
    fixed_width,
    join,
    lengths,
    map_entries,
    property_entries,
    rows_with,
)
from rmq_formats.arrow.sql_filter import distinct_rows
from rmq_formats.codecs.layout import (
    FLAG_COMPRESSED,
    FLAG_COMPRESSION_MASK,
    MAX_PROPERTIES_BYTES,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
)
from rmq_formats.codecs.properties import KEY_SEPARATOR
from rmq_formats.errors import ClusterError, OptionError
from rmq_lakehouse.live.client import ClusterSink, resolve_access
from rmq_lakehouse.live.options import ClusterWriteOptions

_TEXT: Final = (StringType(),)
_NUMBER: Final = (IntegerType(), LongType(), ShortType())
_STRINGS: Final = (ArrayType(StringType(), True), ArrayType(StringType(), False))
_MAPS: Final = (MapType(StringType(), StringType(), True), MapType(StringType(), StringType(), False))
WRITTEN_COLUMNS: Final[dict[str, tuple[DataType, ...]]] = {
    "topic": _TEXT, "body": (BinaryType(), *_TEXT), "keys": (*_TEXT, *_STRINGS), "tags": _TEXT, "properties": _MAPS,
    "flag": _NUMBER, "sys_flag": _NUMBER, "queue_id": _NUMBER, "broker_name": _TEXT,
}  # fmt: skip
_TARGET_COLUMNS: Final = ("topic", "broker_name", "queue_id")
_COMPRESSION: Final = FLAG_COMPRESSED | FLAG_COMPRESSION_MASK  # brokers set the other bits themselves
_NAME_MARKS: Final = "\x01\x02"  # separators, which end a property's name and its value
_VALUE_MARKS: Final = "\x02"
_SLICE_BYTES: Final = 32 << 20  # bytes of bodies that are encoded at once


@dataclass
class Written(WriterCommitMessage):
    """Commit message of a task: the number of messages that the task has sent."""

    messages: int


def check_target(
    options: ClusterWriteOptions, schema: StructType, overwrite: bool, patience_s: float = 0
) -> ClusterWriteOptions:
    """Refuse options and a schema that cannot be written with them, before anything is written.

    Requests to a cluster that does not respond, or does not know the topic, are repeated for ``patience_s``.

    Raises:
        OptionError: a column that is missing, unknown or of another type; or another mode than append.
        ClusterError: the cluster does not answer, has no such topic, or refuses the credentials.
    """
    if overwrite:
        raise OptionError('rmq takes mode("append") only: messages cannot be overwritten')
    for column in schema:
        kinds = WRITTEN_COLUMNS.get(column.name)
        if kinds is None:
            raise OptionError(f"rmq cannot write column {column.name!r}; select of {', '.join(WRITTEN_COLUMNS)}")
        if column.dataType not in kinds:
            type_names = " or ".join(kind.simpleString() for kind in kinds)
            raise OptionError(
                f"rmq cannot write column {column.name!r} as {column.dataType.simpleString()}: {type_names}"
            )
    names = schema.fieldNames()
    if "body" not in names:
        raise OptionError("rmq cannot write rows without a column body")
    if (options.topic is None) == ("topic" not in names):
        raise OptionError("rmq needs a topic for each row: the option topic or a column of that name, not both")
    options = resolve_access(options)
    with ClusterSink(options.namesrv, options.group, options.access) as sink:
        sink.check(options.topic, patience_s)
    return options


class ClusterWriter(DataSourceArrowWriter):
    """Batch writer; messages that a failed task has sent stay."""

    def __init__(self, options: ClusterWriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_rows(self._options, iterator)


def write_rows(options: ClusterWriteOptions, batches: Iterator[pa.RecordBatch]) -> Written:
    """Send rows; return when all are stored. Raises ClusterError, or OptionError for a row that is no message."""
    with ClusterSink(options.namesrv, options.group, options.access, options.batch_bytes) as sink:
        writer = _RowWriter(sink, options)
        for batch in batches:
            for rows in _slices(batch):
                # Spark gives 64-bit offsets with ``useLargeVarTypes``.
                small = pa.schema([pa.field(field.name, _small_type(field.type)) for field in rows.schema])
                writer.write(rows.cast(small))
        return Written(sink.messages)


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch into slices whose bodies fit into one Arrow array; a single body may be larger."""
    ends = np.cumsum(lengths(batch.column("body")))
    begin = 0
    while begin < batch.num_rows:
        before = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + _SLICE_BYTES, side="right")))
        yield batch.slice(begin, end - begin)
        begin = end


def _small_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_map(kind):
        return pa.map_(_small_type(kind.key_type), _small_type(kind.item_type))
    return pa.list_(_small_type(kind.value_type)) if pa.types.is_list(kind) else kind


@dataclass
class _RowWriter:
    """Converter of rows to messages, which assigns the messages to queues."""

    sink: ClusterSink
    options: ClusterWriteOptions

    def write(self, rows: pa.RecordBatch) -> None:
        bodies = rows.column("body").cast(pa.binary())
        _refuse(np.asarray(lengths(bodies) == 0), rows, "has no body")
        properties = self._properties(rows)
        _refuse(
            lengths(properties) > MAX_PROPERTIES_BYTES, rows, f"has properties of over {MAX_PROPERTIES_BYTES} bytes"
        )
        sys_flags = _numbers(rows, "sys_flag") & _COMPRESSION
        messages = encode_messages(bodies, properties, _numbers(rows, "flag"))
        places, lanes = self._lanes(rows)
        chunks = [
            (*places[lanes[row]], data, count, int(sys_flags[row]))
            for row, data, count in chunks_by_lane(messages, lanes, self.options.batch_bytes, sys_flags)
        ]
        self.sink.send(chunks)

    def _properties(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """Encode properties; columns override entries of the map."""
        names = rows.schema.names
        column_properties = [
            name for column, name in (("keys", PROPERTY_KEYS), ("tags", PROPERTY_TAGS)) if column in names
        ]
        parts = []
        has_key = np.zeros(rows.num_rows, dtype=np.bool_)
        if "properties" in names:
            maps = rows.column("properties")
            property_names, property_values, _ = map_entries(maps)
            _refuse_marks(property_names, _NAME_MARKS)
            _refuse_marks(property_values, _VALUE_MARKS)
            parts.append(encode_property_maps(maps, (*SET_BY_BROKERS, *column_properties)))
            has_key = rows_with(maps, PROPERTY_UNIQ_KEY)
        if "keys" in names:
            keys = rows.column("keys")
            if not pa.types.is_string(keys.type):
                check_keys(keys.values)
                keys = _joined(keys)
            parts.append(_property(PROPERTY_KEYS, keys))
        if "tags" in names:
            parts.append(_property(PROPERTY_TAGS, rows.column("tags")))
        keys = fixed_width(self.sink.uniq_keys(rows.num_rows))
        parts.append(property_entries(PROPERTY_UNIQ_KEY, pc.if_else(pa.array(has_key), None, keys)))
        return join(*parts)

    def _lanes(self, rows: pa.RecordBatch) -> tuple[list[tuple[str, str | None, int | None]], NDArray[np.int64]]:
        """Assign rows to queues: a list of lanes, and int64[rows] into it."""
        columns = []
        for name, kind in zip(_TARGET_COLUMNS, (pa.string(), pa.string(), pa.int32()), strict=True):
            if name not in rows.schema.names:
                columns.append(pa.nulls(rows.num_rows, kind))
            elif kind == pa.int32():
                columns.append(_int32(rows.column(name), name))
            else:
                columns.append(rows.column(name))
        firsts, lanes = distinct_rows(columns, rows.num_rows)
        places: list[tuple[str, str | None, int | None]] = []
        for row in pa.table(columns, names=_TARGET_COLUMNS).take(pa.array(firsts)).to_pylist():
            topic = row["topic"] or self.options.topic
            if topic is None:
                raise OptionError("rmq cannot write a row whose topic is null")
            places.append((topic, row["broker_name"], row["queue_id"]))
        return places, lanes


def _numbers(rows: pa.RecordBatch, name: str) -> NDArray[np.int32]:
    """Return a column of numbers, int32[rows]; 0 for null, and for a column that is not there."""
    if name not in rows.schema.names:
        return np.zeros(rows.num_rows, dtype=np.int32)
    return np.asarray(pc.fill_null(_int32(rows.column(name), name), 0))


def _int32(numbers: pa.Array, name: str) -> pa.Int32Array:
    """Convert numbers of any width. Raises OptionError where one needs more than 32 bits."""
    try:
        return numbers.cast(pa.int32())
    except pa.ArrowInvalid:
        bounds = pc.min_max(numbers).as_py()
        raise OptionError(
            f"rmq cannot write column {name!r}: {bounds['min']} to {bounds['max']} need more than 32 bits. Mend it"
        ) from None


def _property(name: str, values: pa.Array) -> pa.BinaryArray:
    """Encode the property of a column, without empty texts. Raises OptionError."""
    _refuse_marks(values, _VALUE_MARKS)
    entries = property_entries(name, values)
    return pc.if_else(pc.equal(pc.binary_length(values), 0), None, entries)


def _refuse_marks(texts: pa.Array, marks: str) -> None:
    """Refuse properties that the encoding would lose or change. Raises OptionError."""
    for mark in marks:
        if pc.any(pc.match_substring(texts, mark)).as_py():
            raise OptionError("rmq cannot write a property with a separator (U+0001, U+0002) in it")


def _joined(lists: pa.ListArray) -> pa.StringArray:
    """Join the elements of each list to one text; null ones are left out."""
    elements = lists.flatten()
    there = pc.is_valid(elements)
    counts = np.bincount(np.asarray(pc.list_parent_indices(lists).filter(there)), minlength=len(lists))
    ends = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32())
    return pc.binary_join(pa.ListArray.from_arrays(ends, elements.filter(there)), KEY_SEPARATOR)


def _refuse(bad: NDArray[np.bool_], rows: pa.RecordBatch, reason: str) -> None:
    if bad.any():
        row: Any = rows.slice(int(np.argmax(bad)), 1).drop_columns(["body"]).to_pylist()[0]
        raise ClusterError(f"a row {reason}: {str(row)[:200]}")
