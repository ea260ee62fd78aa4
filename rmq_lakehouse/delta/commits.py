"""Commits of Delta's log, and the names of the table properties that exports set or read."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from rmq_lakehouse.progress import TableCommit

COLUMNS_PROPERTY: Final = "rmq.columns"
"""Of a table: the columns that exports have made, JSON of their paths and what files call them."""
MAPPING_MODE: Final = "delta.columnMapping.mode"


def parse_commit(
    lines: Iterable[bytes], find_restored_version: Callable[[Mapping[str, Any]], int | None]
) -> TableCommit:
    """Parse the actions of a commit.

    Args:
        lines: the actions, JSON each.
        find_restored_version: finds the table version that a RESTORE of some parameters went back to.
    """
    actions = [json.loads(line) for line in lines if line.startswith((b'{"commitInfo"', b'{"txn"'))]
    info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    versions = {action["txn"]["appId"]: int(action["txn"]["version"]) for action in actions if "txn" in action}
    operation = str(info.get("operation"))
    restored_version = find_restored_version(info.get("operationParameters", {})) if operation == "RESTORE" else None
    return TableCommit(operation, restored_version, versions, info.get("userMetadata"))
