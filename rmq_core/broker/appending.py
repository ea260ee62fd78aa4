"""Messages on their way into the store: delays, and waiting for the disk.

Source: ``HookUtils#handleScheduleMessage``, ``CommitLog#handleDiskFlush``.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from rmq_core.broker.names import SCHEDULE_TOPIC
from rmq_core.store.config import FlushDiskType
from rmq_core.store.store import MessageStore
from rmq_core.store.values import PutResult
from rmq_formats.consumequeue import delay_levels_ms
from rmq_formats.layout import PROPERTY_DELAY

REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
_DRAIN_POLL_S: Final = 0.005


class _Waiting(NamedTuple):
    end_offset: int
    deadline: float
    done: Callable[[bool], None]


class Waiters:
    """Who waits for a stretch of the log, in the order of the log."""

    def __init__(self, timeout_ms: int) -> None:
        """Wait on the running event loop, each for so long at most."""
        self._timeout_s = timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()

    def add(self, result: PutResult, done: Callable[[bool], None]) -> None:
        """Have a function called when a message is where it has to be, or will not be in time.

        Args:
            result: of its append.
            done: called with whether it is.
        """
        self._waiting.append(_Waiting(result.end_offset, self._loop.time() + self._timeout_s, done))

    def release(self, offset: int) -> None:
        """Tell those whose messages stand below an offset."""
        waiting = self._waiting
        while waiting and waiting[0].end_offset <= offset:
            waiting.popleft().done(True)

    async def drain(self) -> None:
        """Wait until nobody waits any more of those who wait now: others may come on and on."""
        last = self._waiting[-1].end_offset if self._waiting else -1
        while self._waiting and self._waiting[0].end_offset <= last:
            await asyncio.sleep(_DRAIN_POLL_S)
            self.expire()

    def expire(self) -> None:
        """Tell those that have waited too long; call it now and then."""
        now, waiting = self._loop.time(), self._waiting
        while waiting and waiting[0].deadline <= now:
            waiting.popleft().done(False)

    def fail(self) -> None:
        """Tell all that it will not come to be."""
        while self._waiting:
            self._waiting.popleft().done(False)


class DelayLevels:
    """The delays of the levels.

    Attributes:
        delays_ms: of level 1 and on.
    """

    def __init__(self, store: MessageStore) -> None:
        self.delays_ms = delay_levels_ms(store.config.delay_levels)

    def redirect(self, topic: str, queue_id: int, properties: dict[str, str], level: int) -> tuple[str, int]:
        """Where a message of a level waits; its properties get to know where it belongs.

        Args:
            topic: where it belongs.
            queue_id: likewise.
            properties: of the message; they are changed.
            level: above 0; one above the highest is the highest.
        """
        level = min(level, len(self.delays_ms))
        properties[PROPERTY_DELAY] = str(level)
        properties[REAL_TOPIC] = topic
        properties[REAL_QUEUE_ID] = str(queue_id)
        return SCHEDULE_TOPIC, level - 1


class DiskWaiters(Waiters):
    """Who waits for the disk; with ASYNC_FLUSH nobody does."""

    def __init__(self, store: MessageStore, timeout_ms: int) -> None:
        """Wait on the running event loop.

        Args:
            store: where messages go.
            timeout_ms: how long each waits at most.
        """
        super().__init__(timeout_ms)
        self.is_sync = store.config.flush_disk_type is FlushDiskType.SYNC
        self._store = store
        self._is_closed = False
        if self.is_sync:
            store.on_flushed(lambda _: self._call(self._forced))
            store.on_fault(lambda _: self._call(self.fail))  # nothing that waits is on the disk

    def _call(self, function: Callable[[], None]) -> None:
        """Have the loop call a function."""
        if not self._is_closed:
            self._loop.call_soon_threadsafe(function)

    def _forced(self) -> None:
        """Tell those whose messages are on the disk now, and have these dispatched first: they may be read."""
        self._store.dispatch()
        self.release(self._store.flushed_offset)

    def close(self) -> None:
        """The store is about to be let go."""
        self._is_closed = True
