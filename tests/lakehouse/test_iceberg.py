"""Exports to Iceberg: what two readers find, each row once, and a table that others have changed."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.types import NestedField, StringType

from jobs import export_delta
from rmq_formats.errors import OptionError, StoreError
from rmq_lakehouse.iceberg import table as iceberg
from rmq_lakehouse.iceberg.catalog import CATALOG_FILE, IcebergLocation
from rmq_lakehouse.iceberg.table import IcebergTransaction
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import plain, write
from tests.lakehouse.test_exactly_once import dying_after_a_commit, meanwhile

ICEBERG = ("--format", "iceberg")
ONCE = (*ICEBERG, "--mode", "available-now")
MODES = pytest.mark.parametrize("mode", [ICEBERG, ONCE], ids=["batch", "available-now"])
ORDERS = {"topic": "Orders", "format": "json", "schema": "id STRING, amount DECIMAL(12,2)", "table": "orders"}


def table_of(exporter: Exporter, name: str = "table") -> Table:
    return SqlCatalog("rmq", uri=f"sqlite:///{exporter.work}/iceberg_catalog.db").load_table(("rmq", name))


def rows(exporter: Exporter, name: str = "table") -> list[dict[str, Any]]:
    """A table's rows, by their physical offsets."""
    found: list[dict[str, Any]] = table_of(exporter, name).scan().to_arrow().to_pylist(maps_as_pydicts="strict")
    return sorted(found, key=lambda row: row["physical_offset"])


def offsets(exporter: Exporter, name: str = "table") -> list[int]:
    return [row["physical_offset"] for row in rows(exporter, name)]


def body(number: object) -> tuple[str, bytes]:
    return "Orders", json.dumps({"id": f"o{number}", "amount": 1.25}).encode()


@pytest.fixture
def typed(exporter: Exporter) -> Callable[..., dict[str, Any]]:
    """The job with a spec of these topics, and dead letters."""

    def run(*topics: dict[str, Any], arguments: tuple[str, ...] = ()) -> dict[str, Any]:
        spec = exporter.work / "spec.json"
        spec.write_text(json.dumps({"topics": topics}))
        dead = ("--dlq-table", str(exporter.work / "dead"))
        return exporter.run(*ICEBERG, "--typed", str(spec), *dead, *arguments, table=False)[0]

    return run


@pytest.mark.parametrize("directory", ["a b", "a?b", "a%20b", "a#b", "a;b"])
def test_a_catalog_is_beside_its_table_whatever_the_directory_is_called(tmp_path: Path, directory: str) -> None:
    place = IcebergLocation(str(tmp_path / directory / "table"), {})
    place.create(Schema(NestedField(1, "topic", StringType())), (), {})
    assert [path.name for path in tmp_path.iterdir()] == [directory]
    assert (tmp_path / directory / CATALOG_FILE).stat().st_size
    assert IcebergLocation(str(tmp_path / directory / "table"), {}).load() is not None


