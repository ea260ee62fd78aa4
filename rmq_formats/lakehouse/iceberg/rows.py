"""Reads rows of an Iceberg table's files in Spark tasks: no JVM of Iceberg, and no row in the driver.

pyiceberg's own reader makes empty lists of those that are null, where they have records in them; what is written anew
must not change so. So files are read by Arrow, and given the table's columns by their ids.
"""

import pickle
from collections.abc import Iterator, Sequence
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
from rmq_formats.lakehouse.iceberg.files import FIELD_ID
from rmq_formats.lakehouse.iceberg.io import TableFileSystem
from rmq_formats.spark.versions import arrow_schema

FILE: Final = "_file"  # Iceberg's own name of the column that tells a row's file


@dataclass(frozen=True, slots=True)
class FileReader:
    """Reads pickled lists of ``FileScanTask``; Spark's tasks get it pickled.

    Attributes:
        table: its schema, as Iceberg's JSON.
        files: opens them.
        schema: of the batches; ``FILE`` is the path of their file.
        kept: condition of the rows that are read; None is all.
    """

    table: str
    files: TableFileSystem
    schema: pa.Schema
    kept: pc.Expression | None = None

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the rows of the files. Raises StoreError."""
        known = Schema.model_validate_json(self.table)
        io = self.files.io()
        for batch in batches:
            for task in chain.from_iterable(map(pickle.loads, batch.column(0).to_pylist())):
                for rows in self._rows(io, task, known):
                    yield rows if self.kept is None else rows.filter(self.kept)

    def _rows(self, io: PyArrowFileIO, task: FileScanTask, known: Schema) -> Iterator[pa.RecordBatch]:
        path = task.file.file_path
        if task.file.file_format != FileFormat.PARQUET:
            raise StoreError(f"{path}: is no Parquet file, and cannot be written anew")
        found = _read_all_delete_files(io, [task]).get(path, [])
        hidden = np.unique(np.concatenate([np.empty(0, np.int64), *(part.to_numpy() for part in found)]))
        with io.new_input(path).open() as source:
            file = pq.ParquetFile(source)
            names = {field.name: _own_name(file.schema_arrow, known.find_field(field.name), path)
                     for field in self.schema if field.name != FILE}  # fmt: skip
            at = 0
            for batch in file.iter_batches(columns=[name for name in names.values() if name is not None]):
                kept = ~np.isin(np.arange(at, at + batch.num_rows), hidden)
                at += batch.num_rows
                rows = batch if kept.all() else batch.filter(pa.array(kept))
                if rows.num_rows:
                    yield pa.RecordBatch.from_arrays(
                        [_column(rows, path if field.name == FILE else None, names.get(field.name), field.type)
                         for field in self.schema], schema=self.schema,
                    )  # fmt: skip


def _column(rows: pa.RecordBatch, path: str | None, name: str | None, kind: pa.DataType) -> pa.Array:
    if path is not None:
        return pa.repeat(path, rows.num_rows)
    return pa.nulls(rows.num_rows, kind) if name is None else rows.column(name).cast(kind)


def _own_name(file: pa.Schema, field: NestedField, path: str) -> str | None:
    """Return what a file calls a column of the table; None if it does not have it. Raises StoreError."""
    has_ids = any(_id(one) is not None for one in file)
    for one in file:
        if _id(one) == field.field_id or (not has_ids and one.name == field.name):
            _check_members(one.type, field.field_type, f"{path}: column {field.name}")
            return str(one.name)
    return None


def _id(field: pa.Field) -> int | None:
    told = (field.metadata or {}).get(FIELD_ID)
    return None if told is None else int(told)


def _check_members(kind: pa.DataType, known: IcebergType, where: str) -> None:
    """Refuse members that another program has renamed since: Arrow finds them by name."""
    if isinstance(known, IcebergStruct):
        by_id = {field.field_id: field for field in known.fields}
        for member in kind:
            now = by_id.get(_id(member) or 0)
            if now is not None and now.name != member.name:
                raise StoreError(f"{where}: its member {member.name} is {now.name} now, and cannot be written anew")
            if now is not None:
                _check_members(member.type, now.field_type, where)
    elif isinstance(known, ListType):
        _check_members(kind.value_type, known.element_type, where)
    elif isinstance(known, MapType):
        _check_members(kind.key_type, known.key_type, where)
        _check_members(kind.item_type, known.value_type, where)


def rows_of(
    spark: SparkSession, table: Table, tasks: Sequence[FileScanTask], columns: Sequence[str] | None = None,
    *, with_file: bool = False,
) -> DataFrame:  # fmt: skip
    """Read rows of a table's files, without those that delete files hide.

    Args:
        spark: the session.
        table: as it was loaded.
        tasks: the files, of one of the table's snapshots, with their delete files.
        columns: names of the columns wanted; None is all.
        with_file: have ``FILE`` as well.
    """
    every = from_arrow_schema(table.schema().as_arrow())
    wanted = StructType([every[name] for name in columns] if columns is not None else every.fields)
    if with_file:
        wanted = StructType([*wanted, StructField(FILE, StringType())])
    reader = reader_of(table, wanted)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return reader.read(batches)

    return parts_of(spark, [(task,) for task in tasks]).mapInArrow(read, wanted)


def reader_of(table: Table, columns: StructType, kept: pc.Expression | None = None) -> FileReader:
    """Return what tasks read a table's files by; see ``FileReader``."""
    files = TableFileSystem.of(table.location(), table.io)
    return FileReader(table.schema().model_dump_json(), files, arrow_schema(columns), kept)


def parts_of(spark: SparkSession, parts: Sequence[Sequence[FileScanTask]]) -> DataFrame:
    """Give files to tasks of Spark, each of which reads one of ``parts``."""
    pickled = [(pickle.dumps(list(part)),) for part in parts]
    return spark.createDataFrame(spark.sparkContext.parallelize(pickled, max(1, len(parts))), "files BINARY")
