"""``jobs/export_delta.py``: each message once, whatever happens between the runs."""

import json
import shutil
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs import export_delta
from rmq_formats.codecs.topics import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from rmq_formats.errors import StoreError
from rmq_lakehouse.delta.table import DeltaTableLog
from rmq_lakehouse.spark_table import SparkExactlyOnceTable
from tests.support.stores.store_files import flip
from tests.support.stores.store_lives import recovered_log

pytestmark = pytest.mark.spark


def export(spark: SparkSession, store: Path, table: Path, *arguments: str) -> tuple[dict[str, Any], int]:
    parsed = export_delta.parser().parse_args(["--store", str(store), "--table", str(table), *arguments])
    return export_delta.main(export_delta.check(parsed), spark)


def records(directory: Path, *, system: bool = False) -> list[dict[str, Any]]:
    """Return the golden store's records; those of RocketMQ's own topics on request."""
    lines = (directory / "expected" / "messages.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [record for record in found if system or not is_system(record["topic"])]


def is_system(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def offsets(spark: SparkSession, table: Path) -> list[int]:
    rows = spark.read.format("delta").load(str(table)).select("physical_offset").orderBy("physical_offset").collect()
    return [row.physical_offset for row in rows]


@pytest.mark.long
@pytest.mark.parametrize("store", ["mixed", "exotic"])
def test_files_that_tasks_write_have_the_rows_that_spark_writes(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    source = (golden(store) / "store", "--system-topics", "--partition-by", "topic,queue_id,date")
    by_tasks, _ = export(spark, source[0], tmp_path / "ours", *source[1:])
    monkeypatch.setattr(SparkExactlyOnceTable, "layout", lambda *_: None)
    by_spark, _ = export(spark, source[0], tmp_path / "theirs", *source[1:])
    same = ("messages", "bytes", "damaged", "files", "exports")
    assert [by_tasks[name] for name in same] == [by_spark[name] for name in same]
    found, expected = (
        spark.read.format("delta").load(str(tmp_path / name)).orderBy("physical_offset").collect()
        for name in ("ours", "theirs")
    )
    assert found == expected
    assert len(directories(tmp_path / "ours")) == len(directories(tmp_path / "theirs"))
    assert logged_paths(tmp_path / "ours") == hadoop_paths(spark, tmp_path / "ours")  # else VACUUM deletes them
    offset = expected[-1].physical_offset
    table = spark.read.format("delta").load(str(tmp_path / "ours"))
    assert table.where(table.physical_offset == offset).collect() == expected[-1:]  # by the log's statistics


def logged_paths(table: Path) -> set[str]:
    lines = [line for path in table.glob("_delta_log/*.json") for line in path.read_text().splitlines()]
    return {json.loads(line)["add"]["path"] for line in lines if line.startswith('{"add"')}


def hadoop_paths(spark: SparkSession, table: Path) -> set[str]:
    jvm: Any = spark._jvm
    files = [str(path.relative_to(table)) for path in table.glob("*=*/**/*.parquet")]
    return {jvm.org.apache.hadoop.fs.Path(path).toUri().toString() for path in files}


def directories(table: Path) -> set[str]:
    return {str(path.parent.relative_to(table)) for path in table.glob("*=*/**/*.parquet")}


@pytest.mark.long
def test_a_table_with_more_writer_features_is_written_by_spark(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    store, table = golden("mixed") / "store", tmp_path / "table"
    export(spark, store, table, "--ending-physical-offset", "1000")
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    spark.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT sound CHECK (size > 0)")
    assert not DeltaTableLog(spark, str(table)).is_plain()
    export(spark, store, table)
    assert offsets(spark, table) == [record["physical_offset"] for record in records(golden("mixed"))]


@pytest.mark.long
def test_all_messages_are_exported_once_and_a_second_run_adds_nothing(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    directory, table = golden("mixed"), tmp_path / "table"
    expected = records(directory)
    report, code = export(spark, directory / "store", table)
    assert code == 0
    assert report["messages"] == len(expected)
    assert report["bytes"] == sum(record["size"] for record in expected)
    again, _ = export(spark, directory / "store", table)
    assert again["messages"] == 0
    assert offsets(spark, table) == [record["physical_offset"] for record in expected]
    rows = spark.read.format("delta").load(str(table)).groupBy("topic").count().collect()
    assert {row["topic"]: row["count"] for row in rows} == Counter(record["topic"] for record in expected)
    assert sorted(path.name for path in table.iterdir() if "=" in path.name) == sorted(
        f"topic={topic}".replace("%", "%25") for topic in {record["topic"] for record in expected}
    )


@pytest.mark.parametrize("name", ["dledger", "dledger_mixed", "lmq", "bcq"])
@pytest.mark.long
def test_records_of_other_layouts_are_exported_once(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    """A message of light queues is one row, and so is an inner batch, with its messages in the body."""
    store, table = golden(name) / "store", tmp_path / "table"
    report, code = export(spark, store, table, "--system-topics")
    expected = records(golden(name), system=True)
    assert (code, report["messages"]) == (0, len(expected))
    rows = (
        spark.read.format("delta").load(str(table)).select("physical_offset", "topic", "properties", "body").collect()
    )
    found = {row.physical_offset: (row.topic, row.properties) for row in rows}
    assert len(rows) == len(found)
    assert found == {one["physical_offset"]: (one["topic"], one["properties"]) for one in expected}
    bodies = {row.physical_offset: bytes(row.body) for row in rows}
    told = {one["physical_offset"]: one["body_base64"] for one in expected if "body_base64" in one}
    assert {offset: bodies[offset] for offset in told} == {offset: b64decode(text) for offset, text in told.items()}
    again, code = export(spark, store, table, "--system-topics")
    assert (code, again["messages"], len(offsets(spark, table))) == (0, 0, len(expected))


@pytest.mark.long
def test_a_relative_table_is_in_the_working_directory(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = Path("lake", "messages")
    report, code = export(spark, golden("mixed") / "store", table)
    assert (code, report["table"]) == (0, str(tmp_path / table))
    assert len(offsets(spark, tmp_path / table)) == report["messages"] == len(records(golden("mixed"))) > 0


@pytest.mark.long
def test_chosen_topics_are_exported_and_the_rest_can_follow(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    directory, table = golden("mixed"), tmp_path / "table"
    expected = records(directory)
    report, _ = export(spark, directory / "store", table, "--topics", "Orders,Clicks")
    assert report["messages"] == sum(record["topic"] in {"Orders", "Clicks"} for record in expected)
    export(spark, directory / "store", table)
    assert offsets(spark, table) == [record["physical_offset"] for record in expected]
    export(spark, directory / "store", table, "--system-topics")
    assert offsets(spark, table) == [record["physical_offset"] for record in records(directory, system=True)]


def test_offsets_of_queues_bound_an_export(spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path) -> None:
    directory, table = golden("mixed"), tmp_path / "table"
    orders = [record for record in records(directory) if record["topic"] == "Orders" and record["queue_id"] == 0]
    first, last = orders[2], orders[-1]
    bounds = [
        "--starting-offsets", json.dumps({"Orders": {"0": first["queue_offset"]}}),
        "--ending-offsets", json.dumps({"Orders": {"0": last["queue_offset"]}}),
    ]  # fmt: skip
    export(spark, directory / "store", table, "--topics", "Orders", *bounds)
    rows = spark.read.format("delta").load(str(table)).where("queue_id = 0").orderBy("queue_offset").collect()
    assert [row.queue_offset for row in rows] == [record["queue_offset"] for record in orders[2:-1]]


@pytest.mark.long
def test_a_log_that_grew_adds_only_what_is_new(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    directory, store, table = golden("mixed"), tmp_path / "store", tmp_path / "table"
    expected = [record["physical_offset"] for record in records(directory)]
    (store / "commitlog").mkdir(parents=True)
    files = sorted((directory / "store" / "commitlog").iterdir())
    shutil.copy(files[0], store / "commitlog")
    first, _ = export(spark, store, table)
    for path in files[1:]:
        shutil.copy(path, store / "commitlog")
    second, _ = export(spark, store, table)
    assert first["messages"] + second["messages"] == len(expected)
    assert second["starting_physical_offset"] == first["ending_physical_offset"]
    assert offsets(spark, table) == expected


def test_damage_is_counted_and_the_rest_is_exported(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    directory, store, table = golden("exotic"), tmp_path / "store", tmp_path / "table"
    shutil.copytree(directory / "store", store)
    expected = records(directory)
    victim = expected[100]
    flip(store, victim["physical_offset"] + 130, 65536)
    report, code = export(spark, store, table)
    assert code == 1
    assert report["damaged"] == 1
    assert report["messages"] == len(expected) - 1
    assert victim["physical_offset"] not in offsets(spark, table)


@pytest.mark.long
def test_a_damaged_last_record_is_reported_and_exported_when_whole(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    directory, store, table = golden("mixed"), tmp_path / "store", tmp_path / "table"
    shutil.copytree(directory / "store", store)
    *_, last = expected = records(directory)
    flip(store, last["physical_offset"] + 88, 1048576)
    report, code = export(spark, store, table)
    assert code == 1
    assert report["torn_bytes"] == last["size"]
    assert report["ending_physical_offset"] == last["physical_offset"]
    assert report["messages"] == len(expected) - 1
    flip(store, last["physical_offset"] + 88, 1048576)
    report, code = export(spark, store, table)
    assert (report["messages"], report["torn_bytes"], code) == (1, 0, 0)


def test_messages_after_the_logs_end_are_reported_and_not_exported(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = recovered_log().save(tmp_path / "store")
    report, code = export(spark, store, tmp_path / "former", "--include", "unqueued")
    assert (report["messages"], report["leftover_bytes"] > 0, code) == (0, True, 1)
    (line,) = [record.getMessage() for record in caplog.records if "after the log's end" in record.getMessage()]
    assert f"rmq replay --store {store} --include unqueued --to-store NEW" in line
    report, code = export(spark, store, tmp_path / "live")
    assert (report["messages"], report["leftover_bytes"], code) == (60, 0, 0)


def test_the_table_of_another_store_is_refused(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    table = tmp_path / "table"
    export(spark, golden("exotic") / "store", table)
    with pytest.raises(StoreError, match=r"holds the messages of .*exotic"):
        export(spark, golden("exotic_crc") / "store", table)


def test_a_table_that_no_export_wrote_is_refused(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    table = tmp_path / "table"
    spark.range(3).write.format("delta").save(str(table))
    with pytest.raises(StoreError, match="no export wrote"):
        export(spark, golden("exotic") / "store", table)
    assert spark.read.format("delta").load(str(table)).count() == 3
