"""Schemas of JSON bodies without Spark: the columns that Spark's own parser makes, or an error."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from rmq_formats.errors import OptionError
from rmq_formats.spark.versions import arrow_schema
from rmq_lakehouse.decode.columns import select_columns
from rmq_lakehouse.decode.spark import parse_json_columns
from rmq_lakehouse.decode.spark_ddl import UnknownSchemaError, json_columns

PLAIN = ["boolean", "Byte", "TINYINT", "short", "smallint", "INT", "integer", "long", "bigint", "real", "float",
         "double", "string", "binary", "date", "timestamp", "timestamp_ltz", "timestamp_ntz", "dec", "numeric(5)",
         "decimal(38, 38)", "DECIMAL ( 12,2 )"]  # fmt: skip
NAMES = ["a", "_b", "C3", "`d e`", "`f``g`", "type", "comment", "NOT", "struct", "`ü`"]


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True).flatmap(
        lambda names: st.tuples(
            *(st.tuples(st.just(name), st.sampled_from([":", " ", " : "]), inner) for name in names)
        )
    )
    struct = members.map(lambda fields: f"STRUCT<{', '.join(f'{name}{sign}{kind}' for name, sign, kind in fields)}>")
    return struct | inner.map(lambda kind: f"array< {kind}>") | inner.map(lambda kind: f"Map<string,{kind}>")


KINDS = st.recursive(st.sampled_from(PLAIN), _nested, max_leaves=6)
ENDS = st.sampled_from(["", " NOT NULL", " comment 'what it is'", " NOT NULL COMMENT ''"])


@st.composite
def ddl_texts(draw: st.DrawFn) -> str:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    return ",".join(f"{name} {draw(KINDS)}{draw(ENDS)}\n" for name in names)


def described(columns: pa.Schema) -> list[tuple[str, str, bytes | None]]:
    return [(field.name, str(field.type), (field.metadata or {}).get(b"comment")) for field in columns]


@pytest.mark.spark
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=ddl_texts())
def test_columns_are_those_that_spark_makes_of_the_same_text(spark: SparkSession, text: str) -> None:
    by_spark = parse_json_columns(text)
    comments = [(field.metadata or {}).get("comment") for field in by_spark]
    expected = [
        (field.name, str(field.type), None if comment is None else comment.encode())
        for field, comment in zip(arrow_schema(by_spark.toNullable()), comments, strict=True)
    ]
    assert described(json_columns(text)) == expected
    assert described(json_columns(by_spark.json())) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("id BIGNT", "type bignt"),
        ("id VARCHAR(3)", "type varchar"),
        ("id VARIANT", "type variant"),
        ("id STRING COLLATE UTF8_LCASE", "'COLLATE'"),
        ("id INT DEFAULT 3", "'DEFAULT'"),
        ("id INT COMMENT 'it\\'s'", "'it"),
        ("id INT -- the id", "'-- the id'"),
        ("id DECIMAL(39,0)", r"DECIMAL\(39,0\)"),
        ("id DECIMAL(3,4)", r"DECIMAL\(3,4\)"),
        ("id ARRAY<INT", "ends too early"),
        ("id INT, ID INT", "comes twice"),
        ("s STRUCT<a: INT, A: INT>", "comes twice"),
        ("id", "ends too early"),
        ("", "ends too early"),
        ("id INT,", "ends too early"),
        pytest.param("a " + "array<" * 5000, "too deeply", id="deep"),
        ("{", "not Spark's JSON"),
        ('{"type":"array"}', "no struct"),
        ('{"type":"struct","fields":[{"name":"a"}]}', "not Spark's JSON"),
        ('{"type":"struct","fields":[{"name":"a","type":"interval"}]}', "type interval"),
        ('{"type":"struct","fields":[]}', "no columns"),
    ],
)
def test_what_is_not_certainly_known_is_an_error(text: str, problem: str) -> None:
    with pytest.raises(UnknownSchemaError, match=problem):
        json_columns(text)


def test_paths_lead_into_structs_arrays_and_maps() -> None:
    schema = "id INT, `a.b` INT, of STRUCT<x: INT, y: DATE>, lines ARRAY<STRUCT<sku: STRING, n: INT>>, "
    columns = json_columns(f"{schema} by MAP<STRING, STRUCT<v: INT, w: INT>>")
    for paths, expected in (
        (["by.value.w", "of.x", "a.b", "lines.element.n"], "`a.b` INT, of STRUCT<x: INT>, lines ARRAY<STRUCT<n: INT>>, "
         "by MAP<STRING, STRUCT<w: INT>>"),
        (["of", "of.x"], "of STRUCT<x: INT, y: DATE>"),
        (["lines"], "lines ARRAY<STRUCT<sku: STRING, n: INT>>"),
        (["by.key"], "by MAP<STRING, STRUCT<v: INT, w: INT>>"),
    ):  # fmt: skip
        assert select_columns("T", columns, paths) == json_columns(expected)
    assert select_columns("T", columns, []) == columns
    for path in ("nothing", "of.z", "lines.sku", ""):
        with pytest.raises(OptionError, match=f"topic 'T': columns has '{path}', which is no column of the schema"):
            select_columns("T", columns, [path])


def test_comments_of_spark_s_json_stay() -> None:
    field: dict[str, Any] = {"name": "a", "type": "long", "nullable": False, "metadata": {"comment": "what"}}
    assert described(json_columns(json.dumps({"type": "struct", "fields": [field]}))) == [("a", "int64", b"what")]
    field["metadata"] = {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}
    with pytest.raises(UnknownSchemaError, match="metadata of column a"):
        json_columns(json.dumps({"type": "struct", "fields": [field]}))
