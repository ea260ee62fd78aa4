"""How far the queues of a broker have landed in a table, beside how far its store has.

Two facts hold of a broker, each with a transaction version of its own, and both stay true whatever lands next: all
records of its log before a physical offset have landed (``once``), and of each queue all messages below an offset.
A commit of pulled messages notes the offsets of the queues; its version is their sum, which grows with each message.
So an export of the cluster goes on where one of the store ended, and back: within a queue physical offsets grow.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rmq_formats.errors import StoreError
from rmq_formats.lakehouse.cluster.sources import SpanReader
from rmq_formats.lakehouse.once import PULLED_END, Choose, ExactlyOnceTable, Turn
from rmq_formats.lakehouse.raw_files import TaskRows
from rmq_formats.lakehouse.selection import Broker
from rmq_formats.lakehouse.standing import Standing
from rmq_formats.lakehouse.table_log import AppendTransaction
from rmq_formats.spark.live.options import ClusterQueue
from rmq_formats.spark.live.plan import Offsets, Span
from rmq_formats.spark.options.schemas import BROKER_NAME, CLUSTER

_QUEUES: Final = "queues"
_HEEDED: Final = "heeded"


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a broker's messages have landed.

    Attributes:
        physical_offset: before which all records have landed, by exports of the store; 0 if there were none.
        offsets: by topic and queue, below which all messages have landed, by exports of the cluster.
        heeded: physical offset before which nothing is owed behind ``offsets``.
        pulled_end: physical offset behind which no message was pulled.
    """

    physical_offset: int = 0
    offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)
    heeded: int = 0
    pulled_end: int = 0


def progress(table: ExactlyOnceTable) -> QueueProgress:
    """Find how far a broker's messages have landed in the newest version of its table.

    Raises:
        StoreError: the table does not hold what has landed in it.
    """
    return _progress(table, table.standing(table.queues_id), table.standing())


def _progress(table: ExactlyOnceTable, queues: Standing, store: Standing) -> QueueProgress:
    if table.lands_again:
        return QueueProgress()
    for found in (queues, store):
        if found.fault is not None:
            way = "give another table" if table.selection.with_tier else "--from-offset 0 lands what is missing"
            raise StoreError(f"{table.path}: {found.fault.partition(';')[0]}; {way}")
    if queues.landed < 0:
        return QueueProgress(max(store.landed, 0))
    try:
        told = json.loads(queues.note or "")
        by_topic = told[_QUEUES].items()
        offsets = {(topic, int(number)): int(at) for topic, own in by_topic for number, at in own.items()}
        return QueueProgress(max(store.landed, 0), offsets, int(told[_HEEDED]), int(told[PULLED_END]))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise StoreError(f"{table.path}: its log does not tell how far the queues have landed") from None


def _told(offsets: Mapping[tuple[str, int], int], heeded: int, pulled_end: int) -> str:
    """Build the note of a commit."""
    queues: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        queues.setdefault(topic, {})[str(number)] = offset
    return json.dumps({_QUEUES: queues, _HEEDED: heeded, PULLED_END: pulled_end})


@dataclass(frozen=True, slots=True)
class QueueRecords:
    """Messages of a broker's queues that an export is to land; see ``raw.Owed``.

    Attributes:
        spark: the session.
        broker: whose queues they are.
        reader: reads them.
        begins: of each table, by its path, the offset that each queue is to be landed from.
        ends: one past the last.
        known: of each table the progress by which the begins were found.
        heeded: of each table the physical offset before which nothing is owed behind the ends.
        pulled_end: physical offset behind which nothing of it is.
        topics: how many there may be, for the size of files.
    """

    spark: SparkSession
    broker: Broker
    reader: SpanReader
    begins: Mapping[str, Offsets]
    ends: Offsets
    known: Mapping[str, QueueProgress]
    heeded: Mapping[str, int]
    pulled_end: int
    topics: int

    def choose(self, table: ExactlyOnceTable) -> Choose:
        """See ``Owed``."""
        return lambda transaction: self._turn(table, transaction)

    def _turn(self, table: ExactlyOnceTable, transaction: AppendTransaction) -> Turn | None:
        own = table.queues_id
        ids = {own, table.app_id, table.selection.lock_id}
        for app_id in ids:
            transaction.watch(app_id)
        snapshot = transaction.snapshot
        now = _progress(table, table.standing_in(snapshot, own), table.standing_in(snapshot, table.app_id))
        begins = {
            queue: max(begin, now.offsets.get(key_of(queue), 0)) for queue, begin in self.begins[table.path].items()
        }
        spans = tuple(
            Span(queue, begins[queue], end) for queue, end in sorted(self.ends.items()) if begins[queue] < end
        )
        landed = dict(now.offsets)
        for queue, begin in begins.items():
            landed[key_of(queue)] = max(begin, self.ends[queue])
        if not spans and landed == now.offsets:
            return None
        others = any(table.is_of_other_selection(name, ids) for name in snapshot.app_ids())
        moved = now.physical_offset != self.known[table.path].physical_offset
        shared = table.lands_again or others or moved or snapshot.drops_transactions()
        if shared and not self.reader.has_places:
            raise StoreError(
                f"{table.path}: rows of a tier have no places to tell which of them are there already, as they must be "
                "where another selection has landed, or transactions expire; give another table"
            )
        note = _told(landed, self.heeded[table.path], max(self.pulled_end, now.pulled_end))
        versions = {own: sum(landed.values()), table.selection.lock_id: snapshot.version + 1}
        return Turn(transaction, 0, 0, shared, own, versions, note, table.broker_id, spans)

    def tasks(self, turn: Turn) -> tuple[Sequence[TaskRows], int]:
        """See ``Owed``."""
        return self.reader.tasks(turn.spans)

    def frame_of(self, turn: Turn) -> DataFrame:
        """See ``Owed``."""
        return self._frame(turn.spans)

    def frame_for(self, tables: Sequence[ExactlyOnceTable]) -> DataFrame:
        """See ``Owed``."""
        firsts = {queue: min(self.begins[table.path][queue] for table in tables) for queue in self.ends}
        return self._frame([Span(queue, first, self.ends[queue]) for queue, first in sorted(firsts.items())])

    def is_of(self, turn: Turn) -> Column:
        """See ``Owed``."""
        found = F.lit(False)
        for span in turn.spans:
            own = (F.col("topic") == span.queue.topic) & (F.col("queue_id") == span.queue.queue_id)
            found |= own & F.col("queue_offset").between(span.begin, span.end - 1)
        return found

    def expected(self, turn: Turn) -> int | None:
        """See ``Owed``: a broker that has deleted some has said so; files at rest do not."""
        return None if self.reader.has_places else sum(span.end - span.begin for span in turn.spans)

    def _frame(self, spans: Sequence[Span]) -> DataFrame:
        frame = self.reader.frame(self.spark, spans)
        told = {CLUSTER: self.broker.cluster, BROKER_NAME: self.broker.name}
        names = [name for name in frame.columns if name not in told]
        return frame.select(*names, *(F.lit(text).alias(name) for name, text in told.items()))


def key_of(queue: ClusterQueue) -> tuple[str, int]:
    """Return the topic and number by which a queue's offset is noted."""
    return queue.topic, queue.queue_id
