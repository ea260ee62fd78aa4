"""Consumption of pulled messages by the listener: concurrently in any order, or in the order of each queue.

A process queue has the pulled and unconsumed messages of a queue, and the offset that can be committed. In concurrent
consumption a pool of workers serves all queues; in orderly consumption each queue has a task.

Source: ``ProcessQueue``, ``ConsumeMessageConcurrentlyService``, ``ConsumeMessageOrderlyService``.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from rmq_core.client.consumer.offset_store import OffsetStore
from rmq_core.client.consumer.send_back import MAX_INT, SendBack
from rmq_core.client.listener import Later, Listener, call_listener
from rmq_core.client.message import ReceivedMessage
from rmq_core.client.options import ConsumerOptions, PushOptions
from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_formats.errors import RmqError

log = logging.getLogger("rmq.client")
_RETRY_S: Final = 5.0  # pause after a failed send-back
_TIMEOUT_DELAY_LEVEL: Final = 3  # ProcessQueue#cleanExpiredMsg
_CALLS_PER_TURN: Final = 32  # listener calls before the worker yields to the event loop
_LOCK_POLL_S: Final = 0.1


class ProcessQueue:
    """The pulled messages of a queue that are not consumed yet.

    Attributes:
        is_closed: no more calls of the listener start.
        is_abandoned: a call of the listener was cancelled, whose threads may still run.
        is_dropped: the queue is unassigned, or starts at another offset, so that results of its messages do not count.
        waiting: messages that an orderly consumer consumes next.
    """

    def __init__(self, options: ConsumerOptions, *, in_order: bool) -> None:
        self.is_closed = False
        self.is_abandoned = False
        self.is_dropped = False
        self.cached_bytes = 0
        self.has_messages = asyncio.Event()
        self.waiting: deque[ReceivedMessage] = deque()
        self._options = options
        self._in_order = in_order
        self._messages: dict[int, ReceivedMessage] = {}
        self._offsets: deque[int] = deque()  # ascending; a consumed offset is removed when it is the first one
        self._end = 0
        self._room = asyncio.Event()

    def __len__(self) -> int:
        return len(self._messages)

    def __contains__(self, message: ReceivedMessage) -> bool:
        return message.queue_offset in self._messages

    def put(self, messages: Iterable[ReceivedMessage]) -> None:
        """Add pulled messages, in the order of their queue offsets."""
        for message in messages:
            self._messages[message.queue_offset] = message
            self._offsets.append(message.queue_offset)
            self.cached_bytes += message.size
            self._end = message.queue_offset + 1
        if self._in_order:
            self.waiting.extend(messages)
            self.has_messages.set()

    def remove_consumed(self, messages: Iterable[ReceivedMessage]) -> int:
        """Remove consumed messages; return the offset to commit, which is that of the first unconsumed message."""
        for message in messages:
            if self._messages.pop(message.queue_offset, None) is not None:
                self.cached_bytes -= message.size
        offsets = self._offsets
        while offsets and offsets[0] not in self._messages:
            offsets.popleft()
        self._room.set()
        return offsets[0] if offsets else self._end

    @property
    def span(self) -> int:
        """The difference between the last and the first queue offset."""
        return self._offsets[-1] - self._offsets[0] if self._offsets else 0

    @property
    def bounds(self) -> tuple[int, int]:
        """The first and the last queue offset; zeros if there is no message."""
        return (self._offsets[0], self._offsets[-1]) if self._offsets else (0, 0)

    @property
    def has_room(self) -> bool:
        """Return True if flow control allows another pull. Source: ``DefaultMQPushConsumerImpl#pullMessage``."""
        options = self._options
        return (
            len(self._messages) <= options.max_cached_messages
            and self.cached_bytes <= options.max_cached_bytes
            and (self._in_order or self.span <= options.max_span)
        )

    async def wait_for_room(self) -> None:
        """Wait until flow control allows another pull."""
        while not self.has_room:
            self._room.clear()
            await self._room.wait()


