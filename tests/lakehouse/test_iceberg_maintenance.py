"""Iceberg tables that are looked after: small files as one, old messages deleted, old versions and files gone."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import duckdb
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFile

from rmq_formats.errors import StoreError
from rmq_lakehouse.iceberg import rewrite
from rmq_lakehouse.iceberg.expire import expirable_snapshots
from rmq_lakehouse.iceberg.spark_log import IcebergTableLog, SparkIcebergTransaction
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import plain, write
from tests.lakehouse.test_iceberg import ICEBERG, offsets, rows, table_of

pytestmark = pytest.mark.spark
_WEEK_S = 168 * 3600


def data_files(exporter: Exporter, name: str = "table") -> set[str]:
    return {task.file.file_path for task in table_of(exporter, name).scan().plan_files()}


def odd_files(exporter: Exporter) -> list[DataFile]:
    return [task.file for task in table_of(exporter).scan(row_filter=EqualTo("topic", "Odd")).plan_files()]


def on_disk(exporter: Exporter) -> set[str]:
    return {str(path) for path in (exporter.table / "data").rglob("*.parquet")}


def in_duckdb(files: set[str]) -> list[int]:
    """Physical offsets as DuckDB reads the files."""
    found = duckdb.execute("SELECT physical_offset FROM read_parquet(?) ORDER BY 1", [sorted(files)]).fetchall()
    return [offset for (offset,) in found]


@contextmanager
def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[None]:
    """A clock that is ahead, of maintenance alone."""
    with monkeypatch.context() as patch:
        patch.setattr(IcebergTableLog, "_now_s", lambda _: time.time() + seconds)
        yield


def export_in_parts(exporter: Exporter, count: int, step: int) -> list[int]:
    placed: list[int] = []
    for end in range(step, count + 1, step):
        placed = write(exporter.store, plain(end))
        exporter.run(*ICEBERG)
    return placed


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen when files were written anew, and before they are committed; once."""
    replace, waiting = SparkIcebergTransaction.replace, [True]

    def after_another(self: SparkIcebergTransaction, written: rewrite.RewriteResult) -> bool:
        if waiting:
            waiting.clear()
            act()
        return replace(self, written)

    monkeypatch.setattr(SparkIcebergTransaction, "replace", after_another)


