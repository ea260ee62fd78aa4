"""Columns that their owner has renamed or dropped: a column is its id, and does not come back under its former name."""

import json
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from rmq_formats.errors import StoreError
from rmq_lakehouse.delta.columns import exported_columns, physical_columns
from rmq_lakehouse.evolution import current_columns
from rmq_lakehouse.table_fit import moved_columns
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import write
from tests.lakehouse.test_iceberg import table_of


def mapped(name: str, physical: str, kind: Any = None) -> StructField:
    return StructField(name, kind or LongType(), metadata={"delta.columnMapping.physicalName": physical})


def test_former_names_of_a_delta_table_are_found_by_what_files_call_columns() -> None:
    inner = StructType([mapped("sku", "col-9")])
    before = StructType(
        [StructField("a", LongType()), StructField("b", LongType()), mapped("l", "col-1", ArrayType(inner))]
    )
    known = physical_columns(before)
    assert known == {"a": "a", "b": "b", "l": "col-1", "l.element.sku": "col-1.element.col-9"}
    now = StructType([mapped("a2", "a"), mapped("l", "col-1", ArrayType(StructType([mapped("id", "col-9")])))])
    assert moved_columns(known, physical_columns(now)) == {"a": "a2", "b": None, "l.element.sku": "l.element.id"}
    assert moved_columns(known, physical_columns(before)) == {}


def test_without_a_property_the_log_tells_which_columns_there_were() -> None:
    def metadata(*names: str) -> bytes:
        schema = StructType([StructField(name, LongType()) for name in names])
        return json.dumps({"metaData": {"schemaString": schema.json()}}).replace('": ', '":').encode()

    commits = {3: [b'{"add":{}}'], 2: [metadata("a")], 1: [metadata("a", "b")]}  # 0 was cleaned up
    assert exported_columns(None, 3, commits.get) == {"a": "a", "b": "b"}
    assert exported_columns('{"x":"y"}', 3, commits.get) == {"x": "y"}


def test_columns_take_their_names_of_now_and_dropped_ones_are_left_out() -> None:
    wanted = StructType([StructField(name, LongType()) for name in ("a", "b", "c")])
    assert current_columns("t", wanted, {"a": "z", "b": None}).fieldNames() == ["z", "c"]
    with pytest.raises(StoreError, match="its column a is c now, and the spec has both"):
        current_columns("t", wanted, {"a": "c"})
    nested = StructType([StructField("o", StructType([StructField("id", StringType())]))])
    with pytest.raises(StoreError, match=r"its column o\.id is o\.key now: take it out of the spec"):
        current_columns("t", nested, {"o.id": "o.key"})
    with pytest.raises(StoreError, match=r"its column o\.id was dropped"):
        current_columns("t", nested, {"o.id": None})


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_column_that_its_owner_renamed_or_dropped_does_not_come_back(exporter: Exporter, table_format: str) -> None:
    bodies = [json.dumps({"id": f"k{at}", "amount": at, "mail": "m", "more": at}).encode() for at in range(4)]
    topic = {"topic": "T", "format": "json", "schema": "id STRING, amount INT, mail STRING"}
    specs = [{**topic, "table": "rows"}, {**topic, "topic": "K", "table": "keys", "key": ["id"]}]

    def run(end: int, **more: str) -> None:
        write(exporter.store, [(name, body) for body in bodies[:end] for name in ("T", "K")])
        spec = exporter.work / "spec.json"
        spec.write_text(json.dumps({"topics": [{**one, **more} for one in specs]}))
        assert exporter.run("--format", table_format, "--typed", str(spec))[1] == 0

    run(2)
    for name in ("table", "rows", "keys"):
        renamed, dropped = ("body_crc", "flag") if name == "table" else ("amount", "mail")
        if table_format == "iceberg":
            with table_of(exporter, name).update_schema(allow_incompatible_changes=True) as update:
                update.rename_column(renamed, "total")
                update.delete_column(dropped)
            continue
        table = f"delta.`{exporter.work / name}`"
        exporter.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
        exporter.spark.sql(f"ALTER TABLE {table} RENAME COLUMN {renamed} TO total")
        exporter.spark.sql(f"ALTER TABLE {table} DROP COLUMN {dropped}")
    run(3)
    run(4, schema="id STRING, amount INT, mail STRING, more INT")
    for name in ("table", "rows", "keys"):
        if table_format == "iceberg":
            found = table_of(exporter, name).scan().to_arrow().sort_by("physical_offset").to_pylist()
        else:
            found = [row.asDict() for row in exporter.rows(name)]
        assert not {"amount", "mail", "body_crc", "flag"} & {*found[0]} - (
            {"flag", "body_crc"} if name != "table" else set()
        )
        if name == "table":
            assert len(found) == 8
            assert all(row["total"] for row in found)
        else:
            assert [(row["total"], row["more"]) for row in found] == [(0, None), (1, None), (2, None), (3, 3)]
