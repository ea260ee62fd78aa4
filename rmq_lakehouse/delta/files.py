"""Actions of Delta's log: files with statistics, transaction versions, commits; properties that exports set or read."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from rmq_lakehouse.java import java_class
from rmq_lakehouse.parquet import MAP_VALUE, FinishedFile, WrittenFile
from rmq_lakehouse.progress import TableCommit

_COMMITS: Final = 10  # looked at: the newest may have added none, as one that only sets a transaction version
COLUMNS_PROPERTY: Final = "rmq.columns"
"""Of a table: the columns that exports have made, JSON of their paths and what files call them."""
MAPPING_MODE: Final = "delta.columnMapping.mode"


def removed_columns(properties: Mapping[str, str], current: Iterable[str]) -> list[str]:
    """List the columns that exports have made and a table without column mapping lacks, by their paths."""
    paths = {path.lower() for path in current}
    return [path for path in json.loads(properties.get(COLUMNS_PROPERTY, "{}")) if path.lower() not in paths]


def set_transaction(jvm: Any, app_id: str, version: int) -> Any:
    """Build the action that sets a transaction version, as Delta's own object."""
    # Without a time a version is the first that a retention drops.
    now_ms = java_class(jvm, "scala.Some")(time.time_ns() // 1_000_000)
    return java_class(jvm, "org.apache.spark.sql.delta.actions.SetTransaction")(app_id, version, now_ms)


@dataclass(frozen=True, slots=True)
class DeltaFiles:
    """Delta's rules for files; see ``TableFiles``."""

    def file_schema(self, schema: pa.Schema, partitions: Sequence[str]) -> pa.Schema:
        """Leave out the columns of the partitions: they are in no file."""
        return pa.schema([field for field in schema if field.name not in partitions])

    def partition_source(self, name: str) -> str:
        return name

    def partition_values(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        return rows.column(name)

    def partition_value(self, value: pa.Scalar) -> str | None:
        """Convert a value to Delta's text; the empty text becomes null, as in Delta."""
        if pa.types.is_timestamp(value.type) and value.is_valid:
            return f"{value.as_py().replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
        text: str | None = pc.cast(value, pa.string()).as_py()
        return text or None

    def has_stats(self, leaf: str) -> bool:
        """Leave out bodies and values of maps, whose bounds are useless."""
        return leaf != "body" and not leaf.endswith(MAP_VALUE)

    def action(self, file: FinishedFile) -> str:
        bounds = {name: stats.bounds() for name, stats in file.stats.items()}
        stats = {
            "numRecords": file.rows,
            "minValues": {name: smallest for name, (smallest, _) in bounds.items() if smallest is not None},
            "maxValues": {name: largest for name, (_, largest) in bounds.items() if largest is not None},
            "nullCount": {name: stats.nulls for name, stats in file.stats.items()},
        }
        add = {
            "path": quote(file.relative, safe="/="),
            "partitionValues": file.partitions,
            "size": file.bytes,
            "modificationTime": file.modified_ms,
            "dataChange": True,
            "stats": json.dumps(stats, ensure_ascii=False),  # delta-rs misreads escaped characters from U+20000 on
        }
        return json.dumps({"add": add})


def write_metrics(adds: Sequence[WrittenFile] | None) -> dict[str, int]:
    """Count the files, rows and bytes of a write for the history of the table; without a write there is no count.

    Delta's own counts of a write without rows have a file, which no version has.
    """
    if adds is None:
        return {}
    return {
        "numFiles": len(adds),
        "numOutputRows": sum(file.rows for file in adds),
        "numOutputBytes": sum(file.bytes for file in adds),
    }


def newest_files(actions: Callable[[int], Iterable[bytes] | None], version: int) -> list[str]:
    """List the files of the newest commit that added files which the table still contains.

    Args:
        actions: returns the lines of a commit; None if it was cleaned up.

    Returns:
        Their URIs, as the log has them: relative to the table, or absolute.
    """
    removed: set[str] = set()
    for number in range(version, max(version - _COMMITS, -1), -1):
        lines = actions(number)
        if lines is None:
            break
        file_actions: list[dict[str, Any]] = [
            json.loads(line) for line in lines if line.startswith((b'{"add"', b'{"remove"'))
        ]
        added = [action["add"]["path"] for action in file_actions if "add" in action]
        present_paths = [path for path in added if path not in removed]
        if present_paths:
            return present_paths
        removed |= {action["remove"]["path"] for action in file_actions if "remove" in action}
    return []


def parse_checksum(checksum: bytes, transaction_id: str | None) -> dict[str, int] | None:
    """Return the transaction versions of a table version, by application id, as its checksum file has them.

    Source: Delta's protocol, "Version Checksum File", fields ``txnId`` and ``setTransactions``.

    Args:
        transaction_id: transaction id of the commit that made the version.

    Returns:
        None if the file lacks them, or names another commit: the file may have outlived a commit that a power cut lost.
    """
    try:
        content = json.loads(checksum)
        if not transaction_id or content["txnId"] != transaction_id:
            return None
        return {action["appId"]: int(action["version"]) for action in content["setTransactions"]}
    except (ValueError, KeyError, TypeError):
        return None


def parse_commit(
    lines: Iterable[bytes], find_restored_version: Callable[[Mapping[str, Any]], int | None]
) -> TableCommit:
    """Parse the actions of a commit, JSON each; ``find_restored_version`` gets the parameters of a RESTORE."""
    actions = [json.loads(line) for line in lines if line.startswith((b'{"commitInfo"', b'{"txn"'))]
    info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    versions = {action["txn"]["appId"]: int(action["txn"]["version"]) for action in actions if "txn" in action}
    operation = str(info.get("operation"))
    restored_version = find_restored_version(info.get("operationParameters", {})) if operation == "RESTORE" else None
    return TableCommit(operation, restored_version, versions, info.get("userMetadata"), info.get("txnId"))
