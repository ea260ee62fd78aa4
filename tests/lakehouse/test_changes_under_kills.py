"""Change data capture whose driver dies at each step of a commit: the table has a state of the source, and goes on."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from pyiceberg.table import Transaction

from rmq_lakehouse.delta import keyed
from rmq_lakehouse.delta.table import DeltaTableLog, DeltaTransaction
from rmq_lakehouse.iceberg import keyed as iceberg_keyed
from rmq_lakehouse.iceberg.table import IcebergTransaction
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.test_changes import Sent, write
from tests.lakehouse.test_iceberg import table_of

pytestmark = [pytest.mark.spark, pytest.mark.long]

State = dict[int, str]
SPEC = """
[[topics]]
topic = "C"
format = "json"
schema = "before STRUCT<id: BIGINT, name: STRING>, after STRUCT<id: BIGINT, name: STRING>, op STRING"
table = "customers"
key = ["after.id"]
delete_when = "op = 'd'"
tombstones = true
"""
# Calls of a run, with their numbers: the driver dies before one or after it. The dead letters are committed first. The
# fourth sync of Delta's is that after the merge.
STEPS: dict[str, list[tuple[Any, str, int]]] = {
    "delta": [(DeltaTransaction, "commit", 1), (keyed, "_merge", 1), (DeltaTableLog, "fsync", 4)],
    "iceberg": [
        (IcebergTransaction, "commit", 1), (iceberg_keyed, "merge", 1), (IcebergTransaction, "_commit", 2),
        (Transaction, "commit_transaction", 2),
    ],
}  # fmt: skip


class DriverKilledError(Exception):
    """The driver dies here; no export catches this error."""


@contextmanager
def killed_at(owner: Any, name: str, number: int, *, before: bool) -> Iterator[None]:
    """Let the driver die at one of the calls of a function."""
    call, calls = getattr(owner, name), [0]

    def dying(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if before and calls[0] == number:
            raise DriverKilledError
        result = call(*arguments, **named)
        if calls[0] == number:
            raise DriverKilledError
        return result

    with patch.object(owner, name, dying), pytest.raises(DriverKilledError):
        yield


def part(number: int) -> list[Sent]:
    """Messages of one commit: inserts, an update, deletions by a condition and by a tombstone, and a dead letter."""

    def event(op: str, before: int | None, after: int | None) -> Sent:
        rows = {
            name: None if id_ is None else {"id": id_, "name": f"{op}{number}"}
            for name, id_ in (("before", before), ("after", after))
        }
        return "C", json.dumps({**rows, "op": op}).encode(), None

    return [
        event("c", None, 10 * number), event("c", None, 10 * number + 1), event("c", None, 10 * number + 2),
        event("d", 10 * number + 1, None), event("u", 0, 0), ("C", b"", str(10 * (number - 2) + 2)), ("C", b"{", None),
    ]  # fmt: skip


def states(count: int) -> list[State]:
    """States of the source before the first part and after each one."""
    state: State = {}
    listed = [state]
    for number in range(count):
        created = {10 * number: f"c{number}", 10 * number + 2: f"c{number}"}
        state = {**state, **created, 0: f"u{number}"}
        state.pop(10 * (number - 2) + 2, None)
        listed.append(state)
    return listed


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_killed_export_leaves_a_state_of_the_source_and_the_next_one_goes_on(
    exporter: Exporter, table_format: str
) -> None:
    spec = exporter.work / "spec.toml"
    spec.write_text(SPEC)
    sent: list[Sent] = []

    def run(number: int) -> None:
        sent.extend(part(number))
        write(exporter, sent)
        dead = str(exporter.work / "dead")
        exporter.run("--format", table_format, "--typed", str(spec), "--dlq-table", dead, table=False)

    def rows(name: str) -> list[dict[str, Any]]:
        if table_format == "iceberg":
            return list(table_of(exporter, name).scan().to_arrow().to_pylist())
        return [row.asDict(recursive=True) for row in exporter.rows(name)]

    def table_state() -> State:
        exported = [row["after"] for row in rows("customers")]
        assert len({row["id"] for row in exported}) == len(exported)
        return {row["id"]: row["name"] for row in exported}

    run(0)
    kills = [(*step, before) for step in STEPS[table_format] for before in (True, False)]
    expected, committed = states(len(kills) + 2), 1
    for number, (owner, name, call, before) in enumerate(kills, 1):
        with killed_at(owner, name, call, before=before):
            run(number)
        state = table_state()
        assert state in (expected[committed], expected[number + 1]), (name, before)
        committed = expected.index(state)
    assert committed == len(kills) + 1  # the last one died after its commit
    run(len(kills) + 1)
    assert table_state() == expected[-1]
    offsets = [row["physical_offset"] for row in rows("dead")]
    assert len(offsets) == len(set(offsets)) == len(kills) + 2
