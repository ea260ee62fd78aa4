"""``rmq export --format iceberg`` without Spark: each message once, killed, in races, and in turns with the job."""

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_formats.errors import StoreError
from rmq_lakehouse.iceberg.catalog import IcebergLocation
from rmq_lakehouse.iceberg.expire import check_directory
from rmq_lakehouse.iceberg.table import IcebergTransaction, iceberg_schema
from rmq_lakehouse.local.iceberg_log import LocalIcebergLog
from rmq_lakehouse.local.table_log import NeedsSparkError
from rmq_lakehouse.table_log import TableSpec
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.local_exports import LocalExporter
from tests.lakehouse.small_stores import plain, write
from tests.lakehouse.test_local_export import _RMQ, rmq

ICEBERG = ("--format", "iceberg")


@pytest.fixture
def local(tmp_path: Path) -> LocalExporter:
    return LocalExporter(tmp_path / "store", tmp_path / "table")


def offsets(table: Path) -> list[int]:
    """Return the physical offsets of the table's rows."""
    iceberg = IcebergLocation(str(table), {}).load()
    assert iceberg is not None
    return sorted(iceberg.scan(selected_fields=("physical_offset",)).to_arrow()["physical_offset"].to_pylist())


@pytest.mark.long
def test_the_command_needs_neither_pyspark_nor_java(local: LocalExporter) -> None:
    placed = write(local.store, plain(30))
    done = rmq("export", local.store, "--table", local.table, *ICEBERG)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["job"], report["messages"], report["files"]) == ("export_iceberg", 30, 2)
    assert offsets(local.table) == placed


def test_a_second_export_and_other_selections_add_what_is_new_alone(local: LocalExporter) -> None:
    write(local.store, plain(30))
    assert local.run(*ICEBERG, "--topics", "Odd")[0]["messages"] == 15
    assert local.run(*ICEBERG)[0]["messages"] == 15
    placed = write(local.store, plain(45))
    assert local.run(*ICEBERG, "--vacuum", "168")[0]["messages"] == 15
    assert local.run(*ICEBERG, "--from-offset", "0")[0]["messages"] == 0
    assert offsets(local.table) == placed


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_export_killed_at_its_commit_is_made_good_by_the_next(
    local: LocalExporter, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    commit = IcebergTransaction._commit

    def die(self: IcebergTransaction, *arguments: Any) -> None:
        if after:
            commit(self, *arguments)
        raise KeyboardInterrupt

    placed = write(local.store, plain(30))
    with monkeypatch.context() as patch:
        patch.setattr(IcebergTransaction, "_commit", die)
        with pytest.raises(KeyboardInterrupt):
            local.run(*ICEBERG)
    local.run(*ICEBERG)
    assert offsets(local.table) == placed


def test_of_two_exports_that_race_the_later_begins_again_behind_the_other(
    local: LocalExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, reports = IcebergTransaction._commit, []

    def meanwhile(self: IcebergTransaction, *arguments: Any) -> None:
        if not reports:
            reports.append({})  # once
            reports[0] = local.run(*ICEBERG)[0]
        commit(self, *arguments)

    placed = write(local.store, plain(30))
    monkeypatch.setattr(IcebergTransaction, "_commit", meanwhile)
    report, _ = local.run(*ICEBERG)
    assert (reports[0]["messages"], report["messages"]) == (30, 0)
    assert offsets(local.table) == placed


@pytest.mark.long
def test_processes_that_race_land_each_message_once(local: LocalExporter) -> None:
    placed = write(local.store, plain(60))
    command = [sys.executable, "-c", _RMQ, "export", str(local.store), "--table", str(local.table), *ICEBERG]
    running = [
        subprocess.Popen([*command, "--mode", "available-now", "--max-bytes-per-trigger", "8000"]) for _ in range(2)
    ]
    assert [process.wait(300) for process in running] == [0, 0]
    assert offsets(local.table) == placed


@pytest.mark.parametrize("attempt", range(5))
def test_of_those_who_create_a_table_at_once_one_creates_it(tmp_path: Path, attempt: int) -> None:
    table = tmp_path / "table"
    barrier = threading.Barrier(8, timeout=60)

    def create() -> str:
        location = IcebergLocation(str(table), {})
        barrier.wait()
        location.create(iceberg_schema(pa.schema([("offset", pa.int64())]), "table"), (), {})
        created_table = location.load()
        assert created_table is not None
        return created_table.metadata_location

    with ThreadPoolExecutor(8) as threads:
        created = [threads.submit(create) for _ in range(8)]
        assert len({future.result() for future in created}) == 1
    loaded = IcebergLocation(str(table), {}).load()
    assert loaded is not None
    check_directory(loaded)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["table"]


def test_transforms_are_left_to_the_job(local: LocalExporter) -> None:
    write(local.store, plain(10))
    with pytest.raises(NeedsSparkError):
        local.run(*ICEBERG, "--partition-by", "topic,hour(store_timestamp)")
    assert not local.table.exists()


@pytest.mark.spark
@pytest.mark.long
def test_job_and_command_take_turns(exporter: Exporter) -> None:
    local, landed = LocalExporter(exporter.store, exporter.table), []
    for count, run in ((10, exporter.run), (25, local.run), (45, exporter.run), (50, local.run)):
        placed = write(exporter.store, plain(count))
        landed.append(run(*ICEBERG)[0]["messages"])
    assert landed == [10, 15, 20, 5]
    assert offsets(exporter.table) == placed
    by_command = exporter.work / "by_command"
    LocalExporter(exporter.store, by_command).run(*ICEBERG)
    tables = [IcebergLocation(str(path), {}).load() for path in (exporter.table, by_command)]
    schemas = [table.schema().model_dump() for table in tables if table is not None]
    assert schemas[0]["fields"] == schemas[1]["fields"]


def test_a_column_that_iceberg_has_not_is_named_in_one_line() -> None:
    for kind in (pa.null(), pa.month_day_nano_interval()):
        with pytest.raises(StoreError, match="orders: Iceberg has no such column: "):
            iceberg_schema(pa.schema([("sound", pa.int32()), ("odd", kind)]), "orders")


def test_a_partition_by_double_is_refused_for_pyiceberg_rounds_it(tmp_path: Path) -> None:
    log = LocalIcebergLog(IcebergLocation(str(tmp_path / "table"), {}))
    with pytest.raises(StoreError, match=r"partitioned by x, a DOUBLE, which pyiceberg rounds\. Partition"):
        log.create(pa.schema([("x", pa.float64()), ("y", pa.float32())]), TableSpec(("y", "x")), {})
    assert not log.exists()
