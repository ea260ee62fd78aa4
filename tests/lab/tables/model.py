"""What the Delta tables of an export must hold: a model of the log and of each table, in plain Python."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from rmq_formats.codecs.layout import BLANK_BYTES
from tests.lab.tables.delta_files import actions, commits, rows
from tests.lakehouse.small_stores import FILE_BYTES, write

TYPED_TOPIC = "Even"
SCHEMA = "id STRING, n INT"
_COLUMNS = {
    "raw": ("physical_offset", "topic", "body"), "typed": ("physical_offset", "id", "n"),
    "keyed": ("id", "physical_offset", "n"), "dead": ("physical_offset", "body"),
}  # fmt: skip
Key = int | str
Rows = dict[Key, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Logged:
    """A record of the log."""

    offset: int
    topic: str
    body: bytes


class ModelLog:
    """The log of the round's store, written anew at each change.

    Attributes:
        records: those that the store has, in order.
        whole: those and the ones in front of them, which expired.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records: list[Logged] = []
        self.whole: list[Logged] = []
        self._messages: list[tuple[str, bytes]] = []
        self._first = 0

    @property
    def end(self) -> int:
        """Where the last record begins, plus one: no record begins behind it."""
        return self.records[-1].offset + 1 if self.records else 0

    def write(self, kept: int, more: Sequence[tuple[str, bytes]]) -> None:
        """Keep so many records, and append messages behind them."""
        self._messages = self._messages[:kept] + list(more)
        for path in (self.root / "commitlog").glob("*"):
            path.unlink()
        placed = write(self.root, self._messages)
        self.whole = [Logged(at, *message) for at, message in zip(placed, self._messages, strict=True)]
        if self._first > placed[-1]:  # what had expired was a log that is gone
            self._first = 0
        self._expire()

    def expire(self) -> bool:
        """Delete the first file; False if there is but one."""
        if self.whole[-1].offset < self._first + FILE_BYTES:
            return False
        self._first += FILE_BYTES
        self._expire()
        return True

    def _expire(self) -> None:
        for path in (self.root / "commitlog").glob("*"):
            if int(path.name) < self._first:
                path.unlink()
        self.records = [record for record in self.whole if record.offset >= self._first]

    def tear(self) -> None:
        """Lose the last bytes of the last record, as a loss of power does."""
        last = self.records.pop()
        self.whole.pop()
        self._messages.pop()
        path = self.root / "commitlog" / f"{last.offset // FILE_BYTES * FILE_BYTES:020d}"
        data = bytearray(path.read_bytes())
        begin = last.offset % FILE_BYTES
        size = int.from_bytes(data[begin : begin + 4], "big")
        data[begin + size - BLANK_BYTES :] = bytes(len(data) - begin - size + BLANK_BYTES)
        path.write_bytes(data)


@dataclass(slots=True)
class State:
    """What a version of a table holds, and up to which physical offset its selections have landed in it."""

    rows: Rows = field(default_factory=dict)
    landed: dict[str, int] = field(default_factory=dict)

    def copy(self) -> "State":
        return State(dict(self.rows), dict(self.landed))


@dataclass(slots=True)
class ModelTable:
    """A table, as it must be.

    Attributes:
        kind: ``raw``, ``typed``, ``keyed`` or ``dead``.
        path: where it is.
        now: what it holds.
        states: what its versions held, of those that were looked at.
    """

    kind: str
    path: Path
    now: State = field(default_factory=State)
    states: dict[int, State] = field(default_factory=dict)

    @property
    def sql(self) -> str:
        """Its name in statements."""
        return f"delta.`{self.path}`"

    def owes(self, record: Logged) -> tuple[Key, tuple[Any, ...]] | None:
        """The row of a record, by its key; None if the table has none of it."""
        if self.kind == "raw":
            return record.offset, (record.topic, record.body)
        if record.topic != TYPED_TOPIC:
            return None
        sound = record.body.startswith(b"{")
        if self.kind == "dead":
            return None if sound else (record.offset, (record.body,))
        if not sound:
            return None
        told = json.loads(record.body)
        return (
            (told["id"], (record.offset, told["n"]))
            if self.kind == "keyed"
            else (record.offset, (told["id"], told["n"]))
        )

    def with_records(self, records: Iterable[Logged]) -> Rows:
        """The rows once these records have landed."""
        rows = dict(self.now.rows)
        for key, row in filter(None, map(self.owes, records)):
            if self.kind == "keyed" and key in rows and rows[key][0] < row[0]:
                rows[key] = row
            else:
                rows.setdefault(key, row)
        return rows

    def read(self, spark: SparkSession) -> list[tuple[Key, tuple[Any, ...]]]:
        """The rows that are there, with repetitions."""
        columns = _COLUMNS[self.kind]
        found = rows(self.path, columns)
        if found is None:
            found = [tuple(row) for row in spark.read.format("delta").load(str(self.path)).select(*columns).collect()]
        return [(key, tuple(bytes(v) if isinstance(v, bytearray) else v for v in row)) for key, *row in found]

    def version(self) -> int:
        """The newest version; -1 if there is no table."""
        return max((int(path.stem) for path in commits(self.path)), default=-1)

    def committed(self, app_id: str, after: int) -> int | None:
        """The offset that the last commit behind a version sets for a selection; None if there is none."""
        told = [told for kind, told in actions(self.path, after) if kind == "txn" and told["appId"] == app_id]
        return int(told[-1]["version"]) if told else None


def forget(spark: SparkSession) -> None:
    """Have Delta read the tables' logs anew, as a driver does that begins."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
