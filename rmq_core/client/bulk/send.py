"""Bulk sends of encoded messages: batch requests to many queues at once, a single request in flight for each queue.

For programs that encode by kernels, as the Spark sink and the replay do. A queue's messages stay in order. A batch
without a response is sent again, so that a message may be stored twice (at least once). A batch that a broker refuses
as illegal may be too large for its ``maxMessageSize``, or have one message that is: its halves are sent, one behind the
other, down to single messages.

Source: ``SendMessageProcessor#sendBatchMessage``.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmq_core.client.cluster import Cluster
from rmq_core.client.errors import BrokerError, NoRouteError
from rmq_core.client.message import SendStatus
from rmq_core.client.options import ClientOptions
from rmq_core.client.producer.packet import MAX_GROUP_CHARACTERS, check_name, message_ends, message_properties
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_core.remoting.clock import now_ms
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.errors import RemotingError, TransportError
from rmq_core.remoting.header import request
from rmq_core.remoting.loop import Closable
from rmq_core.remoting.uniq_key import UniqKeys
from rmq_formats.arrow.messages import MAX_BATCH_MESSAGES
from rmq_formats.codecs.layout import PROPERTY_UNIQ_KEY

_STORED: Final = frozenset(status.value for status in SendStatus)
# Retriable: the broker may accept the same batch later.
_RETRIABLE_CODES: Final = (
    ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.FLOW_CONTROL, ResponseCode.GO_AWAY,
)  # fmt: skip
_ATTEMPTS: Final = 8
_FIRST_PAUSE_S: Final = 0.1  # doubled each time: a broker has some twelve seconds to restart
_TIMEOUT_S: Final = 10.0
_DEFAULTS: Final = ClientOptions()
_HEAD_CHARACTERS: Final = 20
_TAIL_SHIFTS: Final = np.arange(44, -4, -4, dtype=np.int64)
_DIGITS: Final = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)


class RefusedMessage(NamedTuple):
    """Message, in the encoding of a batch request, that a broker refuses as illegal even alone."""

    queue: MessageQueue
    data: bytes | memoryview
    properties: dict[str, str]
    error: BrokerError


class _WaitingMessages(NamedTuple):
    sys_flag: int
    data: bytes | memoryview
    messages: int
    done: Callable[[], None] | None
    refused: Callable[[RefusedMessage], None] | None


class BulkSender(Closable):
    """Sends to queues of existing topics; use it with ``async with``, whose end does not wait for sends in flight.

    ``messages`` is the number of stored messages.
    """

    def __init__(
        self,
        namesrv: str,
        group: str,
        *,
        batch_bytes: int = 256 << 10,
        max_pending_bytes: int = 64 << 20,
        options: ClientOptions = _DEFAULTS,
        credentials: Credentials | None = None,
    ) -> None:
        """Create a sender; ``namesrv`` has ``host:port``, separated by semicolons.

        A request has ``batch_bytes`` at most, unless a single chunk has more; ``put`` waits while more than
        ``max_pending_bytes`` are in flight. Raises OptionError, MessageError.
        """
        check_name("group", group, MAX_GROUP_CHARACTERS)
        self._cluster = Cluster(namesrv, options, credentials=credentials)
        self._group = group
        self._batch_bytes = batch_bytes
        self._max_pending_bytes = max_pending_bytes
        self._pending_bytes = 0
        self._lanes: dict[MessageQueue, deque[_WaitingMessages]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._moved = asyncio.Event()
        self._error: Exception | None = None
        self._stored: dict[MessageQueue, int] = {}  # number of stored messages
        self.messages = 0

    async def close(self) -> None:
        """Cancel sends in flight, and close all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._cluster.close()

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """List the writable queues of a topic, by broker and queue id. Raises NoRouteError, TransportError."""
        queues = (await self._cluster.refresh_route(topic)).write_queues
        if not queues:
            raise NoRouteError(topic, "no queue of this topic can be written to")
        return queues

    async def check_access(self) -> None:
        """Check that the brokers of all listed queues allow requests of this sender. Raises BrokerError (code 16)."""
        await self._cluster.check_access()

    async def put(
        self,
        queue: MessageQueue,
        data: bytes | memoryview,
        count: int,
        *,
        sys_flag: int = 0,
        done: Callable[[], None] | None = None,
        refused: Callable[[RefusedMessage], None] | None = None,
    ) -> None:
        """Enqueue messages, in the encoding of a batch request; return before the broker has stored them.

        ``refused`` is called for each message that the broker refuses as illegal, which is an error otherwise; ``done``
        is called when the other messages are stored. Raises RemotingError if earlier messages cannot be sent.
        """
        await self.wait_until(lambda: self._pending_bytes < self._max_pending_bytes)
        self._pending_bytes += len(data)
        pending_chunks = self._lanes.get(queue)
        chunk = _WaitingMessages(sys_flag, data, count, done, refused)
        if pending_chunks is not None:
            pending_chunks.append(chunk)
            return
        self._lanes[queue] = deque([chunk])
        task = asyncio.get_running_loop().create_task(self._drain(queue))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def flush(self) -> None:
        """Wait until all messages are stored; raises as ``put``."""
        await self.wait_until(lambda: not self._lanes)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition to be true. Each stored batch leads to one more evaluation; raises as ``put``."""
        while not condition() and self._error is None:
            self._moved.clear()
            await self._moved.wait()
        if self._error is not None:
            raise self._error

    async def _drain(self, queue: MessageQueue) -> None:
        pending_chunks = self._lanes[queue]
        try:
            while pending_chunks and self._error is None:
                batch = self._next_batch(pending_chunks)
                await self._send(queue, batch)
                self._pending_bytes -= sum(len(chunk.data) for chunk in batch)
                for chunk in batch:
                    if chunk.done is not None:
                        chunk.done()
                self._moved.set()
        except Exception as error:  # ``flush`` raises it
            self._error = self._error or error
        finally:
            del self._lanes[queue]
            self._moved.set()

    def _next_batch(self, pending_chunks: deque[_WaitingMessages]) -> list[_WaitingMessages]:
        batch = [pending_chunks.popleft()]
        size, count = len(batch[0].data), batch[0].messages
        while pending_chunks and pending_chunks[0].sys_flag == batch[0].sys_flag:
            size, count = size + len(pending_chunks[0].data), count + pending_chunks[0].messages
            if size > self._batch_bytes or count > MAX_BATCH_MESSAGES:
                break
            batch.append(pending_chunks.popleft())
        return batch

    async def _send(self, queue: MessageQueue, batch: list[_WaitingMessages]) -> None:
        """Send a batch, and chunk after chunk if the broker refuses it as illegal."""
        if len(batch) > 1:
            body, messages = b"".join(chunk.data for chunk in batch), sum(chunk.messages for chunk in batch)
            if await self._refusal(queue, body, messages, batch[0].sys_flag) is None:
                return
        for chunk in batch:
            await self._send_halves(queue, chunk, chunk.data, chunk.messages)

    async def _send_halves(
        self, queue: MessageQueue, chunk: _WaitingMessages, data: bytes | memoryview, messages: int
    ) -> None:
        """Send some messages of a chunk, and each half of them if the broker refuses them as illegal."""
        error = await self._refusal(queue, data, messages, chunk.sys_flag)
        if error is None:
            return
        ends = message_ends(data)
        if len(ends) != messages:
            raise error
        if messages > 1:
            half = messages // 2
            await self._send_halves(queue, chunk, data[: ends[half - 1]], half)
            await self._send_halves(queue, chunk, data[ends[half - 1] :], messages - half)
            return
        message = RefusedMessage(queue, data, message_properties(data), error)
        if chunk.refused is None:
            raise self._error_of(message)
        chunk.refused(message)

    def _error_of(self, message: RefusedMessage) -> BrokerError:
        queue, error = message.queue, message.error
        name = f"message {self._stored.get(queue, 0) + 1} that was sent to it"
        if PROPERTY_UNIQ_KEY in message.properties:
            name = f"{name}, UNIQ_KEY {message.properties[PROPERTY_UNIQ_KEY]}"
        remark = f"topic {queue.topic}, queue {queue.broker_name}/{queue.queue_id}, {name}: {error.remark}"
        return BrokerError(error.address, error.code, remark)

    async def _refusal(
        self, queue: MessageQueue, body: bytes | memoryview, messages: int, sys_flag: int
    ) -> BrokerError | None:
        """Send messages in one request; return the error if the broker refuses them as illegal."""
        try:
            await self._send_body(queue, body, sys_flag)
        except BrokerError as error:
            if error.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            return error
        self.messages += messages
        self._stored[queue] = self._stored.get(queue, 0) + messages
        return None

    async def _send_body(self, queue: MessageQueue, body: bytes | memoryview, sys_flag: int) -> None:
        pause_s = _FIRST_PAUSE_S
        for _ in range(_ATTEMPTS - 1):
            try:
                return await self._request(queue, body, sys_flag)
            except BrokerError as error:
                if error.code not in _RETRIABLE_CODES:
                    raise
            except TransportError:
                pass  # the batch may be stored already: at least once
            await asyncio.sleep(pause_s)
            pause_s *= 2
            with suppress(RemotingError):  # the broker may have another address by now
                await self._cluster.refresh_route(queue.topic)
        return await self._request(queue, body, sys_flag)

    async def _request(self, queue: MessageQueue, body: bytes | memoryview, sys_flag: int) -> None:
        fields = {
            "a": self._group,
            "b": queue.topic,
            "c": queue.topic,  # template topic: unused, as the topic exists
            "d": "1",
            "e": str(queue.queue_id),
            "f": str(sys_flag),
            "g": str(now_ms()),
            "h": "0",
            "i": "",  # properties of the batch would override those of each message
            "j": "0",
            "k": "false",
            "m": "true",
        }
        command = request(RequestCode.SEND_BATCH_MESSAGE, fields, body)
        await self._cluster.send_command(self._cluster.address(queue.broker_name), command, _TIMEOUT_S, _STORED)


class BulkUniqKeys:
    """Generator of unique keys as arrays.

    A key's tail is a time in ms and a number of 16 bits: here both are one number, incremented from the clock's time.
    """

    def __init__(self, keys: UniqKeys | None = None) -> None:
        self._keys = UniqKeys() if keys is None else keys
        self._next = 0

    def next(self, count: int, now_ms: int | None = None) -> NDArray[np.uint8]:
        """Return uint8[count, 32]: keys that no other message has; ``now_ms`` is the clock's time by default."""
        first = self._keys.next(now_ms)
        self._next = max(self._next, int(first[_HEAD_CHARACTERS : _HEAD_CHARACTERS + 8], 16) << 16)
        tails = self._next + np.arange(count, dtype=np.int64)
        self._next += count
        keys = np.empty((count, _HEAD_CHARACTERS + len(_TAIL_SHIFTS)), dtype=np.uint8)
        keys[:, :_HEAD_CHARACTERS] = np.frombuffer(first[:_HEAD_CHARACTERS].encode(), dtype=np.uint8)
        keys[:, _HEAD_CHARACTERS:] = _DIGITS[(tails[:, None] >> _TAIL_SHIFTS) & 15]
        return keys
