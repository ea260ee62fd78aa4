"""Rows of an Iceberg table's files, read and written in Spark tasks: without a JVM of Iceberg, or rows in the driver.

pyiceberg's own reader turns null lists of records into empty lists, but a rewrite must not change values. So Arrow
reads the files, and columns are matched by their field ids.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import PyArrowFileIO, _read_all_delete_files
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import IcebergType, ListType, MapType, NestedField
from pyiceberg.types import StructType as IcebergStruct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from rmq_formats.errors import StoreError
from rmq_formats.spark.versions import SPARK_VERSION, arrow_schema
from rmq_lakehouse.iceberg.files import FIELD_ID
from rmq_lakehouse.iceberg.io import TableFileSystem
from rmq_lakehouse.parquet import Layout, PartitionedFiles, WrittenFile
from rmq_lakehouse.raw_files import check_visible
from rmq_offline.spark.runner import SparkRunner

FILE: Final = "_file"  # Iceberg's own name of the column with the path of a row's file
_WRITTEN = pa.schema([("action", pa.string()), ("path", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())])
Read = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class FileReader:
    """Reader of pickled lists of ``FileScanTask``, which is pickled to Spark's tasks.

    Attributes:
        table: Iceberg's JSON of the table's schema.
        schema: columns of the batches; ``FILE`` is the path of their file.
    """

    table: str
    files: TableFileSystem
    schema: pa.Schema
    row_filter: pc.Expression | None = None

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the rows of the files. Raises StoreError."""
        schema = Schema.model_validate_json(self.table)
        io = self.files.io()
        for batch in batches:
            for task in chain.from_iterable(map(pickle.loads, batch.column(0).to_pylist())):
                for rows in self._rows(io, task, schema):
                    yield rows if self.row_filter is None else rows.filter(self.row_filter)

    def _rows(self, io: PyArrowFileIO, task: FileScanTask, schema: Schema) -> Iterator[pa.RecordBatch]:
        path = task.file.file_path
        if task.file.file_format != FileFormat.PARQUET:
            raise StoreError(f"{path}: is no Parquet file, and cannot be written anew")
        deleted = _read_all_delete_files(io, [task]).get(path, [])
        hidden = np.unique(np.concatenate([np.empty(0, np.int64), *(part.to_numpy() for part in deleted)]))
        with io.new_input(path).open() as source:
            file = pq.ParquetFile(source)
            names = {
                field.name: _name_in_file(file.schema_arrow, schema.find_field(field.name), path)
                for field in self.schema
                if field.name != FILE
            }
            position = 0
            for batch in file.iter_batches(columns=[name for name in names.values() if name is not None]):
                is_kept = ~np.isin(np.arange(position, position + batch.num_rows), hidden)
                position += batch.num_rows
                rows = batch if is_kept.all() else batch.filter(pa.array(is_kept))
                if rows.num_rows:
                    yield pa.RecordBatch.from_arrays(
                        [
                            _column(rows, path if field.name == FILE else None, names.get(field.name), field.type)
                            for field in self.schema
                        ],
                        schema=self.schema,
                    )


def _column(rows: pa.RecordBatch, path: str | None, name: str | None, kind: pa.DataType) -> pa.Array:
    if path is not None:
        return pa.repeat(path, rows.num_rows)
    return pa.nulls(rows.num_rows, kind) if name is None else rows.column(name).cast(kind)


def _name_in_file(file: pa.Schema, field: NestedField, path: str) -> str | None:
    """Return the name of a table column in a file; None if the file lacks it. Raises StoreError."""
    has_ids = any(_id(column) is not None for column in file)
    for column in file:
        if _id(column) == field.field_id or (not has_ids and column.name == field.name):
            _check_members(column.type, field.field_type, f"{path}: column {field.name}")
            return str(column.name)
    return None


def _id(field: pa.Field) -> int | None:
    field_id = (field.metadata or {}).get(FIELD_ID)
    return None if field_id is None else int(field_id)


