"""Positions of committed offsets in their queues."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.read.dirty import dirty_reason
from rmq_formats.read.lag import GroupQueue, LagTask, read_lag
from rmq_formats.read.queue_choice import choose_queues
from rmq_formats.storage.store_files import StoreFiles
from rmq_offline.verify.committed_offsets import CommittedOffset
from rmq_offline.verify.tier_metadata import read_begins_elsewhere


class State(StrEnum):
    """Position of an offset relative to its queue."""

    INSIDE = "inside"
    BELOW = "below"
    BEYOND = "beyond"
    NEGATIVE = "negative"


@dataclass(frozen=True, slots=True)
class Position:
    """A committed offset and its queue.

    Attributes:
        min_offset: of the first message that is still stored: in the log, a compacted log or tiered storage.
        max_offset: one past the last message; all three are 0 for a queue that does not exist.
        min_offset_in_log: of the first message in the log; ``max_offset`` without a message there.
    """

    committed: CommittedOffset
    min_offset: int
    max_offset: int
    min_offset_in_log: int

    @property
    def queue(self) -> tuple[str, int]:
        """Topic and number of the queue."""
        return self.committed.topic, self.committed.queue_id

    @property
    def lag(self) -> int:
        """Max offset minus committed offset, expired messages included; negative beyond the queue's end."""
        return self.max_offset - self.committed.queue_offset

    @property
    def state(self) -> State:
        """Return the position of the offset relative to the queue."""
        if self.committed.queue_offset < 0:
            return State.NEGATIVE
        if self.committed.queue_offset > self.max_offset:
            return State.BEYOND
        return State.BELOW if self.committed.queue_offset < self.min_offset else State.INSIDE


def read_positions(store: StoreFiles, committed_offsets: Sequence[CommittedOffset]) -> list[Position]:
    """Look up the queues of committed offsets; sorted by group, topic and queue, delay levels last.

    Raises:
        StoreNotFoundError: no such store, or no CommitLog in it.
        StoreError: the queues are in a RocksDB that cannot be read.
        FormatError: the RocksDB is damaged.
    """
    by_queue = {(committed.topic, committed.queue_id): committed for committed in committed_offsets}
    rows = tuple(GroupQueue(topic, queue_id, "", None) for topic, queue_id in sorted(by_queue))
    if not rows:
        return []
    wants_light = any(row.topic.startswith(LIGHT_QUEUE_PREFIX) for row in rows)
    choice = choose_queues(store, wants_light=wants_light)
    lag = read_lag(store.root, LagTask(rows, is_dirty=dirty_reason(store) is not None, choice=choice))
    begins = read_begins_elsewhere(store, by_queue)
    min_offsets, max_offsets = lag.column("min_offset").to_pylist(), lag.column("max_offset").to_pylist()
    ends = {
        row.queue: (min(least, begins.get(row.queue, least)), end, least)
        for row, least, end in zip(rows, min_offsets, max_offsets, strict=True)
    }
    positions = [Position(committed, *ends[committed.topic, committed.queue_id]) for committed in committed_offsets]
    return sorted(positions, key=lambda item: (item.committed.group is None, item.committed.group or "", *item.queue))
