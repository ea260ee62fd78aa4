"""Arrow batches as Parquet files of a partitioned table, each with its description for the table's log.

Rows go from Arrow to Parquet column by column; Spark's own writer converts them value by value.
"""

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final, Protocol
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rmq_formats.errors import StoreError
from rmq_lakehouse.files import TARGET_FILE_BYTES, Connect, LocalFileStore, ObjectFileStore, TableFileStore

CODECS: Final = {
    "none": "none", "uncompressed": "none", "snappy": "snappy", "zstd": "zstd", "gzip": "gzip", "lz4_raw": "lz4",
}  # fmt: skip
_OPEN_FILES: Final = 64
MAX_DIRECTORY_BYTES: Final = 255
"""Longest name of a directory that file systems accept."""
NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
"""Text of null in the name of a partition's directory, as Spark and others read it."""
# Values that hardly ever repeat: a dictionary of them would be built and thrown away.
_PLAIN: Final = frozenset(
    {"queue_offset", "physical_offset", "uniq_key", "msg_id", "body", "store_timestamp", "born_timestamp", "body_crc"}
)
_MAX_STATS_COLUMNS: Final = 32  # columns with statistics
_PREFIX_CHARACTERS: Final = 32  # characters that Delta keeps of a text
_LAST_CHARACTER: Final = "\U0010ffff"
MAP_VALUE: Final = "key_value.value"  # the end of a leaf's path; these values hardly ever repeat, either

Key = tuple[str | None, ...]


class ColumnStats:
    """Statistics of one column in one file."""

    def __init__(self) -> None:
        self.nulls = 0
        self._kind: pa.DataType = pa.null()
        self._bounds: list[pa.Scalar] = []

    def add(self, values: pa.ChunkedArray) -> None:
        self.nulls += values.null_count
        self._kind = values.type
        min_max = pc.min_max(values)
        self._bounds += [bound for bound in (min_max["min"], min_max["max"]) if bound.is_valid]

    def bounds(self) -> tuple[str | int | None, str | int | None]:
        """Return a lower and an upper bound of all values; None for a bound that the log omits."""
        if not self._bounds:
            return None, None
        min_max = pc.min_max(pa.array([bound.as_py() for bound in self._bounds], self._kind))
        smallest, largest = min_max["min"].as_py(), min_max["max"].as_py()
        if isinstance(smallest, datetime):
            return _format_time(smallest), _format_time(largest)
        if isinstance(smallest, date):
            return smallest.isoformat(), largest.isoformat()
        if isinstance(smallest, str):
            return smallest[:_PREFIX_CHARACTERS], _upper_bound(largest)
        return smallest, largest


def _upper_bound(largest: str) -> str:
    """Return a short text that is not less than a text: its prefix and the last character of Unicode, as Delta does.

    delta-rs takes a missing upper bound for null, and its filters lose all rows of the file.
    """
    end = _PREFIX_CHARACTERS
    while largest[end : end + 1] == _LAST_CHARACTER:
        end += 1
    return largest if end >= len(largest) else largest[:end] + _LAST_CHARACTER


def _format_time(time: datetime) -> str:
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")


