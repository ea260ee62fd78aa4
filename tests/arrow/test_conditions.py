"""What an expression says of single columns is found, and nothing that it does not say."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rmq_formats.arrow.conditions import Comparison, Condition, conditions
from rmq_formats.arrow.schema import COMMITLOG

field = pc.field
NEW_YEAR = pa.scalar(datetime(2026, 1, 1, tzinfo=UTC), pa.timestamp("us", tz="UTC"))
NEW_YEAR_US = 1_767_225_600_000_000
NULL = pa.scalar(None, pa.bool_())


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        (field("topic") == "a", [("topic", "equal", ("a",))]),
        (field("topic").isin(["a", "b"]), [("topic", "equal", ("a", "b"))]),
        # as DuckDB writes IN
        (pc.if_else(field("topic").is_valid(), field("topic").isin(["a"]), NULL), [("topic", "equal", ("a",))]),
        ((field("topic") == "a") | (field("topic") == "b"), [("topic", "equal", ("a", "b"))]),
        (field("queue_offset") >= -5, [("queue_offset", "gte", (-5,))]),
        (pa.scalar(7, pa.int64()) > field("physical_offset"), [("physical_offset", "lt", (7,))]),
        (field("store_timestamp") <= NEW_YEAR, [("store_timestamp", "lte", (NEW_YEAR_US,))]),
        (
            (field("queue_offset") > 3) & (field("queue_id") == pa.scalar(2, pa.int32())) & field("tags").is_null(),
            [("queue_offset", "gt", (3,)), ("queue_id", "equal", (2,))],
        ),
    ],
)
def test_conditions_are_found(expression: Any, found: list[tuple[str, str, tuple[Any, ...]]]) -> None:
    assert conditions(expression, COMMITLOG) == [
        Condition(name, Comparison(how), values) for name, how, values in found
    ]


@pytest.mark.parametrize(
    "expression",
    [
        field("topic") != "a",
        ~(field("topic") == "a"),
        (field("topic") == "a") | (field("tags") == "b"),
        (field("topic") == "a") | field("topic").is_null(),
        field("topic").isin(["a", None]),
        pc.if_else(field("topic") == "a", field("tags") == "b", field("tags") == "c"),
        field("queue_id") + 1 == 3,
        field("topic") == field("tags"),
        field("body") == b"a",
        pc.utf8_upper(field("topic")) == "A",  # Substrait has no such function
        pc.scalar(True),
        field("queue_offset") > 3.5,
        field("no_such_column") == 1,
    ],
)
def test_what_is_no_condition_on_one_column_is_none(expression: Any) -> None:
    assert conditions(expression, COMMITLOG) == []


def test_a_filter_of_many_calls_is_no_condition() -> None:
    some = everything = field("topic") == "a"
    for _ in range(4):
        some = (field("queue_offset") == 1) & some
    assert len(conditions(some, COMMITLOG)) == 5
    for _ in range(100):  # pyarrow would write 2 to the 100 bytes
        everything = (field("queue_offset") == 1) & everything
    assert conditions(everything, COMMITLOG) == []
