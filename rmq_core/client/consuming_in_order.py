"""Consuming the messages of a queue one after the other; queues do not wait for each other.

Source: ``ConsumeMessageOrderlyService``.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from rmq_core.client.listener import Later, Listener, call_listener
from rmq_core.client.message import ReceivedMessage
from rmq_core.client.offset_store import OffsetStore
from rmq_core.client.options import PushOptions
from rmq_core.client.process_queue import ProcessQueue
from rmq_core.client.send_back import MAX_INT, SendBack
from rmq_core.remoting.bodies import MessageQueue
from rmq_core.remoting.errors import RemotingError

log = logging.getLogger("rmq.client")
_UNTIL_LOCKED_S: Final = 0.1
_CALLS_IN_A_ROW: Final = 32  # then others on the event loop have their turn


class ConsumingInOrder:
    """One task a queue; what fails holds its queue up until it succeeds, or has failed too often."""

    def __init__(
        self,
        listener: Listener,
        offsets: OffsetStore,
        options: PushOptions,
        send_back: SendBack | None,
        is_locked: Callable[[MessageQueue], bool],
    ) -> None:
        """Prepare.

        Args:
            listener: the user's.
            offsets: take note of what is consumed.
            options: the consumer's.
            send_back: for what has failed too often; None when broadcasting: then it is lost.
            is_locked: whether a queue is this consumer's now.
        """
        self._listener = listener
        self._offsets = offsets
        self._options = options
        self._send_back = send_back
        self._is_locked = is_locked
        self._tasks: dict[ProcessQueue, asyncio.Task[None]] = {}
        limit = options.max_reconsume_times
        self._max_reconsume_times = MAX_INT if limit == -1 else limit

    def start(self) -> None:
        """Nothing to do: each queue has its task."""

    def add(self, queue: MessageQueue, messages: ProcessQueue) -> None:
        """Begin with a queue."""
        self._tasks[messages] = asyncio.get_running_loop().create_task(self._work(queue, messages))

    def put(self, queue: MessageQueue, messages: ProcessQueue, pulled: list[ReceivedMessage]) -> None:
        """Nothing to do: the task waits for messages itself."""

    async def drop(self, messages: ProcessQueue) -> None:
        """Wait until a running call ends: only then may another consumer have the queue."""
        task = self._tasks.pop(messages, None)
        if task is None:
            return
        messages.is_closed = True
        messages.arrived.set()
        done, _ = await asyncio.wait([task], timeout=self._options.close_timeout_s)
        if not done:
            task.cancel()
            await asyncio.wait([task])

    async def close(self) -> None:
        """End; running calls have ``close_timeout_s`` for it."""
        await asyncio.gather(*(self.drop(messages) for messages in list(self._tasks)))

    async def _work(self, queue: MessageQueue, messages: ProcessQueue) -> None:
        calls = 0
        while True:
            while not messages.waiting and not messages.is_closed:
                messages.arrived.clear()
                await messages.arrived.wait()
            while not messages.is_closed and not self._is_locked(queue):
                await asyncio.sleep(_UNTIL_LOCKED_S)
            if messages.is_closed:
                return
            waiting = messages.waiting
            size = min(self._options.consume_batch_size, len(waiting))
            await self._consume(queue, messages, [waiting.popleft() for _ in range(size)])
            calls += 1
            if calls % _CALLS_IN_A_ROW == 0:
                await asyncio.sleep(0)

    async def _consume(self, queue: MessageQueue, messages: ProcessQueue, batch: list[ReceivedMessage]) -> None:
        later = await call_listener(self._listener, batch)
        if messages.is_dropped:
            return
        kept = [] if later is None else await self._kept(batch[max(later.done, 0) :])
        # What is left of a batch comes again in its order, even those behind it that could be given up.
        done = [message for message in batch if message not in kept]
        if done:
            self._offsets.update(queue, messages.done(done), only_up=False)
        if kept and later is not None:
            messages.waiting.extendleft(reversed(kept))
            await self._suspend(messages, later)

    async def _suspend(self, messages: ProcessQueue, later: Later) -> None:
        seconds = self._options.suspend_queue_s if later.suspend_s is None else later.suspend_s
        end = asyncio.get_running_loop().time() + seconds
        while not messages.is_closed and (left_s := end - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(min(left_s, _UNTIL_LOCKED_S))

    async def _kept(self, failed: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Those that are to be consumed again; the others have failed too often, and are dead letters now."""
        kept = []
        for message in failed:
            if message.reconsume_times < self._max_reconsume_times or not await self._given_up(message):
                message.reconsume_times += 1
                kept.append(message)
        return kept

    async def _given_up(self, message: ReceivedMessage) -> bool:
        if self._send_back is None:
            log.warning("broadcasting: %s of %s failed and is dropped", message.msg_id, message.topic)
            return True
        try:
            await self._send_back.send_anew(message)
        except RemotingError as error:
            log.warning("%s of %s cannot be given up: %s", message.msg_id, message.topic, error)
            return False
        return True
