"""Undecoded messages of a typed table: a state of the table, reported by each run until somebody resolves it.

A commit that skips messages sets three transaction versions: how many messages are undecoded, and the physical offsets
of the first one and after the last one. So even a run without pending rows reports them.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from rmq_lakehouse.exactly_once import ExactlyOnceTable, commit_with_retry
from rmq_lakehouse.progress import last_metadata
from rmq_lakehouse.spec import TOPIC_PROPERTY
from rmq_lakehouse.table_log import UNDECODED, CommitAttempt, RowRange, TableSnapshot, TableSpec, TableTransaction

REASON: Final = "reason"
MESSAGE_COLUMNS: Final = ("topic", "queue_id", "queue_offset", "physical_offset", "store_timestamp", "body")
DEAD_LETTER_TABLE: Final = TableSpec(
    properties=((TOPIC_PROPERTY, "dead letters"),),
    stats=(*(name for name in MESSAGE_COLUMNS if name != "body"), REASON),
    comment="messages whose body does not decode, or which the table refuses, with the reason",
)
"""Specification of a dead-letter table, whose columns are ``MESSAGE_COLUMNS`` and ``REASON``."""
_COUNT, _FIRST, _END = UNDECODED
_log = logging.getLogger("rmq_lakehouse")


@dataclass(frozen=True, slots=True)
class Undecoded:
    """Undecoded messages of a selection.

    Attributes:
        first: physical offset of the first message; 0 without messages.
        end: physical offset after the last message; 0 without messages, and if a former version counted them.
    """

    count: int = 0
    first: int = 0
    end: int = 0

    @classmethod
    def of_offsets(cls, count: int, first: int | None, last: int | None) -> "Undecoded":
        """Build from the number of messages and their smallest and largest physical offset; None without messages."""
        return cls() if first is None or last is None else cls(count, first, last + 1)

    @classmethod
    def of_snapshot(cls, snapshot: TableSnapshot, app_id: str) -> "Undecoded":
        """Read the undecoded messages of a selection from a snapshot."""
        if snapshot.version < 0:
            return cls()
        count = snapshot.transactions.get(app_id + _COUNT, -1)
        first, end = (max(0, snapshot.transactions.get(app_id + name, 0)) for name in (_FIRST, _END))
        return cls(count, first, end) if count > 0 else cls()

    def versions(self, app_id: str) -> Mapping[str, int]:
        """Return the transaction versions that record the undecoded messages."""
        return {app_id + _COUNT: self.count, app_id + _FIRST: self.first, app_id + _END: self.end}

    def __add__(self, others: "Undecoded") -> "Undecoded":
        counted = [part for part in (self, others) if part.count]
        return Undecoded(
            sum(part.count for part in counted),
            min((part.first for part in counted), default=0),
            max((part.end for part in counted), default=0),
        )

    def after(self, attempt: CommitAttempt, table: ExactlyOnceTable, added: "Undecoded") -> "Undecoded":
        """Return the undecoded messages after an attempt in which some messages did not decode.

        A backfill counts its messages anew, if its range contains all messages that were undecoded before. So does the
        first export of a store after one of its cluster.
        """
        is_repeated = table.is_backfill or (not attempt.spans and attempt.begin < self.end)
        if is_repeated and attempt.begin <= self.first and (attempt.spans or attempt.end >= self.end):
            return added
        if is_repeated and added.count and added.first < self.end:  # some of them are counted in both
            return replace(self + added, count=max(self.count, added.count))
        return self + added


def with_undecoded(attempt: CommitAttempt, table: ExactlyOnceTable, added: Undecoded) -> CommitAttempt:
    """Add the undecoded messages of a table to the transaction versions of an attempt that adds some."""
    before = Undecoded.of_snapshot(attempt.transaction.snapshot, table.app_id)
    return replace(attempt, undecoded_versions=before.after(attempt, table, added).versions(table.app_id))


def _are_in(dead_letters: ExactlyOnceTable, undecoded: Undecoded, texts: Mapping[str, str]) -> bool:
    """Return whether the dead letters have as many messages of the range of the undecoded ones."""
    last = undecoded.end - 1 if undecoded.end else None
    letters = RowRange(dead_letters.offset, undecoded.first, last, texts={**dead_letters.broker_texts, **texts})
    log = dead_letters.log
    return log.exists() and log.has_rows(log.snapshot().version, letters, undecoded.count)


def resolve_undecoded(
    table: ExactlyOnceTable,
    dead_letters: ExactlyOnceTable | None,
    accepted: Collection[str],
    topic: str | None = None,
) -> int:
    """Return how many messages of a table are undecoded at the end of a run, and log them.

    If the dead letters have as many messages of their range, or their topic or table is accepted, none is undecoded any
    more. A corrected spec may decode some of them.

    Args:
        topic: topic of a typed table; None for a raw table, whose constraints refuse messages.
    """
    if not table.log.exists():
        return 0
    undecoded, name = Undecoded.of_snapshot(table.log.snapshot(), table.app_id), topic or table.path
    if not undecoded.count:
        return 0
    texts = {} if topic is None else {"topic": topic}
    if name in accepted or (dead_letters is not None and _are_in(dead_letters, undecoded, texts)):
        _clear_undecoded(table)
        return 0
    state, remedy = f"of topic {topic} are undecoded", "mend the spec"
    if topic is None:
        state, remedy = "are undecoded, which constraints of the table refuse", "change the constraint"
    _log.warning(
        "%s: %d messages %s, the first at physical offset %d: %s and give %s, or give --dlq-table, or "
        "--accept-undecoded %s",
        table.path,
        undecoded.count,
        state,
        undecoded.first,
        remedy,
        table.backfill_option(undecoded.first),
        name,
    )
    return undecoded.count


def _clear_undecoded(table: ExactlyOnceTable) -> None:
    """Commit that a table's selection has no undecoded messages. Raises StoreError."""
    selection = table.selection

    def start(transaction: TableTransaction) -> CommitAttempt:
        for app_id in (table.app_id, selection.lock_id):
            transaction.watch(app_id)
        snapshot = transaction.snapshot
        metadata = last_metadata(snapshot, snapshot.version, f"{selection.lock_id}:")
        versions = {**Undecoded().versions(table.app_id), selection.lock_id: snapshot.version + 1}
        return CommitAttempt(transaction, 0, 0, False, table.app_id, versions, metadata, None)

    commit_with_retry(table.path, table.log, [start], None)
