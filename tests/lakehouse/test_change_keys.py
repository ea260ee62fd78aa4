"""Keys of change data capture: events that change a key, KEYS of tombstones, and conditions that delete."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from rmq_formats.errors import OptionError
from rmq_lakehouse.change_data import KeyColumn, check_condition, key_columns, key_text_checker
from rmq_lakehouse.spec import TypedTopic
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.test_changes import ENVELOPE, Sent, topic_of, write
from tests.lakehouse.test_iceberg import table_of


def test_the_key_within_a_payload_is_that_of_before_where_after_is_null() -> None:
    columns = StructType([StructField("payload", ENVELOPE)])
    (key,) = key_columns(topic_of("payload.after.id"), columns)
    assert key.paths == (("payload", "after", "id"), ("payload", "before", "id"))
    assert key.after_path == ("payload", "after")


@pytest.mark.spark
def test_a_key_of_several_parts_is_wholly_that_of_after_or_of_before(spark: SparkSession) -> None:
    image = StructType([StructField("id", LongType()), StructField("region", StringType())])
    columns = StructType([StructField("before", image), StructField("after", image)])
    parts = key_columns(topic_of("after.id", "after.region"), columns)
    rows = [((1, "x"), (2, "y")), ((1, "x"), (2, None)), ((1, "x"), None), ((1, "x"), (None, None)), (None, (3, "z"))]
    keys = spark.createDataFrame(rows, columns).selectExpr(*(part.sql() for part in parts)).collect()
    assert list(map(tuple, keys)) == [(2, "y"), (2, None), (1, "x"), (1, "x"), (3, "z")]


def test_a_last_member_after_is_a_value_and_no_envelope() -> None:
    span = StructType([StructField("before", DateType()), StructField("after", DateType())])
    (key,) = key_columns(topic_of("span.after"), StructType([StructField("span", span)]))
    assert (key.paths, key.after_path) == ((("span", "after"),), None)


@pytest.mark.parametrize(
    ("kind", "accepted", "refused", "wanted"),
    [
        (
            LongType(),
            ["1", "-7", "9223372036854775807"],
            ["", " 1", "1 ", "1.0", "1e2", "007", "+1", "9223372036854775808", "true", "one", "1,2", '1}{"a":1'],
            "BIGINT",
        ),
        (IntegerType(), ["2147483647"], ["2147483648"], "INT"),
        (
            DecimalType(10, 2),
            ["1.01", "2", "2.500", "1E+2", "0.00"],
            ["1.005", "2.0049", "123456789.00", "1.0x", "NaN"],
            "DECIMAL(10,2) without rounding",
        ),
        (DecimalType(10, 0), ["2", "2.0"], ["1.5"], "DECIMAL(10,0) without rounding"),
        (StringType(), ["a  b", " c ", 'q"\\', "ü", "null"], [], "STRING"),
        (
            DateType(),
            ["2024-01-31", "0001-01-01"],
            ["2024-01-31Tgarbage", "2024-01-31 10:00:00", "2024-2", "2024", "2024-02-30", "0000-01-01", " 2024-01-31"],
            "DATE as YYYY-MM-DD",
        ),
        (DoubleType(), ["1", "0.1", "-1.5e300", "NaN"], ["1d", "0.1f", "1e400", "0x1p3", "inf", ".5"], "DOUBLE"),
        (FloatType(), ["0.1"], ["0.1f", "1e39"], "FLOAT"),
        (BooleanType(), ["true", "false"], ["1", "TRUE", "t", "yes"], "BOOLEAN"),
        (BinaryType(), ["AP8="], ["A", "A P8="], "BINARY in Base64"),
        (
            TimestampType(),
            [
                "2024-01-31T12:00:00Z",
                "2024-01-31 12:00",
                "2024-01-31T12:00:00.123456+01:00",
                "2024-01-31 12:00:00 Europe/Rome",
            ],
            [
                "2024-01-31T12:00:00.1234567Z",
                "2024",
                "2024-01-31",
                "1700000000",
                "2024-01-31T12:00:00X",
                "2024-01-31T25:00Z",
            ],
            "TIMESTAMP with date, time and 6 digits of a fraction at most",
        ),
        (
            TimestampNTZType(),
            ["2024-01-31T12:00:00.5"],
            ["2024-01-31T12:00:00Z", "2024-01-31"],
            "TIMESTAMP_NTZ with date, time and 6 digits of a fraction at most",
        ),
    ],
    ids=lambda value: value.simpleString() if isinstance(value, DataType) else "",
)
def test_keys_of_a_tombstone_are_a_value_of_the_column_or_a_reason(
    kind: DataType, accepted: list[str], refused: list[str], wanted: str
) -> None:
    find_reason = key_text_checker(KeyColumn("after.k", (("after", "k"),), kind), "UTC")
    assert [text for text in accepted if find_reason(text) is not None] == []
    reasons = [f"column after.k: a tombstone with KEYS {text!r}, wanted {wanted}" for text in refused]
    assert [find_reason(text) for text in refused] == reasons


CHANGED_KEYS = """
[[topics]]
topic = "E"
format = "json"
schema = "before STRUCT<id: BIGINT, name: STRING>, after STRUCT<id: BIGINT, name: STRING>, op STRING"
table = "envelopes"
key = ["after.id"]

