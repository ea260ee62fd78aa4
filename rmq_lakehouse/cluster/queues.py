"""Progress of a broker's queues in a table, beside the progress of its store.

A broker has two facts, each with a transaction version of its own. All records of its log before a physical offset are
committed (``exactly_once``), and of each queue all messages below a queue offset. Both facts stay true, whichever
export commits next. A commit of pulled messages records the offsets of the queues as metadata. Its transaction version
is the sum of the offsets, which grows with each message. So an export of the cluster continues after an export of the
store, and the other way round: within a queue physical offsets grow.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rmq_formats.arrow.schema import BROKER_NAME, CLUSTER
from rmq_formats.errors import StoreError
from rmq_lakehouse.cluster.sources import SpanReader
from rmq_lakehouse.exactly_once import PULLED_END, ExactlyOnceTable
from rmq_lakehouse.live.options import ClusterQueue
from rmq_lakehouse.live.plan import Offsets, Span
from rmq_lakehouse.progress import ExportProgress
from rmq_lakehouse.raw_files import TaskRows
from rmq_lakehouse.selection import BrokerKey
from rmq_lakehouse.table_log import CommitAttempt, StartAttempt, TableTransaction

_QUEUES: Final = "queues"
_RECONCILED_OFFSET: Final = "heeded"


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """Offsets up to which the messages of a broker are committed.

    Attributes:
        physical_offset: physical offset before which exports of the store have committed all records; 0 without any.
        offsets: queue offset, by topic and queue, below which exports of the cluster have committed all messages.
        reconciled_offset: physical offset of the store's progress that ``offsets`` already account for.
        pulled_end: physical offset after all messages that were pulled.
    """

    physical_offset: int = 0
    offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)
    reconciled_offset: int = 0
    pulled_end: int = 0


def queue_progress(table: ExactlyOnceTable) -> QueueProgress:
    """Read the progress of queues from the newest version of a table. Raises StoreError: the table lost messages."""
    return _decode_progress(table, table.progress(table.queues_id), table.progress())


def _decode_progress(table: ExactlyOnceTable, queues: ExportProgress, store: ExportProgress) -> QueueProgress:
    if table.is_backfill:
        return QueueProgress()
    for progress in (queues, store):
        if progress.fault is not None:
            remedy = "give another table" if table.selection.with_tier else "--from-offset 0 exports missing messages"
            raise StoreError(f"{table.path}: {progress.fault}; {remedy}")
    if queues.verified_offset < 0:
        return QueueProgress(max(store.verified_offset, 0))
    try:
        recorded = json.loads(queues.metadata or "")
        by_topic = recorded[_QUEUES].items()
        offsets = {
            (topic, int(number)): int(offset)
            for topic, offsets_by_number in by_topic
            for number, offset in offsets_by_number.items()
        }
        return QueueProgress(
            max(store.verified_offset, 0), offsets, int(recorded[_RECONCILED_OFFSET]), int(recorded[PULLED_END])
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        raise StoreError(f"{table.path}: cannot read queue progress from the table's commit metadata") from None


def encode_progress(offsets: Mapping[tuple[str, int], int], reconciled_offset: int, pulled_end: int) -> str:
    """Encode the progress of queues as metadata of a commit."""
    queues: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        queues.setdefault(topic, {})[str(number)] = offset
    return json.dumps({_QUEUES: queues, _RECONCILED_OFFSET: reconciled_offset, PULLED_END: pulled_end})


@dataclass(frozen=True, slots=True)
class PendingQueueMessages:
    """Pending messages of a broker's queues; see ``raw.PendingMessages``.

    Attributes:
        begins: first pending offset of each queue, by the path of the table.
        ends: offset after the last pending message of each queue.
        planned_progress: progress by which ``begins`` were found, by the path of the table.
        reconciled_offset: physical offset of the store's progress that ``ends`` account for, by the path of the table.
        pulled_end: physical offset after all pending messages.
    """

    spark: SparkSession
    broker: BrokerKey
    reader: SpanReader
    begins: Mapping[str, Offsets]
    ends: Offsets
    planned_progress: Mapping[str, QueueProgress]
    reconciled_offset: Mapping[str, int]
    pulled_end: int
    topics: int

    def start_attempt(self, table: ExactlyOnceTable) -> StartAttempt:
        return lambda transaction: self._start(table, transaction)

    def _start(self, table: ExactlyOnceTable, transaction: TableTransaction) -> CommitAttempt | None:
        queues_id = table.queues_id
        ids = {queues_id, table.app_id, table.selection.lock_id}
        for app_id in ids:
            transaction.watch(app_id)
        snapshot = transaction.snapshot
        store_progress = table.progress_in(snapshot, table.app_id)
        progress = _decode_progress(table, table.progress_in(snapshot, queues_id), store_progress)
        begins = {
            queue: max(begin, progress.offsets.get(queue_key(queue), 0))
            for queue, begin in self.begins[table.path].items()
        }
        spans = tuple(
            Span(queue, begins[queue], end) for queue, end in sorted(self.ends.items()) if begins[queue] < end
        )
        committed_offsets = dict(progress.offsets)
        for queue, begin in begins.items():
            committed_offsets[queue_key(queue)] = max(begin, self.ends[queue])
        if not spans and committed_offsets == progress.offsets:
            return None
        has_other_selections = any(table.is_other_selection_id(name, ids) for name in snapshot.transactions)
        has_store_advanced = progress.physical_offset != self.planned_progress[table.path].physical_offset
        needs_dedup = table.is_backfill or has_other_selections or has_store_advanced or snapshot.expires_transactions()
        if needs_dedup and not self.reader.has_physical_offsets:
            raise StoreError(
                f"{table.path}: rows from a tier cannot be deduplicated, but another selection has committed to this "
                "table or its transaction ids expire. Give another table"
            )
        metadata = encode_progress(
            committed_offsets, self.reconciled_offset[table.path], max(self.pulled_end, progress.pulled_end)
        )
        versions = {queues_id: sum(committed_offsets.values()), table.selection.lock_id: snapshot.version + 1}
        if store_progress.fault is not None:  # a backfill: the table holds what a RESTORE left of the store's log
            versions[table.app_id] = max(store_progress.verified_offset, 0)
        return CommitAttempt(transaction, 0, 0, needs_dedup, queues_id, versions, metadata, table.broker_id, spans)

    def tasks(self, attempt: CommitAttempt) -> tuple[Sequence[TaskRows], int]:
        return self.reader.tasks(attempt.spans)

    def attempt_frame(self, attempt: CommitAttempt) -> DataFrame:
        return self._frame(attempt.spans)

    def union_frame(self, tables: Sequence[ExactlyOnceTable]) -> DataFrame:
        firsts = {queue: min(self.begins[table.path][queue] for table in tables) for queue in self.ends}
        return self._frame([Span(queue, first, self.ends[queue]) for queue, first in sorted(firsts.items())])

    def belongs_to_attempt(self, attempt: CommitAttempt) -> Column:
        condition = F.lit(False)
        for span in attempt.spans:
            is_queue = (F.col("topic") == span.queue.topic) & (F.col("queue_id") == span.queue.queue_id)
            condition |= is_queue & F.col("queue_offset").between(span.begin, span.end - 1)
        return condition

    def expected_messages(self, attempt: CommitAttempt) -> int | None:
        """Count the messages of files at rest; a broker itself reports deleted messages."""
        return None if self.reader.has_physical_offsets else sum(span.end - span.begin for span in attempt.spans)

    def _frame(self, spans: Sequence[Span]) -> DataFrame:
        frame = self.reader.frame(self.spark, spans)
        broker_columns = {CLUSTER: self.broker.cluster, BROKER_NAME: self.broker.name}
        names = [name for name in frame.columns if name not in broker_columns]
        return frame.select(*names, *(F.lit(text).alias(name) for name, text in broker_columns.items()))


def queue_key(queue: ClusterQueue) -> tuple[str, int]:
    """Return topic and queue id, by which the offset of a queue is recorded."""
    return queue.topic, queue.queue_id
