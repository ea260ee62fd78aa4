"""The transactions of a store as a table."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rmq_core.store.config import FlushDiskType
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.spark.tables.transactions import transactions
from tests.broker.conftest import small_store
from tests.broker.transaction.conftest import GIVEN_UP, HALF, OP

pytestmark = pytest.mark.spark
HOST = b"\x7f\0\0\1\0\0\0\1"


@pytest.mark.parametrize("name", ["mixed"])
@pytest.mark.long
def test_the_originals_transactions_are_told(spark: SparkSession, golden: Callable[[str], Path], name: str) -> None:
    """The 12 of GoldenWriter: committed, rolled back, or committed when its producer was asked, in turn."""
    table = transactions(spark, str(golden(name) / "store"), view="transactions")
    rows = sorted(table.collect(), key=lambda row: row.half_physical_offset)
    assert [row.state for row in rows] == ["committed", "rolled_back", "committed"] * 4
    assert [(row.half_messages, row.checks, row.deliveries) for row in rows] == [(1, 0, 1), (1, 0, 0), (2, 1, 1)] * 4
    assert {(row.producer_group, row.topic) for row in rows} == {("golden_txpg", "Tx")}
    assert all(row.begin_timestamp < row.end_timestamp for row in rows)
    assert [row.commit_queue_offset for row in rows if row.half_messages == 2] == [1] * 4
    counted = spark.sql("SELECT state, count(*) AS n FROM transactions GROUP BY state").collect()
    assert {row.state: row.n for row in counted} == {"committed": 8, "rolled_back": 4}


def test_every_state_is_told(spark: SparkSession, tmp_path: Path) -> None:
    with_store = MessageStore.open(small_store(tmp_path / "store", FlushDiskType.ASYNC), 1)

    def put(topic: str, body: bytes, key: str, **more: str) -> tuple[int, int]:
        properties = {"UNIQ_KEY": key, "PGROUP": "pg", "REAL_TOPIC": "T", "REAL_QID": "3"} | more
        done = with_store.appender.put(topic, 0, body, encode_properties(properties), 1, HOST, 2)
        return done.queue_offset, done.physical_offset

    try:
        put(HALF, b"open", "A")
        put(HALF, b"lost", "B", TRANSACTION_CHECK_TIMES="15")
        put(GIVEN_UP, b"lost", "B")
        dropped, _ = put(HALF, b"dropped", "C")
        put(OP, b"%d,junk,,99," % dropped, "note", TAGS="d")
        put(OP, b"0,", "note", TAGS="not a note")
        _, half = put(HALF, b"twice", "D")
        for _ in range(2):
            with_store.appender.put(
                "T", 3, b"twice", b"UNIQ_KEY\x01D\x02", 1, HOST, 4, sys_flag=8, prepared_transaction_offset=half
            )
        with_store.appender.put("T", 3, b"timed", b"UNIQ_KEY\x01E\x02TIMER_DEQUEUE_MS\x019\x02", 1, HOST, 5, sys_flag=8)
    finally:
        with_store.shutdown()
    rows = {row.transaction_id: row for row in transactions(spark, str(tmp_path / "store")).collect()}
    assert {key: row.state for key, row in rows.items()} == {
        "A": "open", "B": "given_up", "C": "rolled_back", "D": "committed",
    }  # fmt: skip
    assert rows["A"].end_timestamp is None
    assert (rows["D"].deliveries, rows["D"].commit_queue_offset, rows["B"].checks) == (2, 0, 15)


@pytest.mark.long
def test_a_store_without_transactions_has_none(spark: SparkSession, golden: Callable[[str], Path]) -> None:
    assert transactions(spark, str(golden("exotic") / "store")).collect() == []
