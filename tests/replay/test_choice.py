"""Which messages are chosen, and what they become on the wire."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_core.broker.tables import names
from rmq_formats.arrow.schema import COMMITLOG, schema_of
from rmq_formats.codecs.layout import FLAG_COMPRESSED, MAX_BODY_BYTES, MAX_PROPERTIES_BYTES
from rmq_formats.codecs.properties import decode_properties
from rmq_formats.codecs.topics import SYSTEM_TOPICS, TEMPLATE_TOPIC
from rmq_formats.errors import OptionError
from rmq_formats.read.query import Query
from rmq_formats.sql92 import compile_expression
from rmq_offline.replay.batch_messages import COLUMNS, ORIGIN, Origin, encode_rows
from rmq_offline.replay.selection import USER_TOPICS, ReplaySelection, build_selection, filter_rows

_SQL = (
    "a > 3 AND b = 'x'", "a BETWEEN 2 AND 7 OR c IS NULL", "NOT (b IN ('x', 'a > 3'))", "b CONTAINS 'y' AND a <> 5",
    "TRUE", "c = 'it''s' OR AND_ = '1'",
)  # fmt: skip
_PROPERTIES = st.dictionaries(
    st.sampled_from(["a", "b", "c", "AND_"]), st.sampled_from(["1", "5", "x", "xyz", "it's", "2.5", "", "-3"])
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_PROPERTIES, max_size=30), st.sampled_from(_SQL))
def test_an_expression_lets_through_what_the_broker_s_lets_through(rows: list[dict[str, str]], sql: str) -> None:
    schema = pa.schema([("row", pa.int64()), COMMITLOG.field("properties")])
    columns = {"row": range(len(rows)), "properties": [list(row.items()) for row in rows]}
    batch = pa.RecordBatch.from_pydict(columns, schema=schema)
    (matching,) = filter_rows(iter([batch]), ReplaySelection(Query(), sql))
    holds = compile_expression(sql)
    assert matching["row"].to_pylist() == [number for number, row in enumerate(rows) if holds(row)]


@pytest.mark.parametrize(
    ("topic", "is_wanted"),
    [
        ("Orders", True),
        ("%RETRY%g", False),
        ("%DLQ%g", False),
        ("RMQ_SYS_TRACE_TOPIC", False),
        ("rmq_sys_wheel_timer", False),
        ("SCHEDULE_TOPIC_XXXX", False),
        ("SCHEDULE_TOPIC_XXXXL", True),
        ("TBW102", False),
        *((topic, False) for topic in sorted(SYSTEM_TOPICS)),
    ],
)
def test_without_topics_it_is_all_that_are_users_own(topic: str, is_wanted: bool) -> None:
    query = build_selection(Query(), None, None).query
    assert query.topic_pattern == USER_TOPICS
    assert query.wants_topic(topic) is is_wanted


def test_system_topics_are_those_of_the_broker() -> None:
    """The names that the broker has constants for, and two that it has none for."""
    of_the_broker = names.NOT_FOR_CLIENTS | {TEMPLATE_TOPIC, names.BENCHMARK_TOPIC}
    assert of_the_broker | {"RMQ_SYS_TRACE_TOPIC", "CHECKPOINT_TOPIC"} == SYSTEM_TOPICS


def test_an_expression_that_is_none_is_told() -> None:
    with pytest.raises(OptionError, match="--sql 'a >': "):
        build_selection(Query(), "a >", None)


def row(queue_id: int, offset: int, body: bytes, sys_flag: int = 0, **properties: str) -> dict[str, Any]:
    return {
        "topic": "T", "queue_id": queue_id, "queue_offset": offset + 5, "physical_offset": offset,
        "size": len(body) + 91, "body": body, "properties": list(properties.items()), "flag": 0,
        "sys_flag": sys_flag, "record_error": None,
    }  # fmt: skip


def test_batches_are_of_one_queue_and_one_flag_in_order() -> None:
    rows = [row(number % 2, number, b"%d" % number, FLAG_COMPRESSED * (number in (4, 6))) for number in range(12)]
    encoded = encode_rows(pa.RecordBatch.from_pylist(rows, schema=schema_of(COLUMNS)), Origin("s"), 1 << 20)
    assert [(batch.queue_id, batch.sys_flag, batch.messages) for batch in encoded.batches] == [
        (0, 0, 2), (0, FLAG_COMPRESSED, 2), (0, 0, 2), (1, 0, 6),
    ]  # fmt: skip
    assert [bytes(batch.data).count(ORIGIN.encode()) for batch in encoded.batches] == [2, 2, 2, 6]
    assert (encoded.messages, encoded.record_bytes, encoded.refused) == (12, 12 * 92 + 2, 0)
    small = encode_rows(pa.RecordBatch.from_pylist(rows, schema=schema_of(COLUMNS)), Origin("s"), 1)
    assert [batch.messages for batch in small.batches] == [1] * 12


def test_origin_is_that_of_this_replay_and_brokers_own_properties_are_left_out() -> None:
    message = row(0, 77, b"x", **{"a": "b", ORIGIN: "older@3", "CLUSTER": "c", "UNIQ_KEY": "k"})
    encoded = encode_rows(pa.RecordBatch.from_pylist([message], schema=schema_of(COLUMNS)), Origin("s"), 1 << 20)
    block = bytes(encoded.batches[0].data)[20 + 1 + 2 :]
    assert decode_properties(block) == {"a": "b", "UNIQ_KEY": "k", ORIGIN: "s@77"}
    encoded = encode_rows(
        pa.RecordBatch.from_pylist([message], schema=schema_of(COLUMNS)), Origin("s", by_queue=True), 1 << 20
    )
    assert decode_properties(bytes(encoded.batches[0].data)[20 + 1 + 2 :])[ORIGIN] == "s@T/0/82"


def test_what_no_broker_takes_is_counted() -> None:
    rows = [
        row(0, 0, b""),
        row(0, 1, b"x", a="v" * MAX_PROPERTIES_BYTES),
        row(0, 2, b"x" * MAX_BODY_BYTES),
        row(0, 3, b"x"),
    ]
    encoded = encode_rows(pa.RecordBatch.from_pylist(rows, schema=schema_of(COLUMNS)), Origin("s"), 1 << 20)
    assert (encoded.refused, encoded.messages) == (3, 1)
