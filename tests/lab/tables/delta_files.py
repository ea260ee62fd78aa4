"""Rows of a Delta table in this machine's file system, read from its commits and Parquet files, without Delta."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

CLEANED = "cleaned"
"""The directory beside ``_delta_log`` with the commits that a round has cleaned up."""


def commits(table: Path) -> list[Path]:
    """The files of a table's commits, in order."""
    files = [path for name in ("_delta_log", CLEANED) for path in (table / name).glob("*.json") if path.stem.isdigit()]
    return sorted(files, key=lambda path: path.stem)


def actions(table: Path, after: int = -1) -> Iterator[tuple[str, dict[str, Any]]]:
    """The actions of the commits behind a version, by kind."""
    for path in commits(table):
        if int(path.stem) > after:
            for line in path.read_text("utf-8").splitlines():
                yield from json.loads(line).items()


def rows(table: Path, columns: Sequence[str]) -> list[tuple[Any, ...]] | None:
    """The newest version's rows, with repetitions; None where files have rows that do not count."""
    live: dict[str, dict[str, Any]] = {}
    schema: dict[str, Any] = {}
    for kind, told in actions(table):
        if kind == "metaData":
            schema = json.loads(told["schemaString"])
        elif kind == "add":
            live[told["path"]] = told
        elif kind == "remove":
            live.pop(told["path"], None)
    if any(add.get("deletionVector") for add in live.values()):
        return None
    named = {
        field["name"]: field["metadata"].get("delta.columnMapping.physicalName", field["name"])
        for field in schema["fields"]
    }
    found: list[tuple[Any, ...]] = []
    for path, add in live.items():
        there = pq.read_table(table / unquote(path).removeprefix("file:"), partitioning=None)
        values = [_column(there, add, named[name]) for name in columns]
        found += zip(*values, strict=True)
    return found


def _column(there: pa.Table, add: dict[str, Any], name: str) -> list[Any]:
    """A column of a file, or of its partition, or one that came later."""
    if name in there.column_names:
        values: list[Any] = there.column(name).to_pylist()
        return values
    return [add["partitionValues"].get(name)] * there.num_rows
