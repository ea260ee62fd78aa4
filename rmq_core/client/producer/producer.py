"""The producer: sends messages to the queues of a topic, with retries on other brokers.

::

    async with Producer("127.0.0.1:9876", "orders") as producer:
        result = await producer.send(Message("Orders", b"paid", tags="Paid", keys="4711"))

Source: ``DefaultMQProducerImpl``; of latencies ``MQFaultStrategy``, ``LatencyFaultToleranceImpl``.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, Final

import msgspec

from rmq_core.client.errors import BrokerError, NoReplyError, NoRouteError, SendFailedError
from rmq_core.client.message import Message, ReceivedMessage, SendResult, SendStatus
from rmq_core.client.options import Backoff, ProducerOptions
from rmq_core.client.producer.group_client import GroupClient
from rmq_core.client.producer.packet import Packer, Packet
from rmq_core.client.producer.request_reply import PendingReplies, reply_topic
from rmq_core.client.producer.tracer import SEND_TIMEOUT_S, Tracer, trace_sent
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.bodies.clients import HeartbeatData, ProducerData
from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Handler
from rmq_core.remoting.errors import RemotingError, RequestTimeoutError, TransportError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import SendResponse
from rmq_formats.codecs.hashing import java_string_hash

QueueSelector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]
"""Takes the topic's queues, the message and the caller's argument."""


def by_hash(queues: Sequence[MessageQueue], _message: Message, argument: Any) -> MessageQueue:
    """Choose the same queue for the same argument, as Java's selector does for a String, an Integer or a Long."""
    if isinstance(argument, int):
        # Integer#hashCode is the number, Long#hashCode the xor of its halves; both agree for a positive Integer.
        bits = argument & 0xFFFFFFFFFFFFFFFF
        code = argument if -(1 << 31) <= argument < 1 << 31 else (bits ^ bits >> 32) & 0xFFFFFFFF
    else:
        code = java_string_hash(str(argument))
    code = (code + (1 << 31)) % (1 << 32) - (1 << 31)
    return queues[abs(code) % len(queues)]


def at_random(queues: Sequence[MessageQueue], _message: Message, _argument: Any) -> MessageQueue:
    """Choose a random queue."""
    return random.choice(queues)


_UNREACHABLE_MS: Final = 2000  # time for which an unreachable broker is avoided
DEFAULT_GROUP: Final = "DEFAULT_PRODUCER"
_DEFAULTS: Final = ProducerOptions()
_STATUSES: Final = {status.value: status for status in SendStatus}
# DefaultMQProducer#retryResponseCodes: another broker may accept the message.
_RETRY_CODES: Final = (
    ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR,
    ResponseCode.SYSTEM_BUSY, ResponseCode.NO_PERMISSION, ResponseCode.NO_BUYER_ID, ResponseCode.NOT_IN_CURRENT_UNIT,
    ResponseCode.GO_AWAY,
)  # fmt: skip


class LatencyFaults:
    """Latencies and availability of brokers."""

    def __init__(self, backoff: Backoff, clock_ms: Callable[[], float] | None = None) -> None:
        """Begin with all brokers available; ``clock_ms`` never goes back, and is by default the event loop's."""
        self._backoff = backoff
        self._clock_ms = clock_ms or (lambda: asyncio.get_running_loop().time() * 1000)
        self._out_until_ms: dict[str, float] = {}
        self._unreachable_until_ms: dict[str, float] = {}

    def update(self, broker_name: str, latency_ms: float, *, failed: bool = False, reachable: bool = True) -> None:
        """Record the latency, or the failure, of a send."""
        now = self._clock_ms()
        duration = self._backoff.duration_ms(latency_ms, failed)
        if duration > 0:
            self._out_until_ms[broker_name] = max(now + duration, self._out_until_ms.get(broker_name, 0.0))
        if reachable:
            self._unreachable_until_ms.pop(broker_name, None)
        else:
            self._unreachable_until_ms[broker_name] = now + _UNREACHABLE_MS

    def is_available(self, broker_name: str) -> bool:
        """Return True if a broker is not avoided now."""
        return self._clock_ms() >= self._out_until_ms.get(broker_name, -inf)

    def is_reachable(self, broker_name: str) -> bool:
        """Return True if a broker was reachable at the last attempt, or if that was long enough ago."""
        return self._clock_ms() >= self._unreachable_until_ms.get(broker_name, -inf)