def stats_columns(schema: pa.Schema, partitions: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the columns whose bounds a table's log may have: of the first 32 columns, like Delta's own writer.

    Numbers with a fraction are left out: a NaN is greater than each bound, and a JSON number may round a decimal.
    """
    in_files = [field for field in schema if field.name not in partitions]
    return tuple(field.name for field in in_files[:_MAX_STATS_COLUMNS] if _has_bounds(field.type))


def _has_bounds(kind: pa.DataType) -> bool:
    return (
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_date(kind)
        or (pa.types.is_timestamp(kind) and kind.tz is not None)
    )


@dataclass(frozen=True, slots=True)
class FinishedFile:
    """Closed Parquet file: path or URI, path below the layout's directory, and the text of each partition's value."""

    path: str
    relative: str
    partitions: dict[str, str | None]
    rows: int
    bytes: int
    modified_ms: int
    stats: dict[str, ColumnStats]
    footer: pq.FileMetaData


class TableFiles(Protocol):
    """Rules of a table format for its files; tasks get an instance pickled."""

    def file_schema(self, schema: pa.Schema, partitions: Sequence[str]) -> pa.Schema:
        """Return the schema of the files, of batches of ``schema``."""

    def partition_source(self, name: str) -> str:
        """Return the column that a partition is made of."""

    def partition_values(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        """Compute a partition's values of rows."""

    def partition_value(self, value: pa.Scalar) -> str | None:
        """Return the text of a partition's value."""

    def has_stats(self, leaf: str) -> bool:
        """Return whether the footer has the bounds of a leaf column, given by its path in Parquet."""

    def action(self, file: FinishedFile) -> str:
        """Describe a file for the table's log."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Directory, partition columns, codec and sizes of the files.

    Attributes:
        table: directory of the files, or its URI.
        stats: columns with minimum and maximum in the table's log.
        codec: one of ``CODECS``.
        target_bytes: file size, about. Rows of an eighth of this size become a row group; at most twice this size is
            buffered, whatever the number of partitions.
        connect: opens the object store of the files; None for a file system.
    """

    table: str
    files: TableFiles
    partitions: tuple[str, ...] = ()
    stats: tuple[str, ...] = ()
    codec: str = "snappy"
    target_bytes: int = TARGET_FILE_BYTES
    connect: Connect | None = None

    @property
    def file_store(self) -> TableFileStore:
        return LocalFileStore(self.table) if self.connect is None else ObjectFileStore(self.connect)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """File that no version of the table contains yet; ``action`` is the entry for the table's log, as JSON."""

    action: str
    path: str
    rows: int
    bytes: int


class PartitionedFiles:
    """Writes batches of one schema to one open file a partition. Rows of a partition keep their order."""

    def __init__(self, layout: Layout, schema: pa.Schema) -> None:
        self._layout = layout
        self._schema = layout.files.file_schema(schema, layout.partitions)
        lower_names = [name.lower() for name in schema.names]  # a table's columns may have another case
        self._positions = [lower_names.index(name.lower()) for name in self._schema.names]
        self._pending: dict[Key, list[pa.RecordBatch]] = {}
        self._pending_bytes: dict[Key, int] = {}
        self._open: dict[Key, _ParquetFile] = {}  # in order of the last write
        self._written: list[WrittenFile] = []
        self._paths: list[str] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Buffer the rows of a batch, and write the partitions whose buffers are full. Raises StoreError."""
        for key, rows in _split(batch, self._layout):
            try:
                columns = map(rows.column, self._positions)
                arrays = [convert_array(values, field) for values, field in zip(columns, self._schema, strict=True)]
                converted = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
            except ValueError as error:  # a null, or a value out of range
                raise StoreError(f"{self._layout.table}: {str(error).splitlines()[0]}") from error
            self._pending.setdefault(key, []).append(converted)
            self._pending_bytes[key] = self._pending_bytes.get(key, 0) + converted.nbytes
            if self._pending_bytes[key] * 8 >= self._layout.target_bytes:
                self._flush(key)
        if sum(self._pending_bytes.values()) >= 2 * self._layout.target_bytes:
            for key in list(self._pending):
                self._flush(key)

    def close(self) -> list[WrittenFile]:
        for key in list(self._pending):
            self._flush(key)
        for key in list(self._open):
            self._close(key)
        return self._written

    def abort(self) -> None:
        for file in self._open.values():
            file.discard()
        for path in self._paths:
            with suppress(OSError):  # the files left belong to no version
                self._layout.file_store.delete(path)

    def _flush(self, key: Key) -> None:
        batches = self._pending.pop(key)
        del self._pending_bytes[key]
        file = self._open.pop(key, None)
        if file is None:
            while len(self._open) >= _OPEN_FILES:
                self._close(next(iter(self._open)))
            file = _ParquetFile(self._layout, self._schema, key)
            self._paths.append(file.path)
            file.open()
        self._open[key] = file
        file.write(pa.Table.from_batches(batches, self._schema))
        if file.bytes >= self._layout.target_bytes:
            self._close(key)

    def _close(self, key: Key) -> None:
        self._written.append(self._open.pop(key).close())


class _ParquetFile:
    """Parquet file that is being written."""

    def __init__(self, layout: Layout, schema: pa.Schema, key: Key) -> None:
        self._layout, self._key = layout, key
        names = [_directory(name, value) for name, value in zip(layout.partitions, key, strict=True)]
        self._relative = "/".join([*names, f"part-{uuid.uuid4()}.{layout.codec}.parquet"])
        self.path = f"{layout.table}/{self._relative}"
        self._file_store = layout.file_store
        self._rows = 0
        self._stats = {name: ColumnStats() for name in layout.stats}
        self._schema = schema
        self._footer: list[pq.FileMetaData] = []

    def open(self) -> None:
        schema, layout = self._schema, self._layout
        leaves = [leaf for field in schema for leaf in _leaves(field.name, field.type)]
        try:
            self._sink = self._file_store.open(self.path)
            with ExitStack() as stack:
                stack.callback(self._sink.close)
                self._writer = pq.ParquetWriter(
                    self._sink,
                    schema,
                    compression=layout.codec,
                    use_dictionary=[leaf for leaf in leaves if leaf not in _PLAIN and not leaf.endswith(MAP_VALUE)],
                    write_statistics=[leaf for leaf in leaves if layout.files.has_stats(leaf)],
                    store_schema=False,
                    metadata_collector=self._footer,
                )
                stack.pop_all()
        except OSError as error:
            raise _store_error(self.path, error) from error

    @property
    def bytes(self) -> int:
        """Size of the file so far, in bytes."""
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        for name, stats in self._stats.items():
            stats.add(rows.column(name))
        self._rows += rows.num_rows
        try:
            self._sink.flush()  # an object's parts are sent meanwhile: no more than one row group waits
            self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        except OSError as error:
            raise _store_error(self.path, error) from error

    def close(self) -> WrittenFile:
        try:
            self._writer.close()
            size, modified_ms = self._file_store.finish(self.path, self._sink)
        except OSError as error:
            raise _store_error(self.path, error) from error
        finished = FinishedFile(
            path=self.path,
            relative=self._relative,
            partitions=dict(zip(self._layout.partitions, self._key, strict=True)),
            rows=self._rows,
            bytes=size,
            modified_ms=modified_ms,
            stats=self._stats,
            footer=self._footer[0],
        )
        return WrittenFile(self._layout.files.action(finished), self.path, self._rows, size)

    def discard(self) -> None:
        """Close the unfinished file."""
        for close in (self._writer.close, self._sink.close):
            with suppress(OSError, RuntimeError, pa.ArrowException):  # the writer has no footer yet
                close()


def convert_array(array: pa.Array, field: pa.Field, parent_is_null: pa.Array | None = None) -> pa.Array:
    """Convert an array to a field's type, whose members may be required. Raises ValueError as Arrow's cast does.

    Members of structs are those of the same position: Arrow's cast finds them by name, and makes null of one that has
    another case. It also refuses a required member that is null since its whole struct is null.
    """
    kind = field.type
    has_hidden_nulls = not field.nullable and array.null_count > 0
    if not has_hidden_nulls and _is_castable(array.type, kind):
        return array.cast(kind)
    is_null = array.is_null()
    if has_hidden_nulls:
        missing = is_null if parent_is_null is None else pc.and_not(is_null, parent_is_null)
        if missing.true_count:
            raise ValueError(f"field {field.name!r} has nulls, and is NOT NULL")
    if _is_castable(array.type, kind):
        return _without_nulls(array.cast(kind))
    whole = array.take(pa.array(np.arange(len(array))))  # no slice, and null lists are empty
    mask = None if has_hidden_nulls else is_null
    if pa.types.is_struct(kind):
        hidden = is_null if parent_is_null is None else pc.or_(is_null, parent_is_null)
        members = [convert_array(whole.field(at), member, hidden) for at, member in enumerate(kind)]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=mask)
    if pa.types.is_list(kind):
        values = convert_array(whole.values, kind.value_field)
        return pa.ListArray.from_arrays(whole.offsets, values, type=kind, mask=mask)
    keys, items = convert_array(whole.keys, kind.key_field), convert_array(whole.items, kind.item_field)
    return pa.MapArray.from_arrays(whole.offsets, keys, items, type=kind, mask=mask)


def _without_nulls(array: pa.Array) -> pa.Array:
    """Drop the bitmap of an array's nulls, whose values nobody reads: they are within null structs."""
    kind = array.type
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([array.field(at) for at in range(kind.num_fields)], fields=list(kind))
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(array.offsets, array.values, type=kind)
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(array.offsets, array.keys, array.items, type=kind)
    return pa.Array.from_buffers(kind, len(array), [None, *array.buffers()[1:]], offset=array.offset)


def _is_castable(source: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether Arrow's cast converts a type: members of structs have the same names, and none is NOT NULL.

    Keys of maps always are NOT NULL.
    """
    if pa.types.is_struct(kind):
        return all(
            member.nullable and member.name == source_member.name and _is_castable(source_member.type, member.type)
            for source_member, member in zip(source, kind, strict=True)
        )
    if pa.types.is_list(kind):
        return kind.value_field.nullable and _is_castable(source.value_type, kind.value_type)
    if pa.types.is_map(kind):
        return (
            kind.item_field.nullable
            and _is_castable(source.item_type, kind.item_type)
            and _is_castable(source.key_type, kind.key_type)
        )
    return True


def _leaves(path: str, kind: pa.DataType) -> Iterator[str]:
    """List the paths of a column's leaves in Parquet."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{path}.{field.name}", field.type)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.{MAP_VALUE}", kind.item_type)
    else:
        yield path


def _split(batch: pa.RecordBatch, layout: Layout) -> Iterator[tuple[Key, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    codes = np.zeros(batch.num_rows, dtype=np.int64)
    values = [layout.files.partition_values(batch, name) for name in layout.partitions]
    for column in values:
        encoded = column.dictionary_encode(null_encoding="encode")
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
    _, counts = np.unique(codes, return_counts=True)
    order = np.argsort(codes, kind="stable")
    for indices in np.split(order, np.cumsum(counts)[:-1]):
        # A copy each: a slice would keep the whole batch in memory until a rare partition's rows are written.
        rows = batch.take(pa.array(indices)) if len(counts) > 1 else batch
        yield tuple(layout.files.partition_value(column[int(indices[0])]) for column in values), rows


def _directory(name: str, value: str | None) -> str:
    # The directory's name means nothing to readers, but for Polars: the log has the value. A cut name may be that of
    # several.
    return f"{_escape(name)}={NULL_PARTITION if value is None else _escape(value)}"[:MAX_DIRECTORY_BYTES]


def _escape(text: str) -> str:
    # VACUUM compares the log's texts of paths with Hadoop's: both leave letters, digits and "_.-" as they are.
    return quote(text, safe="").replace("~", "%7E")


def _store_error(path: str, error: OSError) -> StoreError:
    reason = os.strerror(error.errno) if error.errno else str(error).partition("\n")[0]
    return StoreError(f"{path}: {reason}")
