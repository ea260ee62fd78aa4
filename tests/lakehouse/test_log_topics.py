"""Snapshots of a store's log: topics that no list names, and torn bytes after its end."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rmq_lakehouse import store_log
from rmq_lakehouse.store_log import find_topics, find_topics_by_spark, snapshot_log
from rmq_lakehouse.stores import ExportBounds, StoreLogs
from tests.lakehouse.small_stores import plain, write


@pytest.mark.parametrize("head_bytes", [1, 300, 16 << 20])
def test_topics_are_found_in_the_log_s_head_and_behind_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head_bytes: int
) -> None:
    monkeypatch.setattr(store_log, "_HEAD_BYTES", head_bytes)
    write(tmp_path / "store", [*plain(20), ("Late", b"x")])
    log = snapshot_log(str(tmp_path / "store"))
    assert set(find_topics_by_spark(spark, log, ["Odd", "Late", "Never"])) == {"Odd", "Late"}
    assert set(find_topics(log, ["Late", "Never"])) == {"Late"}


def test_torn_bytes_of_a_followed_log_are_those_of_the_last_round(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write(store, plain(3))
    (segment,) = (store / "commitlog").iterdir()
    log = snapshot_log(str(store))
    with segment.open("r+b") as file:
        file.seek(log.end)
        file.write(b"\0\0\0\x70" + b"torn" * 20)
    logs: StoreLogs = StoreLogs.of_one(snapshot_log(str(store)), [], ExportBounds(follows=True), lambda *_: None)
    assert logs.parts[0].torn_bytes == 84
    with segment.open("r+b") as file:  # a broker that starts cuts the log, and writes over the bytes
        file.seek(log.end)
        file.write(bytes(84))
    logs.begin_round()
    assert logs.parts[0].torn_bytes == 0
