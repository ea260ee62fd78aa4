"""``jobs/import_delta.py``: a table that was exported gives the store's records again; what does not fit is named."""

import base64
import json
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs import export_delta, import_delta
from rmq_formats.codecs.layout import FLAG_COMPRESSED, FLAG_COMPRESSION_ZLIB
from rmq_formats.codecs.record import MessageToStore
from rmq_formats.errors import OptionError, RmqError
from rmq_lakehouse.iceberg.catalog import IcebergLocation
from tests.conftest import GoldenSettings
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import HOST, plain
from tests.lakehouse.small_stores import write as write_log
from tests.support.stores.rebuilt_stores import built
from tests.support.stores.store_files import write_commitlog
from tests.support.stores.written_stores import lines, write

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def table(spark: SparkSession, golden: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden store ``mixed``, exported."""
    path = tmp_path_factory.mktemp("tables") / "mixed"
    arguments = ["--store", str(golden("mixed") / "store"), "--table", str(path), "--system-topics"]
    parsed = export_delta.parser().parse_args(arguments)
    export_delta.main(export_delta.check(parsed), spark)
    return path


def run(spark: SparkSession, table: Path, store: Path, *arguments: str) -> tuple[dict[str, Any], int]:
    """The job on a session that is there."""
    parsed = import_delta.parser().parse_args(["--table", str(table), "--store", str(store), *arguments])
    import_delta.check(parsed)
    return import_delta.main(parsed, spark)


def sizes(settings: GoldenSettings) -> list[str]:
    return [
        "--commitlog-file-bytes", str(settings.commitlog_file_bytes),
        "--consumequeue-file-bytes", str(settings.consumequeue_file_bytes),
        "--index-slots", str(settings.index_slots), "--index-entries", str(settings.index_entries),
        "--delay-levels", settings.delay_levels,
    ]  # fmt: skip


@pytest.mark.long
def test_an_exported_store_is_imported_as_it_was(
    spark: SparkSession,
    table: Path,
    golden: Callable[[str], Path],
    golden_settings: dict[str, GoldenSettings],
    tmp_path: Path,
) -> None:
    report, code = run(spark, table, tmp_path / "store", "--keep-offsets", *sizes(golden_settings["mixed"]))
    expected = (golden("mixed") / "expected" / "messages.jsonl").read_bytes().splitlines(keepends=True)
    assert lines(tmp_path / "store") == expected
    assert built(tmp_path / "store") == built(golden("mixed") / "expected")
    assert (code, report["job"], report["messages"]) == (0, "import_delta", len(expected))
    assert {"store", "bytes", "seconds", "bytes_per_second"} < set(report)


def test_some_of_the_messages_are_added_to_a_store(
    spark: SparkSession, table: Path, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    every = [
        json.loads(line) for line in (golden("mixed") / "expected" / "messages.jsonl").read_text("utf-8").splitlines()
    ]
    bound = every[len(every) // 2]["store_timestamp"]
    store = tmp_path / "store"
    small = ["--topics", "Clicks", "--dispatch", "false", "--commitlog-file-bytes", "1048576"]
    run(spark, table, store, *small, "--ending-timestamp", str(bound))
    with pytest.raises(RmqError, match="has messages already; give --mode append or --mode overwrite"):
        run(spark, table, store, *small)
    run(spark, table, store, *small, "--starting-timestamp", str(bound), "--mode", "append")
    found = [json.loads(line) for line in lines(store)]
    wanted = [record for record in every if record["topic"] == "Clicks"]
    assert [record["body_base64"] for record in found] == [record["body_base64"] for record in wanted]
    assert [record["properties"] for record in found] == [record["properties"] for record in wanted]
    assert not (store / "consumequeue").exists()


@pytest.mark.parametrize(
    ("columns", "arguments", "told"),
    [
        ("'T' topic", [], "needs the column 'body'"),
        ("'T' topic, 1 body", [], "column 'body' is int, not binary"),
        ("'T' topic, X'00' body", ["--keep-offsets"], "needs the column 'physical_offset'"),
        ("'T' topic, X'00' body", ["--starting-timestamp", "0"], "needs the column 'store_timestamp'"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    spark: SparkSession, tmp_path: Path, columns: str, arguments: list[str], told: str
) -> None:
    spark.sql(f"SELECT {columns}").write.format("delta").save(str(tmp_path / "table"))
    with pytest.raises(RmqError, match=told):
        run(spark, tmp_path / "table", tmp_path / "store", *arguments)
    assert not (tmp_path / "store").exists()


def test_bodies_may_be_texts_and_integers_wider_or_narrower(spark: SparkSession, tmp_path: Path) -> None:
    columns = "'T' topic, 'zwölf' Body, 3L Queue_Id, 7L flag, CAST(5 AS SMALLINT) reconsume_times"
    spark.sql(f"SELECT {columns}").write.format("delta").save(str(tmp_path / "table"))
    run(spark, tmp_path / "table", tmp_path / "store", "--commitlog-file-bytes", "65536")
    (record,) = map(json.loads, lines(tmp_path / "store"))
    assert base64.b64decode(record["body_base64"]).decode() == "zwölf"
    assert (record["queue_id"], record["flag"], record["reconsume_times"]) == (3, 7, 5)


def test_rows_that_deletion_vectors_hide_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    table = f"delta.`{tmp_path / 'table'}`"
    spark.sql(
        f"CREATE TABLE {table} USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true') "
        "AS SELECT 'T' AS topic, CAST(id AS STRING) AS body FROM range(6)"
    )
    spark.sql(f"DELETE FROM {table} WHERE body = '3'")
    report, code = run(spark, tmp_path / "table", tmp_path / "store", "--commitlog-file-bytes", "65536")
    bodies = {base64.b64decode(json.loads(line)["body_base64"]) for line in lines(tmp_path / "store")}
    assert (code, report["messages"], bodies) == (0, 5, {b"0", b"1", b"2", b"4", b"5"})


def test_of_a_table_of_several_brokers_one_is_written(spark: SparkSession, tmp_path: Path) -> None:
    rows = "VALUES ('T', X'31', 'a'), ('T', X'32', 'b'), ('T', X'33', 'b') AS messages(topic, body, broker_name)"
    spark.sql(f"SELECT * FROM {rows}").write.format("delta").save(str(tmp_path / "table"))
    small = ["--commitlog-file-bytes", "65536"]
    with pytest.raises(OptionError, match="has messages of the brokers a, b, whose queues have the same numbers"):
        run(spark, tmp_path / "table", tmp_path / "store", *small)
    with pytest.raises(OptionError, match=r"--broker-name c: .* has no such broker, it has a, b"):
        run(spark, tmp_path / "table", tmp_path / "store", *small, "--broker-name", "c")
    for broker, messages in (("b", 2), ("*", 3)):
        report, code = run(spark, tmp_path / "table", tmp_path / broker, *small, "--broker-name", broker)
        assert (report["messages"], len(lines(tmp_path / broker)), code) == (messages, messages, 0)


def test_brokers_of_one_name_in_two_clusters_are_not_mixed(spark: SparkSession, tmp_path: Path) -> None:
    rows = "VALUES ('T', X'31', 'a', 'west'), ('T', X'32', 'a', 'east'), ('T', X'33', 'b', 'east')"
    columns = "messages(topic, body, broker_name, cluster)"
    spark.sql(f"SELECT * FROM {rows} AS {columns}").write.format("delta").save(str(tmp_path / "table"))
    small = ["--commitlog-file-bytes", "65536"]
    for arguments in ([], ["--broker-name", "a"]):
        with pytest.raises(OptionError, match=r"b, east/a, west/a"):
            run(spark, tmp_path / "table", tmp_path / "store", *small, *arguments)
    for broker, bodies in (("west/a", [b"1"]), ("b", [b"3"])):
        run(spark, tmp_path / "table", tmp_path / broker, *small, "--broker-name", broker)
        assert [base64.b64decode(json.loads(line)["body_base64"]) for line in lines(tmp_path / broker)] == bodies


def test_an_integer_that_a_store_cannot_hold_is_named(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("SELECT 'T' topic, 'x' body, 4294967296L flag").write.format("delta").save(str(tmp_path / "table"))
    with pytest.raises(Exception, match="column flag: 4294967296 is no int"):
        run(spark, tmp_path / "table", tmp_path / "store")


def test_an_iceberg_table_is_imported_without_what_its_delete_files_hide(spark: SparkSession, tmp_path: Path) -> None:
    write_log(tmp_path / "source", plain(6))
    Exporter(spark, tmp_path / "source", tmp_path).run("--format", "iceberg")
    table = IcebergLocation(str(tmp_path / "table"), {}).load()
    assert table is not None
    table.delete(delete_filter="topic = 'Odd'")
    report, code = run(
        spark, tmp_path / "table", tmp_path / "store", "--format", "iceberg", "--commitlog-file-bytes", "65536"
    )
    assert (code, report["messages"]) == (0, 3)
    assert [json.loads(line)["topic"] for line in lines(tmp_path / "store")] == ["Even"] * 3
    with pytest.raises(RmqError, match="none: no Iceberg table"):
        run(spark, tmp_path / "none", tmp_path / "other", "--format", "iceberg")


def test_compressed_bodies_of_a_raw_table_are_imported_with_their_flag(spark: SparkSession, tmp_path: Path) -> None:
    flag, body = FLAG_COMPRESSED | FLAG_COMPRESSION_ZLIB, zlib.compress(b"large " * 100)
    message = MessageToStore(
        topic="T", queue_id=0, body=body, sys_flag=flag, born_timestamp_ms=1, born_host=HOST, store_host=HOST
    )
    write_commitlog(tmp_path / "source", [message], 65536)
    Exporter(spark, tmp_path / "source", tmp_path).run("--columns", "topic,queue_id,body")
    run(spark, tmp_path / "table", tmp_path / "store", "--commitlog-file-bytes", "65536")
    (record,) = map(json.loads, lines(tmp_path / "store"))
    assert (base64.b64decode(record["body_base64"]), record["sys_flag"]) == (body, flag)


def test_a_topic_that_the_table_lacks_is_named(spark: SparkSession, table: Path, tmp_path: Path) -> None:
    with pytest.raises(RmqError, match=r"mixed: has no topic 'Nowhere'$"):
        run(spark, table, tmp_path / "store", "--topics", "Clicks,Nowhere")
    assert not (tmp_path / "store").exists()


def test_a_store_without_messages_needs_no_mode(tmp_path: Path) -> None:
    write(tmp_path, [])
    import_delta.check(import_delta.parser().parse_args(["--table", "/tmp/none", "--store", str(tmp_path)]))


def test_no_table_is_one_clear_line(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(RmqError, match="none: no Delta table"):
        run(spark, tmp_path / "none", tmp_path / "store")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--store", "ftp://host/store"], "ftp://host/store: cannot be opened"),
        (["--store", "/tmp/none", "--topics", ","], "--topics ','"),
        (["--store", "/tmp/none", "--starting-timestamp", "soon"], "--starting-timestamp 'soon'"),
    ],
)
def test_arguments_are_checked_before_a_session_is_made(arguments: list[str], told: str) -> None:
    parsed = import_delta.parser().parse_args(["--table", "/tmp/none", *arguments])
    with pytest.raises(RmqError, match=told):
        import_delta.check(parsed)


def test_a_wrong_argument_is_one_line_and_exit_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "jobs/import_delta.py", "--table", "none", "--store", str(tmp_path), "--mode", "replace"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (2, 1, "")
