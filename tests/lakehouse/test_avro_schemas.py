"""Columns of Avro schemas, without Spark: those that Spark's own converter makes."""

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from rmq_formats.spark.versions import arrow_schema
from rmq_lakehouse.decode import avro
from rmq_lakehouse.decode.mismatch import Mismatch


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
    record(
        logical("bytes", "decimal"), logical("bytes", "decimal", precision=5, scale=None),
        logical("bytes", "decimal", precision=5, scale=6), logical("bytes", "decimal", precision=0),
        logical("fixed", "decimal", name="D", size=2, precision=5),
        logical("fixed", "decimal", name="D4", size=2, precision=4), {**record("int"), "type": "error", "name": "X"},
    ),
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


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (record(["null", ["null", "int"]]), "field c0 of record R is a union within a union"),
        (record({"type": "array", "items": ["null", {"type": ["null", "int"]}]}), "field c0 of record R is a union"),
        ({**record("int"), "fields": record("int")["fields"] * 2}, "field c0 of record R comes twice"),
        (record({"type": "fixed", "name": "F", "size": 10**400, "logicalType": "decimal", "precision": 5}), "large"),
        (record({"name": "X"}), "type"),
        (
            record(logical("bytes", "decimal", precision=10**9)),
            "field c0 of record R is a decimal of 1000000000",
        ),
        (record("int", aliases=None), "the schema has aliases that are no list"),
    ],
)
def test_a_schema_that_is_none_is_refused_in_one_line(schema: Any, problem: str) -> None:
    for build in (avro.columns, avro.decoder):
        with pytest.raises(ValueError, match=f"not an Avro schema .*{problem}"):
            build(json.dumps(schema))
    decode = avro.decoder(json.dumps(record("int")), {8: json.dumps(schema)})
    with pytest.raises(Mismatch, match=f"names schema 8, which cannot be used: not an Avro schema .*{problem}"):
        decode(b"\0\0\0\0\x08\x02")


def test_bytes_of_an_invalid_decimal_are_bytes() -> None:
    table, writer = record("bytes"), record(logical("bytes", "decimal", precision=5, scale=None))
    assert avro.decoder(json.dumps(writer))(b"\x02\x01") == {"c0": b"\x01"}
    assert avro.decoder(json.dumps(table), {8: json.dumps(writer)})(b"\0\0\0\0\x08\x02\x01") == {"c0": b"\x01"}
