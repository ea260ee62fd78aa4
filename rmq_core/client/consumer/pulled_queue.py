"""Assigned queue of a pull consumer: its position, and a cache of pulled messages for ``poll``.

Source: ``DefaultLitePullConsumerImpl.PullTaskImpl``, ``AssignedMessageQueue``.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from rmq_core.client.errors import is_refusal, is_transient
from rmq_core.client.message import ReceivedMessage
from rmq_core.client.options import PullOptions
from rmq_core.client.pull.request import Puller, PullStatus
from rmq_core.remoting.bodies.clients import ProcessQueueInfo, SubscriptionData
from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_core.remoting.errors import RemotingError
from rmq_formats.errors import FormatError

log = logging.getLogger("rmq.client")
_AFTER_ERROR_S: Final = 1.0  # DefaultLitePullConsumer#pullTimeDelayMillsWhenException


class Arrivals:
    """Signal from the pulls of all queues to ``poll``.

    ``changed`` is set when messages or an error have arrived; ``error`` is that of a pull since the last ``poll``,
    unless a later pull may succeed.
    """

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.error: Exception | None = None


class PulledQueue:
    """An assigned queue that is pulled while its cache has room.

    Attributes:
        position: offset of the message that ``poll`` returns next; None until the begin offset is known.
        is_revoked: the queue is no longer assigned, and ``poll`` returns no messages of it.
        is_abandoned: always False, as no work continues after a stop.
    """

    is_abandoned: Final = False

    def __init__(
        self,
        queue: MessageQueue,
        subscription: SubscriptionData,
        puller: Puller,
        options: PullOptions,
        begin_offset: Callable[[MessageQueue], Awaitable[int]],
        arrivals: Arrivals,
    ) -> None:
        """Create the queue; ``start`` starts its pulls, at the offset of ``begin_offset`` if it gets none."""
        self.queue = queue
        self.subscription = subscription
        self.position: int | None = None
        self.is_paused = False
        self.is_revoked = False
        self.last_pull_ms = 0  # since 1970
        self._puller = puller
        self._options = options
        self._begin_offset = begin_offset
        self._arrivals = arrivals
        self._next_offset = 0  # offset of the next pull
        self._cached: deque[ReceivedMessage] = deque()
        self._cached_bytes = 0
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, offset: int | None) -> None:
        """Start, or continue, at an offset; None stands for the offset of ``begin_offset``."""
        self.cancel()
        self.position = offset
        self._next_offset = offset or 0
        self._task = asyncio.get_running_loop().create_task(self._pull_loop())

    async def stop(self) -> None:
        """Stop at once: unlike in the pull loops of push consumers, no work has to end first."""
        self.cancel()

    def cancel(self) -> None:
        """Stop pulling, and drop the cached messages."""
        if self._task is not None:
            self._task.cancel()
        self._cached.clear()
        self._cached_bytes = 0

    def poll(self, limit: int) -> list[ReceivedMessage]:
        """Remove messages from the cache, in order."""
        cached = self._cached
        if not cached or self.is_paused or self.is_revoked:
            return []
        messages = [cached.popleft() for _ in range(min(limit, len(cached)))]
        self._cached_bytes -= sum(message.size for message in messages)
        self.position = messages[-1].queue_offset + 1 if cached else self._next_offset
        self._room.set()
        return messages

    def info(self, committed_offset: int | None) -> ProcessQueueInfo:
        """Build the queue's info for a broker; -1 stands for no committed offset, as in Java."""
        cached = self._cached
        return ProcessQueueInfo(
            cached_msg_count=len(cached),
            cached_msg_min_offset=cached[0].queue_offset if cached else 0,
            cached_msg_max_offset=cached[-1].queue_offset if cached else 0,
            cached_msg_size_in_mib=self._cached_bytes >> 20,
            commit_offset=-1 if committed_offset is None else committed_offset,
            droped=self.is_revoked,
            last_pull_timestamp=self.last_pull_ms,
        )

    async def _pull_loop(self) -> None:
        while True:
            try:
                await self._pull_once()
            except (RemotingError, FormatError) as error:
                level = logging.DEBUG if is_refusal(error) else logging.WARNING  # ``poll`` raises the error
                log.log(level, "pulling %s of %s failed: %s", self.queue.queue_id, self.queue.topic, error)
                if not is_transient(error):
                    self._arrivals.error = error
                    self._arrivals.changed.set()
                await asyncio.sleep(_AFTER_ERROR_S)
            except Exception:
                log.exception("pulling %s of %s failed", self.queue.queue_id, self.queue.topic)
                await asyncio.sleep(_AFTER_ERROR_S)

    async def _pull_once(self) -> None:
        if self.position is None:
            self._next_offset = self.position = await self._begin_offset(self.queue)
        self.last_pull_ms = self._options.clock_ms()
        pulled = await self._puller.pull(self.queue, self._next_offset, self.subscription)
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            log.warning("%d of %s is out of range, continuing at %d", self._next_offset, self.queue, pulled.next_offset)
        self._next_offset = pulled.next_offset
        if pulled.messages:
            self._cached.extend(pulled.messages)
            self._cached_bytes += sum(message.size for message in pulled.messages)
            self._arrivals.changed.set()
        elif not self._cached:
            self.position = pulled.next_offset
        options = self._options
        while len(self._cached) > options.max_cached_messages or self._cached_bytes > options.max_cached_bytes:
            self._room.clear()
            await self._room.wait()
