"""``rmq export`` and the Spark job go on from one another on one table."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from rmq_lakehouse.delta.table import DeltaTableLog, DeltaTransaction
from rmq_lakehouse.local.delta_log import DeltaRsTableLog
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.local_exports import LocalExporter
from tests.lakehouse.small_stores import plain, write

pytestmark = pytest.mark.spark


@pytest.fixture
def local(exporter: Exporter) -> LocalExporter:
    """Give the command for the store and the table of the job."""
    return LocalExporter(exporter.store, exporter.table)


def actions(table: Any, version: int) -> dict[str, Any]:
    """Return the last action of each kind in a commit."""
    lines = (table / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    return {name: action for line in lines for name, action in json.loads(line).items()}


def test_both_make_the_same_table_of_the_same_store(exporter: Exporter, local: LocalExporter) -> None:
    write(exporter.store, [*plain(30), ("%RETRY%group", b"a")])
    by_job, _ = exporter.run()
    rows, table = exporter.rows(), exporter.table
    metadata, commit = actions(table, 0)["metaData"], actions(table, 1)
    exporter.table.rename(exporter.work / "by_job")
    by_command, _ = local.run()
    varying = {"seconds", "bytes_per_second"}
    assert {k: v for k, v in by_command.items() if k not in varying} == {
        k: v for k, v in by_job.items() if k not in varying
    }
    assert exporter.rows() == rows
    table_metadata = actions(table, 0)["metaData"]
    for member in ("schemaString", "partitionColumns", "configuration", "description", "format"):
        values = (table_metadata[member], metadata[member])
        if member in {"schemaString"}:
            values = (json.loads(values[0]), json.loads(values[1]))
        if member == "configuration":
            values = tuple({k: json.loads(v) if v.startswith("{") else v for k, v in each.items()} for each in values)
        assert values[0] == values[1], member
    own_commit = actions(table, 1)
    assert own_commit["commitInfo"]["userMetadata"] == commit["commitInfo"]["userMetadata"]
    assert own_commit["commitInfo"]["operation"] == commit["commitInfo"]["operation"]
    assert set(commit["commitInfo"]["operationMetrics"]) == set(own_commit["commitInfo"]["operationMetrics"])


@pytest.mark.long
def test_job_and_command_take_turns(exporter: Exporter, local: LocalExporter) -> None:
    landed = []
    for count, run in ((10, exporter.run), (25, local.run), (45, exporter.run), (50, local.run), (50, exporter.run)):
        placed = write(exporter.store, plain(count))
        landed.append(run()[0]["messages"])
    assert landed == [10, 15, 20, 5, 0]
    assert exporter.offsets() == local.offsets() == placed
    placed = write(exporter.store, plain(60))
    assert local.run("--topics", "Odd")[0]["messages"] == 5
    assert exporter.run()[0]["messages"] == 5
    assert exporter.offsets() == placed


def test_the_command_commits_between_the_job_s_files_and_its_commit(
    exporter: Exporter, local: LocalExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, reports = DeltaTransaction.commit, []

    def meanwhile(self: DeltaTransaction, *arguments: Any) -> None:
        if not reports:
            reports.append({})  # once
            reports[0] = local.run()[0]
        commit(self, *arguments)

    placed = write(exporter.store, plain(30))
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTransaction, "commit", meanwhile)
        assert exporter.run()[0]["messages"] == 0
    assert reports[0]["messages"] == 30
    assert exporter.offsets() == placed


def test_the_job_commits_between_the_command_s_files_and_its_commit(
    exporter: Exporter, local: LocalExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, reports = DeltaRsTableLog.commit, []

    def meanwhile(self: DeltaRsTableLog, *arguments: Any) -> None:
        if not reports:
            reports.append(exporter.run()[0])
        commit(self, *arguments)

    placed = write(exporter.store, plain(30))
    with monkeypatch.context() as patch:
        patch.setattr(DeltaRsTableLog, "commit", meanwhile)
        assert local.run()[0]["messages"] == 0
    assert reports[0]["messages"] == 30
    assert exporter.offsets() == placed


@pytest.mark.long
def test_a_restored_table_is_noticed_by_the_command(exporter: Exporter, local: LocalExporter) -> None:
    write(exporter.store, plain(10))
    local.run()
    placed = write(exporter.store, plain(30))
    exporter.run()
    exporter.spark.sql(f"RESTORE delta.`{exporter.table}` TO VERSION AS OF 1")
    with pytest.raises(Exception, match="table was restored"):
        local.run()
    assert local.run("--from-offset", "0")[0]["messages"] == 20
    assert exporter.offsets() == placed


@pytest.mark.long
def test_the_command_is_the_job_where_an_option_asks_for_spark(local: LocalExporter, tmp_path: Path) -> None:
    write(local.store, [("Orders", json.dumps({"id": number}).encode()) for number in range(10)])
    spec = tmp_path / "spec.toml"
    spec.write_text(
        '[[topics]]\ntopic = "Orders"\nformat = "json"\nschema = "id BIGINT"\ntable = "orders"\nkey = ["id"]\n'
    )
    done = subprocess.run(
        [Path(sys.executable).parent / "rmq", "export", local.store, "--table", tmp_path / "lake", "--typed", spec],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "rmq export: topic 'Orders': key is for the job: it starts Spark\n" in done.stderr
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["job"], report["exports"], report["undecoded"]) == ("export_delta", {"raw": 10, "Orders": 10}, 0)


@pytest.mark.long
@pytest.mark.parametrize("name", ["commit_guard", "add_columns"])
def test_the_command_adds_a_column_while_the_job_adds_it(
    exporter: Exporter, local: LocalExporter, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, original, reports = exporter.work / "spec.json", getattr(DeltaTableLog, name), []

    def typed(run: Any, schema: str) -> int:
        topic = {"topic": "T", "format": "json", "schema": schema, "table": "table"}
        spec.write_text(json.dumps({"topics": [topic]}))
        return int(run("--typed", str(spec), table=False)[0]["messages"])

    def meanwhile(*arguments: Any) -> Any:
        monkeypatch.undo()  # once
        reports.append(typed(local.run, "id INT, a STRING"))
        return original(*arguments)

    write(exporter.store, [("T", b'{"id":1}')])
    typed(local.run, "id INT")
    placed = write(exporter.store, [("T", b'{"id":1}'), ("T", b'{"id":2,"a":"x"}')])
    monkeypatch.setattr(DeltaTableLog, name, meanwhile)
    assert typed(exporter.run, "id INT, a STRING") == 0
    assert reports == [1]
    assert exporter.offsets() == placed


def test_the_job_writes_bounds_of_the_columns_that_the_owner_of_a_raw_table_names(exporter: Exporter) -> None:
    write(exporter.store, plain(3))
    exporter.run("--table-property", "delta.dataSkippingStatsColumns=flag,queue_id")
    assert DeltaTable(exporter.table).to_pyarrow_table(filters=[("flag", "=", 0)]).num_rows == 3
