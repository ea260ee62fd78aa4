"""Popped messages that nobody has acknowledged yet, and when they come back by the steady clock.

Their check points wait as timer messages, which follow the time of day. Where that is set forward they come too early,
and where it is set back, too late; this table tells when each was to come. It is in memory: after a start the time of
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
    """A check point that is not done.

    Attributes:
        point: as it was written.
        queue_id: of the revive topic.
        due_ms: when its messages come back, by the steady clock.
        bits: of the acknowledged messages.
    """

    point: CheckPoint
    queue_id: int
    due_ms: int
    bits: int = 0

    @property
    def is_done(self) -> bool:
        """Whether all its messages are acknowledged."""
        return self.bits == (1 << self.point.n) - 1


class OutstandingPops:
    """Check points that are not done, by key."""

    def __init__(self, most: int = _MOST) -> None:
        """Retain so many at most."""
        self._most = most
        self._pops: dict[Key, OutstandingPop] = {}
        self._late: list[tuple[int, Key]] = []  # a heap of those that wait for a time of day that was set back

    def add(self, point: CheckPoint, queue_id: int, due_ms: int) -> None:
        """Retain a check point that was written."""
        self._pops.pop(point.key, None)
        if len(self._pops) >= self._most:
            del self._pops[next(iter(self._pops))]
        self._pops[point.key] = OutstandingPop(point, queue_id, due_ms, point.bm)

    def acknowledge(self, ack: Acknowledgement) -> None:
        """Note acknowledged messages."""
        pop = self._pops.get(ack.key)
        if pop is not None:
            pop.bits |= pop.point.bits_of(ack.offsets)
            if pop.is_done:
                del self._pops[ack.key]

    def get(self, key: Key) -> OutstandingPop | None:
        """A check point that is not done; None if it is, or is not known."""
        return self._pops.get(key)

    def remove(self, key: Key) -> None:
        """Forget a check point that is done."""
        self._pops.pop(key, None)

    def retry(self, pop: OutstandingPop) -> None:
        """Give a late check point once more, which could not be revived now."""
        heappush(self._late, (pop.due_ms, pop.point.key))

    def set_back(self) -> None:
        """Note that the time of day was set back: all check points come too late by themselves."""
        self._late = [(pop.due_ms, key) for key, pop in self._pops.items()]
        heapify(self._late)

    def late(self, steady_ms: int) -> Iterator[OutstandingPop]:
        """The check points whose time is over, and that do not come by themselves; each is given once."""
        while self._late and self._late[0][0] <= steady_ms:
            due_ms, key = heappop(self._late)
            pop = self._pops.get(key)
            if pop is not None and pop.due_ms == due_ms:
                yield pop
