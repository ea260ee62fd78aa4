"""Version of an Iceberg table, and the transaction versions in the snapshots that led to it."""

from collections.abc import Mapping
from typing import Final

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from rmq_lakehouse.progress import TableCommit

TRANSACTION: Final = "rmq.txn."  # before an application id, in snapshots and table properties
LOG_FINGERPRINT: Final = "rmq.log-mark"


class IcebergSnapshot:
    """One version of a loaded table, numbered by its sequence number, which grows through rollbacks too."""

    def __init__(self, table: Table | None) -> None:
        # Last committed version of each application id, in this version or one that was rolled back.
        self.transactions = {} if table is None else _transactions(table.properties)
        self._line: dict[int, Snapshot] = {}
        self._oldest = 0
        current = None if table is None else table.current_snapshot()
        # Sequence number; 0 if nothing was committed yet, -1 without a table.
        self.version = -1 if table is None else 0 if current is None else current.sequence_number or 0
        while table is not None and current is not None:
            self._oldest = current.sequence_number or 0
            self._line.setdefault(self._oldest, current)  # those of format version 1 have no number
            parent = current.parent_snapshot_id  # of one that has expired there is none, or one that is not found
            current = None if parent is None else table.snapshot_by_id(parent)

    def expires_transactions(self) -> bool:
        return False  # properties stay

    def read_commit(self, version: int) -> TableCommit | None:
        snapshot = self._line.get(version)
        if snapshot is None:  # of another branch, or one that was rolled back
            return None if 0 < version < self._oldest else TableCommit("", None, {}, None)
        properties = summary_properties(snapshot)
        return TableCommit("append", None, _transactions(properties), properties.get(LOG_FINGERPRINT))

    def since_last_export(self) -> list[Snapshot]:
        """List the snapshots from this version back to the last one with progress of an export; empty without any.

        If a selection was rolled back, the list also has its last commit, the only evidence of the rollback.
        """
        line = list(self._line.values())
        commits = [_transactions(summary_properties(snapshot)) for snapshot in line]
        least_positions = [0] if line else []
        for app_id, recorded in self.transactions.items():
            last = next((at for at, versions in enumerate(commits) if app_id in versions), None)
            if last is not None and commits[last][app_id] != recorded:
                least_positions.append(last)
            elif last is None and self._oldest <= 1:  # the whole line is there, and has none
                least_positions.append(len(line) - 1)
        export_positions = [at for at, versions in enumerate(commits) if versions]
        return line[: max(export_positions[0], *least_positions) + 1] if export_positions else []


def find_snapshot(table: Table, version: int) -> Snapshot | None:
    """Find the snapshot of a table version: the last one, of those of format version 1, which have no number."""
    return next((each for each in reversed(table.snapshots()) if (each.sequence_number or 0) == version), None)


def summary_properties(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the properties of a snapshot's summary."""
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _transactions(properties: Mapping[str, str]) -> dict[str, int]:
    """Return the transaction versions in properties; -1 for a text of another program."""
    versions = {name: text for name, text in properties.items() if name.startswith(TRANSACTION)}
    return {name.removeprefix(TRANSACTION): _number(text) for name, text in versions.items()}


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return -1
