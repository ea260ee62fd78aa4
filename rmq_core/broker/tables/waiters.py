"""Runs callbacks once messages are flushed or replicated, and redirects delayed messages to their level's queue.

Source: ``HookUtils#handleScheduleMessage``, ``CommitLog#handleDiskFlush``.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from rmq_core.broker.tables.names import SCHEDULE_TOPIC
from rmq_core.store.config import FlushDiskType
from rmq_core.store.results import PutResult
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.consumequeue import delay_levels_ms
from rmq_formats.codecs.layout import PROPERTY_DELAY, PROPERTY_REAL_QUEUE_ID, PROPERTY_REAL_TOPIC

_DRAIN_POLL_S: Final = 0.005


class _DelayedAnswer(NamedTuple):
    end_offset: int
    deadline: float
    done: Callable[[bool], None]


class Waiters:
    """Callbacks that wait for the log to be flushed or replicated up to an offset, in the order of the log."""

    def __init__(self, timeout_ms: int) -> None:
        """Use the running event loop; a callback waits for ``timeout_ms`` at most."""
        self._timeout_s = timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_DelayedAnswer] = deque()

    def add(self, result: PutResult, done: Callable[[bool], None]) -> None:
        """Call ``done`` with True once a message is flushed and replicated, with False on a timeout or an error."""
        self._waiting.append(_DelayedAnswer(result.end_offset, self._loop.time() + self._timeout_s, done))

    def release(self, offset: int) -> None:
        """Run the callbacks of messages that end at or below an offset."""
        waiting = self._waiting
        while waiting and waiting[0].end_offset <= offset:
            waiting.popleft().done(True)

    async def drain(self) -> None:
        """Wait for all callbacks that wait now: later ones, which may come on and on, are not waited for."""
        last = self._waiting[-1].end_offset if self._waiting else -1
        while self._waiting and self._waiting[0].end_offset <= last:
            await asyncio.sleep(_DRAIN_POLL_S)
            self.expire()

    def expire(self) -> None:
        """Run callbacks that have waited too long, with False; to be called periodically."""
        now, waiting = self._loop.time(), self._waiting
        while waiting and waiting[0].deadline <= now:
            waiting.popleft().done(False)

    def fail(self) -> None:
        """Run all callbacks with False: what they wait for will not come."""
        while self._waiting:
            self._waiting.popleft().done(False)


class DelayLevels:
    """Delay levels of ``messageDelayLevel`` from 1 on, and the schedule topic that messages of a level wait in."""

    def __init__(self, store: MessageStore) -> None:
        self.delays_ms = delay_levels_ms(store.config.delay_levels)

    def redirect(self, topic: str, queue_id: int, properties: dict[str, str], level: int) -> tuple[str, int]:
        """Topic and queue where a message of a delay level waits; its properties get its real topic and queue.

        Args:
            properties: of the message; they are changed.
            level: above 0; one above the highest is the highest.
        """
        level = min(level, len(self.delays_ms))
        properties[PROPERTY_DELAY] = str(level)
        properties[PROPERTY_REAL_TOPIC] = topic
        properties[PROPERTY_REAL_QUEUE_ID] = str(queue_id)
        return SCHEDULE_TOPIC, level - 1


class DiskWaiters(Waiters):
    """Callbacks that wait for the flush of a message; with ASYNC_FLUSH there are none."""

    def __init__(self, store: MessageStore, timeout_ms: int, dispatch: Callable[[], None]) -> None:
        """Wait on the running event loop; ``dispatch`` makes flushed messages readable."""
        super().__init__(timeout_ms)
        self.is_sync = store.config.flush_disk_type is FlushDiskType.SYNC
        self._store = store
        self._dispatch = dispatch
        self._is_closed = False
        if self.is_sync:
            store.on_flushed(lambda _: self._call(self._forced))
            store.on_fault(lambda _: self._call(self.fail))  # nothing that waits is flushed

    def _call(self, function: Callable[[], None]) -> None:
        """Call a function on the event loop, from any thread."""
        if not self._is_closed:
            self._loop.call_soon_threadsafe(function)

    def _forced(self) -> None:
        """Dispatch the messages that are flushed now, so that they are readable, then run their callbacks."""
        self._dispatch()
        self.release(self._store.flushed_offset)

    def close(self) -> None:
        """Ignore the store from now on, as it is about to be closed."""
        self._is_closed = True
