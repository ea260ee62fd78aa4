"""The queues that a verification's driver knows by their directories: there may be ten million, at eight bytes each."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.hashing import java_string_hash
from rmq_formats.tasks.spill import partition_of
from rmq_formats.tasks.waves import MAX_PARTITIONS

QUEUES_PER_PARTITION: Final = 4096  # directories that one task lists


@dataclass(frozen=True, slots=True)
class QueuesByPartition:
    """Queues, each once, by the partition whose task checks them.

    Attributes:
        topics: those that have queues.
        topic_numbers: int32[n], the place of each queue's topic in ``topics``.
        queue_ids: int32[n].
        bounds: int64[partitions + 1], where the queues of each partition begin.
    """

    topics: Sequence[str]
    topic_numbers: NDArray[np.int32]
    queue_ids: NDArray[np.int32]
    bounds: NDArray[np.int64]

    def __len__(self) -> int:
        """Number of partitions."""
        return len(self.bounds) - 1

    def of(self, partition: int) -> list[tuple[str, int]]:
        """Topic and queue id of each queue of a partition."""
        own = slice(self.bounds[partition], self.bounds[partition + 1])
        numbers, queue_ids = self.topic_numbers[own].tolist(), self.queue_ids[own].tolist()
        return [(self.topics[number], queue_id) for number, queue_id in zip(numbers, queue_ids, strict=True)]


class QueueDirectories:
    """Collects queues, of which the same may come from several directories."""

    def __init__(self) -> None:
        self._topics: dict[str, int] = {}
        self._numbers, self._queue_ids = array("i"), array("i")

    def add(self, topic: str, queue_ids: Sequence[int]) -> None:
        """Add queues of a topic; their ids are Java's, of 32 bits."""
        if queue_ids:
            number = self._topics.setdefault(topic, len(self._topics))
            self._numbers.extend([number] * len(queue_ids))
            self._queue_ids.extend(queue_ids)

    def by_partition(self, least: int) -> QueuesByPartition:
        """Divide the queues among partitions: ``least`` or more, so that none has too many, up to a bound."""
        both = np.array(self._numbers, dtype=np.int64) << 32
        both |= np.array(self._queue_ids, dtype=np.int32).view(np.uint32)
        both = np.unique(both)
        numbers, queue_ids = (both >> 32).astype(np.int32), both.astype(np.uint32).view(np.int32)
        count = min(MAX_PARTITIONS, max(least, -(-len(both) // QUEUES_PER_PARTITION)))
        hashes = np.fromiter(map(java_string_hash, self._topics), dtype=np.int64, count=len(self._topics))
        partitions = partition_of(hashes[numbers], queue_ids.astype(np.int64), count).astype(np.int16)
        order = np.argsort(partitions, kind="stable")
        bounds = np.searchsorted(partitions[order], np.arange(count + 1))
        return QueuesByPartition(list(self._topics), numbers[order], queue_ids[order], bounds)
