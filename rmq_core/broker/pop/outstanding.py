"""Popped and unacknowledged messages, with the time of their return by the steady clock.

Check points wait as timer messages, which follow the time of day. They are early after the clock was set forward, and
late after the clock was set back; this table has their true times. The table is in memory: after a start the time of
day counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from rmq_core.broker.pop.records import Acknowledgement, CheckPoint, Key

_MOST: Final = 200_000  # check points; of the oldest above it the time of day counts


@dataclass(slots=True)
class OutstandingPop:
    """Unfinished check point.

    Attributes:
        queue_id: of the revive topic.
        due_ms: time at which the messages return, by the steady clock.
        bits: of the acknowledged messages.
    """

    point: CheckPoint
    queue_id: int
    due_ms: int
    bits: int = 0

    @property
    def is_done(self) -> bool:
        """True if all messages of the check point are acknowledged."""
        return self.bits == (1 << self.point.n) - 1


class OutstandingPops:
    """Unfinished check points, by key."""

    def __init__(self, most: int = _MOST) -> None:
        """Retain ``most`` check points at most."""
        self._max_count = most
        self._pops: dict[Key, OutstandingPop] = {}
        self._late: list[tuple[int, Key]] = []  # a heap of those that wait for a time of day that was set back

    def add(self, point: CheckPoint, queue_id: int, due_ms: int) -> None:
        """Add a check point after its write."""
        self._pops.pop(point.key, None)
        if len(self._pops) >= self._max_count:
            del self._pops[next(iter(self._pops))]
        self._pops[point.key] = OutstandingPop(point, queue_id, due_ms, point.bm)

    def acknowledge(self, ack: Acknowledgement) -> None:
        pop = self._pops.get(ack.key)
        if pop is not None:
            pop.bits |= pop.point.bits_of(ack.offsets)
            if pop.is_done:
                del self._pops[ack.key]

    def get(self, key: Key) -> OutstandingPop | None:
        """Return an unfinished check point; None if the check point is finished or unknown."""
        return self._pops.get(key)

    def remove(self, key: Key) -> None:
        self._pops.pop(key, None)

    def retry(self, pop: OutstandingPop) -> None:
        """Schedule a late check point again whose revival failed for now."""
        heappush(self._late, (pop.due_ms, pop.point.key))

    def set_back(self) -> None:
        """Schedule all check points after the clock was set back: as timer messages they would be late."""
        self._late = [(pop.due_ms, key) for key, pop in self._pops.items()]
        heapify(self._late)

    def late(self, steady_ms: int) -> Iterator[OutstandingPop]:
        """Yield the scheduled check points that are due, each once."""
        while self._late and self._late[0][0] <= steady_ms:
            due_ms, key = heappop(self._late)
            pop = self._pops.get(key)
            if pop is not None and pop.due_ms == due_ms:
                yield pop


MOST_KEYS: Final = 10_000
MOST_OFFSETS: Final = 32  # of a check point; more name messages that it does not have


class EarlyAcks:
    """Bounded buffer of acknowledgements that arrive before their check point.

    Acknowledgements of a finished check point, and repeated ones, must not fill the memory.
    """

    def __init__(self) -> None:
        self._offsets: dict[Key, set[int]] = {}

    def put(self, ack: Acknowledgement) -> None:
        """Add an acknowledgement. A full buffer evicts the oldest check point, which must be finished."""
        if ack.key not in self._offsets and len(self._offsets) >= MOST_KEYS:
            del self._offsets[next(iter(self._offsets))]
        offsets = self._offsets.setdefault(ack.key, set())
        for offset in ack.offsets[:MOST_OFFSETS]:
            if len(offsets) < MOST_OFFSETS:
                offsets.add(offset)

    def drain(self, key: Key) -> set[int]:
        """Remove and return the queue offsets of a check point."""
        return self._offsets.pop(key, set())
