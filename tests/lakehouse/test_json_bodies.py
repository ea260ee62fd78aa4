"""JSON bodies: each value is unchanged in its column, or the body has a reason that names column, value and type."""

import datetime
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from rmq_formats.spark.versions import arrow_schema
from rmq_lakehouse.decode.bodies import decoded
from rmq_lakehouse.decode.json_body import decoder
from rmq_lakehouse.decode.spark import arrow_columns_of_json
from rmq_lakehouse.decode.times import TimeUnits, in_range, text_days, text_us

NOV_14 = datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC)


def attempt(
    kind: DataType | StructType, body: str | bytes, units: TimeUnits | None = None, zone: str = "UTC"
) -> tuple[Any, str | None]:
    """Value and reason of a body, whose column ``v`` has a type, if it is no schema."""
    columns = (
        kind if isinstance(kind, StructType) and "w" in kind.fieldNames() else StructType([StructField("v", kind)])
    )
    raw = body.encode() if isinstance(body, str) else body
    arrow_columns = pa.struct(list(arrow_schema(columns)))
    decoded_rows = decoded(
        pa.array([raw], pa.binary()), decoder(arrow_columns, units or TimeUnits(), zone), arrow_columns
    )
    (row,) = decoded_rows.to_pylist()
    value = row["value"]
    return (value if value is None or columns is kind else value["v"]), row["reason"]


def value_of(kind: DataType, text: str, **more: Any) -> Any:
    value, reason = attempt(kind, f'{{"v":{text}}}', **more)
    assert reason is None
    return value


def reason_of(kind: DataType, text: str, **more: Any) -> str:
    value, reason = attempt(kind, f'{{"v":{text}}}', **more)
    assert value is None
    assert reason is not None
    return reason


def within(kind: DataType) -> list[tuple[DataType, str, str]]:
    """A type within others: type, text around a value, path."""
    return [
        (kind, "%s", "v"),
        (ArrayType(kind), "[null,%s]", "v.element"),
        (MapType(StringType(), kind), '{"k":%s}', "v.value"),
        (StructType([StructField("a", kind)]), '{"a":%s}', "v.a"),
        (ArrayType(StructType([StructField("a", kind)])), '[{"a":%s}]', "v.element.a"),
    ]


@pytest.mark.parametrize("text", ["0.10", "12345678901234567890.123456789", "1e400", "-0", "1E5", "true"])
def test_a_text_column_has_the_digits_that_were_sent(text: str) -> None:
    assert value_of(StringType(), text) == text
    assert value_of(ArrayType(StringType()), f"[{text}]") == [text]
    assert value_of(MapType(StringType(), StringType()), f'{{"k": {text}}}') == [("k", text)]


def test_a_text_column_takes_objects_as_json_with_their_digits() -> None:
    text = '{"a" : [1.10, "x\\n\u00e9", {}, null, true]}'
    assert value_of(StringType(), text) == '{"a":[1.10,"x\\n\u00e9",{},null,true]}'


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (DecimalType(12, 2), "12.340", Decimal("12.34")),
        (DecimalType(12, 2), '"1e2"', Decimal("100.00")),
        (DecimalType(38, 0), "9" * 38, Decimal("9" * 38)),
        (DoubleType(), "1e40", 1e40),
        (DoubleType(), "0e-999", 0.0),
        (DoubleType(), "5e-324", 5e-324),
        (FloatType(), "3.4028235e38", 3.4028234663852886e38),
        (LongType(), "-9223372036854775808", -(1 << 63)),
        (ByteType(), "127", 127),
        (BooleanType(), "false", False),
        (BinaryType(), '"YWI="', b"ab"),
        (StringType(), '"a\\ud83d\\ude00b"', "a\U0001f600b"),
        (DateType(), '"2024-2-3"', datetime.date(2024, 2, 3)),
        (TimestampType(), "1700000000", NOV_14),
        (TimestampType(), "1700000000.25", NOV_14.replace(microsecond=250_000)),
        (TimestampType(), '"2023-11-14T22:13:20Z"', NOV_14),
        (TimestampNTZType(), '"2023-11-14 22:13:20"', NOV_14.replace(tzinfo=None)),
    ],
)
def test_a_value_that_fits_is_unchanged(kind: DataType, text: str, value: object) -> None:
    assert value_of(kind, text) == value


