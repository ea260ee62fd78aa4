"""How far a table has landed is told by what it holds: restored, cloned, altered, its identifier dropped."""

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from rmq_formats.errors import OptionError, StoreError
from rmq_lakehouse.delta import keyed
from rmq_lakehouse.delta.table import DeltaTableLog
from tests.lab.tables.model import forget
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import plain, write

pytestmark = pytest.mark.spark

ONCE = ("--mode", "available-now")
ORDERS = {"topic": "Even", "format": "json", "schema": "id STRING, n INT", "key": ["id"], "table": "orders"}


def sql(exporter: Exporter, statement: str, name: str = "table") -> None:
    exporter.spark.sql(statement.format(f"delta.`{exporter.work / name}`"))


def orders(count: int) -> list[tuple[str, bytes]]:
    """Of each four one has no JSON; there are three keys."""
    return [("Even", json.dumps({"id": n % 3, "n": n}).encode() if n % 4 else b"bad") for n in range(count)]


def spec(exporter: Exporter) -> tuple[str, ...]:
    path = exporter.work / "spec.json"
    path.write_text(json.dumps({"topics": [ORDERS]}))
    return "--typed", str(path), "--dlq-table", str(exporter.work / "dead")


@pytest.mark.long
def test_a_retention_of_identifiers_lands_nothing_twice(exporter: Exporter) -> None:
    placed = write(exporter.store, orders(12))
    exporter.run(*spec(exporter))
    for name in ("table", "orders", "dead"):
        sql(exporter, "ALTER TABLE {} SET TBLPROPERTIES ('delta.setTransactionRetentionDuration'='7 days')", name)
    assert exporter.run(*spec(exporter))[0]["messages"] == 0  # they are younger, and say so
    for name in ("table", "orders", "dead"):
        sql(exporter, "ALTER TABLE {} SET TBLPROPERTIES ('delta.setTransactionRetentionDuration'='1 second')", name)
    time.sleep(1.1)
    placed = write(exporter.store, orders(16))
    report, code = exporter.run(*spec(exporter))
    assert (report["exports"], report["undecoded"], code) == ({"raw": 4, "Even": 3}, 1, 0)
    assert exporter.offsets() == placed
    assert [row.physical_offset for row in exporter.rows("dead")] == placed[::4]


@pytest.mark.long
def test_a_restored_table_is_told_and_landed_again(exporter: Exporter) -> None:
    placed = write(exporter.store, plain(30))
    exporter.run("--ending-physical-offset", str(placed[10]))
    exporter.run("--ending-physical-offset", str(placed[20]))
    sql(exporter, "DELETE FROM {} WHERE physical_offset = " + str(placed[3]))
    there = [offset for offset in placed[:20] if offset != placed[3]]
    sql(exporter, "RESTORE TABLE {} TO VERSION AS OF 1")
    for arguments in ((), ONCE):
        with pytest.raises(StoreError) as told:
            exporter.run(*arguments)
        assert f"table was restored: contains offsets below {placed[10]}, last export committed {placed[20]}" in str(
            told.value
        )
    assert exporter.offsets() == placed[:10]
    report, code = exporter.run("--from-offset", str(placed[10]))
    assert (report["messages"], code) == (20, 0)
    assert exporter.offsets() == placed
    again, _ = exporter.run("--from-offset", "0")
    assert again["messages"] == 0
    assert exporter.run()[0]["messages"] == 0
    sql(exporter, "RESTORE TABLE {} TO VERSION AS OF 3")  # the deletion; it is accepted as it is
    end = report["ending_physical_offset"]
    assert exporter.run("--from-offset", str(end))[0]["messages"] == 0
    assert exporter.offsets() == there
    assert exporter.run()[1] == 0
    with pytest.raises(StoreError, match=f"--from-offset {end + 1}: .* committed {end}"):
        exporter.run("--from-offset", str(end + 1))


