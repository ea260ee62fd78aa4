"""Undecoded messages of a typed table: a state of the table, reported by each run until somebody resolves it.

A commit that skips messages sets two transaction versions: how many messages are undecoded, and the physical offset of
the first one. So even a run without pending rows reports them.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from rmq_lakehouse.exactly_once import ExactlyOnceTable, commit_with_retry
from rmq_lakehouse.progress import last_metadata
from rmq_lakehouse.spec import TOPIC_PROPERTY
from rmq_lakehouse.table_log import UNDECODED, CommitAttempt, TableSnapshot, TableSpec, TableTransaction

REASON: Final = "reason"
MESSAGE_COLUMNS: Final = ("topic", "queue_id", "queue_offset", "physical_offset", "store_timestamp", "body")
DEAD_LETTER_TABLE: Final = TableSpec(
    properties=((TOPIC_PROPERTY, "dead letters"),),
    comment="messages whose body does not decode, or which the table refuses, with the reason",
)
"""Specification of a dead-letter table, whose columns are ``MESSAGE_COLUMNS`` and ``REASON``."""
_COUNT, _FIRST = UNDECODED
_log = logging.getLogger("rmq_lakehouse")


@dataclass(frozen=True, slots=True)
class Undecoded:
    """Undecoded messages of a selection.

    Attributes:
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


def with_undecoded(attempt: CommitAttempt, table: ExactlyOnceTable, added: Undecoded) -> CommitAttempt:
    """Add the undecoded messages of a table to the transaction versions of an attempt that adds some."""
    before = Undecoded.of_snapshot(attempt.transaction.snapshot, table.app_id)
    return replace(attempt, undecoded_versions=before.after(attempt, table, added).versions(table.app_id))


def remaining_undecoded(table: ExactlyOnceTable, *, is_resolved: bool) -> Undecoded:
    """Return the undecoded messages of a table at the end of a run; commit that there are none where resolved."""
    undecoded = Undecoded.of_snapshot(table.log.snapshot(), table.app_id) if table.log.exists() else Undecoded()
    if undecoded.count and is_resolved:
        set_undecoded(table, Undecoded())
        return Undecoded()
    return undecoded


def resolve_undecoded(
    table: ExactlyOnceTable, dead_letters: ExactlyOnceTable | None, topic: str, accepted: Collection[str]
) -> int:
    """Return how many messages of a topic are undecoded at the end of a run, and log them.

    Args:
        accepted: names of topics whose undecoded messages count no longer.
    """
    has_all = dead_letters is not None and is_as_far_as(dead_letters, table)
    undecoded = remaining_undecoded(table, is_resolved=has_all or topic in accepted)
    if undecoded.count:
        _log.warning(
            "%s: %d messages of topic %s are undecoded, the first at physical offset %d: mend the spec and give "
            "--from-offset %d, or give --dlq-table, or --accept-undecoded %s",
            table.path, undecoded.count, topic, undecoded.first, undecoded.first, topic,
        )  # fmt: skip
    return undecoded.count


def resolve_refused(table: ExactlyOnceTable, *, is_resolved: bool) -> int:
    """Return how many messages the constraints of a raw table have refused, at the end of a run, and log them."""
    undecoded = remaining_undecoded(table, is_resolved=is_resolved)
    if undecoded.count:
        _log.warning(
            "%s: %d messages are undecoded, which constraints of the table refuse, the first at physical offset "
            "%d: change the constraint and give --from-offset %d, or give --dlq-table, or --accept-undecoded %s",
            table.path, undecoded.count, undecoded.first, undecoded.first, table.path,
        )  # fmt: skip
    return undecoded.count


def is_as_far_as(dead_letters: ExactlyOnceTable, table: ExactlyOnceTable) -> bool:
    """Return whether the dead letters are committed as far as the rows of a table."""
    return all(
        dead_letters.progress(app_id).verified_offset >= table.progress(app_id).verified_offset
        for app_id in (table.app_id, table.queues_id)
    )


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

    commit_with_retry(table.path, table.log, [start], None)
