"""Messages that are in the log and in no queue: why no queue has them, and their sums by topic and reason."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import pyarrow as pa

from rmq_formats.arrow.schema import Mode
from rmq_formats.codecs import paths
from rmq_formats.errors import StoreLayoutError
from rmq_formats.read.log_end import find_leftovers
from rmq_formats.read.plan import plan_read
from rmq_formats.read.query import MAX_LONG, Include, Query, Queue, ReadOptions
from rmq_formats.read.queue_offset_lookup import QueueOffsetLookup
from rmq_formats.read.task import read_tasks
from rmq_formats.storage.store_files import StoreFiles

_COLUMNS = ("topic", "queue_id", "physical_offset", "size", "store_timestamp")


class UnqueuedReason(StrEnum):
    """Reason why no queue has a message of the log."""

    FORMER = "former"  # its topic was deleted and made again since
    DELETED = "deleted"  # its topic has no queue
    SKIPPED = "skipped"  # its queue passes it over: its offset was given out twice, or its unit is lost
    LEFTOVER = "leftover"  # it stands behind the log's end


UNQUEUED_TEXTS = {
    UnqueuedReason.FORMER: "its topic was deleted and made again",
    UnqueuedReason.DELETED: "its topic has no queue",
    UnqueuedReason.SKIPPED: "its queue passes it over: a repeated offset, or a lost unit",
    UnqueuedReason.LEFTOVER: "behind the log's end, left by a recovery",
}


class UnqueuedReasons:
    """Look-up of the reasons why no queue has messages."""

    def __init__(self, store: StoreFiles) -> None:
        segments = store.segments
        leftovers = find_leftovers(store, segments)
        self._log_end = MAX_LONG if leftovers is None else leftovers.log_end
        self._places = QueueOffsetLookup(store, 0, 0, finds_unqueued=True)
        self._first_records: dict[Queue, int | None] = {}

    def of(self, queue: Queue, physical_offset: int) -> UnqueuedReason:
        """Return the reason for a message that ``Include.UNQUEUED`` selects."""
        if physical_offset >= self._log_end:
            return UnqueuedReason.LEFTOVER
        if queue not in self._first_records:
            self._first_records[queue] = self._places.first_record(*queue)
        first = self._first_records[queue]
        if first is None:
            return UnqueuedReason.FORMER if self._places.has_queues(queue[0]) else UnqueuedReason.DELETED
        return UnqueuedReason.FORMER if physical_offset < first else UnqueuedReason.SKIPPED


@dataclass(frozen=True, slots=True)
class UnqueuedSum:
    """Messages of a topic that no queue has for one reason.

    Attributes:
        first_store_timestamp: the earliest, in ms.
        last_store_timestamp: the latest, in ms.
    """

    topic: str
    reason: UnqueuedReason
    messages: int
    bytes: int
    first_store_timestamp: int
    last_store_timestamp: int


def unqueued_sums(store: StoreFiles) -> list[UnqueuedSum]:
    """Sum up the messages that no queue has, by topic and reason.

    Raises:
        StoreLayoutError: the store has no queues, so that nothing tells.
        StoreError: a file cannot be read.
    """
    query = Query(include=Include.UNQUEUED)
    refuse_log_alone(store)
    reasons = UnqueuedReasons(store)
    options = ReadOptions(_COLUMNS, query, Mode.DROPMALFORMED, verify_crc=False)
    sums: dict[tuple[str, UnqueuedReason], UnqueuedSum] = {}
    for batch in read_tasks(store.root, plan_read(store, query).tasks, options, pa.cpu_count()):
        for part in _by_reason(batch, reasons):
            total = sums.get((part.topic, part.reason))
            sums[part.topic, part.reason] = part if total is None else _add_sums(total, part)
    return [sums[name] for name in sorted(sums)]


def refuse_log_alone(store: StoreFiles) -> None:
    """Refuse a store without queues. Raises StoreLayoutError."""
    if QueueOffsetLookup(store, 0, 0).has_no_queues:
        raise StoreLayoutError(
            f"{paths.consumequeue_dir(store.root)}: no queue, so that nothing tells which messages no queue has; "
            "run rmq rebuild, or read all with include=log"
        )


def _by_reason(batch: pa.RecordBatch, reasons: UnqueuedReasons) -> Iterator[UnqueuedSum]:
    topics = batch["topic"].dictionary_encode()
    names = topics.dictionary.to_pylist()
    numbers = np.stack([np.asarray(topics.indices, dtype=np.int64), np.asarray(batch["queue_id"], dtype=np.int64)])
    places = np.asarray(batch["physical_offset"])
    sizes = np.asarray(batch["size"])
    times_ms = np.asarray(batch["store_timestamp"].cast(pa.int64()).fill_null(0)) // 1000
    queues, rows = np.unique(numbers, axis=1, return_inverse=True)
    for number, (topic, queue_id) in enumerate(queues.T.tolist()):
        at = np.flatnonzero(rows.reshape(-1) == number)
        reason_of_row = np.array([reasons.of((names[topic], queue_id), place) for place in places[at].tolist()])
        for reason in np.unique(reason_of_row).tolist():
            reason_rows = at[reason_of_row == reason]
            yield UnqueuedSum(
                names[topic],
                UnqueuedReason(reason),
                len(reason_rows),
                int(sizes[reason_rows].sum()),
                int(times_ms[reason_rows].min()),
                int(times_ms[reason_rows].max()),
            )


def _add_sums(total: UnqueuedSum, part: UnqueuedSum) -> UnqueuedSum:
    return replace(
        total,
        messages=total.messages + part.messages,
        bytes=total.bytes + part.bytes,
        first_store_timestamp=min(total.first_store_timestamp, part.first_store_timestamp),
        last_store_timestamp=max(total.last_store_timestamp, part.last_store_timestamp),
    )
