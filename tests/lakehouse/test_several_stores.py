"""Several stores in one table: each message of each broker once, a report by broker, and what is refused."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from jobs import export_delta
from rmq_formats.errors import OptionError, StoreError
from rmq_lakehouse.delta.table import DeltaTransaction
from rmq_lakehouse.exports import ExportCounts, ExportLoop
from rmq_lakehouse.records import SparkPendingRecords
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import plain, write

pytestmark = pytest.mark.spark

STORES = {"a": "crash", "b": "exotic_crc"}
NAMED = ("--cluster", "Shop")


def export(spark: SparkSession, work: Path, *arguments: str) -> tuple[dict[str, Any], int]:
    """Export ``broker-*/store`` into ``table``."""
    stores = ["--store", str(work / "broker-*" / "store"), *NAMED]
    given = export_delta.parser().parse_args([*stores, "--table", str(work / "table"), *arguments])
    return export_delta.main(export_delta.check(given), spark)


def places(spark: SparkSession, work: Path) -> list[tuple[str, str, int]]:
    """Cluster, broker and physical offset of each row."""
    rows = spark.read.format("delta").load(str(work / "table"))
    return sorted((row.cluster, row.broker_name, row.physical_offset) for row in rows.collect())


def versions(spark: SparkSession, work: Path) -> int:
    """How often the table was committed."""
    return DeltaTable.forPath(spark, str(work / "table")).history().count()


@pytest.mark.long
def test_java_s_stores_land_and_missing_ones_later_in_one_commit(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    wanted = []
    for letter, name in STORES.items():
        shutil.copytree(golden(name) / "store", tmp_path / f"broker-{letter}" / "store")
        shutil.rmtree(tmp_path / f"broker-{letter}" / "store" / "config", ignore_errors=True)
        lines = (golden(name) / "expected" / "messages.jsonl").read_text().splitlines()
        wanted += [("Shop", f"broker-{letter}", json.loads(line)["physical_offset"]) for line in lines]
    for letter in "cd":
        (tmp_path / f"broker-{letter}").mkdir()
    report, code = export(spark, tmp_path, "--system-topics")
    assert code == 1
    assert places(spark, tmp_path) == sorted(wanted)
    assert [broker["messages"] for broker in report["brokers"]] == [
        sum(broker == f"broker-{letter}" for _, broker, _ in wanted) for letter in "abcd"
    ]
    assert "broker-c" in report["brokers"][2]["error"]
    before = versions(spark, tmp_path)
    placed = write(tmp_path / "broker-c" / "store", plain(5))
    write(tmp_path / "broker-d" / "store", plain(5))
    report, _ = export(spark, tmp_path, "--system-topics")
    assert (report["messages"], report["failed"], versions(spark, tmp_path)) == (10, 0, before + 1)
    wanted += [("Shop", f"broker-{letter}", offset) for letter in "cd" for offset in placed]
    assert places(spark, tmp_path) == sorted(wanted)


@pytest.mark.long
def test_a_stream_goes_on_after_a_kill_past_a_broken_store_and_takes_one_that_appears(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for letter in "ab":
        write(tmp_path / f"broker-{letter}" / "store", plain(6))
    stream = ("--mode", "stream", "--trigger-interval", "1 millisecond", "--max-bytes-per-trigger", "400")
    export_round, rounds = ExportLoop.export_round, []

    def killed(self: ExportLoop[Any, Any]) -> tuple[ExportCounts, bool]:
        export_round(self)
        raise StoreError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(ExportLoop, "export_round", killed)
        with pytest.raises(StoreError, match="killed"):
            export(spark, tmp_path, *stream)
    landed = places(spark, tmp_path)
    assert 0 < len(landed) < 12
    broken = tmp_path / "broker-b" / "store" / "commitlog"

    def changing(self: ExportLoop[Any, Any]) -> tuple[ExportCounts, bool]:
        """Once all is landed, a store breaks and another comes; then the first one is mended, and grows."""
        added, is_more = export_round(self)
        if is_more:
            return added, True
        rounds.append([part.error for part in self.source.parts])
        if len(rounds) == 1:
            broken.rename(broken.with_name("away"))
            write(tmp_path / "broker-a" / "store", plain(8))
            write(tmp_path / "broker-c" / "store", plain(4))
        elif broken.with_name("away").exists():
            broken.with_name("away").rename(broken)
            write(tmp_path / "broker-b" / "store", plain(9))
        else:
            signal.raise_signal(signal.SIGTERM)
        return added, False

    monkeypatch.setattr(ExportLoop, "export_round", changing)
    report, code = export(spark, tmp_path, *stream)
    assert [[error is None for error in each] for each in rounds] == [
        [True, True], [True, False, True], [True, True, True],
    ]  # fmt: skip
    assert (report["messages"], report["failed"], code) == (21 - len(landed), 0, 0)
    counts = {"broker-a": 8, "broker-b": 9, "broker-c": 4}
    assert places(spark, tmp_path) == [
        ("Shop", f"broker-{letter}", offset)
        for letter in "abc"
        for offset in write(tmp_path / "copy", plain(counts[f"broker-{letter}"]))
    ]


def test_two_stores_of_one_broker_and_the_table_of_one_store_are_refused(exporter: Exporter) -> None:
    work = exporter.work
    for letter in "ab":
        write(work / f"broker-{letter}" / "store", plain(3))
    file = work / "cluster.toml"
    roots = "".join(f'[[brokers]]\nname = "same"\nroot = "broker-{letter}/store"\n' for letter in "ab")
    file.write_text(roots)
    given = export_delta.parser().parse_args(["--store", str(file), *NAMED, "--table", str(exporter.table)])
    with pytest.raises(OptionError, match="both of broker same"):
        export_delta.check(given)
    with pytest.raises(OptionError, match="cluster unknown; give --cluster"):
        export_delta.check(
            export_delta.parser().parse_args(["--store", str(work / "broker-*" / "store"), "--table", "t"])
        )
    assert not exporter.table.exists()
    write(exporter.store, plain(3))
    exporter.run()
    with pytest.raises(StoreError, match="is the table of one store"):
        export(exporter.spark, work)


@pytest.mark.long
def test_typed_tables_have_the_last_message_of_all_brokers_and_dead_letters_tell_theirs(
    spark: SparkSession, tmp_path: Path
) -> None:
    def orders(letter: str, numbers: range) -> list[tuple[str, bytes]]:
        return [("Orders", json.dumps({"id": n, "n": f"{letter}{n}"}).encode()) for n in numbers]

    write(tmp_path / "broker-a" / "store", orders("a", range(3)), 1_700_000_005_000)
    write(tmp_path / "broker-b" / "store", [*orders("b", range(1, 4)), ("Orders", b"bad")], 1_700_000_000_000)
    topic = {"topic": "Orders", "format": "json", "schema": "id INT, n STRING", "key": ["id"], "table": "orders"}
    (tmp_path / "spec.json").write_text(json.dumps({"topics": [topic]}))
    typed = "--typed", str(tmp_path / "spec.json"), "--dlq-table", str(tmp_path / "dead")
    report, code = export(spark, tmp_path, *typed)
    assert (report["exports"], report["undecoded"], code) == ({"raw": 7, "Orders": 6}, 1, 0)
    assert latest(spark, tmp_path) == ["a0", "a1", "a2", "b3"]
    later = orders("b", range(3)) + orders("B", range(1, 2))
    write(tmp_path / "broker-b" / "store", [*orders("b", range(1, 4)), ("Orders", b"bad"), *later], 1_700_000_000_000)
    assert export(spark, tmp_path, *typed)[0]["exports"] == {"raw": 4, "Orders": 4}
    assert latest(spark, tmp_path) == ["a0", "a1", "a2", "b3"]  # stored before those of broker-a
    (dead,) = spark.read.format("delta").load(str(tmp_path / "dead")).collect()
    assert (dead.cluster, dead.broker_name, bytes(dead.body)) == ("Shop", "broker-b", b"bad")


@pytest.mark.long
def test_a_store_that_goes_away_while_it_is_exported_ends_no_other_s_typed_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = SparkPendingRecords.tasks

    def plan_without_b(records: SparkPendingRecords, *more: Any) -> Any:
        if "broker-b" in records.log.store:
            (tmp_path / "broker-b/store/commitlog").rename(tmp_path / "away")
        return plan(records, *more)

    for letter in "abc":
        write(tmp_path / f"broker-{letter}" / "store", [("Orders", json.dumps({"n": letter}).encode())])
    topic = {"topic": "Orders", "format": "json", "schema": "n STRING", "table": "orders"}
    (tmp_path / "spec.json").write_text(json.dumps({"topics": [topic]}))
    words = ["--store", str(tmp_path / "broker-*" / "store"), *NAMED, "--typed", str(tmp_path / "spec.json")]
    monkeypatch.setattr(SparkPendingRecords, "tasks", plan_without_b)
    report, code = export_delta.main(export_delta.check(export_delta.parser().parse_args(words)), spark)
    assert ([broker["messages"] for broker in report["brokers"]], code) == ([1, 0, 1], 1)
    assert "broker-b" in report["brokers"][1]["error"]
    rows = spark.read.format("delta").load(str(tmp_path / "orders")).collect()
    assert sorted(row.n for row in rows) == ["a", "c"]


@pytest.mark.long
def test_each_row_of_exploded_messages_of_several_stores_is_exported_once(spark: SparkSession, tmp_path: Path) -> None:
    bodies = [("Lists", b'[{"id":1},{"id":2}]'), ("Lists", b"[]"), ("Lists", b'{"id":3}'), ("Lists", b'[{"id":4},7]')]
    write(tmp_path / "broker-a" / "store", bodies)
    write(tmp_path / "broker-b" / "store", bodies[:2])
    topic = {"topic": "Lists", "format": "json", "schema": "id INT", "explode": True, "table": "lines"}
    (tmp_path / "spec.json").write_text(json.dumps({"topics": [topic]}))
    typed = "--typed", str(tmp_path / "spec.json"), "--dlq-table", str(tmp_path / "dead")
    report, code = export(spark, tmp_path, *typed)
    assert (report["exports"], report["undecoded"], code) == ({"raw": 6, "Lists": 5}, 1, 0)
    write(tmp_path / "broker-b" / "store", bodies)
    assert export(spark, tmp_path, *typed)[0]["exports"] == {"raw": 2, "Lists": 1}
    assert export(spark, tmp_path, *typed, "--from-offset", "0")[0]["undecoded"] == 2
    rows = spark.read.format("delta").load(str(tmp_path / "lines")).collect()
    expected = [(letter, element, number) for letter in "ab" for element, number in ((0, 1), (1, 2), (0, 3))]
    assert sorted((row.broker_name[-1], row.element_index, row.id) for row in rows) == sorted(expected)


@pytest.mark.long
def test_a_constraint_that_is_added_while_tasks_write_holds_for_their_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, table = DeltaTransaction.commit, f"delta.`{tmp_path / 'table'}`"

    def after_the_owner(self: DeltaTransaction, *arguments: Any) -> None:
        monkeypatch.undo()  # once
        spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT even CHECK (topic = 'Even')")
        commit(self, *arguments)

    for letter in "ab":
        write(tmp_path / f"broker-{letter}" / "store", plain(1))
    export(spark, tmp_path)
    for letter in "ab":
        write(tmp_path / f"broker-{letter}" / "store", plain(5))
    monkeypatch.setattr(DeltaTransaction, "commit", after_the_owner)
    report, code = export(spark, tmp_path)
    assert (report["messages"], report["undecoded"], code) == (4, 4, 1)
    assert spark.table(table).where("topic = 'Odd'").isEmpty()


def latest(spark: SparkSession, work: Path) -> list[str]:
    """The values of the table of orders, by key."""
    return [row.n for row in spark.read.format("delta").load(str(work / "orders")).orderBy("id").collect()]


@pytest.mark.long
def test_remedies_are_options_that_several_stores_take(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text('[[topics]]\ntopic = "Odd"\ntable = "typed"\nformat = "json"\nschema = "n int"\n')
    for count in (1, 2):
        for letter in "ab":
            write(tmp_path / f"broker-{letter}" / "store", [("Odd", b'{"n":1}'), ("Odd", b"bad")] * count)
        export(spark, tmp_path, "--typed", str(spec))
    assert "mend the spec and give --namesrv with --from-offset 0, or give --dlq-table" in caplog.text
    spark.sql(f"RESTORE delta.`{tmp_path / 'table'}` TO VERSION AS OF 1")
    with pytest.raises(StoreError, match=r"restored: .*; --namesrv with --from-offset 0 exports missing messages$"):
        export(spark, tmp_path, "--typed", str(spec))
