"""Types that grow: by the spec, where the table allows it, and by the owner of the table."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import LongType as IcebergLong
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from rmq_formats.errors import StoreError
from rmq_lakehouse.decode.spark import build_body_decoder
from rmq_lakehouse.evolution import is_wider, with_wider_types
from rmq_lakehouse.spec import TypedTopic
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import write
from tests.lakehouse.test_iceberg import table_of


@pytest.mark.parametrize(
    ("narrow", "wide", "wider"),
    [
        (IntegerType(), LongType(), True),
        (LongType(), IntegerType(), False),
        (ShortType(), IntegerType(), False),
        (FloatType(), DoubleType(), True),
        (IntegerType(), DoubleType(), False),
        (DecimalType(10, 2), DecimalType(12, 2), True),
        (DecimalType(10, 2), DecimalType(12, 4), True),
        (DecimalType(10, 2), DecimalType(11, 4), False),
        (DecimalType(10, 2), DecimalType(10, 2), False),
        (StringType(), LongType(), False),
    ],
)
def test_which_types_are_wider(narrow: DataType, wide: DataType, wider: bool) -> None:
    assert is_wider(wide, narrow) == wider


def test_wider_types_of_a_table_count_within_structs_arrays_and_maps() -> None:
    def columns(kind: DataType, name: str) -> StructType:
        inner = StructType([StructField("n", kind)])
        return StructType(
            [
                StructField(name, kind),
                StructField("in", inner),
                StructField("list", ArrayType(inner)),
                StructField("by", MapType(StringType(), kind)),
            ]
        )

    narrow, wide = columns(IntegerType(), "a"), columns(LongType(), "b")
    assert with_wider_types(narrow, wide, {"a": "b"}) == columns(LongType(), "a")
    assert with_wider_types(narrow, wide)["a"].dataType == IntegerType()
    assert with_wider_types(wide, narrow, {"b": "a"}) == wide


NARROW = "id INT, f FLOAT, d DECIMAL(10,2), list ARRAY<STRUCT<n: INT>>"
WIDE = "id BIGINT, f DOUBLE, d DECIMAL(12,2), list ARRAY<STRUCT<n: BIGINT>>"


@pytest.mark.spark
def test_avro_bodies_of_newer_writers_have_the_types_of_the_table(spark: SparkSession, tmp_path: Path) -> None:
    def schema(kind: str) -> str:
        return json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": kind}]})

    for number, kind in ((1, "int"), (2, "long")):
        (tmp_path / f"{number}.avsc").write_text(schema(kind))
    topic = TypedTopic(topic="T", table="t", format="avro", schema=schema("int"), writer_schemas=str(tmp_path))
    decoder = build_body_decoder(spark, topic, lambda _: StructType([StructField("n", LongType())])).decoder
    bodies = [b"\0\0\0\0\1\x0a", b"\0\0\0\0\2\x80\xc8\xaf\xa0\x25"]
    (decoded,) = decoder.decode_batches([pa.record_batch({"body": pa.array(bodies, pa.binary())})])
    rows = decoded.column("decoded").to_pylist()
    assert rows == [{"value": {"n": 5}, "reason": None}, {"value": {"n": 5_000_000_000}, "reason": None}]


@pytest.mark.spark
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
@pytest.mark.long
def test_columns_become_wider_by_the_spec_and_by_the_owner(exporter: Exporter, table_format: str) -> None:
    spec = exporter.work / "spec.json"
    sent: list[tuple[str, bytes]] = []

    def run(schema: str, *bodies: dict[str, Any]) -> int:
        sent.extend(("T", json.dumps(body).encode()) for body in bodies)
        write(exporter.store, sent)
        topic = {"topic": "T", "format": "json", "schema": schema, "key": ["id"], "table": "typed"}
        spec.write_text(json.dumps({"topics": [topic]}))
        report, _ = exporter.run("--format", table_format, "--typed", str(spec))
        return int(report["undecoded"])

    def rows(name: str) -> list[dict[str, Any]]:
        if table_format == "iceberg":
            return list(table_of(exporter, name).scan().to_arrow().to_pylist())
        return [row.asDict(recursive=True) for row in exporter.rows(name)]

    big = {"id": 5_000_000_000, "f": 1e300, "d": 1234567890.12, "list": [{"n": 5_000_000_000}]}
    small = {"id": 1, "f": 1.5, "d": 1.25, "list": [{"n": 1}]}
    assert run(NARROW, small, big) == 1
    if table_format == "delta":
        fix = f"run ALTER TABLE delta.`{exporter.work / 'typed'}` SET TBLPROPERTIES"
        with pytest.raises(StoreError, match=f"its column id is int, not bigint: to let exports widen it, {fix}"):
            run(WIDE)
        for name in ("typed", "table"):
            table = f"delta.`{exporter.work / name}`"
            exporter.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    assert run(WIDE, {**big, "id": 1}) == 0
    # The owner's types count, also of a raw table.
    if table_format == "delta":
        exporter.spark.sql(f"ALTER TABLE delta.`{exporter.work / 'table'}` ALTER COLUMN queue_id TYPE BIGINT")
    else:
        with table_of(exporter, "table").update_schema() as update:
            update.update_column("queue_id", field_type=IcebergLong())
    assert run(NARROW, {**big, "id": 6_000_000_000}) == 0
    exported = sorted((row["id"], row["f"], row["d"], row["list"][0]["n"]) for row in rows("typed"))
    value = (1e300, Decimal("1234567890.12"), 5_000_000_000)
    assert exported == [(1, *value), (6_000_000_000, *value)]
    assert [row["queue_id"] for row in rows("table")] == [0] * len(sent)
    with pytest.raises(
        StoreError, match=r"its column d is decimal\(12,2\), not decimal\(14,4\)|id is bigint, not string"
    ):
        run(WIDE.replace("(12,2)", "(14,4)") if table_format == "iceberg" else WIDE.replace("id BIGINT", "id STRING"))
