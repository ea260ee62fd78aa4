"""Consumption of popped messages by a listener: consumed messages are acknowledged, others come back later.

Source: ``ConsumeMessagePopConcurrentlyService``, ``ConsumeMessagePopOrderlyService``.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from rmq_core.client.listener import Later, Listener, call_listener
from rmq_core.client.message import ReceivedMessage
from rmq_core.client.options import PopOptions
from rmq_core.client.pop.requests import PopRequests, handle_of
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.pop import MOST_MESSAGES
from rmq_formats.errors import RmqError

log = logging.getLogger("rmq.client")
_AFTER_ERROR_S: Final = 1.0  # after brokers that failed
_TO_DEAD_LETTERS: Final = -1
RETRY_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)  # by level
_FIRST_LEVEL: Final = 3  # after the first failure


class ConsumeMessagePopService:
    """Loop that receives messages and calls a listener, until cancelled."""

    def __init__(
        self, receive: Callable[[int], Awaitable[list[ReceivedMessage]]], requests: PopRequests, options: PopOptions,
        listener: Listener,
    ) -> None:  # fmt: skip
        self._receive = receive
        self._requests = requests
        self._options = options
        self._listener = listener
        self._free = options.concurrency
        self._freed = asyncio.Event()
        self._calls: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Receive no more messages than there are free calls: a waiting message's invisible time would run out."""
        try:
            while True:
                while self._free < 1:
                    self._freed.clear()
                    await self._freed.wait()
                try:
                    messages = await self._receive(min(self._free, MOST_MESSAGES))
                except RemotingError as error:
                    log.warning("cannot receive: %s", error)
                    await asyncio.sleep(_AFTER_ERROR_S)
                    continue
                for sequence in self._sequences(messages):
                    self._call(sequence)
        finally:
            await self._end()

    def _sequences(self, messages: list[ReceivedMessage]) -> Iterable[list[ReceivedMessage]]:
        """Split messages into sequences for the listener: in order the messages of a queue, else single messages."""
        if not self._options.in_order:
            return ([message] for message in messages)
        by_queue: dict[object, list[ReceivedMessage]] = {}
        for message in messages:
            handle = handle_of(message)
            by_queue.setdefault((message.topic, handle.broker_name, handle.queue_id), []).append(message)
        return by_queue.values()

    def _call(self, messages: list[ReceivedMessage]) -> None:
        self._free -= len(messages)
        task = asyncio.get_running_loop().create_task(self._consume(messages))
        self._calls.add(task)
        task.add_done_callback(lambda done: self._on_call_end(done, len(messages)))

    def _on_call_end(self, task: asyncio.Task[None], count: int) -> None:
        self._calls.discard(task)
        self._free += count
        self._freed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a call of the listener failed", exc_info=error)

    async def _end(self) -> None:
        """Wait for running calls, and cancel them after the close timeout."""
        if self._calls:
            _, late = await asyncio.wait(self._calls, timeout=self._options.close_timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _consume(self, messages: list[ReceivedMessage]) -> None:
        """Consume messages one after the other; a failed message delays the messages after it."""
        for index, message in enumerate(messages):
            later = await call_listener(self._listener, [message])
            try:
                if later is None or later.done >= 1:
                    await self._requests.ack([message])
                elif self._is_dead_letter(message, later):
                    await self._requests.send_to_dead_letters(message)
                else:
                    await self._delay(messages[index:], later)
                    return
            except RmqError as error:  # its invisible time runs out, and it comes again
                log.warning("what became of %s cannot be told to its broker: %s", message.msg_id, error)

    def _is_dead_letter(self, message: ReceivedMessage, later: Later) -> bool:
        return later.delay_level == _TO_DEAD_LETTERS or message.reconsume_times >= self._options.max_reconsume_times

    async def _delay(self, messages: list[ReceivedMessage], later: Later) -> None:
        for message in messages:
            await self._requests.change(message, self._delay_s(message, later))

    def _delay_s(self, message: ReceivedMessage, later: Later) -> float:
        if self._options.in_order:
            return self._options.suspend_queue_s if later.suspend_s is None else later.suspend_s
        level = later.delay_level or _FIRST_LEVEL + message.reconsume_times
        return float(RETRY_S[min(level, len(RETRY_S)) - 1])