@pytest.mark.spark
class TestRaw:
    """The raw table."""

    def test_two_readers_find_what_delta_has(self, exporter: Exporter) -> None:
        placed = write(exporter.store, plain(30))
        report, code = exporter.run(*ICEBERG)
        assert (report["job"], report["messages"], report["files"], code) == ("export_iceberg", 30, 2, 0)
        exporter.run("--table", str(exporter.work / "delta"), table=False)
        delta = [row.asDict() for row in exporter.rows("delta")]
        found = rows(exporter)
        assert [{**row, "store_timestamp": None, "born_timestamp": None, "keys": None} for row in found] == [
            {**row, "store_timestamp": None, "born_timestamp": None, "keys": None, "body": bytes(row["body"])}
            for row in delta
        ]
        duck = table_of(exporter).scan(row_filter=EqualTo("topic", "Odd")).to_duckdb("messages")
        counted = duck.execute(
            "SELECT count(*), min(physical_offset), sum(octet_length(body)) FROM messages"
        ).fetchone()
        assert counted == (15, placed[1], sum(len(row["body"]) for row in delta if row["topic"] == "Odd"))
        duck.close()

    def test_files_have_ids_partitions_and_bounds(self, exporter: Exporter) -> None:
        placed = write(exporter.store, plain(30))
        exporter.run(*ICEBERG)
        table = table_of(exporter)
        ids = {field.field_id: field.name for field in table.schema().fields}
        odd = And(EqualTo("topic", "Odd"), GreaterThanOrEqual("physical_offset", placed[1]))
        (task,) = table.scan(row_filter=odd).plan_files()
        file = task.file
        assert (file.partition[0], file.record_count, Path(file.file_path).stat().st_size) == (
            "Odd", 15, file.file_size_in_bytes,
        )  # fmt: skip
        footer = pq.ParquetFile(file.file_path).schema_arrow
        assert {int(field.metadata[b"PARQUET:field_id"]): field.name for field in footer} == ids
        bounds = {ids[key]: int.from_bytes(bound, "little") for key, bound in file.lower_bounds.items() if key in ids}
        assert bounds["physical_offset"] == placed[1]
        assert "body" not in bounds
        assert {ids[key]: count for key, count in file.null_value_counts.items() if key in ids}["topic"] == 0
        assert not list(table.scan(row_filter=GreaterThanOrEqual("physical_offset", placed[-1] + 1)).plan_files())

    def test_times_make_partitions(self, exporter: Exporter) -> None:
        write(exporter.store, plain(4))
        exporter.run(*ICEBERG, "--partition-by", "store_timestamp")
        stored = {row["store_timestamp"] for row in rows(exporter)}
        table = table_of(exporter)
        for one in stored:
            (task,) = table.scan(row_filter=EqualTo("store_timestamp", one.isoformat())).plan_files()
            assert task.file.partition[0] == one.timestamp() * 1_000_000

    @pytest.mark.long
    def test_modes_go_on_from_one_another(self, exporter: Exporter) -> None:
        write(exporter.store, plain(20))
        first, _ = exporter.run(*ONCE, "--max-bytes-per-trigger", "2000")
        assert first["batches"] > 1
        write(exporter.store, plain(25))
        second, _ = exporter.run(*ICEBERG)
        placed = write(exporter.store, plain(32))
        third, _ = exporter.run(*ONCE)
        assert (first["messages"], second["messages"], third["messages"]) == (20, 5, 7)
        assert exporter.run(*ICEBERG)[0]["messages"] == 0
        assert offsets(exporter) == placed

    @MODES
    @pytest.mark.long
    def test_what_dies_before_its_commit_leaves_nothing(
        self, exporter: Exporter, mode: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def die(*_: object) -> None:
            raise StoreError("killed")

        placed = write(exporter.store, plain(30))
        with monkeypatch.context() as patch:
            patch.setattr(Transaction, "commit_transaction", die)
            with pytest.raises(Exception, match="killed"):
                exporter.run(*mode)
        assert list(exporter.table.rglob("topic=*/*/*.parquet"))
        assert offsets(exporter) == []
        exporter.run(*mode)
        assert offsets(exporter) == placed

    @pytest.mark.long
    @MODES
    def test_what_dies_after_its_commit_repeats_nothing(
        self, exporter: Exporter, mode: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        placed = write(exporter.store, plain(30))
        with dying_after_a_commit(monkeypatch):
            exporter.run(*mode)
        assert exporter.run(*mode)[0]["messages"] == 0
        assert offsets(exporter) == placed

    @pytest.mark.parametrize("others", [(), ("--topics", "Odd")], ids=["the_same", "a_part"])
    @pytest.mark.parametrize("first", [0, 10], ids=["new", "grown"])
    @pytest.mark.long
    def test_of_two_that_race_each_row_is_one_s(
        self, exporter: Exporter, others: tuple[str, ...], first: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        placed = write(exporter.store, plain(30))
        if first:
            exporter.run(*ICEBERG, "--ending-physical-offset", str(placed[first]))
        reports = []
        meanwhile(monkeypatch, lambda: reports.append(exporter.run(*ICEBERG, *others)[0]))
        reports.append(exporter.run(*ICEBERG)[0])
        assert reports[0]["messages"] > 0
        assert sum(report["messages"] for report in reports) == len(placed) - first
        assert offsets(exporter) == placed

    def test_commits_that_race_within_the_catalog_land_once(
        self, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        placed = write(exporter.store, plain(30))
        exporter.run(*ICEBERG, "--ending-physical-offset", str(placed[10]))
        both, append = threading.Barrier(2, timeout=60), IcebergTransaction.commit
        met = threading.local()

        def together(self: IcebergTransaction, *arguments: Any) -> None:
            if not getattr(met, "once", False):
                met.once = True
                both.wait()  # each has read where the table stands, and has written its files
            append(self, *arguments)

        monkeypatch.setattr(IcebergTransaction, "commit", together)
        reports: list[dict[str, Any]] = []
        threads = [threading.Thread(target=lambda: reports.append(exporter.run(*ICEBERG)[0])) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(report["messages"] for report in reports) == [0, 20]
        assert offsets(exporter) == placed

    @pytest.mark.long
    def test_a_table_that_was_rolled_back_is_told_and_landed_again(self, exporter: Exporter) -> None:
        placed = write(exporter.store, plain(30))
        exporter.run(*ICEBERG, "--ending-physical-offset", str(placed[10]))
        exporter.run(*ICEBERG, "--ending-physical-offset", str(placed[20]))
        table = table_of(exporter)
        table.manage_snapshots().rollback_to_snapshot(table.history()[0].snapshot_id).commit()
        for mode in (ICEBERG, ONCE):
            with pytest.raises(StoreError) as told:
                exporter.run(*mode)
            assert (
                f"table was restored: contains offsets below {placed[10]}, last export committed {placed[20]}"
                in str(told.value)
            )
        assert offsets(exporter) == placed[:10]
        assert exporter.run(*ICEBERG, "--from-offset", str(placed[10]))[0]["messages"] == 20
        assert exporter.run(*ICEBERG, "--from-offset", "0")[0]["messages"] == 0
        assert exporter.run(*ICEBERG)[0]["messages"] == 0
        assert offsets(exporter) == placed

    @pytest.mark.long
    def test_what_others_do_beside_changes_nothing(self, exporter: Exporter) -> None:
        placed = write(exporter.store, plain(20))
        exporter.run(*ICEBERG)
        table = table_of(exporter)
        table.delete(EqualTo("physical_offset", placed[4]))
        table.transaction().set_properties({"owner": "lake"}).commit_transaction()
        with table.update_schema() as update:
            update.add_column("note", table.schema().find_type("topic"))
        oldest = table.history()[0].snapshot_id
        table.maintenance.expire_snapshots().by_id(oldest).commit()
        placed = write(exporter.store, plain(24))
        assert exporter.run(*ICEBERG)[0]["messages"] == 4
        assert offsets(exporter) == [offset for offset in placed if offset != placed[4]]

    def test_another_log_another_store_and_other_partitions_are_refused(self, exporter: Exporter) -> None:
        placed = write(exporter.store, plain(30))
        exporter.run(*ICEBERG)
        for arguments, said in [
            (("--store-id", "other"), "holds the messages of .*store, not of other"),
            (("--partition-by", "date"), "is partitioned by topic,date, not date"),
        ]:
            with pytest.raises(StoreError, match=said):
                exporter.run(*ICEBERG, *arguments)
        write(exporter.store, plain(30), first_ms=1_800_000_000_000)
        with pytest.raises(StoreError, match=r"bytes .* of the CommitLog are not those that .*table was exported from"):
            exporter.run(*ICEBERG)
        assert offsets(exporter) == placed

    def test_files_are_forced_before_the_commit_that_names_them(
        self, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        force, seen = iceberg.sync_file_system, []

        def noted(table: Path) -> None:
            seen.append((len(table_of(exporter).snapshots()), len(list(table.rglob("topic=*/*/*.parquet")))))
            force(table)

        monkeypatch.setattr(iceberg, "sync_file_system", noted)
        write(exporter.store, plain(30))
        exporter.run(*ICEBERG)
        assert seen == [(0, 2), (1, 2)]

    def test_a_table_in_a_named_catalog(self, exporter: Exporter) -> None:
        placed = write(exporter.store, plain(10))
        options = {"type": "sql", "uri": f"sqlite:///{exporter.work}/cat.db", "warehouse": f"file://{exporter.work}/wh"}
        given = [word for pair in options.items() for word in ("--catalog-option", "=".join(pair))]
        named = (*ICEBERG, *given, "--table", "lake.sales.messages")
        with pytest.raises(StoreError, match=r"lake\.sales\.messages: catalog lake: .*unable to open database"):
            exporter.run(*named, "--catalog-option", "uri=sqlite:////nowhere/cat.db", table=False)
        assert exporter.run(*named, table=False)[0]["messages"] == 10
        table = SqlCatalog("lake", **options).load_table("sales.messages")
        found = table.scan().to_arrow()["physical_offset"].to_pylist()
        assert sorted(found) == placed
        assert table.location() == f"file://{exporter.work}/wh/sales/messages"
        elsewhere = ("--catalog-option", "warehouse=hdfs://host/wh", "--table", "lake.sales.other")
        with pytest.raises(StoreError, match="its place is hdfs://host/wh/sales/other"):
            exporter.run(*named, *elsewhere, table=False)


@pytest.mark.spark
class TestTyped:
    """Typed tables and dead letters."""

    def test_bodies_become_columns_and_what_does_not_decode_a_dead_letter(
        self, exporter: Exporter, typed: Callable[..., dict[str, Any]]
    ) -> None:
        placed = write(exporter.store, [body(1), ("Orders", b"{bad"), body(2), ("Other", b"")])
        report = typed(ORDERS)
        assert (report["messages"], report["undecoded"]) == (2, 1)
        found = rows(exporter, "orders")
        assert [(row["id"], str(row["amount"]), row["physical_offset"]) for row in found] == [
            ("o1", "1.25", placed[0]), ("o2", "1.25", placed[2]),
        ]  # fmt: skip
        (dead,) = rows(exporter, "dead")
        assert (dead["body"], dead["physical_offset"]) == (b"{bad", placed[1])
        assert typed(ORDERS)["messages"] == 0
        assert len(rows(exporter, "dead")) == 1

    @pytest.mark.long
    def test_a_schema_grows_and_does_not_change(self, exporter: Exporter, typed: Callable[..., dict[str, Any]]) -> None:
        write(exporter.store, [body(1)])
        typed(ORDERS)
        more = b'{"id":"o2","amount":2,"small":7,"by":[{"name":"n","n":{"k":1}}]}'
        write(exporter.store, [body(1), ("Orders", more)])
        grown = f"{ORDERS['schema']}, small TINYINT, `by` ARRAY<STRUCT<name: STRING, n: MAP<STRING, INT>>>"
        typed({**ORDERS, "schema": grown})
        write(exporter.store, [body(1), ("Orders", more), body(3)])
        typed(ORDERS)  # an older spec
        found = rows(exporter, "orders")
        assert [(row["id"], row["small"], row["by"]) for row in found] == [
            ("o1", None, None), ("o2", 7, [{"name": "n", "n": {"k": 1}}]), ("o3", None, None),
        ]  # fmt: skip
        with pytest.raises(StoreError, match="its column amount is decimal"):
            typed({**ORDERS, "schema": "id STRING, amount DOUBLE"})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cluster-by", "topic"], "--cluster-by needs --format delta"),
        (["--vacuum", "24"], "--vacuum 24: at least 168 hours"),
        (["--catalog-option", "uri"], "--catalog-option 'uri': expected KEY=VALUE"),
        (["--table", "lake.sales.t", "--mode", "available-now"], "needs --checkpoint"),
    ],
)
def test_what_iceberg_has_not_is_refused_before_a_session_is_started(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    write(tmp_path / "store", plain(1))
    given = export_delta.parser().parse_args(["--store", str(tmp_path / "store"), "--table", "t", *ICEBERG, *arguments])
    with pytest.raises(OptionError) as told:
        export_delta.check(given)
    assert said in str(told.value)
