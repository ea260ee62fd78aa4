"""Messages in the log of a killed broker that the files of its queues may lack."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from rmq_formats.arrow.schema import Mode, schema_of
from rmq_formats.codecs.layout import FLAG_INNER_BATCH
from rmq_formats.read.checkpoint import read_checkpoint
from rmq_formats.read.log_end import readable_segments
from rmq_formats.read.plan import plan_read
from rmq_formats.read.query import AccessPath, Query, Queue, ReadOptions
from rmq_formats.read.ranges import log_bounds
from rmq_formats.read.task import read_task
from rmq_formats.storage.store_files import StoreFiles

_COLUMNS = ("topic", "queue_id", "queue_offset", "store_timestamp", "sys_flag", "properties")
_SCHEMA: Final = schema_of(_COLUMNS[:-2]).append(pa.field("end_offset", pa.int64()))


@dataclass(frozen=True, slots=True)
class Undispatched:
    """Messages that were stored since the checkpoint; the units of earlier messages are on disk.

    Attributes:
        log_end: physical offset one past the log's data: units that lead there or beyond lead to nothing.
        ends: by queue, the queue offset one past the last of these messages.
    """

    log_end: int
    ends: dict[Queue, int]
    _messages: pa.Table

    @classmethod
    def read(cls, store: StoreFiles, topics: Set[str]) -> "Undispatched":
        """Scan the end of the log for messages of some topics; raises as ``plan_read``.

        Source: ``CommitLog#recoverAbnormally``.
        """
        segments = readable_segments(store)
        checkpoint = read_checkpoint(store)
        query = Query(topics=frozenset(topics), first_ms=checkpoint.min_timestamp_ms if checkpoint else 0)
        plan = plan_read(store, query, access_path=AccessPath.SCAN)
        options = ReadOptions(_COLUMNS, query, Mode.DROPMALFORMED)
        batches = [batch for task in plan.tasks for batch in read_task(store.root, task, options)]
        messages = pa.Table.from_batches([_with_ends(batch) for batch in batches], _SCHEMA)
        last = messages.group_by(["topic", "queue_id"]).aggregate([("end_offset", "max")])
        names, numbers, offsets = (last[name].to_pylist() for name in ("topic", "queue_id", "end_offset_max"))
        ends = {(name, number): offset for name, number, offset in zip(names, numbers, offsets, strict=True)}
        return cls(log_bounds(store.storage, segments)[1], ends, messages)

    def store_timestamp_ms(self, queue: Queue, queue_offset: int) -> int | None:
        """Return when the message at a queue offset was stored; None if it is not among these."""
        messages = self._messages.filter(
            (pc.field("queue_offset") <= queue_offset)
            & (pc.field("end_offset") > queue_offset)
            & (pc.field("queue_id") == queue[1])
            & (pc.field("topic") == queue[0])
        )
        times = messages["store_timestamp"].cast(pa.int64()).to_pylist()
        return None if not times or times[-1] is None else times[-1] // 1000


def _with_ends(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replace the properties by the queue offset one past each record's last message: an inner batch has several."""
    number = pc.map_lookup(batch["properties"], pa.scalar("INNER_NUM"), "first")
    is_number = pc.fill_null(pc.match_substring_regex(number, r"^[0-9]{1,5}$"), False)
    is_batch = pc.not_equal(pc.bit_wise_and(batch["sys_flag"], FLAG_INNER_BATCH), 0)
    counts = pc.cast(pc.if_else(pc.and_(is_number, is_batch), number, "1"), pa.int64())
    kept = [batch[name] for name in _SCHEMA.names[:-1]]
    return pa.RecordBatch.from_arrays([*kept, pc.add(batch["queue_offset"], counts)], schema=_SCHEMA)
