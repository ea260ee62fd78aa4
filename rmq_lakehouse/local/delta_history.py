"""Commits and transaction versions of a Delta table, read from its log in a directory."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from rmq_formats.errors import StoreError
from rmq_lakehouse.delta.files import parse_commit
from rmq_lakehouse.directories import DELTA_LOG
from rmq_lakehouse.local.table_log import NeedsSparkError
from rmq_lakehouse.progress import TableCommit

_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
RETENTION: Final = "delta.setTransactionRetentionDuration"


class DeltaHistory:
    """Log of one table."""

    def __init__(self, table: Path) -> None:
        self._table = table

    def lines(self, version: int) -> list[bytes] | None:
        """Read the actions of a commit, JSON each; None if it was cleaned up."""
        try:
            return (self._table / DELTA_LOG / f"{version:020}.json").read_bytes().splitlines()
        except FileNotFoundError:
            return None

    def read_commit(self, version: int) -> TableCommit | None:
        lines = self.lines(version)
        return None if lines is None else parse_commit(lines, self._restored_version)

    def transaction_versions(self, version: int) -> dict[str, int]:
        """Return a table version's transaction versions by application id. Raises StoreError: a commit is missing."""
        checkpoints = self._checkpoints()
        versions: dict[str, int] = {}
        for number in range(version, -1, -1):
            if number in checkpoints:
                actions = (pq.read_table(path, columns=["txn"])["txn"].to_pylist() for path in checkpoints[number])
                transactions = [transaction for part in actions for transaction in part if transaction is not None]
            else:
                lines = self.lines(number)
                if not lines:
                    state = "missing" if lines is None else "empty"
                    raise StoreError(f"{self._table}: commit {number} of its log is {state}, and no checkpoint has it")
                transactions = [json.loads(line)["txn"] for line in lines if line.startswith(b'{"txn"')]
            versions = {action["appId"]: int(action["version"]) for action in transactions} | versions
            if number in checkpoints:
                break
        return versions

    def _checkpoints(self) -> dict[int, list[Path]]:
        """Map table versions to the files of their checkpoints, without checkpoints that lack a part."""
        files: dict[tuple[int, int], list[Path]] = {}
        for path in (self._table / DELTA_LOG).iterdir():
            match = _CHECKPOINT.fullmatch(path.name)
            if match is not None:
                files.setdefault((int(match[1]), int(match[3] or 1)), []).append(path)
        return {version: paths for (version, parts), paths in files.items() if len(paths) == parts}

    def _restored_version(self, parameters: Mapping[str, Any]) -> int | None:
        if parameters.get("version") is None:
            raise NeedsSparkError(f"{self._table}: was restored to a time")
        return int(parameters["version"])


class DeltaRsSnapshot:
    """One version of a table; -1 if there is no table."""

    def __init__(self, history: DeltaHistory, version: int, properties: Mapping[str, str]) -> None:
        self.version, self._properties = version, properties
        self.transactions = history.transaction_versions(version) if version >= 0 else {}
        self.read_commit = history.read_commit

    def expires_transactions(self) -> bool:
        return RETENTION in self._properties
