"""Exports to Iceberg from a store in an object store into a warehouse there: catalogs in SQLite and by REST."""

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table, Transaction
from pyspark.sql import SparkSession

from jobs import export_delta
from rmq_formats.errors import StoreError
from rmq_lakehouse.iceberg.rows import rows_of
from rmq_lakehouse.iceberg.spark_log import IcebergTableLog
from rmq_lakehouse.iceberg.table import table_layout
from tests.lakehouse.rest_catalog import rest_catalog
from tests.lakehouse.small_stores import plain, write
from tests.lakehouse.test_exactly_once import meanwhile
from tests.scale.conftest import AWS, Bucket

pytestmark = pytest.mark.spark

SECRET = "nobody-may-read-this"
ORDERS = {"topic": "Orders", "format": "json", "schema": "id STRING, n INT", "table": "lake.sales.orders"}


class Lake:
    """A warehouse in a bucket, with a catalog, and a store in the bucket."""

    def __init__(self, spark: SparkSession, bucket: Bucket, work: Path, options: dict[str, str]) -> None:
        self.spark, self.bucket, self._work, self.options = spark, bucket, work, options

    def put(self, messages: list[tuple[str, bytes]]) -> list[int]:
        """Write the store anew; the same beginning gives the same bytes."""
        placed = write(self._work / "store", messages)
        self._store = self.bucket.upload(self._work / "store", "store")
        return placed

    def run(self, *arguments: str, table: str = "lake.sales.messages") -> dict[str, Any]:
        """The job's report."""
        options = [word for pair in self.options.items() for word in ("--catalog-option", "=".join(pair))]
        where = ["--table", table] if table else []
        given = export_delta.parser().parse_args(
            ["--store", self._store, "--store-id", "shop", "--format", "iceberg", *where, *options, *arguments]
        )
        return export_delta.main(export_delta.check(given), self.spark)[0]

    def table(self, name: str = "messages") -> Table:
        return load_catalog("lake", **self.options).load_table(f"sales.{name}")

    def rows(self, name: str = "messages") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table(name).scan().to_arrow().to_pylist(maps_as_pydicts="strict")
        return sorted(found, key=lambda row: row["physical_offset"])

    def offsets(self) -> list[int]:
        return [row["physical_offset"] for row in self.rows()]


@pytest.fixture(params=["sql", "rest"])
def lake(request: pytest.FixtureRequest, spark: SparkSession, bucket: Bucket, tmp_path: Path) -> Iterator[Lake]:
    """An empty one."""
    store = {
        "warehouse": f"s3://{bucket.name}/wh", "s3.endpoint": f"http://{bucket.server}",
        "s3.region": AWS["AWS_DEFAULT_REGION"], "s3.access-key-id": "tests", "s3.secret-access-key": SECRET,
    }  # fmt: skip
    with ExitStack() as stack:
        catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db?timeout=60"}
        if request.param == "rest":
            catalog = {"type": "rest", "uri": stack.enter_context(rest_catalog(tmp_path, **store))}
        yield Lake(spark, bucket, tmp_path, {**catalog, **store})


only_sql = pytest.mark.parametrize("lake", ["sql"], indirect=True)


@pytest.mark.long
def test_a_store_there_is_exported_there_and_two_readers_find_it(
    lake: Lake, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, logger="rmq_formats")
    placed = lake.put(plain(30))
    report = lake.run("--ending-physical-offset", str(placed[20]))
    assert (report["messages"], report["files"]) == (20, 2)
    assert lake.run()["messages"] == 10
    assert lake.run()["messages"] == 0
    assert lake.offsets() == placed
    duck = lake.table().scan(row_filter="topic = 'Odd'").to_duckdb("messages")
    assert duck.execute("SELECT count(*), max(physical_offset) FROM messages").fetchone() == (15, placed[29])
    duck.close()
    files = {name for name in lake.bucket.tree("wh/sales/messages/data") if name.endswith(".parquet")}
    held = {task.file.file_path for task in lake.table().scan().plan_files()}
    assert held == {f"s3://{lake.bucket.name}/wh/sales/messages/data/{name}" for name in files}
    frame = rows_of(lake.spark, lake.table(), list(lake.table().scan().plan_files()))
    plan = frame._jdf.queryExecution().toString() + repr(table_layout(lake.table(), "messages", "zstd"))
    assert "MapInArrow" in plan
    assert SECRET not in json.dumps(report) + plan + caplog.text + "".join(capfd.readouterr())


