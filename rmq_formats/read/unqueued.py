"""Messages of the log that no queue has: the reason, and sums by topic and reason."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

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
_SUMS: Final = pa.schema(
    [("topic", pa.string()), ("reason", pa.string()), ("messages", pa.int64()), ("bytes", pa.int64()),
     ("first_store_timestamp", pa.int64()), ("last_store_timestamp", pa.int64())]
)  # fmt: skip


class UnqueuedReason(StrEnum):
    """Reason why no queue has a message of the log."""

    FORMER = "former"
    DELETED = "deleted"
    SKIPPED = "skipped"
    LEFTOVER = "leftover"


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
    """Messages of a topic that no queue has for one reason."""

    topic: str
    reason: UnqueuedReason
    messages: int
    bytes: int
    first_store_timestamp: int  # in ms
    last_store_timestamp: int  # likewise


def unqueued_sums(store: StoreFiles) -> list[UnqueuedSum]:
    """Sum up the messages that no queue has, by topic and reason. Raises StoreLayoutError: a store without queues."""
    query = Query(include=Include.UNQUEUED)
    refuse_log_alone(store)
    reasons = UnqueuedReasons(store)
    options = ReadOptions(_COLUMNS, query, Mode.DROPMALFORMED, verify_crc=False)
    sums = _SUMS.empty_table()
    for batch in read_tasks(store.root, plan_read(store, query).tasks, options, pa.cpu_count()):
        if len(batch):
            sums = _group(pa.concat_tables([sums, _group(_with_reasons(batch, reasons))]))
    if not len(sums):  # Arrow's engine, which sorts, takes 0.1 s to load
        return []
    rows = sums.sort_by([("topic", "ascending"), ("reason", "ascending")]).to_pylist()
    return [UnqueuedSum(**{**row, "reason": UnqueuedReason(row["reason"])}) for row in rows]


def refuse_log_alone(store: StoreFiles) -> None:
    """Refuse a store without queues. Raises StoreLayoutError."""
    if QueueOffsetLookup(store, 0, 0).has_no_queues:
        raise StoreLayoutError(
            f"{paths.consumequeue_dir(store.root)}: no queue, so that nothing tells which messages no queue has; "
            "run rmq rebuild, or read all with include=log"
        )


def _with_reasons(batch: pa.RecordBatch, reasons: UnqueuedReasons) -> pa.Table:
    """Build a table of ``_SUMS`` with a row for each message."""
    topics, queue_ids, places = (batch[name].to_pylist() for name in ("topic", "queue_id", "physical_offset"))
    messages = zip(topics, queue_ids, places, strict=True)
    times_ms = pc.divide(batch["store_timestamp"].cast(pa.int64()).fill_null(0), 1000)
    columns = [
        batch["topic"],
        pa.array([reasons.of((topic, queue_id), place) for topic, queue_id, place in messages], pa.string()),
        pa.repeat(pa.scalar(1, pa.int64()), len(batch)),
        batch["size"].cast(pa.int64()),
        times_ms,
        times_ms,
    ]
    return pa.Table.from_arrays(columns, schema=_SUMS)


def _group(sums: pa.Table) -> pa.Table:
    """Add up the rows of the same topic and reason."""
    functions = {
        "messages": "sum", "bytes": "sum", "first_store_timestamp": "min", "last_store_timestamp": "max",
    }  # fmt: skip
    groups = sums.group_by(["topic", "reason"]).aggregate(list(functions.items()))
    names = ("topic", "reason", *(f"{name}_{function}" for name, function in functions.items()))
    return groups.select(names).rename_columns(_SUMS.names)