def _check_members(kind: pa.DataType, table_type: IcebergType, location: str) -> None:
    """Refuse members that another program has renamed since: Arrow finds them by name."""
    if isinstance(table_type, IcebergStruct):
        by_id = {field.field_id: field for field in table_type.fields}
        for member in kind:
            table_field = by_id.get(_id(member) or 0)
            if table_field is not None and table_field.name != member.name:
                raise StoreError(
                    f"{location}: its member {member.name} is {table_field.name} now, and cannot be written anew"
                )
            if table_field is not None:
                _check_members(member.type, table_field.field_type, location)
    elif isinstance(table_type, ListType):
        _check_members(kind.value_type, table_type.element_type, location)
    elif isinstance(table_type, MapType):
        _check_members(kind.key_type, table_type.key_type, location)
        _check_members(kind.item_type, table_type.value_type, location)


def rows_of(
    spark: SparkSession,
    table: Table,
    tasks: Sequence[FileScanTask],
    columns: Sequence[str] | None = None,
    *,
    with_file: bool = False,
) -> DataFrame:
    """Read rows of a table's files, all columns or some, and ``FILE``, without rows hidden by delete files."""
    all_columns = from_arrow_schema(table.schema().as_arrow())
    row_columns = StructType([all_columns[name] for name in columns] if columns is not None else all_columns.fields)
    if with_file:
        row_columns = StructType([*row_columns, StructField(FILE, StringType())])
    reader = reader_of(table, row_columns)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return reader.read(batches)

    return frame_of_parts(spark, [(task,) for task in tasks]).mapInArrow(read, row_columns)


def reader_of(table: Table, columns: StructType, row_filter: pc.Expression | None = None) -> FileReader:
    """Return the reader that tasks use for a table's files."""
    files = TableFileSystem.of(table.location(), table.io)
    return FileReader(table.schema().model_dump_json(), files, arrow_schema(columns), row_filter)


def frame_of_parts(spark: SparkSession, parts: Sequence[Sequence[FileScanTask]]) -> DataFrame:
    """Distribute files to tasks of Spark, each of which reads one of ``parts``."""
    pickled = [(pickle.dumps(list(part)),) for part in parts]
    return spark.createDataFrame(spark.sparkContext.parallelize(pickled, max(1, len(parts))), "files BINARY")


def write_frame(frame: DataFrame, layout: Layout) -> list[WrittenFile]:
    """Write the rows in tasks, after a shuffle that brings the rows of a partition together. Raises StoreError."""
    names = frame.columns
    # Spark takes the names that mapInArrow is given apart at dots and backticks. No projection is above the hint: of
    # a shuffle without rows Spark would drop what is below it, and with it what is observed there.
    numbered_frame = frame.toDF(*(f"c{at}" for at in range(len(names))))
    lower_names = [name.lower() for name in names]
    sources = [lower_names.index(layout.files.partition_source(name).lower()) for name in layout.partitions]
    if sources:
        numbered_frame = numbered_frame.hint("rebalance", *(f"c{position}" for position in sources))

    def with_real_names(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (batch.rename_columns(names) for batch in batches)

    return write_parts(numbered_frame, layout, arrow_schema(frame.schema), with_real_names)


def write_parts(parts: DataFrame, layout: Layout, schema: pa.Schema, read: Read) -> list[WrittenFile]:
    """Write in each task the rows that ``read`` makes of its part, without a shuffle."""
    SparkRunner(parts.sparkSession).check_shared("--table", layout.table)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = PartitionedFiles(layout, schema)
        try:
            for batch in read(batches):
                files.write(_with_offsets(batch))
            written = files.close()
        except BaseException:
            files.abort()
            raise
        file_rows = [{name: getattr(file, name) for name in _WRITTEN.names} for file in written]
        yield pa.RecordBatch.from_pylist(file_rows, _WRITTEN)

    written = [WrittenFile(**row.asDict()) for row in parts.mapInArrow(write, from_arrow_schema(_WRITTEN)).collect()]
    check_visible(written, layout.file_store)
    return written


def _with_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a batch of a Spark before 4.2, in which empty lists within others have no offsets: nbytes reads them."""
    if SPARK_VERSION >= (4, 2) or not any(pa.types.is_nested(field.type) for field in batch.schema):
        return batch
    return batch.take(pa.array(np.arange(batch.num_rows)))
