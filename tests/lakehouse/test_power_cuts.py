"""Delta tables after a loss of power: commits name forced files alone, and torn ones are set aside."""

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rmq_formats.errors import StoreError
from rmq_lakehouse.delta import local_commits
from rmq_lakehouse.delta import table as delta
from rmq_lakehouse.delta.local_commits import is_whole, quarantine_torn_commits
from tests.lab.tables.model import forget
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import plain, write
from tests.lakehouse.test_standing import orders, spec

TABLES = ("table", "orders", "dead")
TXN = {"txn": {"appId": "rmq-export:store:0", "version": 7}}
ADD: dict[str, Any] = {"add": {"path": "a.parquet"}}
REMOVE: dict[str, Any] = {"remove": {"path": "b.parquet"}}


def commit(log: Path, version: int, *actions: dict[str, Any], **metrics: str) -> Path:
    """A commit that tells of files in its first line."""
    log.mkdir(parents=True, exist_ok=True)
    lines = [{"commitInfo": {"operation": "WRITE", "operationMetrics": metrics}}, *actions]
    path = log / f"{version:020d}.json"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_commit_of_an_export_without_its_files_is_torn(tmp_path: Path) -> None:
    assert is_whole(commit(tmp_path, 1, TXN, ADD, ADD, numFiles="2"))
    assert is_whole(commit(tmp_path, 1, TXN, ADD, REMOVE, numTargetFilesAdded="1", numTargetFilesRemoved="1"))
    assert is_whole(commit(tmp_path, 1, TXN))
    assert is_whole(commit(tmp_path, 1, ADD, numFiles="2"))  # another program's
    assert not is_whole(commit(tmp_path, 1, TXN, ADD, numFiles="2"))
    assert not is_whole(commit(tmp_path, 1, TXN, ADD, numTargetFilesAdded="1", numTargetFilesRemoved="1"))


@pytest.mark.parametrize("zeros", [True, False])
def test_a_commit_that_is_cut_anywhere_is_torn_or_changes_nothing(tmp_path: Path, zeros: bool) -> None:
    path = commit(tmp_path, 1, TXN, ADD, numFiles="1")
    data = path.read_bytes()
    for at in range(len(data) - 1):  # without the last newline it is whole
        path.write_bytes(data[:at] + bytes(len(data) - at) * zeros)
        kept = data[:at].splitlines()
        assert is_whole(path) is (not zeros and kept == data.splitlines()[:1])


def test_torn_commits_at_the_end_are_set_aside_with_all_that_tells_of_them(tmp_path: Path) -> None:
    table = tmp_path / "table"
    log = table / "_delta_log"
    commit(log, 0, TXN)
    quarantine_torn_commits(table)
    whole = sorted(path.name for path in log.iterdir())
    for version in (1, 2):
        commit(log, version).write_bytes(b"{")
    compacted = "00000000000000000000.00000000000000000002.compacted.json"
    for name in ("00000000000000000002.crc", ".00000000000000000002.json.crc", "_last_checkpoint", compacted):
        (log / name).write_bytes(b"")
    quarantine_torn_commits(table)
    assert sorted(path.name for path in log.iterdir()) == whole
    names = {path.name for path in (tmp_path / "table.rmq-torn").iterdir()}
    assert names == {
        "00000000000000000001.json", "00000000000000000002.json", "00000000000000000002.crc", compacted,
    }  # fmt: skip
    commit(log, 0).write_bytes(b"")
    quarantine_torn_commits(table)
    assert not log.exists()
    quarantine_torn_commits(table)


def test_a_commit_that_is_being_written_stays(tmp_path: Path) -> None:
    log = tmp_path / "table" / "_delta_log"
    path = commit(log, 0, TXN)
    data = path.read_bytes()
    path.write_bytes(data[:9])
    writer = threading.Timer(0.2, path.write_bytes, [data])
    writer.start()
    quarantine_torn_commits(log.parent)
    writer.join()
    assert path.read_bytes() == data
    assert not (tmp_path / "table.rmq-torn").exists()


