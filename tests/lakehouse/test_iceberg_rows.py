"""Rows of an Iceberg table's files as tasks read them, without Spark: what delete files hide, columns by their ids."""

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, ListType, LongType, NestedField, StringType, StructType

from rmq_formats.errors import StoreError
from rmq_lakehouse.iceberg.catalog import IcebergLocation
from rmq_lakehouse.iceberg.io import TableFileSystem
from rmq_lakehouse.iceberg.rows import FILE, FileReader
from rmq_lakehouse.iceberg.table import IcebergTransaction, table_layout
from rmq_lakehouse.parquet import PartitionedFiles

LINE = StructType(NestedField(4, "sku", StringType()), NestedField(5, "n", IntegerType()))
SCHEMA = Schema(NestedField(1, "at", LongType()), NestedField(2, "lines", ListType(3, LINE, element_required=False)))
ARROW = pa.schema([("at", pa.int64()), ("lines", pa.list_(pa.struct([("sku", pa.string()), ("n", pa.int32())])))])
ROWS: list[dict[str, Any]] = [
    {"at": 0, "lines": None}, {"at": 1, "lines": []}, {"at": 2, "lines": [{"sku": "a", "n": 1}, None]},
]  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> IcebergLocation:
    """A table with one file."""
    place = IcebergLocation(str(tmp_path / "table"), {})
    place.create(SCHEMA, (), {"format-version": "2"})
    table = loaded(place)
    files = PartitionedFiles(table_layout(table, place.table, "zstd"), ARROW)
    files.write(pa.RecordBatch.from_pylist(ROWS, ARROW))
    IcebergTransaction(place, table).commit(files.close(), {"app": 3}, None)
    return place


def loaded(place: IcebergLocation) -> Table:
    table = place.load()
    assert table is not None
    return table


def read(place: IcebergLocation, schema: pa.Schema, task: FileScanTask | None = None) -> list[dict[str, Any]]:
    """Read the table's file as a task does that was sent its work."""
    table = loaded(place)
    (own,) = table.scan().plan_files()
    reader = FileReader(table.schema().model_dump_json(), TableFileSystem.of(table.location(), table.io), schema)
    asked = pa.RecordBatch.from_pydict({"files": [pickle.dumps([task or own])]})
    return pa.Table.from_batches(pickle.loads(pickle.dumps(reader)).read(iter([asked])), schema).to_pylist()


def test_nulls_stay_nulls_and_empty_lists_empty(place: IcebergLocation) -> None:
    (task,) = loaded(place).scan().plan_files()
    found = read(place, ARROW.append(pa.field(FILE, pa.string())))
    assert found == [{**row, FILE: task.file.file_path} for row in ROWS]


def test_rows_that_a_delete_file_hides_are_left_out(place: IcebergLocation, tmp_path: Path) -> None:
    (task,) = loaded(place).scan().plan_files()
    path = str(tmp_path / "deletes.parquet")
    pq.write_table(pa.table({"file_path": [task.file.file_path, "another"], "pos": [1, 0]}), path)
    hiding = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=2,
        file_size_in_bytes=Path(path).stat().st_size,
    )
    assert read(place, ARROW, FileScanTask(task.file, {hiding})) == [ROWS[0], ROWS[2]]


def test_columns_are_found_by_their_ids_and_new_ones_are_null(place: IcebergLocation) -> None:
    with loaded(place).update_schema() as update:
        update.rename_column("at", "offset")
    with loaded(place).update_schema() as update:
        update.add_column("at", StringType())
        update.add_column(("lines", "more"), StringType())
    more = pa.list_(pa.struct([("sku", pa.string()), ("n", pa.int64()), ("more", pa.string())]))
    found = read(place, pa.schema([("offset", pa.int64()), ("at", pa.string()), ("lines", more)]))
    assert [(row["offset"], row["at"]) for row in found] == [(0, None), (1, None), (2, None)]
    assert [row["lines"] for row in found] == [None, [], [{"sku": "a", "n": 1, "more": None}, None]]


def test_a_member_that_was_renamed_is_refused_and_so_is_another_format(place: IcebergLocation) -> None:
    other = DataFile.from_args(content=DataFileContent.DATA, file_path="x.avro", file_format=FileFormat.AVRO)
    with pytest.raises(StoreError, match=r"x\.avro: is no Parquet file, and cannot be written anew"):
        read(place, ARROW, FileScanTask(other))
    with loaded(place).update_schema() as update:
        update.rename_column("lines.sku", "article")
    with pytest.raises(StoreError, match="its member sku is article now, and cannot be written anew"):
        read(place, ARROW)


def test_columns_and_members_of_another_case_are_those_of_the_table(place: IcebergLocation) -> None:
    line = pa.struct([("N", pa.int32()), ("SKU", pa.string())])
    schema = pa.schema([("Lines", pa.list_(line)), ("AT", pa.int64())])
    table = loaded(place)
    files = PartitionedFiles(table_layout(table, place.table, "zstd"), schema)
    files.write(pa.RecordBatch.from_pylist([{"AT": 3, "Lines": [{"N": 2, "SKU": "b"}, None]}], schema))
    IcebergTransaction(place, table).commit(files.close(), {"app": 4}, None)
    found = loaded(place).scan(row_filter="at = 3").to_arrow().to_pylist()
    assert found == [{"at": 3, "lines": [{"sku": "b", "n": 2}, None]}]