[[topics]]
topic = "P"
format = "json"
schema = "payload STRUCT<before: STRUCT<a: INT, b: STRING>, after: STRUCT<a: INT, b: STRING>, op: STRING>"
table = "payloads"
key = ["payload.after.a", "payload.after.b"]
delete_when = "payload.op = 'd'"

[[topics]]
topic = "X"
format = "json"
schema = "before STRUCT<id: INT>, after STRUCT<id: INT>"
table = "exploded"
key = ["after.id"]
explode = true
"""
OTHERS = """
[[topics]]
topic = "M"
format = "json"
schema = "k DECIMAL(10, 2)"
table = "decimals"
key = ["k"]
tombstones = true

[[topics]]
topic = "S"
format = "json"
schema = "payload STRUCT<before: STRUCT<k: STRING>, after: STRUCT<k: STRING>>"
table = "texts"
key = ["payload.after.k"]
tombstones = true

[[topics]]
topic = "D"
format = "json"
schema = "k TIMESTAMP"
table = "times"
key = ["k"]
tombstones = true

[[topics]]
topic = "Q"
format = "json"
schema = "id INT, total INT, qty INT, s STRING, a ARRAY<INT>"
table = "quotients"
key = ["id"]
delete_when = "total / qty > 100 AND total / qty < 500 OR s = 1 OR a[0] = 9"
"""


def change(before: Any, after: Any, op: str = "u") -> dict[str, Any]:
    return {"before": before, "after": after, "op": op}


def sent(topic: str, body: Any, keys: str | None = None) -> Sent:
    return topic, b"" if body is None else json.dumps(body).encode(), keys


def row(id_: int, name: str) -> dict[str, Any]:
    return {"id": id_, "name": name}


def pair(a: int | None, b: str | None) -> dict[str, Any]:
    return {"a": a, "b": b}


def payload(before: Any, after: Any, op: str = "u") -> Sent:
    return sent("P", {"payload": change(before, after, op)})


FIRST = [
    sent("E", change(None, row(1, "one"), "c")), sent("E", change(row(1, "one"), row(2, "two"))),
    sent("E", change(None, row(5, "five"), "c")),
    payload(None, pair(1, "x"), "c"), payload(None, pair(1, "y"), "c"), payload(pair(1, "x"), pair(1, "z")),
    payload(pair(1, None), pair(3, "y")), payload(None, pair(4, "d"), "c"), payload(pair(4, "d"), None, "d"),
    sent("X", [{"after": {"id": 1}}, {"before": {"id": 1}, "after": {"id": 2}},
               {"before": {"id": 2}, "after": {"id": 1}}]),
    sent("M", {"k": 1.01}), sent("M", {"k": 2.00}), sent("M", {"k": 3}),
    sent("M", None, "1.005"), sent("M", None, "2.0049"), sent("M", None, "3.0"), sent("M", None),
    *(sent("S", {"payload": {"after": {"k": text}}}) for text in ("a b", "a  b", "c", "c ")),
    sent("S", None, "a  b"), sent("S", None, "c "), sent("S", None, ""),
    sent("D", {"k": "2024-01-01T00:00:00Z"}), sent("D", {"k": "2024-01-31T12:00:00.123456Z"}),
    sent("D", None, "2024"), sent("D", None, "2024-01-31T12:00:00.1234567Z"), sent("D", None, "2024-01-01 00:00:00"),
    sent("Q", {"id": 1, "total": 200, "qty": 0}), sent("Q", {"id": 2, "total": 200, "qty": 2}),
    sent("Q", {"id": 2, "total": 200, "qty": 1}), sent("Q", {"id": 3, "s": "abc"}), sent("Q", {"id": 4, "a": []}),
    sent("Q", {"id": 5}), sent("Q", {"id": 6, "total": 1, "qty": 1, "s": "0", "a": [1]}),
]  # fmt: skip
SECOND = [
    sent("E", change(row(5, "five"), row(6, "six"))), sent("E", change(None, row(1, "again"), "c")),
    payload(pair(1, "y"), pair(1, "w"), "d"), payload(None, pair(1, "x"), "c"),
    sent("X", [{"before": {"id": 1}, "after": {"id": 7}}]),
]  # fmt: skip
NOT_EVALUATED = "delete_when cannot be evaluated: total / qty > 100 AND total / qty < 500 OR s = 1…"


@pytest.mark.spark
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
@pytest.mark.long
def test_changed_keys_tombstones_and_conditions_delete_the_rows_that_they_name(
    exporter: Exporter, table_format: str
) -> None:
    spec = exporter.work / "spec.toml"
    spec.write_text(CHANGED_KEYS + OTHERS)

    def run(messages: list[Sent], *more: str) -> dict[str, Any]:
        write(exporter, messages)
        how = ("--format", table_format, "--typed", str(spec), "--dlq-table", str(exporter.work / "dead"))
        report, code = exporter.run(*how, *more, table=False)
        assert code == 0
        return report

    def rows(name: str) -> list[dict[str, Any]]:
        if table_format == "iceberg":
            return list(table_of(exporter, name).scan().to_arrow().to_pylist())
        return [row.asDict(recursive=True) for row in exporter.rows(name)]

    def tables() -> dict[str, Any]:
        names = ("envelopes", "payloads", "exploded")
        found = {name: rows(name) for name in names}
        assert all(row["physical_offset"] >= 0 for name in names for row in found[name])
        return {
            "E": {row["after"]["id"]: row["after"]["name"] for row in found["envelopes"]},
            "P": sorted((row["payload"]["after"]["a"], row["payload"]["after"]["b"]) for row in found["payloads"]),
            "X": sorted(row["after"]["id"] for row in found["exploded"]),
        }

    report = run(FIRST)
    assert tables() == {"E": {2: "two", 5: "five"}, "P": [(1, "y"), (1, "z"), (3, "y")], "X": [1]}
    assert report["exports"]["E"] == 3  # messages, and not the deletions that they add
    assert sorted(row["k"] for row in rows("decimals")) == [Decimal("1.01"), Decimal("2.00")]
    assert sorted(row["payload"]["after"]["k"] for row in rows("texts")) == ["a b", "c"]
    assert [row["k"].microsecond for row in rows("times")] == [123456]
    assert sorted(row["id"] for row in rows("quotients")) == [5, 6]
    time = "wanted TIMESTAMP with date, time and 6 digits of a fraction at most"
    assert sorted((row["topic"], row["reason"]) for row in rows("dead")) == [
        ("D", f"column k: a tombstone with KEYS '2024', {time}"),
        ("D", f"column k: a tombstone with KEYS '2024-01-31T12:00:00.1234567Z', {time}"),
        ("M", "column k: a tombstone with KEYS '1.005', wanted DECIMAL(10,2) without rounding"),
        ("M", "column k: a tombstone with KEYS '2.0049', wanted DECIMAL(10,2) without rounding"),
        ("M", "column k: a tombstone without KEYS, wanted DECIMAL(10,2) without rounding"),
        *[("Q", NOT_EVALUATED)] * 3,
        ("S", "column payload.after.k: a tombstone without KEYS, wanted STRING"),
    ]
    spec.write_text(CHANGED_KEYS)
    run(FIRST + SECOND)
    final = {"E": {1: "again", 2: "two", 6: "six"}, "P": [(1, "x"), (1, "z"), (3, "y")], "X": [7]}
    assert tables() == final
    run(FIRST + SECOND, "--from-offset", "0")
    assert tables() == final


@pytest.mark.spark
@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("rand() > 0.5", "is not deterministic"),
        ("uuid() = s", "is not deterministic"),
        ("day < current_date()", "depends on the time or the user of the run"),
        ("count(*) > 0", r"\[MISSING_GROUP_BY\] .*"),
        ("explode(array(true, false))", r"\[UNSUPPORTED_GENERATOR.*"),
        ("row_number() OVER (ORDER BY id) > 1", "depends on other messages"),
        ("id IN (SELECT 1)", r"\[UNSUPPORTED_SUBQUERY_EXPRESSION.*"),
        ("queue_id = 0", r"\[UNRESOLVED_COLUMN.*"),
        ("s", "is not a condition"),
        ("id +", r"\[PARSE_SYNTAX_ERROR\].*"),
        ("*", ".*"),
        ("id = 1, id = 2", r"\[PARSE_SYNTAX_ERROR\].*"),
    ],
)
def test_delete_when_is_refused_in_one_line_unless_it_is_of_one_message(
    spark: SparkSession, condition: str, problem: str, capfd: pytest.CaptureFixture[str]
) -> None:
    columns = StructType.fromDDL("id INT, s STRING, day DATE")
    topic = TypedTopic(topic="T", table="t", format="json", key=("id",), delete_when=condition)
    with pytest.raises(OptionError) as refusal:
        check_condition(spark, topic, columns)
    advice = "Give a condition over the columns of one message"
    assert str(refusal.value).startswith(f"topic 'T': delete_when {condition!r}: ")
    assert str(refusal.value).endswith(f". {advice}")
    assert refusal.match(rf"(?s:.*): {problem}\. {advice}$")
    assert "\n" not in str(refusal.value)
    assert capfd.readouterr().err == ""


@pytest.mark.spark
def test_delete_when_may_be_any_condition_over_the_columns_of_a_message(spark: SparkSession, tmp_path: Path) -> None:
    columns = StructType.fromDDL("id INT, s STRING, a ARRAY<INT>, `a.b` INT")
    for condition in ("id = 1", "exists(a, x -> x > id)", "`a.b` IS NULL", "s LIKE 'x%' AND true", "s = 1"):
        check_condition(
            spark, TypedTopic(topic="T", table="t", format="json", key=("id",), delete_when=condition), columns
        )