@pytest.mark.long
def test_typed_tables_and_dead_letters_are_there_too(lake: Lake, tmp_path: Path) -> None:
    placed = lake.put([("Orders", b'{"id":"a","n":1}'), ("Orders", b"{bad"), ("Orders", b'{"id":"b","n":2}')])
    (tmp_path / "spec.json").write_text(json.dumps({"topics": [ORDERS]}))
    given = ("--typed", str(tmp_path / "spec.json"), "--dlq-table", "lake.sales.dead")
    report = lake.run(*given, table="")
    assert (report["messages"], report["undecoded"]) == (2, 1)
    assert [(row["id"], row["n"], row["physical_offset"]) for row in lake.rows("orders")] == [
        ("a", 1, placed[0]), ("b", 2, placed[2]),
    ]  # fmt: skip
    assert [row["body"] for row in lake.rows("dead")] == [b"{bad"]
    assert lake.run(*given, table="")["messages"] == 0


@pytest.mark.long
def test_rows_give_way_to_later_messages_there_too(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps({"topics": [{**ORDERS, "key": ["id"]}]}))
    given = ("--typed", str(tmp_path / "spec.json"))
    messages = [("Orders", b'{"id":"a","n":1}'), ("Orders", b'{"id":"b","n":2}')]
    lake.put(messages)
    lake.run(*given, table="")
    lake.put([*messages, ("Orders", b'{"id":"a","n":3}'), ("Orders", b'{"id":"c","n":4}')])
    lake.run(*given, table="")
    assert {row["id"]: row["n"] for row in lake.rows("orders")} == {"a": 3, "b": 2, "c": 4}


@pytest.mark.long
def test_a_table_there_is_looked_after(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    placed = lake.put(plain(20))
    lake.run("--ending-physical-offset", str(placed[10]))
    lake.run("--optimize")
    monkeypatch.setattr(IcebergTableLog, "_now_s", lambda _: time.time() + 168 * 3600 + 60)
    lake.run("--vacuum", "168")
    held = {task.file.file_path for task in lake.table().scan().plan_files()}
    files = {name for name in lake.bucket.tree("wh/sales/messages/data") if name.endswith(".parquet")}
    assert held == {f"s3://{lake.bucket.name}/wh/sales/messages/data/{name}" for name in files}
    assert len(files) == 2
    assert lake.offsets() == placed
    lake.run("--retention", "30")
    assert lake.offsets() == []
    assert lake.run()["messages"] == 0


@pytest.mark.long
@only_sql
def test_what_dies_before_its_commit_leaves_nothing_and_what_lacks_is_landed_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise StoreError("killed")

    placed = lake.put(plain(30))
    lake.run("--ending-physical-offset", str(placed[10]))
    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "commit_transaction", die)
        with pytest.raises(StoreError, match="killed"):
            lake.run()
    assert lake.offsets() == placed[:10]
    reports = []
    meanwhile(monkeypatch, lambda: reports.append(lake.run("--topics", "Odd")))
    reports.append(lake.run())
    assert [report["messages"] for report in reports] == [10, 10]
    assert lake.run("--from-offset", "0")["messages"] == 0
    assert lake.offsets() == placed


@pytest.mark.long
@only_sql
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda lake: lake.options.update(warehouse="s3://nobody-s/wh"),
            "catalog lake: .*NO_SUCH_BUCKET",
        ),
        (lambda lake: lake.options.update({"s3.endpoint": "http://127.0.0.1:1"}), r"catalog lake: .*"),
    ],
    ids=["no_bucket", "no_server"],
)
def test_what_does_not_answer_is_told_in_a_line(lake: Lake, spoil: Callable[[Lake], None], said: str) -> None:
    lake.put(plain(3))
    spoil(lake)
    with pytest.raises(StoreError, match=said) as told:
        lake.run()
    assert "\n" not in str(told.value)
    assert SECRET not in str(told.value)