def test_a_checkpoint_that_cannot_be_read_is_set_aside_without_its_commit(tmp_path: Path) -> None:
    log = tmp_path / "table" / "_delta_log"
    path = commit(log, 1, TXN)
    checkpoint = log / f"{path.stem}.checkpoint.parquet"
    pq.write_table(pa.table({"path": [f"{number}.parquet" for number in range(999)]}), checkpoint)
    quarantine_torn_commits(log.parent)
    assert checkpoint.exists()
    checkpoint.write_bytes(checkpoint.read_bytes()[:40] + bytes(2000) + checkpoint.read_bytes()[2040:])
    quarantine_torn_commits(log.parent)
    assert list(log.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_a_checkpoint_of_version_2_is_set_aside_where_a_sidecar_of_it_is_torn(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_commits, "_WRITTEN_S", 0.05)
    log = tmp_path / "table" / "_delta_log"
    path = commit(log, 0, {"protocol": {}})
    sidecar = log / "_sidecars" / "one.parquet"
    sidecar.parent.mkdir()
    pq.write_table(pa.table({"path": [f"{number}.parquet" for number in range(999)]}), sidecar)
    whole = sidecar.read_bytes()
    checkpoint = log / f"{path.stem}.checkpoint.4711.{kind}"
    named = [None, {"path": sidecar.name, "sizeInBytes": len(whole)}]
    if kind == "json":
        checkpoint.write_text("\n".join(json.dumps({"sidecar": told} if told else {"protocol": {}}) for told in named))
    else:
        pq.write_table(pa.table({"sidecar": named}), checkpoint)
    sound = checkpoint.read_bytes()
    quarantine_torn_commits(tmp_path / "table")
    assert checkpoint.exists()
    for data in (whole[:-1], whole[:40] + bytes(2000) + whole[2040:], bytes(len(whole)), None):
        sidecar.unlink() if data is None else sidecar.write_bytes(data)
        quarantine_torn_commits(tmp_path / "table")
        assert (checkpoint.exists(), path.exists()) == (False, True)
        checkpoint.write_bytes(sound)
    sidecar.write_bytes(whole)
    checkpoint.write_bytes(sound[: len(sound) // 2] + bytes(len(sound) - len(sound) // 2))
    quarantine_torn_commits(tmp_path / "table")
    assert not checkpoint.exists()


def test_a_log_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").write_bytes(b"")
    with pytest.raises(StoreError, match="_delta_log: Not a directory"):
        quarantine_torn_commits(tmp_path)


def files(table: Path) -> dict[str, int]:
    """Names and sizes of a table's files."""
    return {str(path.relative_to(table)): path.stat().st_size for path in table.rglob("*") if path.is_file()}


def newest(table: Path) -> Path:
    """The newest commit."""
    return max(path for path in (table / "_delta_log").glob("*.json") if path.stem.isdigit())


@pytest.mark.spark
def test_a_commit_of_spark_s_writer_without_rows_is_whole_without_its_checksum(exporter: Exporter) -> None:
    arguments = ("--topics", "Even", "--table-property", "delta.enableChangeDataFeed=true")
    write(exporter.store, plain(4))
    exporter.run(*arguments)
    write(exporter.store, [*plain(4), ("Odd", b"of no row")])
    exporter.run(*arguments)
    commit = newest(exporter.table)
    assert commit.stem.endswith("2")
    assert is_whole(commit)
    commit.with_name(f".{commit.name}.crc").unlink()
    assert is_whole(commit)


@pytest.mark.spark
@pytest.mark.long
def test_a_loss_of_power_loses_no_file_of_a_commit_and_a_torn_one_lands_again(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(exporter.store, orders(8))
    arguments = spec(exporter)
    exporter.run(*arguments)
    force, forced = delta.sync_file_system, {name: files(exporter.work / name) for name in TABLES}
    commits, lost = dict.fromkeys(TABLES, 0), []

    def noted(path: Path) -> None:
        """What a cut would take before this force is what has come since the last one."""
        now = files(path)
        new = {name for name, size in now.items() if forced[path.name].get(name) != size}
        if any(Path(name).suffix == ".json" for name in new):
            commits[path.name] += 1
            lost.extend(name for name in new if not name.startswith("_delta_log"))
        forced[path.name] = now
        force(path)

    write(exporter.store, orders(16))
    monkeypatch.setattr(delta, "sync_file_system", noted)
    exporter.run(*arguments, "--optimize")
    assert not lost
    assert all(commits.values())
    rows = {name: exporter.rows(name) for name in TABLES}

    placed = write(exporter.store, orders(20))
    before = {name: newest(exporter.work / name) for name in TABLES}

    def fails(path: Path) -> None:
        raise StoreError(f"{path}: Input/output error when its files were flushed")

    monkeypatch.setattr(delta, "sync_file_system", lambda path: fails(path) if path.name == "orders" else force(path))
    with pytest.raises(StoreError, match="orders: Input/output error"):
        exporter.run(*arguments)
    assert newest(exporter.work / "orders") == before["orders"]
    assert exporter.rows("orders") == rows["orders"]
    monkeypatch.setattr(delta, "sync_file_system", noted)
    exporter.run(*arguments, "--mode", "available-now")
    assert not lost
    rows = {name: exporter.rows(name) for name in TABLES}
    tears: dict[str, Callable[[bytes], bytes]] = {
        "table": lambda data: bytes(len(data)),
        "orders": lambda data: b"".join(data.splitlines(keepends=True)[:2]),  # how far it landed, and no file
        "dead": lambda data: data[: len(data) // 2],
    }
    for name in TABLES:
        path = newest(exporter.work / name)
        path.write_bytes(tears[name](path.read_bytes()))
        path.with_name(f".{path.name}.crc").unlink()
    forget(exporter.spark)
    exporter.run(*arguments)
    assert {name: exporter.rows(name) for name in TABLES} == rows
    assert exporter.offsets() == placed
    shutil.rmtree(exporter.work / "table.rmq-torn")
