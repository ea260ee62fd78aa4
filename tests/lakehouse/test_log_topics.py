"""Topics that neither queues nor configuration name are looked for in the log."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rmq_lakehouse import store_log
from rmq_lakehouse.store_log import find_topics, find_topics_by_spark, snapshot_log
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
