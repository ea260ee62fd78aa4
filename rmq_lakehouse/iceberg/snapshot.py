"""Version of an Iceberg table, and the transaction versions in the snapshots that led to it."""

from typing import Final

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from rmq_lakehouse.progress import TableCommit

TRANSACTION: Final = "rmq.txn."  # before an application id, in snapshots and table properties
LOG_FINGERPRINT: Final = "rmq.log-mark"


class IcebergSnapshot:
    """One version of a loaded table, numbered by its sequence number, which grows through rollbacks too."""

    def __init__(self, table: Table | None) -> None:
        self._table = table
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

    def transaction_version(self, app_id: str) -> int:
        """Return the last version that was committed for ``app_id``, in this version or one rolled back; -1 if none."""
        value = None if self._table is None else self._table.properties.get(TRANSACTION + app_id)
        return -1 if value is None else _number(value)

    def app_ids(self) -> list[str]:
        properties = {} if self._table is None else self._table.properties
        return [name.removeprefix(TRANSACTION) for name in properties if name.startswith(TRANSACTION)]

    def drops_transactions(self) -> bool:
        return False  # properties stay

    def read_commit(self, version: int) -> TableCommit | None:
        snapshot = self._line.get(version)
        if snapshot is None:  # of another branch, or one that was rolled back
            return None if 0 < version < self._oldest else TableCommit("", None, {}, None)
        summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
        versions = {
            name.removeprefix(TRANSACTION): _number(value)
            for name, value in summary.items()
            if name.startswith(TRANSACTION)
        }
        return TableCommit("append", None, versions, summary.get(LOG_FINGERPRINT))

    def since_last_export(self) -> list[Snapshot]:
        """List the snapshots from this version back to the last one with progress of an export; empty without any.

        If a selection was rolled back, the list also has its last commit, the only evidence of the rollback.
        """
        line = list(self._line.values())
        least_positions = [0] if line else []
        for app_id in self.app_ids():
            versions = [commit.versions.get(app_id) for number in self._line if (commit := self.read_commit(number))]
            last = next((at for at, version in enumerate(versions) if version is not None), None)
            if last is not None and versions[last] != self.transaction_version(app_id):
                least_positions.append(last)
            elif last is None and self._oldest <= 1:  # the whole line is there, and has none
                least_positions.append(len(line) - 1)
        export_positions = [at for at, commit in enumerate(line) if _is_export(commit)]
        return line[: max(export_positions[0], *least_positions) + 1] if export_positions else []


def find_snapshot(table: Table, version: int) -> Snapshot | None:
    """Find the snapshot of a table version: the last one, of those of format version 1, which have no number."""
    return next((each for each in reversed(table.snapshots()) if (each.sequence_number or 0) == version), None)


def _is_export(snapshot: Snapshot) -> bool:
    properties = {} if snapshot.summary is None else snapshot.summary.additional_properties
    return any(name.startswith(TRANSACTION) for name in properties)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # another program's
        return -1
