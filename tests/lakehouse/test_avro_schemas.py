"""Columns of Avro schemas, without Spark: those that Spark's own converter makes."""

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from rmq_formats.spark.versions import arrow_schema
from rmq_lakehouse.decode import avro


def record(*kinds: Any, **more: Any) -> dict[str, Any]:
    fields = [{"name": f"c{number}", "type": kind} for number, kind in enumerate(kinds)]
    return {"type": "record", "name": "R", "namespace": "shop", "fields": fields, **more}


def logical(kind: str, logical_type: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **more}


FIXED = {"type": "fixed", "name": "F", "size": 12}
INNER = {**record("int", ["null", "string"]), "name": "Inner"}
SCHEMAS = [
    record("boolean", "int", "long", "float", "double", "string", "bytes", FIXED, "shop.F"),
    record({"type": "enum", "name": "E", "symbols": ["A"]}, "E", ["null", "E"], {"type": "map", "values": "E"}),
    record(["null", "int"], ["int", "null"], ["int"], ["int", "long"], ["null", "long", "int"], ["float", "double"]),
    record(logical("int", "date"), logical("long", "date"), logical("int", "time-millis"), "null"),
    record(*(logical("long", f"{local}timestamp-{unit}") for local in ("", "local-") for unit in ("millis", "micros"))),
    record(logical("int", "timestamp-millis"), logical("long", "timestamp-nanos"), logical("string", "uuid")),
    record(
        logical("bytes", "decimal", precision=12, scale=2), logical("bytes", "decimal", precision=38),
        logical("fixed", "decimal", name="D", size=5, precision=7, scale=7), "D", logical("string", "other"),
        logical("fixed", "duration", name="Gap", size=12),
    ),
    record({"type": "array", "items": INNER}, {"type": "map", "values": "Inner"}, ["null", "Inner"], "shop.Inner"),
    record({"type": "array", "items": ["null", {"type": "map", "values": ["null", logical("int", "date")]}]}),
    ["null", record("int")],
]  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: str(SCHEMAS.index(schema)))
def test_columns_are_those_that_spark_makes_of_the_same_schema(spark: SparkSession, schema: Any) -> None:
    jvm: Any = spark._jvm
    parsed = getattr(jvm.org.apache.avro, "Schema$Parser")().parse(json.dumps(schema))
    of_spark = jvm.org.apache.spark.sql.avro.SchemaConverters.toSqlType(parsed).dataType().json()
    assert avro.columns(json.dumps(schema)) == arrow_schema(StructType.fromJson(json.loads(of_spark)).toNullable())


def test_elements_of_an_array_are_the_columns_of_exploded_bodies() -> None:
    text = json.dumps({"type": "array", "items": record("int")})
    assert avro.columns(text, explode=True) == pa.schema({"c0": pa.int32()})
    for schema, explode, problem in (
        (text, False, "it is not a record$"),
        ('"int"', True, "it is not a record or an array of records"),
        (json.dumps(record([])), False, "a union without a type"),
        (json.dumps(record(["null"])), False, "a union without a type"),
        (json.dumps(record(logical("bytes", "decimal", precision=39))), False, "precision"),
    ):
        with pytest.raises(ValueError, match=problem):
            avro.columns(schema, explode=explode)