def test_numbers_that_are_none_of_json_stay_for_floats() -> None:
    assert math.isnan(value_of(DoubleType(), "NaN"))
    assert value_of(FloatType(), '"-INF"') == -math.inf


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (DecimalType(12, 2), "12.345", "number 12.345, wanted DECIMAL(12,2) without rounding"),
        (DecimalType(12, 2), '"12.345"', "text '12.345', wanted DECIMAL(12,2) without rounding"),
        (DecimalType(4, 2), "100", "number 100, wanted DECIMAL(4,2) without rounding"),
        (DecimalType(4, 2), "1e999999999999999999999", "number 1e9999"),
        (DecimalType(4, 2), '"NaN"', "text 'NaN'"),
        (DoubleType(), "1e400", "number 1e400, wanted DOUBLE"),
        (DoubleType(), "-1e400", "number -1e400, wanted DOUBLE"),
        (DoubleType(), "1e-400", "number 1e-400, wanted DOUBLE"),
        (DoubleType(), '"1.5"', "text '1.5', wanted DOUBLE"),
        (FloatType(), "1e39", "number 1e39, wanted FLOAT"),
        (FloatType(), "1e-60", "number 1e-60, wanted FLOAT"),
        (IntegerType(), "2147483648", "number 2147483648, wanted INT"),
        (IntegerType(), "1.0", "number 1.0, wanted INT"),
        (LongType(), "1" * 5000, "number 1111"),
        (LongType(), '"1"', "text '1', wanted BIGINT"),
        (BooleanType(), "1", "number 1, wanted BOOLEAN"),
        (BinaryType(), '"%"', "text '%', wanted BINARY in Base64"),
        (StringType(), '"a\\ud800b"', "text 'a?b' with half a surrogate pair, wanted STRING"),
        (StringType(), '{"a":"\\udc00"}', "half a surrogate pair"),
        (DateType(), "19675", "number 19675, wanted DATE"),
        (DateType(), '"20231114"', "text '20231114', wanted DATE"),
        (DateType(), '"55840-01-01"', "text '55840-01-01', wanted DATE"),
        (DateType(), '"2024-02-30"', "text '2024-02-30', wanted DATE"),
        (
            TimestampType(),
            "1700000000000",
            "number 1700000000000, wanted TIMESTAMP: a text, or a number of s, of years",
        ),
        (TimestampType(), "1700000000000000", "number 1700000000000000, wanted TIMESTAMP"),
        (TimestampType(), "-62135596801", "number -62135596801, wanted TIMESTAMP"),
        (TimestampType(), "253402300800", "number 253402300800, wanted TIMESTAMP"),
        (TimestampType(), "1e999999999999999999999", "wanted TIMESTAMP"),
        (TimestampType(), '"+55840-01-01T00:00:00Z"', "wanted TIMESTAMP"),
        (TimestampType(), '"0000-12-31T23:00:00-02:00"', "wanted TIMESTAMP"),
        (TimestampType(), '"12:00"', "wanted TIMESTAMP"),
        (TimestampNTZType(), "1700000000", "number 1700000000, wanted TIMESTAMP_NTZ"),
        (TimestampNTZType(), '"2023-11-14T22:13:20Z"', "wanted TIMESTAMP_NTZ: a text without a zone"),
        (ArrayType(IntegerType()), "1", "number 1, wanted ARRAY"),
        (MapType(StringType(), IntegerType()), "[1]", "an array, wanted MAP"),
        (StructType([StructField("a", IntegerType())]), '"x"', "text 'x', wanted STRUCT"),
    ],
)
def test_a_value_that_does_not_fit_names_its_column_wherever_it_is(kind: DataType, text: str, said: str) -> None:
    for around, template, path in within(kind):
        reason = reason_of(around, template % text)
        assert reason.startswith(f"column {path}: ")
        assert said in reason


def test_a_key_of_a_map_that_is_no_text_is_a_reason() -> None:
    said = reason_of(MapType(StringType(), IntegerType()), '{"a\\ud800":1,"a\\ud801":2}')
    assert said == "column v.key: text 'a?' with half a surrogate pair, wanted STRING"