class _Call:
    __slots__ = ("begin_s", "messages", "process_queue", "queue")

    def __init__(self, queue: MessageQueue, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        self.queue = queue
        self.process_queue = process_queue
        self.messages = messages
        self.begin_s = 0.0


class ConsumeMessageConcurrentlyService:
    """Concurrent consumption: several listener calls at a time; failed messages are sent back."""

    def __init__(
        self, listener: Listener, offsets: OffsetStore, options: PushOptions, send_back: SendBack | None
    ) -> None:
        """Create the service, not started. Without ``send_back`` (broadcasting) failed messages are lost."""
        self._listener = listener
        self._offsets = offsets
        self._options = options
        self._send_back = send_back
        self._calls: asyncio.Queue[_Call] = asyncio.Queue()
        self._running: set[_Call] = set()
        self._workers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the workers."""
        create = asyncio.get_running_loop().create_task
        self._workers = [create(self._work()) for _ in range(self._options.concurrency)]
        self._workers.append(create(self._send_back_timed_out()))

    def add(self, queue: MessageQueue, messages: ProcessQueue) -> None:
        """Do nothing: workers serve all queues."""

    def put(self, queue: MessageQueue, messages: ProcessQueue, pulled: list[ReceivedMessage]) -> None:
        """Enqueue calls of the listener for pulled messages, which ``messages`` has already."""
        size = self._options.consume_batch_size
        for at in range(0, len(pulled), size):
            self._calls.put_nowait(_Call(queue, messages, pulled[at : at + size]))

    async def stop_queue(self, messages: ProcessQueue) -> None:
        """Start no more calls for a queue; do not wait for running calls, whose results will not count."""
        messages.is_closed = True

    async def close(self) -> None:
        """Stop; cancel the calls that still run after ``close_timeout_s``."""
        while not self._calls.empty():
            self._calls.get_nowait()
        deadline = asyncio.get_running_loop().time() + self._options.close_timeout_s
        while self._running and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    async def _work(self) -> None:
        in_a_row = 0
        while True:
            call = await self._calls.get()
            try:
                await self._consume(call)
            except Exception:
                log.exception("consuming %s failed, retried in %g s", call.queue, _RETRY_S)
                asyncio.get_running_loop().call_later(_RETRY_S, self._calls.put_nowait, call)
            in_a_row += 1
            if in_a_row == _CALLS_PER_TURN:
                in_a_row = 0
                await asyncio.sleep(0)

    async def _consume(self, call: _Call) -> None:
        if call.process_queue.is_closed:
            return
        call.begin_s = asyncio.get_running_loop().time()
        self._running.add(call)
        try:
            later = await call_listener(self._listener, call.messages)
        finally:
            self._running.discard(call)
        if later is not None and not call.process_queue.is_dropped:
            await self._send_back_failed(call, later)
        self._commit(call)

    def _commit(self, call: _Call) -> None:
        offset = call.process_queue.remove_consumed(call.messages)
        if not call.process_queue.is_dropped:
            self._offsets.update(call.queue, offset)

    async def _send_back_failed(self, call: _Call, later: Later) -> None:
        """Send back failed messages; a message that cannot be sent back is consumed again."""
        failed = [message for message in call.messages[max(later.done, 0) :] if message in call.process_queue]
        if self._send_back is None:
            for message in failed:
                log.warning("broadcasting: %s of %s failed and is dropped", message.msg_id, message.topic)
            return
        remaining = []
        for message in failed:
            try:
                await self._send_back.send(message, later.delay_level)
            except RmqError as error:
                log.warning("cannot send back %s, retried in %g s: %s", message.msg_id, _RETRY_S, error)
                message.reconsume_times += 1
                remaining.append(message)
        if remaining:
            call.messages = [message for message in call.messages if message not in remaining]
            asyncio.get_running_loop().call_later(_RETRY_S, self.put, call.queue, call.process_queue, remaining)

    async def _send_back_timed_out(self) -> None:
        """Periodically send back messages whose consumption times out, so that their queue's offset advances."""
        limit_s = self._options.consume_timeout_s
        while True:
            await asyncio.sleep(limit_s / 2)
            now = asyncio.get_running_loop().time()
            for call in [call for call in self._running if now - call.begin_s > limit_s]:
                log.warning("the listener takes longer than %g s: %s", limit_s, call.messages[0].msg_id)
                try:
                    await self._send_back_failed(call, Later(delay_level=_TIMEOUT_DELAY_LEVEL))
                    self._commit(call)
                except Exception:
                    log.exception("sending back messages of %s failed", call.queue)


class ConsumeMessageOrderlyService:
    """Orderly consumption, a task for each queue; a failed message blocks its queue until success or the last retry."""

    def __init__(
        self,
        listener: Listener,
        offsets: OffsetStore,
        options: PushOptions,
        send_back: SendBack | None,
        is_locked: Callable[[MessageQueue], bool],
    ) -> None:
        """Create the service; ``add`` starts a queue's task. Without ``send_back`` messages out of retries are lost."""
        self._listener = listener
        self._offsets = offsets
        self._options = options
        self._send_back = send_back
        self._is_locked = is_locked
        self._tasks: dict[ProcessQueue, asyncio.Task[None]] = {}
        limit = options.max_reconsume_times
        self._max_reconsume_times = MAX_INT if limit == -1 else limit

    def start(self) -> None:
        """Do nothing: each queue has its own task."""

    def add(self, queue: MessageQueue, messages: ProcessQueue) -> None:
        """Start the task of a queue."""
        self._tasks[messages] = asyncio.get_running_loop().create_task(self._work(queue, messages))

    def put(self, queue: MessageQueue, messages: ProcessQueue, pulled: list[ReceivedMessage]) -> None:
        """Do nothing: the queue's task waits for messages itself."""

    async def stop_queue(self, messages: ProcessQueue) -> None:
        """Stop a queue's task, and wait for its running call, before another consumer may get the queue."""
        messages.is_closed = True
        messages.has_messages.set()
        task = self._tasks.get(messages)
        if task is not None:
            await asyncio.wait([task])
            self._tasks.pop(messages, None)

    async def close(self) -> None:
        """Stop; cancel the calls that still run after ``close_timeout_s``."""
        for messages in self._tasks:
            messages.is_closed = True
            messages.has_messages.set()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=self._options.close_timeout_s)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _work(self, queue: MessageQueue, messages: ProcessQueue) -> None:
        calls = 0
        while True:
            while not messages.waiting and not messages.is_closed:
                messages.has_messages.clear()
                await messages.has_messages.wait()
            while not messages.is_closed and not self._is_locked(queue):
                await asyncio.sleep(_LOCK_POLL_S)
            if messages.is_closed:
                return
            waiting = messages.waiting
            size = min(self._options.consume_batch_size, len(waiting))
            batch = [waiting.popleft() for _ in range(size)]
            try:
                await self._consume(queue, messages, batch)
            except Exception:
                log.exception("consuming %s failed, retried in %g s", queue, _RETRY_S)
                waiting.extendleft(message for message in reversed(batch) if message in messages)
                await self._suspend(messages, Later(suspend_s=_RETRY_S))
            calls += 1
            if calls % _CALLS_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _consume(self, queue: MessageQueue, messages: ProcessQueue, batch: list[ReceivedMessage]) -> None:
        try:
            later = await call_listener(self._listener, batch)
        except asyncio.CancelledError:
            messages.is_abandoned = True
            raise
        if messages.is_dropped:
            return
        retries = [] if later is None else await self._filter_retries(batch[max(later.done, 0) :])
        if messages.is_dropped:  # meanwhile, by a reset of offsets
            return
        # The rest of a batch is retried in order, even messages after the failed one that are out of retries.
        done = [message for message in batch if message not in retries]
        if done:
            self._offsets.update(queue, messages.remove_consumed(done), only_up=False)
        if retries and later is not None:
            messages.waiting.extendleft(reversed(retries))
            await self._suspend(messages, later)

    async def _suspend(self, messages: ProcessQueue, later: Later) -> None:
        seconds = self._options.suspend_queue_s if later.suspend_s is None else later.suspend_s
        end = asyncio.get_running_loop().time() + seconds
        while not messages.is_closed and (left_s := end - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(min(left_s, _LOCK_POLL_S))

    async def _filter_retries(self, failed: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return the messages to retry; messages out of retries become dead letters, or are dropped (broadcasting)."""
        retries = []
        for message in failed:
            if message.reconsume_times < self._max_reconsume_times or not await self._send_to_dead_letters(message):
                message.reconsume_times += 1
                retries.append(message)
        return retries

    async def _send_to_dead_letters(self, message: ReceivedMessage) -> bool:
        if self._send_back is None:
            log.warning("broadcasting: %s of %s failed and is dropped", message.msg_id, message.topic)
            return True
        try:
            await self._send_back.send_copy(message)
        except RmqError as error:
            log.warning("cannot send back %s of %s: %s", message.msg_id, message.topic, error)
            return False
        return True


ConsumeMessageService = ConsumeMessageConcurrentlyService | ConsumeMessageOrderlyService
