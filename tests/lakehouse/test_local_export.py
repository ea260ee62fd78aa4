"""``rmq export`` without Spark: each message once, killed at each step, in races, and in turns with the job."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from rmq_cli.export_arguments import with_store_option
from rmq_formats.errors import OptionError, StoreError
from rmq_lakehouse import raw_files
from rmq_lakehouse.delta.local_commits import is_whole
from rmq_lakehouse.exactly_once import ExactlyOnceTable
from rmq_lakehouse.exports import ExportLoop
from rmq_lakehouse.files import FEW_TOPICS
from rmq_lakehouse.local import raw as local_raw
from rmq_lakehouse.local.delta_log import DeltaRsTableLog, DeltaRsTransaction
from rmq_lakehouse.local.table_log import NeedsSparkError
from rmq_lakehouse.records import PendingRecords
from rmq_lakehouse.stores import StoreLogs
from tests.lakehouse.local_exports import LocalExporter
from tests.lakehouse.small_stores import FILE_BYTES, plain, write
from tests.support.stores.store_with_queues import write_config

_RMQ = """
import sys
sys.modules["pyspark"] = sys.modules["py4j"] = None  # importing them fails
from rmq_cli.main import main
main(sys.argv[1:])
"""


@pytest.fixture
def local(tmp_path: Path) -> LocalExporter:
    return LocalExporter(tmp_path / "store", tmp_path / "table")


def rmq(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the command where neither pyspark nor Java can be found."""
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": "/nowhere"}
    return subprocess.run(
        [sys.executable, "-c", _RMQ, *map(str, words)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.long
def test_the_command_needs_neither_pyspark_nor_java(local: LocalExporter, tmp_path: Path) -> None:
    placed = write(local.store, plain(30))
    done = rmq("export", local.store, "--table", local.table, "--report", tmp_path / "report.json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert json.loads((tmp_path / "report.json").read_text()) == report
    assert (report["job"], report["messages"], report["files"]) == ("export_delta", 30, 2)
    assert local.offsets() == placed


def test_few_messages_of_many_topics_are_exported(local: LocalExporter) -> None:
    topics = [f"Topic{number}" for number in range(FEW_TOPICS + 1)]
    placed = write(local.store, [(topic, b"body" * 100) for topic in topics * 3])
    write_config(local.store, *topics)
    assert len(list((local.store / "commitlog").iterdir())) > 1
    report, code = local.run()
    assert (report["messages"], code) == (len(placed), 0)
    assert local.offsets() == placed


def test_a_second_export_adds_what_is_new_alone(local: LocalExporter) -> None:
    write(local.store, plain(30))
    assert local.run()[0]["messages"] == 30
    placed = write(local.store, plain(45))
    report, code = local.run()
    assert (report["messages"], report["starting_physical_offset"], code) == (15, placed[30], 0)
    assert local.run()[0]["messages"] == 0
    assert local.offsets() == placed


def test_micro_batches_are_as_large_as_they_may_be(local: LocalExporter) -> None:
    placed = write(local.store, plain(40))
    report, _ = local.run("--mode", "available-now", "--max-bytes-per-trigger", "3000")
    assert report["batches"] > 1
    assert local.offsets() == placed


def test_selections_of_one_store_share_a_table_without_repeating_a_message(local: LocalExporter) -> None:
    placed = write(local.store, plain(30))
    assert local.run("--topics", "Odd")[0]["messages"] == 15
    assert local.run()[0]["messages"] == 15
    assert local.run("--from-offset", "0")[0]["messages"] == 0
    assert local.offsets() == placed


def test_polars_duckdb_and_delta_rs_read_the_same_rows(local: LocalExporter) -> None:
    write(local.store, plain(30))
    local.run()
    columns = "topic, physical_offset, body, store_timestamp::varchar, date::varchar"
    messages = DeltaTable(local.table).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("messages", messages)
        by_duckdb = connection.sql(f"select {columns} from messages order by 2").fetchall()
    by_polars = pl.read_delta(str(local.table)).sort("physical_offset")
    assert by_polars["body"].to_list() == [row[2] for row in by_duckdb]
    by_delta_rs = (
        DeltaTable(local.table).to_pyarrow_table(columns=["physical_offset", "topic"]).sort_by("physical_offset")
    )
    assert by_delta_rs["topic"].to_pylist() == by_polars["topic"].to_list() == [row[0] for row in by_duckdb]


_STEPS: list[tuple[Any, str]] = [
    (StoreLogs, "prepare"), (DeltaRsTableLog, "create"), (ExportLoop, "export_round"), (ExactlyOnceTable, "_start"),
    (raw_files, "write_files"), (raw_files, "commit_task_files"), (DeltaRsTransaction, "commit"),
    (DeltaRsTableLog, "commit"), (DeltaRsTableLog, "fsync"),
]  # fmt: skip


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("owner", "step"), _STEPS, ids=[name for _, name in _STEPS])
def test_an_export_killed_at_any_step_is_made_good_by_the_next(
    local: LocalExporter, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str, after: bool
) -> None:
    call: Callable[..., Any] = getattr(owner, step)

    def die(*arguments: Any, **named: Any) -> None:
        if after:
            call(*arguments, **named)
        raise KeyboardInterrupt

    placed = write(local.store, plain(30))
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, die)
        with pytest.raises(KeyboardInterrupt):
            local.run()
    local.run()
    assert local.offsets() == placed


def test_of_two_exports_that_race_the_later_begins_again_behind_the_other(
    local: LocalExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = write(local.store, plain(30))
    commit, reports = DeltaRsTableLog.commit, []

    def meanwhile(self: DeltaRsTableLog, *arguments: Any) -> None:
        if not reports:
            reports.append({})  # once
            reports[0] = local.run()[0]
        commit(self, *arguments)

    monkeypatch.setattr(DeltaRsTableLog, "commit", meanwhile)
    report, _ = local.run()
    assert (reports[0]["messages"], report["messages"]) == (30, 0)
    assert local.offsets() == placed


@pytest.mark.long
def test_processes_that_race_land_each_message_once(local: LocalExporter) -> None:
    placed = write(local.store, plain(60))
    command = [sys.executable, "-c", _RMQ, "export", str(local.store), "--table", str(local.table)]
    running = [
        subprocess.Popen([*command, "--mode", "available-now", "--max-bytes-per-trigger", "2000"]) for _ in range(3)
    ]
    assert [process.wait(300) for process in running] == [0, 0, 0]
    assert local.offsets() == placed


def test_a_table_in_use_by_another_store_is_refused(local: LocalExporter, tmp_path: Path) -> None:
    write(local.store, plain(10))
    local.run()
    other = LocalExporter(tmp_path / "other", local.table)
    write(other.store, plain(10))
    with pytest.raises(StoreError, match="holds the messages of"):
        other.run()


def test_another_log_at_the_path_of_the_store_is_refused(local: LocalExporter) -> None:
    write(local.store, plain(30))
    local.run()
    shutil.rmtree(local.store)
    write(local.store, [("Other", b"x" * 50)] * 60)
    with pytest.raises(StoreError, match="are not those that"):
        local.run()


@pytest.mark.parametrize(
    "property_",
    ["delta.enableDeletionVectors=true", "delta.columnMapping.mode=name", "delta.enableChangeDataFeed=true"],
)
def test_a_new_table_with_a_feature_of_another_writer_is_left_to_the_job(local: LocalExporter, property_: str) -> None:
    write(local.store, plain(10))
    done = rmq("export", local.store, "--table", local.table, "--table-property", property_)
    job = f"jobs/export_delta.py --store {local.store} --table {local.table} --table-property {property_}"
    assert (done.returncode, done.stdout) == (2, "")
    assert "this needs Spark; run: " in done.stderr
    assert done.stderr.endswith(f"{job}\n")
    assert not local.table.exists()


@pytest.mark.parametrize(
    ("feature", "minimums"),
    [("deletionVectors", (3, 7)), ("columnMapping", (2, 5)), ("checkConstraints", (1, 3)), ("rowTracking", (1, 7))],
)
def test_a_table_with_a_feature_of_another_writer_is_left_to_the_job(
    local: LocalExporter, feature: str, minimums: tuple[int, int]
) -> None:
    write(local.store, plain(10))
    local.run()
    reader, writer = minimums
    protocol: dict[str, Any] = {"minReaderVersion": reader, "minWriterVersion": writer}
    protocol |= {"writerFeatures": [feature]} if writer == 7 else {}
    protocol |= {"readerFeatures": [feature]} if reader == 3 else {}
    newest = len(list((local.table / "_delta_log").glob("*.json")))
    (local.table / "_delta_log" / f"{newest:020}.json").write_text(json.dumps({"protocol": protocol}) + "\n")
    write(local.store, plain(20))
    with pytest.raises(NeedsSparkError):
        local.run()
    assert len(list((local.table / "_delta_log").glob("*.json"))) == newest + 1


@pytest.mark.parametrize(
    "words",
    [
        ["--optimize"],
        ["--retention", "3"],
        ["--cluster-by", "topic"],
        ["--checkpoint", "c"],
    ],
    ids=" ".join,
)
def test_what_only_the_job_can_is_refused_before_anything_is_written(local: LocalExporter, words: list[str]) -> None:
    write(local.store, plain(10))
    with pytest.raises(NeedsSparkError):
        local.run(*words)
    assert not local.table.exists()


def test_unknown_columns_and_topics_are_refused(local: LocalExporter) -> None:
    write(local.store, plain(10))
    with pytest.raises(OptionError, match="has no topic 'Nothing'"):
        local.run("--topics", "Nothing")
    with pytest.raises(OptionError, match="unknown column 'nothing'"):
        local.run("--columns", "nothing")
    with pytest.raises(OptionError, match="makes no partitions"):
        local.run("--partition-by", "body")


def test_names_of_topics_are_escaped_in_paths_as_the_job_does(local: LocalExporter) -> None:
    placed = write(local.store, [("%RETRY%group", b"a"), ("Ünïcode topic", b"b")] * 5)
    local.run()
    (commit,) = (local.table / "_delta_log").glob("*1.json")
    adds = [json.loads(line)["add"]["path"] for line in commit.read_text().splitlines() if line.startswith('{"add"')]
    assert sorted(path.partition("/")[0] for path in adds) == [
        "topic=%2525RETRY%2525group",
        "topic=%25C3%259Cn%25C3%25AFcode%2520topic",
    ]
    assert local.offsets() == placed
    assert local.run()[0]["messages"] == 0  # and its files are there


def test_a_vacuum_deletes_what_killed_exports_left_and_nothing_else(local: LocalExporter) -> None:
    write(local.store, plain(20))
    local.run()
    partition = next(local.table.glob("topic=*/date=*"))
    orphan, young = partition / "part-left.snappy.parquet", partition / "part-young.snappy.parquet"
    progress = local.table / "_rmq_checkpoint" / "offsets" / "0"
    progress.parent.mkdir(parents=True)
    for path in (orphan, young, progress):
        path.write_bytes(b"x")
    for path in (orphan, progress):
        os.utime(path, (1_600_000_000, 1_600_000_000))
    placed = write(local.store, plain(30))
    local.run("--vacuum", "168")
    assert (orphan.exists(), young.exists(), progress.exists()) == (False, True, True)
    assert local.offsets() == placed
    assert local.run()[0]["messages"] == 0


def test_a_vacuum_deletes_nothing_beside_another_table(local: LocalExporter) -> None:
    write(local.store, plain(20))
    local.run()
    (local.table / "other" / "_delta_log").mkdir(parents=True)
    with pytest.raises(StoreError, match="--vacuum deletes nothing there"):
        local.run("--vacuum", "168")


def test_hours_make_partitions(local: LocalExporter) -> None:
    placed = write(local.store, plain(10))
    local.run("--partition-by", "topic,hour")
    write(local.store, plain(20))
    assert local.run("--partition-by", "topic,hour")[0]["messages"] == 10
    hours = DeltaTable(local.table).to_pyarrow_table(columns=["hour"])["hour"].unique().to_pylist()
    assert [str(hour) for hour in hours] == ["2023-11-14 22:00:00+00:00"]
    assert local.offsets()[:10] == placed


def test_columns_that_the_table_lacks_are_added(local: LocalExporter) -> None:
    write(local.store, plain(10))
    local.run("--columns", "body")
    assert "tags" not in DeltaTable(local.table).schema().to_arrow().names
    placed = write(local.store, plain(20))
    local.run()
    assert "tags" in DeltaTable(local.table).schema().to_arrow().names
    assert local.offsets() == placed


def test_a_commit_that_a_power_cut_tore_is_exported_again(local: LocalExporter) -> None:
    write(local.store, plain(10))
    local.run()
    placed = write(local.store, plain(30))
    local.run()
    newest = max((local.table / "_delta_log").glob("*.json"))
    whole = newest.read_bytes().splitlines(keepends=True)
    for lines in range(1, len(whole)):
        newest.write_bytes(b"".join(whole[:lines]))
        assert not is_whole(newest)
    local.run()
    assert local.offsets() == placed


def test_transaction_versions_are_found_behind_a_checkpoint(local: LocalExporter) -> None:
    for count in range(1, 8):
        placed = write(local.store, plain(count * 3))
        local.run()
        DeltaTable(local.table).create_checkpoint()
    for path in sorted((local.table / "_delta_log").glob("*.json"))[:5]:
        path.unlink()
    assert local.run()[0]["messages"] == 0
    assert local.offsets() == placed


def test_stores_may_stand_in_front_of_the_options_or_behind() -> None:
    expected = ["--store", "s", "--table", "t", "--topics", "A"]
    assert with_store_option("rmq export", ["s", "--table", "t", "--topics", "A"]) == expected
    assert with_store_option("rmq export", ["--table", "t", "--topics", "A", "s"]) == expected


@pytest.mark.long
def test_an_option_of_the_job_without_spark_ends_with_the_jobs_command(local: LocalExporter) -> None:
    write(local.store, plain(10))
    done = rmq("export", local.store, "--table", local.table, "--optimize")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"jobs/export_delta.py --store {local.store} --table {local.table} --optimize\n")
    assert not local.table.exists()


def test_without_delta_rs_an_export_is_left_to_the_job(local: LocalExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    write(local.store, plain(10))
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(NeedsSparkError, match="delta-rs is not installed"):
        local.run()


def test_a_store_made_anew_with_segments_of_another_size_is_refused(local: LocalExporter) -> None:
    write(local.store, plain(30))
    local.run()
    before = local.offsets()
    shutil.rmtree(local.store)
    write(local.store, [("Even", b"another") for _ in range(60)], file_bytes=1536)
    with pytest.raises(StoreError, match="or it is another store's"):
        local.run()
    assert local.offsets() == before


def test_a_store_that_commits_meanwhile_under_the_same_identifier_is_told_apart(
    local: LocalExporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(local.store, plain(30))
    other = LocalExporter(tmp_path / "other", local.table)
    write(other.store, [("Even", b"another")] * 10)
    write_files = raw_files.write_and_commit

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(local_raw, "write_and_commit", write_files)
        other.run("--store-id", "S")
        return write_files(*arguments)

    monkeypatch.setattr(local_raw, "write_and_commit", overtaken)
    with pytest.raises(StoreError, match="or it is another store's"):
        local.run("--store-id", "S")
    assert len(local.offsets()) == 10


def test_an_empty_commit_in_the_log_is_refused(local: LocalExporter) -> None:
    for count in (5, 10, 15):
        write(local.store, plain(count))
        local.run()
    commit = sorted((local.table / "_delta_log").glob("*.json"))[-2]
    commit.write_bytes(b"")
    write(local.store, plain(20))
    with pytest.raises(StoreError):
        local.run()


@pytest.mark.parametrize(
    "words",
    [
        ("--starting-timestamp", "1700000000004", "--ending-timestamp", "1700000000001"),
        ("--starting-physical-offset", "400", "--ending-physical-offset", "200"),
    ],
)
def test_bounds_that_select_nothing_are_refused(local: LocalExporter, words: tuple[str, ...]) -> None:
    write(local.store, plain(3))
    with pytest.raises(OptionError, match="which selects nothing"):
        local.run(*words)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--table", "/"), "expected a path"),
        (("--table", "d", "--dlq-table", "d"), "is the table of --table, too"),
        (("--table", "d", "--table-property", "rmq.topic=X"), "give another name"),
        (("--table", "d", "--starting-offsets", '{"T":{"0":1,"0":2}}'), "'0' comes twice"),
        (("--table", "d", "--starting-offsets", '{"T":{"0":99999999999999999999}}'), "is no 64-bit integer"),
    ],
)
def test_arguments_that_would_lose_something_are_refused(
    local: LocalExporter, words: tuple[str, ...], problem: str
) -> None:
    write(local.store, plain(3))
    with pytest.raises(OptionError, match=problem):
        local.run(*words, table=False)


@pytest.mark.parametrize("first", [True, False])
def test_a_file_of_the_log_that_is_deleted_before_it_is_read_is_no_silent_loss(
    local: LocalExporter, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    if not first:
        write(local.store, plain(10))
        local.run()
    placed = write(local.store, plain(200))
    deleted = sorted((local.store / "commitlog").iterdir())[1]
    plan_tasks = PendingRecords.tasks

    def delete_and_plan(records: PendingRecords, *arguments: Any) -> Any:
        deleted.unlink(missing_ok=True)
        return plan_tasks(records, *arguments)

    monkeypatch.setattr(PendingRecords, "tasks", delete_and_plan)
    with pytest.raises(StoreError, match=f"{deleted.name}: the segment was deleted before the export read it"):
        local.run()
    with pytest.raises(StoreError, match="of the CommitLog were deleted before the export"):
        local.run()
    report, code = local.run("--fail-on-data-loss", "false")
    begin = int(deleted.name)
    assert (report["missing_bytes"], code) == (FILE_BYTES, 1)
    assert local.offsets() == [offset for offset in placed if not begin <= offset < begin + FILE_BYTES]


@pytest.mark.parametrize("name", ["a%20b", "a\\b"])
def test_a_path_that_delta_rs_takes_for_another_is_left_to_the_job(tmp_path: Path, name: str) -> None:
    write(tmp_path / "store", plain(3))
    with pytest.raises(NeedsSparkError, match="delta-rs cannot open a path with"):
        LocalExporter(tmp_path / "store", tmp_path / name).run()
    assert not (tmp_path / name).exists()


def test_a_constraint_that_is_added_meanwhile_leaves_the_table_to_the_job(
    local: LocalExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ExportLoop.run

    def run_after_the_owner(self: ExportLoop[Any, Any], interval_s: float | None) -> None:
        DeltaTable(local.table).alter.add_constraint({"even": "topic = 'Even'"})
        run(self, interval_s)

    write(local.store, plain(1))
    local.run()
    write(local.store, plain(4))
    monkeypatch.setattr(ExportLoop, "run", run_after_the_owner)
    with pytest.raises(NeedsSparkError, match=r"needs Delta's own writer .*delta\.constraints\.even"):
        local.run()
    assert len(local.offsets()) == 1


def test_rows_of_files_without_bounds_of_their_offsets_are_not_exported_again(local: LocalExporter) -> None:
    placed = write(local.store, plain(30))
    local.run()
    name = "delta.dataSkippingStatsColumns"
    bounds = DeltaTable(local.table).metadata().configuration[name]
    DeltaTable(local.table).alter.set_table_properties({name: "flag"})
    DeltaTable(local.table).update(updates={"flag": "1"}, predicate="topic = 'Odd'")
    DeltaTable(local.table).alter.set_table_properties({name: bounds})
    assert local.run("--from-offset", "0")[0]["messages"] == 0
    assert local.offsets() == placed