@pytest.mark.parametrize(
    ("unit", "text", "micros"),
    [
        ("s", "1700000000.5", 500_000),
        ("ms", "1700000000250", 250_000),
        ("us", "1700000000000001", 1),
        ("ns", "1700000000000001999", 1),
    ],
)
def test_a_unit_says_what_numbers_are_and_texts_stay(unit: str, text: str, micros: int) -> None:
    units, wanted = TimeUnits(unit), NOV_14.replace(microsecond=micros)
    assert value_of(TimestampType(), text, units=units) == wanted
    assert value_of(TimestampNTZType(), text, units=units) == wanted.replace(tzinfo=None)
    assert value_of(TimestampType(), '"2023-11-14T22:13:20Z"', units=units) == NOV_14
    assert "a number of" in reason_of(TimestampType(), f"999999{text}", units=units)
    assert "wanted DATE" in reason_of(DateType(), text, units=units)  # which may be days, too
    assert value_of(DateType(), text, units=TimeUnits(None, {"v": unit})) == NOV_14.date()


def test_a_unit_of_a_column_holds_within_it_and_before_that_of_all() -> None:
    moment = StructField("at", TimestampType())
    columns = StructType([StructField("w", ArrayType(StructType([moment]))), moment])
    body = '{"w":[{"at":1700000000000000}],"at":1700000000000}'
    value, reason = attempt(columns, body, TimeUnits("ms", {"w": "us"}))
    assert (value, reason) == ({"w": [{"at": NOV_14}], "at": NOV_14}, None)


def test_times_without_a_zone_are_of_the_session() -> None:
    assert value_of(TimestampType(), '"2023-11-14T23:13:20"', zone="Europe/Berlin") == NOV_14
    assert value_of(TimestampType(), '"2023-11-14T23:13:20 Europe/Berlin"') == NOV_14
    assert "wanted TIMESTAMP" in reason_of(TimestampType(), '"2023-11-14T23:13:20 localtime"')  # each machine's own


def test_a_text_of_objects_may_be_nested_as_deeply_as_python_recurses() -> None:
    assert value_of(StringType(), "[" * 100 + "]" * 100) == "[" * 100 + "]" * 100
    assert reason_of(StringType(), "[" * 900 + "]" * 900) in {
        "the body is nested too deeply",
        "the body is not JSON of the schema",
    }


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{bad", "the body is not JSON of the schema"),
        (b"{'v':1}", "the body is not JSON of the schema"),
        (b'{"v":01}', "the body is not JSON of the schema"),
        (b"[" * 100_000, "the body is not JSON of the schema"),
        (b'{"v":1}{"v":2}', "the body is not one JSON object"),
        (b'[{"v":1}]', "the body is not one JSON object"),
        (b"1", "the body is not one JSON object"),
        (b'{"v":"\xff"}', "the body is not UTF-8"),
        (b"", "the body is empty"),
        (b"{}", "the body has none of the members v"),
        (b'{"V":1,"X":2}', "the body has none of the members v; it has V, X"),
    ],
)
def test_a_body_that_is_no_object_of_the_schema_has_a_reason(body: bytes, said: str) -> None:
    assert attempt(LongType(), body) == (None, said)


def test_an_object_within_a_column_needs_a_known_member_as_well() -> None:
    kind = StructType([StructField("id", LongType())])
    assert reason_of(kind, '{"ID":1}') == "column v: the object has none of the members id; it has ID"
    assert value_of(kind, "{}") == {"id": None}
    assert value_of(kind, '{"id":null,"more":{}}') == {"id": None}
    assert value_of(kind, "null") is None


def test_types_that_json_has_nothing_for_are_refused() -> None:
    for kind in (VariantType(), MapType(IntegerType(), StringType())):
        with pytest.raises(ValueError, match="column v is"):
            decoder(pa.struct(list(arrow_columns_of_json(StructType([StructField("v", kind)])))), TimeUnits(), "UTC")


@given(st.datetimes(timezones=st.just(datetime.UTC)))
def test_each_time_of_python_is_read_as_it_was_written(moment: datetime.datetime) -> None:
    micros = (moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1)
    assert in_range(micros)
    assert text_us(moment.isoformat(), "UTC") == micros
    assert text_us(moment.isoformat(" ").removesuffix("+00:00"), None) == micros
    assert text_days(moment.date().isoformat()) == micros // 86_400_000_000


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_whatever_json_is_sent_is_a_value_or_a_reason(value: object) -> None:
    kinds = [LongType(), DoubleType(), DecimalType(10, 2), TimestampType(), ArrayType(StringType()), StringType()]
    text = json.dumps(value)
    for kind in kinds:
        found, reason = attempt(kind, f'{{"v":{text}}}')
        assert (reason is None) == (found is not None or value is None)
    if isinstance(value, dict | list):
        assert json.loads(value_of(StringType(), text)) == json.loads(text) or "NaN" in text
