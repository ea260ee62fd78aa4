"""Undecoded messages of a typed table: a state of the table, reported by each run until somebody resolves it.

A commit that skips messages sets two transaction versions: how many messages are undecoded, and the physical offset of
the first one. So even a run without pending rows reports them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rmq_formats.lakehouse.exactly_once import ExactlyOnceTable, commit_progress, commit_with_retry
from rmq_formats.lakehouse.progress import last_metadata
from rmq_formats.lakehouse.table_log import UNDECODED, CommitAttempt, TableSnapshot, TableTransaction

_COUNT, _FIRST = UNDECODED


@dataclass(frozen=True, slots=True)
class Undecoded:
    """Undecoded messages of a selection.

    Attributes:
        count: number of undecoded messages.
        first: physical offset of the first one; 0 without any.
    """

    count: int = 0
    first: int = 0

    @classmethod
    def of_snapshot(cls, snapshot: TableSnapshot, app_id: str) -> "Undecoded":
        """Read the undecoded messages of a selection from a snapshot."""
        if snapshot.version < 0:
            return cls()
        count = snapshot.transaction_version(app_id + _COUNT)
        return cls(count, max(0, snapshot.transaction_version(app_id + _FIRST))) if count > 0 else cls()

    def versions(self, app_id: str) -> Mapping[str, int]:
        """Return the transaction versions that record the undecoded messages."""
        return {app_id + _COUNT: self.count, app_id + _FIRST: self.first}

    def after(self, attempt: CommitAttempt, table: ExactlyOnceTable, added: "Undecoded") -> "Undecoded":
        """Return the undecoded messages after an attempt in which some messages did not decode.

        A backfill counts its messages anew, if its range contains all messages that were undecoded before.
        """
        if not self.count or (table.is_backfill and attempt.begin <= self.first):
            return added
        if table.is_backfill:
            return Undecoded(max(self.count, added.count), self.first)
        return Undecoded(self.count + added.count, self.first)


def set_undecoded(table: ExactlyOnceTable, undecoded: Undecoded) -> None:
    """Commit the undecoded messages of a table's selection, without rows. Raises StoreError."""
    selection = table.selection

    def start(transaction: TableTransaction) -> CommitAttempt:
        for app_id in (table.app_id, selection.lock_id):
            transaction.watch(app_id)
        snapshot = transaction.snapshot
        metadata = last_metadata(snapshot, snapshot.version, f"{selection.lock_id}:")
        versions = {**undecoded.versions(table.app_id), selection.lock_id: snapshot.version + 1}
        return CommitAttempt(transaction, 0, 0, False, table.app_id, versions, metadata, None)

    commit_with_retry(table.path, table.log, [start], lambda attempts: commit_progress(list(attempts.values())))