@pytest.mark.long
def test_a_restored_typed_table_is_merged_again(exporter: Exporter) -> None:
    placed = write(exporter.store, orders(16))
    arguments = spec(exporter)
    exporter.run(*arguments, "--ending-physical-offset", str(placed[8]), table=False)
    exporter.run(*arguments, table=False)
    rows = exporter.rows("orders"), exporter.rows("dead")
    history = exporter.spark.sql(f"DESCRIBE HISTORY delta.`{exporter.work}/orders`").where("version = 1")
    (row,) = history.selectExpr("date_format(timestamp, 'yyyy-MM-dd HH:mm:ss.SSS') AS time").collect()
    sql(exporter, "RESTORE TABLE {} TO TIMESTAMP AS OF '" + row.time + "'", "orders")
    sql(exporter, "RESTORE TABLE {} TO VERSION AS OF 1", "dead")
    with pytest.raises(StoreError, match=f"orders: table was restored: contains offsets below {placed[8]}, "):
        exporter.run(*arguments, table=False)
    for _ in range(2):
        exporter.run(*arguments, "--from-offset", str(placed[8]), table=False)
        assert (exporter.rows("orders"), exporter.rows("dead")) == rows
    assert exporter.run(*arguments, table=False)[0]["messages"] == 0


@pytest.mark.long
def test_a_table_that_is_restored_before_the_merge_begins_is_not_merged_into(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(exporter.store, orders(8))
    arguments = spec(exporter)
    exporter.run(*arguments, table=False)
    placed = write(exporter.store, orders(16))
    exporter.run(*arguments, "--ending-physical-offset", str(placed[12]), table=False)
    merge = keyed._merge

    def restore_and_merge(*merged: Any) -> None:
        monkeypatch.undo()
        DeltaTable(str(exporter.work / "orders")).restore(1)
        merge(*merged)

    monkeypatch.setattr(keyed, "_merge", restore_and_merge)
    with pytest.raises(StoreError, match="orders: table was restored: contains offsets below"):
        exporter.run(*arguments, table=False)
    before = exporter.rows("orders")
    sql(exporter, "REFRESH TABLE {}", "orders")
    assert exporter.rows("orders") == before
    exporter.run(*arguments, "--from-offset", "0", table=False)
    assert sorted((row.id, row.n) for row in exporter.rows("orders")) == [("0", 15), ("1", 13), ("2", 14)]


@pytest.mark.long
def test_a_compaction_that_loses_a_race_begins_again(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (8, 12):
        placed = write(exporter.store, plain(count))
        exporter.run()
    table = str(exporter.table)
    find_partitions = DeltaTableLog._writable_partitions
    fsync = DeltaTableLog.fsync

    def update_and_sync(log: DeltaTableLog) -> None:
        monkeypatch.setattr(DeltaTableLog, "fsync", fsync)
        DeltaTable(table).update(predicate=f"physical_offset = {placed[3]}", updates={"flag": "7"})
        fsync(log)

    def optimize(log: DeltaTableLog, option: str) -> str | None:
        monkeypatch.setattr(DeltaTableLog, "_writable_partitions", find_partitions)
        monkeypatch.setattr(DeltaTableLog, "fsync", update_and_sync)
        return find_partitions(log, option)

    monkeypatch.setattr(DeltaTableLog, "_writable_partitions", optimize)
    assert exporter.run("--optimize")[1] == 0
    assert exporter.offsets() == placed
    assert [row.physical_offset for row in exporter.rows() if row.flag == 7] == [placed[3]]
    operations = exporter.spark.sql(f"DESCRIBE HISTORY delta.`{table}`").select("operation").limit(2).collect()
    assert [row.operation for row in operations] == ["OPTIMIZE", "UPDATE"]


@pytest.mark.long
def test_a_checkpoint_that_a_power_cut_tore_is_named(exporter: Exporter) -> None:
    write(exporter.store, plain(8))
    exporter.run(*ONCE)
    checkpoint = exporter.table / "_rmq_checkpoint"
    newest = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.write_bytes(b"")
    placed = write(exporter.store, plain(12))
    with pytest.raises(StoreError, match=rf"_rmq_checkpoint/offsets/{newest.name}: is missing or cut off"):
        exporter.run(*ONCE)
    shutil.rmtree(checkpoint)
    assert exporter.run(*ONCE)[0]["messages"] == 4
    assert exporter.offsets() == placed


@pytest.mark.long
def test_what_leaves_the_content_as_it_is_changes_nothing(exporter: Exporter) -> None:
    placed = write(exporter.store, plain(20))
    exporter.run()
    sql(exporter, "DELETE FROM {} WHERE physical_offset IN " + str((placed[4], placed[19])))
    sql(exporter, "ALTER TABLE {} ADD COLUMNS (note STRING)")
    sql(exporter, "OPTIMIZE {}")
    sql(exporter, "RESTORE TABLE {} TO VERSION AS OF 3")  # undoes the compaction alone
    placed = write(exporter.store, plain(24))
    report, code = exporter.run()
    assert (report["messages"], code) == (4, 0)
    assert exporter.offsets() == [offset for offset in placed if offset not in (placed[4], placed[19])]


def clean_log(exporter: Exporter, name: str = "table") -> None:
    """What Delta does with commits that are older than a month."""
    sql(exporter, "ALTER TABLE {} SET TBLPROPERTIES ('note' = 'another commit')", name)
    forget(exporter.spark)
    jvm: Any = exporter.spark._jvm
    table = exporter.work / name
    jvm.org.apache.spark.sql.delta.DeltaLog.forTable(exporter.spark._jsparkSession, str(table)).checkpoint()
    for path in sorted((table / "_delta_log").glob("*.json"))[:-1]:
        if path.stem.isdigit():
            path.unlink()
    forget(exporter.spark)


@pytest.mark.long
def test_a_restore_whose_commit_was_cleaned_up_is_seen(exporter: Exporter) -> None:
    placed = write(exporter.store, plain(30))
    exporter.run("--ending-physical-offset", str(placed[10]))
    end = exporter.run("--ending-physical-offset", str(placed[20]))[0]["ending_physical_offset"]
    sql(exporter, "RESTORE TABLE {} TO VERSION AS OF 1")
    clean_log(exporter)
    with pytest.raises(StoreError) as told:
        exporter.run()
    assert f"table: last export committed {end}, but its newest row, at {placed[19]}, is missing" in str(told.value)
    assert exporter.offsets() == placed[:10]
    assert exporter.run("--from-offset", "0")[0]["messages"] == 20
    clean_log(exporter)
    placed = write(exporter.store, plain(33))
    assert exporter.run()[0]["messages"] == 3  # its newest row is there
    sql(exporter, f"DELETE FROM {{}} WHERE physical_offset = {placed[32]}")
    clean_log(exporter)
    with pytest.raises(StoreError, match=f"its newest row, at {placed[32]}, is missing") as told:
        exporter.run()
    exporter.run("--from-offset", re.findall(r"--from-offset (\d+)", str(told.value))[1])
    clean_log(exporter)
    assert exporter.run()[0]["messages"] == 0
    assert exporter.offsets() == placed[:32]


@pytest.mark.long
def test_a_restore_of_a_table_with_a_key_is_seen_when_its_commit_was_cleaned_up(exporter: Exporter) -> None:
    typed = spec(exporter)[:2]
    placed = write(exporter.store, orders(8))
    exporter.run(*typed, table=False)
    placed = write(exporter.store, orders(12))
    exporter.run(*typed, table=False)
    clean_log(exporter, "orders")
    assert exporter.run(*typed, table=False)[0]["messages"] == 0  # its newest row is there
    before = exporter.rows("orders")
    version = exporter.spark.sql(f"DESCRIBE HISTORY delta.`{exporter.work}/orders`").first()["version"]
    placed = write(exporter.store, orders(16))
    exporter.run(*typed, table=False)
    sql(exporter, f"RESTORE TABLE {{}} TO VERSION AS OF {version}", "orders")
    clean_log(exporter, "orders")
    with pytest.raises(
        StoreError, match=f"orders: last export committed .* its newest row, at {placed[15]}, is missing"
    ):
        exporter.run(*typed, table=False)
    assert exporter.rows("orders") == before
    exporter.run(*typed, "--from-offset", "0", table=False)
    assert [row.n for row in exporter.rows("orders")] == [13, 14, 15]
    clean_log(exporter, "orders")
    assert exporter.run(*typed, table=False)[0]["messages"] == 0


@pytest.mark.long
def test_another_selection_that_lands_the_newest_row_again_hides_no_restore(exporter: Exporter) -> None:
    placed = write(exporter.store, plain(30))
    exporter.run("--ending-physical-offset", str(placed[10]))
    exporter.run("--ending-physical-offset", str(placed[20]))
    sql(exporter, "RESTORE TABLE {} TO VERSION AS OF 1")
    assert exporter.run("--topics", "Odd")[0]["messages"] == 10  # five of which were taken away, the newest one too
    clean_log(exporter)
    with pytest.raises(StoreError, match=f"its newest row, at {placed[19]}, is missing"):
        exporter.run()
    assert exporter.run("--topics", "Odd")[0]["messages"] == 0  # its own row is there
    assert exporter.run("--from-offset", "0")[0]["messages"] == 10
    clean_log(exporter)
    assert exporter.run()[0]["messages"] == 0
    assert exporter.offsets() == placed


@pytest.mark.long
def test_another_selection_hides_no_restore_of_a_table_with_a_key(exporter: Exporter) -> None:
    typed = spec(exporter)[:2]
    placed = write(exporter.store, orders(8))
    exporter.run(*typed, table=False)
    version = exporter.spark.sql(f"DESCRIBE HISTORY delta.`{exporter.work}/orders`").first()["version"]
    placed = write(exporter.store, orders(12))
    exporter.run(*typed, table=False)
    sql(exporter, f"RESTORE TABLE {{}} TO VERSION AS OF {version}", "orders")
    later = ("--starting-physical-offset", str(placed[10]))
    exporter.run(*typed, *later, table=False)  # lands the last two
    clean_log(exporter, "orders")
    with pytest.raises(
        StoreError, match=f"orders: last export committed .* its newest row, at {placed[11]}, is missing"
    ):
        exporter.run(*typed, table=False)
    exporter.run(*typed, "--from-offset", "0", table=False)
    assert [row.n for row in exporter.rows("orders")] == [9, 10, 11]
    clean_log(exporter, "orders")
    assert exporter.run(*typed, table=False)[0]["messages"] == 0


@pytest.mark.long
def test_a_clone_is_told_and_gone_on_with(exporter: Exporter) -> None:
    placed = write(exporter.store, plain(20))
    end = exporter.run("--ending-physical-offset", str(placed[10]))[0]["ending_physical_offset"]
    exporter.spark.sql(f"CREATE TABLE delta.`{exporter.work}/copy` SHALLOW CLONE delta.`{exporter.table}`")
    exporter.table = Path(exporter.work / "copy")
    with pytest.raises(StoreError, match="copy: export progress is missing from the table's history"):
        exporter.run()
    assert exporter.run("--from-offset", str(end))[0]["messages"] == 10
    # Only Spark reads files of another table.
    assert [row.physical_offset for row in exporter.spark_rows("copy")] == placed
    assert exporter.run()[0]["messages"] == 0


def test_a_stream_begins_nowhere_else_than_where_the_table_stands(exporter: Exporter) -> None:
    write(exporter.store, plain(2))
    with pytest.raises(OptionError, match="--from-offset needs --mode batch"):
        exporter.run(*ONCE, "--from-offset", "0")
