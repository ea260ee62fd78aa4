"""Undecoded messages of a typed table: a state of the table, which each run reports until somebody has dealt with it.

A commit that passes over messages sets two transaction versions: how many there are, and the physical offset of the
first. So a run that finds nothing new still knows of them.
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
        count: how many.
        first: physical offset of the first of them; 0 if there is none.
    """

    count: int = 0
    first: int = 0

    @classmethod
    def of_snapshot(cls, snapshot: TableSnapshot, app_id: str) -> "Undecoded":
        """Read what a version of a table says of a selection."""
        if snapshot.version < 0:
            return cls()
        count = snapshot.transaction_version(app_id + _COUNT)
        return cls(count, max(0, snapshot.transaction_version(app_id + _FIRST))) if count > 0 else cls()

    def versions(self, app_id: str) -> Mapping[str, int]:
        """Return the transaction versions that say it."""
        return {app_id + _COUNT: self.count, app_id + _FIRST: self.first}

    def after(self, attempt: CommitAttempt, table: ExactlyOnceTable, added: "Undecoded") -> "Undecoded":
        """Return the state after a turn in which some messages were undecoded.

        Messages that land again are counted anew, where the turn has all of those that were undecoded before.
        """
        if not self.count or (table.is_backfill and attempt.begin <= self.first):
            return added
        if table.is_backfill:
            return Undecoded(max(self.count, added.count), self.first)
        return Undecoded(self.count + added.count, self.first)


def set_undecoded(table: ExactlyOnceTable, undecoded: Undecoded) -> None:
    """Commit which messages of a table's selection are undecoded, and no rows. Raises StoreError."""
    selection = table.selection

    def start(transaction: TableTransaction) -> CommitAttempt:
        for app_id in (table.app_id, selection.lock_id):
            transaction.watch(app_id)
        snapshot = transaction.snapshot
        metadata = last_metadata(snapshot, snapshot.version, f"{selection.lock_id}:")
        versions = {**undecoded.versions(table.app_id), selection.lock_id: snapshot.version + 1}
        return CommitAttempt(transaction, 0, 0, False, table.app_id, versions, metadata, None)

    commit_with_retry(table.path, table.log, [start], lambda attempts: commit_progress(list(attempts.values())))