class TestCompaction:
    """``--optimize``."""

    def test_small_files_of_a_partition_become_one_and_rows_stay(self, exporter: Exporter) -> None:
        placed = export_in_parts(exporter, 30, 10)
        before, was = rows(exporter), data_files(exporter)
        assert len(was) == 6
        assert exporter.run(*ICEBERG, "--optimize")[0]["messages"] == 0
        now = data_files(exporter)
        assert len(now) == 2
        assert not now & was
        assert rows(exporter) == before
        assert in_duckdb(now) == placed
        summary = table_of(exporter).current_snapshot().summary  # type: ignore[union-attr]
        assert [summary[name] for name in ("total-records", "total-data-files")] == ["30", "2"]
        exporter.run(*ICEBERG, "--optimize")
        assert data_files(exporter) == now  # nothing is left to do
        placed = write(exporter.store, plain(34))
        assert exporter.run(*ICEBERG)[0]["messages"] == 4
        assert offsets(exporter) == placed

    def test_files_are_packed_up_to_the_target_size(self, exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
        placed = export_in_parts(exporter, 40, 10)
        was = odd_files(exporter)
        most = max(file.file_size_in_bytes for file in was)
        monkeypatch.setattr(rewrite, "TARGET_FILE_BYTES", 2 * most)
        monkeypatch.setattr(rewrite, "_SMALL_BYTES", 2 * most)
        exporter.run(*ICEBERG, "--optimize")
        now = odd_files(exporter)
        assert len(now) == -(-len(was) // 2)
        column = table_of(exporter).schema().find_field("physical_offset").field_id
        ends = [[int.from_bytes(of[column], "little") for of in (one.lower_bounds, one.upper_bounds)] for one in now]
        assert all(last < first for (_, last), (first, _) in pairwise(sorted(ends)))  # in order of time
        assert offsets(exporter) == placed

    def test_what_lands_meanwhile_stays(self, exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
        export_in_parts(exporter, 20, 10)
        placed = write(exporter.store, plain(25))
        landed = []
        end = str(placed[20])
        meanwhile(monkeypatch, lambda: landed.append(exporter.run(*ICEBERG)[0]["messages"]))
        exporter.run(*ICEBERG, "--optimize", "--ending-physical-offset", end)
        assert landed == [5]
        assert len(data_files(exporter)) == 4  # one of each topic, and what has landed meanwhile
        assert offsets(exporter) == placed
        assert exporter.run(*ICEBERG)[0]["messages"] == 0

    def test_what_is_deleted_meanwhile_stays_so(self, exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
        placed = export_in_parts(exporter, 20, 10)
        meanwhile(monkeypatch, lambda: table_of(exporter).delete(EqualTo("physical_offset", placed[3])))
        exporter.run(*ICEBERG, "--optimize")
        assert len(data_files(exporter)) == 2
        assert offsets(exporter) == [offset for offset in placed if offset != placed[3]]

    @pytest.mark.long
    def test_a_table_that_was_rolled_back_is_still_told(
        self, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        placed = export_in_parts(exporter, 30, 10)

        def back() -> None:
            there = table_of(exporter)
            there.manage_snapshots().rollback_to_snapshot(there.history()[1].snapshot_id).commit()

        meanwhile(monkeypatch, back)
        exporter.run(*ICEBERG, "--optimize")
        assert offsets(exporter) == placed[:20]
        with pytest.raises(StoreError, match=f"restored: contains offsets below {placed[20]}"):
            exporter.run(*ICEBERG)
        exporter.run(*ICEBERG, "--from-offset", str(placed[20]))
        assert offsets(exporter) == placed

    def test_typed_tables_keep_lists_that_are_null(self, exporter: Exporter) -> None:
        topic = {"topic": "Orders", "format": "json", "schema": "id STRING, l ARRAY<STRUCT<a: INT>>", "table": "orders"}
        (exporter.work / "spec.json").write_text(json.dumps({"topics": [topic]}))
        given = (*ICEBERG, "--typed", str(exporter.work / "spec.json"), "--optimize")
        bodies = [("Orders", b'{"id":"a","l":[{"a":1}]}'), ("Orders", b'{"id":"b"}'), ("Orders", b'{"id":"c","l":[]}')]
        for count in range(1, 4):
            write(exporter.store, bodies[:count])
            exporter.run(*given, table=False)
        (file,) = data_files(exporter, "orders")
        found = duckdb.execute("SELECT id, l FROM read_parquet(?) ORDER BY id", [file]).fetchall()
        assert found == [("a", [{"a": 1}]), ("b", None), ("c", [])]


class TestRetention:
    """``--retention``."""

    def test_old_messages_go_and_do_not_come_back(self, exporter: Exporter) -> None:
        now_ms = time.time_ns() // 1_000_000
        write(exporter.store, plain(8))  # of 2023
        exporter.run(*ICEBERG)
        old = data_files(exporter)
        exporter.run(*ICEBERG, "--retention", "30")
        assert offsets(exporter) == []
        assert exporter.run(*ICEBERG)[0]["messages"] == 0
        assert old <= on_disk(exporter)  # a reader of the version before has them
        other = Exporter(exporter.spark, exporter.work / "new", exporter.work / "other")
        other.work.mkdir()
        placed = write(other.store, plain(8), first_ms=now_ms)
        other.run(*ICEBERG, "--retention", "30")
        assert offsets(other) == placed

    def test_a_file_that_is_old_in_part_is_written_anew_and_others_are_not_read(
        self, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        day_ms = 86_400_000
        first_ms = time.time_ns() // 1_000_000 - 20 * day_ms
        given = (*ICEBERG, "--partition-by", "topic")
        placed = write(exporter.store, plain(10), first_ms)
        exporter.run(*given)
        times = {row["physical_offset"]: row["store_timestamp"] for row in rows(exporter)}
        assert len(data_files(exporter)) == 2
        cut = sorted(times.values())[5]
        monkeypatch.setattr(IcebergTableLog, "_now_s", lambda _: cut.timestamp() + 2 * 86400)
        exporter.run(*given, "--retention", "2")
        assert offsets(exporter) == [offset for offset in placed if times[offset] >= cut]
        files = data_files(exporter)
        exporter.run(*given, "--retention", "2")
        assert data_files(exporter) == files

    def test_files_without_young_rows_are_dropped_unread(self, exporter: Exporter) -> None:
        export_in_parts(exporter, 20, 10)
        for path in data_files(exporter):
            Path(path).write_bytes(b"not to be read")
        exporter.run(*ICEBERG, "--retention", "1")
        assert offsets(exporter) == []

    def test_a_time_before_all_others_deletes_nothing(self, exporter: Exporter) -> None:
        assert rewrite.cutoff(0.0, 2).isoformat() == "1969-12-30T00:00:00+00:00"
        placed = write(exporter.store, plain(4))
        exporter.run(*ICEBERG, "--retention", "1000000")
        assert offsets(exporter) == placed


class TestVacuum:
    """``--vacuum``."""

    @pytest.mark.long
    def test_old_versions_go_with_their_files_and_what_killed_runs_left(
        self, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        placed = export_in_parts(exporter, 30, 10)
        left = exporter.table / "data" / "topic=Odd" / "part-of-a-killed-run.parquet"
        left.write_bytes(b"")
        young = left.with_name("part-of-a-running-one.parquet")
        young.write_bytes(b"")
        ahead = time.time() + 2 * _WEEK_S
        os.utime(young, (ahead, ahead))
        beside = exporter.table / "notes.txt"
        beside.write_text("of somebody else")
        hint = exporter.table / "metadata" / "version-hint.text"
        hint.write_text("1")
        was = on_disk(exporter)
        exporter.run(*ICEBERG, "--optimize", "--vacuum", "168")
        assert was < on_disk(exporter)
        assert len(table_of(exporter).snapshots()) == 4
        with later(monkeypatch, _WEEK_S + 60):
            exporter.run(*ICEBERG, "--vacuum", "168")
        there = table_of(exporter)
        assert len(there.snapshots()) == 1
        assert on_disk(exporter) == data_files(exporter) | {str(young)}
        assert offsets(exporter) == placed
        assert beside.exists()
        assert hint.exists()
        metadata = {path.name for path in (exporter.table / "metadata").iterdir() if path.suffix == ".avro"}
        snapshot = there.current_snapshot()
        assert snapshot is not None
        used = [snapshot.manifest_list, *(one.manifest_path for one in snapshot.manifests(there.io))]
        assert metadata == {path.rpartition("/")[2] for path in used}
        placed = write(exporter.store, plain(33))
        assert exporter.run(*ICEBERG)[0]["messages"] == 3
        assert offsets(exporter) == placed

    @pytest.mark.long
    def test_another_log_is_told_after_all_versions_of_its_exports_are_gone(
        self, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        export_in_parts(exporter, 20, 10)
        exporter.run(*ICEBERG, "--optimize")
        with later(monkeypatch, _WEEK_S + 60):
            exporter.run(*ICEBERG, "--vacuum", "168")
        assert len(table_of(exporter).snapshots()) == 1
        write(exporter.store, plain(20), first_ms=1_800_000_000_000)
        with pytest.raises(StoreError, match=r"are not those that .*table was exported from"):
            exporter.run(*ICEBERG)

    def test_what_others_wrote_since_stays_in_line_with_the_last_export(
        self, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        placed = export_in_parts(exporter, 20, 10)
        table_of(exporter).delete(EqualTo("physical_offset", placed[0]))
        table_of(exporter).manage_snapshots().create_tag(table_of(exporter).history()[0].snapshot_id, "kept").commit()
        with later(monkeypatch, _WEEK_S + 60):
            exporter.run(*ICEBERG, "--vacuum", "168")
        there = table_of(exporter)
        assert len(there.snapshots()) == 3  # the tag's, the last export's, the deletion
        tagged = there.scan(snapshot_id=there.refs()["kept"].snapshot_id).to_arrow()
        assert sorted(tagged["physical_offset"].to_pylist()) == placed[:10]
        write(exporter.store, plain(20), first_ms=1_800_000_000_000)
        with pytest.raises(StoreError, match=r"are not those that .*table was exported from"):
            exporter.run(*ICEBERG)

    @pytest.mark.long
    def test_a_selection_that_was_rolled_back_is_told_after_another_one_has_landed(
        self, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        placed = export_in_parts(exporter, 30, 10)
        first = table_of(exporter).history()[0].snapshot_id
        table_of(exporter).manage_snapshots().set_current_snapshot(first).commit()
        topic = "Odd" if (len(placed) - 1) % 2 else "Even"  # of the newest row, which so is there again
        exporter.run(*ICEBERG, "--topics", topic)
        write(exporter.store, plain(32))
        exporter.run(*ICEBERG, "--topics", topic)
        with later(monkeypatch, _WEEK_S + 60):
            exporter.run(*ICEBERG, "--topics", topic, "--vacuum", "168")
        with pytest.raises(StoreError, match="table was restored: contains offsets below"):
            exporter.run(*ICEBERG)
        placed = write(exporter.store, plain(32))
        exporter.run(*ICEBERG, "--from-offset", "0")
        assert offsets(exporter) == placed

    def test_a_version_counts_from_when_it_was_replaced(self, exporter: Exporter) -> None:
        export_in_parts(exporter, 20, 10)
        metadata = table_of(exporter).metadata
        first, second = metadata.snapshots
        assert expirable_snapshots(metadata, second.timestamp_ms, []) == []  # the first was the newest until then
        assert expirable_snapshots(metadata, second.timestamp_ms + 1, []) == [first.snapshot_id]
        assert expirable_snapshots(metadata, second.timestamp_ms + 1, [first.snapshot_id]) == []
        assert expirable_snapshots(metadata, 1 << 60, []) == [first.snapshot_id]
