"""Typed Iceberg tables with one row a key: raced, killed, and without a rewrite of what does not change."""

import json
import random
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation

from rmq_formats.errors import StoreError
from rmq_lakehouse.iceberg.spark_log import SparkIcebergTransaction
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import write
from tests.lakehouse.test_iceberg import ICEBERG, rows, table_of

pytestmark = pytest.mark.spark

ORDERS: dict[str, Any] = {
    "topic": "Orders", "format": "json", "schema": "id STRING, n INT", "key": ["id"], "table": "orders",
}  # fmt: skip
Typed = Callable[..., dict[str, Any]]


def order(name: object, n: object, **more: object) -> tuple[str, bytes]:
    return "Orders", json.dumps({"id": name, "n": n, **more}).encode()


@pytest.fixture
def typed(exporter: Exporter) -> Typed:
    """The job with a spec of these topics; its report."""

    def run(*topics: dict[str, Any], arguments: tuple[str, ...] = ()) -> dict[str, Any]:
        spec = exporter.work / f"{threading.get_ident()}.json"
        spec.write_text(json.dumps({"topics": topics}))
        return exporter.run(*ICEBERG, "--typed", str(spec), *arguments, table=False)[0]

    return run


def held(exporter: Exporter) -> dict[Any, Any]:
    found = rows(exporter, "orders")
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["n"] for row in found}


def files(exporter: Exporter) -> set[str]:
    return {task.file.file_path for task in table_of(exporter, "orders").scan().plan_files()}


@pytest.mark.long
def test_the_last_message_of_a_key_is_its_row(exporter: Exporter, typed: Typed) -> None:
    dice = random.Random(7)
    keys = [f"k{number:02}" for number in range(12)] + ["", "\u20ac", "x" * 40, "x" * 39 + "y"]
    two = {**ORDERS, "schema": "id STRING, day DATE, size DECIMAL(9,2), n INT", "key": ["day", "id", "size"]}
    bodies: list[tuple[str, bytes]] = []
    for part in range(3):
        for number in range(9):
            day, size = f"2026-01-0{dice.randrange(1, 4)}", dice.choice([1.25, -3])
            bodies.append(order(dice.choice(keys), part * 9 + number, day=day, size=size))
        write(exporter.store, bodies)
        typed(two)
    told = [json.loads(body) for _, body in bodies]
    last = {(row["day"], row["id"], row["size"]): row["n"] for row in told}
    found = rows(exporter, "orders")
    assert {(str(row["day"]), row["id"], float(row["size"])): row["n"] for row in found} == last
    assert len(found) == len(last)
    assert typed(two)["messages"] == 0


@pytest.mark.long
def test_only_files_that_have_a_row_to_replace_are_written_anew(exporter: Exporter, typed: Typed) -> None:
    bodies = [order("a", 1), order("b", 1)]
    write(exporter.store, bodies)
    typed(ORDERS)
    first = files(exporter)
    bodies += [order("p", 1), order("q", 1)]
    write(exporter.store, bodies)
    typed(ORDERS)
    second = files(exporter) - first
    assert first < files(exporter)
    bodies += [order("q", 2), order("aa", 1)]
    write(exporter.store, bodies)
    typed(ORDERS)
    assert first < files(exporter)
    assert not second & files(exporter)
    assert held(exporter) == {"a": 1, "b": 1, "p": 1, "q": 2, "aa": 1}
    snapshot = table_of(exporter, "orders").current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation == Operation.OVERWRITE
    assert any(name.startswith("rmq.txn.") for name in snapshot.summary.additional_properties)


@pytest.mark.long
def test_of_two_that_race_a_row_gives_way_only_to_a_later_message(
    exporter: Exporter, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [order("a", 1), order("b", 2), order("a", 3)]
    write(exporter.store, bodies)
    typed(ORDERS)
    write(exporter.store, [*bodies, order("b", 4), order("c", 5)])
    merge, waiting = SparkIcebergTransaction.merge, [True]

    def with_another(self: SparkIcebergTransaction, *arguments: Any) -> Any:
        if waiting:  # another lands the same and more, when this one has chosen its rows
            waiting.clear()
            write(exporter.store, [*bodies, order("b", 4), order("c", 5), order("c", 6)])
            typed(ORDERS)
        return merge(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(SparkIcebergTransaction, "merge", with_another)
        typed(ORDERS)
    assert held(exporter) == {"a": 3, "b": 4, "c": 6}
    assert typed(ORDERS)["messages"] == 0


@pytest.mark.long
def test_what_dies_before_its_commit_changes_nothing_and_from_offset_repeats_nothing(
    exporter: Exporter, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise StoreError("killed")

    bodies = [order("a", 1), order("b", 2)]
    write(exporter.store, bodies)
    typed(ORDERS)
    bodies += [order("a", 3), order("c", 4)]
    write(exporter.store, bodies)
    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "commit_transaction", die)
        with pytest.raises(StoreError, match="killed"):
            typed(ORDERS)
    assert held(exporter) == {"a": 1, "b": 2}
    typed(ORDERS)
    typed(ORDERS, arguments=("--from-offset", "0"))
    assert held(exporter) == {"a": 3, "b": 2, "c": 4}
    table = table_of(exporter, "orders")
    table.delete(EqualTo("id", "b"))
    write(exporter.store, [*bodies, order("c", 5)])
    typed(ORDERS)
    assert held(exporter) == {"a": 3, "c": 5}


@pytest.mark.long
def test_a_row_keeps_what_a_newer_message_has_no_column_for(exporter: Exporter, typed: Typed) -> None:
    grown = f"{ORDERS['schema']}, small TINYINT, `by` ARRAY<STRUCT<name: STRING, n: MAP<STRING, INT>>>"
    narrow = f"{ORDERS['schema']}, `by` ARRAY<STRUCT<name: STRING>>"
    bodies = [order("a", 1, small=7, by=[{"name": "x", "n": {"k": 1}}]), order("b", 1, small=8)]
    write(exporter.store, bodies)
    typed({**ORDERS, "schema": grown})
    bodies += [order("a", 2, by=[{"name": "y"}]), order("c", 1)]
    write(exporter.store, bodies)
    typed({**ORDERS, "schema": narrow})
    every = pa.concat_tables(map(pq.read_table, sorted(files(exporter)))).to_pylist(maps_as_pydicts="strict")
    found = {row["id"]: (row["n"], row["small"], row["by"]) for row in every}  # pyiceberg reads such a null as []
    assert found == {"a": (2, 7, [{"name": "y", "n": None}]), "b": (1, 8, None), "c": (1, None, None)}