class Producer(GroupClient):
    """Producer of messages; use it with ``async with``, or start and close it.

    Attributes:
        options: settings of the client.
    """

    def __init__(
        self,
        namesrv: str,
        group: str = DEFAULT_GROUP,
        options: ProducerOptions = _DEFAULTS,
        *,
        credentials: Credentials | None = None,
        handlers: Mapping[int, Handler] | None = None,
    ) -> None:
        """Create a producer without connections.

        Args:
            namesrv: ``host:port`` of the name servers, separated by semicolons.
            group: name of the group.
            options: settings of the client.
            credentials: to sign requests with.
            handlers: of requests that brokers send, by code.

        Raises:
            OptionError: ``namesrv`` has no valid address.
            MessageError: the group's name is invalid.
        """
        self._pending_replies = PendingReplies()
        self._registered_topics: set[str] = set()
        all_handlers = {
            int(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT): self._pending_replies.on_reply,
            **(handlers or {}),
        }
        super().__init__("producer", namesrv, group, options, credentials, handlers=all_handlers)
        self.options = options
        self._packer = Packer(group, options)
        self._faults = LatencyFaults(options.backoff)
        self._queue_turns: dict[str, int] = {}  # index of the next queue, by topic
        self._tracer: Tracer | None = None
        if options.enable_trace:
            send = partial(self.send, timeout_s=SEND_TIMEOUT_S)
            self._tracer = Tracer(options.trace_topic, send, options.clock_ms)

    async def start(self) -> None:
        """Start the client; it connects to brokers on demand.

        Raises:
            OptionError: a producer of this process has the same group and client id.
        """
        await self._join()
        if self._tracer is not None:
            self._tracer.start()

    async def close(self) -> None:
        """Unregister from the brokers and close all connections."""
        if self._tracer is not None:
            await self._tracer.close()
        await self._leave()

    def _heartbeat(self) -> HeartbeatData:
        return HeartbeatData(client_id=self._cluster.client_id, producer_data_set=[ProducerData(group_name=self.group)])

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """List the writable queues of a topic; for a new topic, the queues that the broker will create.

        Raises:
            NoRouteError: the topic has no writable queue.
        """
        route = self._cluster.cached_route(topic)
        if route is None or not route.write_queues:
            self._cluster.evict_route(topic)
            options = self.options
            route = await self._cluster.route_or_template(
                topic, options.create_topic_key, options.default_topic_queue_nums
            )
            if not route.write_queues:
                raise NoRouteError(topic, "no queue of this topic can be written to")
        return route.write_queues

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        argument: Any = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send a message and wait until the broker has stored the message.

        Args:
            message: the message to send.
            queue: the queue to send to, without retries; by default the topic's queues in turn.
            selector: function that chooses the queue, without retries.
            argument: passed to the selector.
            timeout_s: timeout for all attempts together.

        Returns:
            Queue, offset and durability of the stored message.

        Raises:
            MessageError: brokers would refuse the message.
            NoRouteError: the topic does not exist and cannot be created.
            BrokerError: the broker refuses the message, with code and remark.
            SendFailedError: all attempts failed.
            TransportError: the broker of a chosen queue, or all name servers, cannot be reached.
        """
        packet = self._packer.single(message)
        if selector is not None:
            queue = selector(await self.queues(message.topic), message, argument)
        return await self._send(packet, queue, timeout_s)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> SendResult:
        """Send messages of a topic in a single request, to a single queue; raises as ``send``.

        ``packet.split_batch`` splits messages that are too large for one batch.
        """
        return await self._send(self._packer.batch(messages), queue, timeout_s)

    async def request(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> ReceivedMessage:
        """Send a request message and wait for its reply; see ``request_reply``.

        Args:
            message: the message to send.
            queue: the queue to send to; by default the topic's queues in turn.
            timeout_s: timeout for send and reply together; ``send_timeout_s`` by default.

        Raises:
            NoReplyError: the message was sent, and no reply has arrived.
            MessageError, NoRouteError, BrokerError, SendFailedError, TransportError: the message could not be sent, as
                in ``send``.
        """
        timeout_s = self.options.send_timeout_s if timeout_s is None else timeout_s
        deadline = asyncio.get_running_loop().time() + timeout_s
        await self.queues(message.topic)
        if message.topic not in self._registered_topics:
            # Each broker of the topic's clusters may get the reply to push.
            route = self._cluster.cached_route(message.topic)
            await self._cluster.register_at_brokers(map(reply_topic, () if route is None else route.clusters))
            self._registered_topics.add(message.topic)
        request_message, reply = self._pending_replies.prepare(message, self.client_id, timeout_s)
        try:
            await self.send(request_message, queue=queue, timeout_s=timeout_s)
            return await asyncio.wait_for(reply, max(0.0, deadline - asyncio.get_running_loop().time()))
        except TimeoutError as error:
            raise NoReplyError(message.topic, timeout_s) from error
        finally:
            reply.cancel()

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        argument: Any = None,
    ) -> None:
        """Send a message without waiting for a response: the message may not be stored.

        Raises:
            MessageError, NoRouteError: as ``send``.
            ConnectError: no connection to the broker.
        """
        packet = self._packer.single(message)
        queues = await self.queues(message.topic)
        if selector is not None:
            queue = selector(queues, message, argument)
        queue = queue or self._choose_queue(queues, None)
        address = self._cluster.address(queue.broker_name)
        await self._cluster.remoting.invoke_oneway(address, packet.request(queue.queue_id))

    async def _send(self, packet: Packet, queue: MessageQueue | None, timeout_s: float | None) -> SendResult:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.options.send_timeout_s if timeout_s is None else timeout_s)
        queues = await self.queues(packet.topic)
        if queue is not None:
            return await self._attempt(packet, queue, deadline - loop.time())
        tried_brokers: list[str] = []
        last_error: RemotingError | None = None
        result: SendResult | None = None
        while len(tried_brokers) <= self.options.retries and (left_s := deadline - loop.time()) > 0:
            target_queue = self._choose_queue(queues, tried_brokers[-1] if tried_brokers else None)
            tried_brokers.append(target_queue.broker_name)
            try:
                result = await self._attempt(packet, target_queue, left_s)
            except BrokerError as error:
                if error.code not in _RETRY_CODES:
                    raise
                last_error = error
            except (TransportError, NoRouteError) as error:
                last_error = error
            else:
                if result.status is SendStatus.SEND_OK or not self.options.retry_when_not_stored_well:
                    return result
        if result is not None:
            return result
        raise _build_send_failed_error(last_error, tried_brokers) from last_error

    async def _attempt(self, packet: Packet, queue: MessageQueue, timeout_s: float) -> SendResult:
        address, command = self._cluster.address(queue.broker_name), packet.request(queue.queue_id)
        now_s = asyncio.get_running_loop().time
        begin_s = now_s()
        name, counts_faults = queue.broker_name, self.options.send_latency_fault
        try:
            response = await self._cluster.remoting.invoke(address, command, timeout_s)
            result = _result(response, packet, queue, address)
        except RemotingError as error:
            if counts_faults:
                latency_ms = (now_s() - begin_s) * 1000
                self._faults.update(name, latency_ms, failed=True, reachable=not isinstance(error, TransportError))
            raise
        if counts_faults:
            self._faults.update(name, (now_s() - begin_s) * 1000)
        if self._tracer is not None and packet.topic != self._tracer.topic:
            cost_ms = int((now_s() - begin_s) * 1000)
            trace_sent(self._tracer, self.group, packet, result, response.ext_fields, address, cost_ms)
        return result

    def _choose_queue(self, queues: Sequence[MessageQueue], last_broker: str | None) -> MessageQueue:
        """Choose the next queue in turn, if possible at another available broker than the last."""
        topic, count = queues[0].topic, len(queues)
        begin = self._queue_turns.get(topic)
        if begin is None:
            begin = random.randrange(count)
        step = self._count_unusable_queues(queues, begin, last_broker)
        self._queue_turns[topic] = begin + step + 1
        return queues[(begin + step) % count]

    def _count_unusable_queues(self, queues: Sequence[MessageQueue], begin: int, last_broker: str | None) -> int:
        """Count the queues to skip, as ``TopicPublishInfo#selectOneMessageQueue`` does; 0 if no queue is usable."""
        if not self.options.send_latency_fault and last_broker is None:
            return 0
        filters: list[Callable[[str], bool]] = [lambda _: True]
        if self.options.send_latency_fault:
            filters = [self._faults.is_available, self._faults.is_reachable]
        for is_able in filters:
            for step in range(len(queues)):
                name = queues[(begin + step) % len(queues)].broker_name
                if name != last_broker and is_able(name):
                    return step
        return 0


def _result(response: RemotingCommand, packet: Packet, queue: MessageQueue, address: str) -> SendResult:
    status = _STATUSES.get(response.code)
    if status is None:
        raise BrokerError(address, response.code, response.remark)
    stored = read_fields(response, SendResponse)
    if stored.queue_id != queue.queue_id:  # the broker may choose another queue, as for retry topics
        queue = msgspec.structs.replace(queue, queue_id=stored.queue_id)
    return SendResult(
        status,
        stored.batch_uniq_id or packet.msg_id,
        stored.msg_id,
        queue,
        stored.queue_offset,
        stored.transaction_id,
        stored.recall_handle,
    )


def _build_send_failed_error(error: RemotingError | None, tried: list[str]) -> SendFailedError:
    if isinstance(error, BrokerError):
        return SendFailedError(error.code, f"{error.address}: {error.remark}", tried)
    if isinstance(error, NoRouteError):
        return SendFailedError(error.code, error.remark, tried)
    timed_out = error is None or isinstance(error, RequestTimeoutError)
    code = ResponseCode.RPC_TIME_OUT if timed_out else ResponseCode.RPC_SEND_TO_CHANNEL_FAILED
    return SendFailedError(code, str(error) if error is not None else "no time was left", tried)
