"""The producer: sends messages to the queues of a topic, with retries on other brokers.

::

    async with Producer("127.0.0.1:9876", "orders") as producer:
        result = await producer.send(Message("Orders", b"paid", tags="Paid", keys="4711"))

Source: ``DefaultMQProducerImpl``; of latencies ``MQFaultStrategy``, ``LatencyFaultToleranceImpl``.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from rmq_core.client.errors import BrokerError, NoReplyError, NoRouteError, SendFailedError
from rmq_core.client.message import Message, ReceivedMessage, SendResult, SendStatus
from rmq_core.client.options import Backoff, ProducerOptions
from rmq_core.client.producer.group_client import GroupClient
from rmq_core.client.producer.packet import Packer, Packet
from rmq_core.client.producer.request_reply import PendingReplies
from rmq_core.client.producer.selectors import QueueSelector
from rmq_core.client.producer.tracer import SEND_TIMEOUT_S, Tracer, trace_sent
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.bodies.clients import HeartbeatData, ProducerData
from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Handler
from rmq_core.remoting.errors import RemotingError, RequestTimeoutError, TransportError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import SendAnswer

_REACHABLE_AGAIN_MS: Final = 2000  # how soon a broker that could not be reached may be tried again
DEFAULT_GROUP: Final = "DEFAULT_PRODUCER"
_DEFAULTS: Final = ProducerOptions()
_STATUSES: Final = {status.value: status for status in SendStatus}
# DefaultMQProducer#retryResponseCodes: another broker may accept the message.
_RETRY_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)


class LatencyFaults:
    """Latencies of brokers, and which may be sent to."""

    def __init__(self, backoff: Backoff, clock_ms: Callable[[], float] | None = None) -> None:
        """Begin with all brokers available; ``clock_ms`` never goes back, and is by default the event loop's."""
        self._backoff = backoff
        self._clock_ms = clock_ms or _loop_ms
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
            self._unreachable_until_ms[broker_name] = now + _REACHABLE_AGAIN_MS

    def is_available(self, broker_name: str) -> bool:
        """Return True if a broker is not avoided now."""
        until = self._out_until_ms.get(broker_name)
        return until is None or self._clock_ms() >= until

    def is_reachable(self, broker_name: str) -> bool:
        """Return True if a broker was reachable at the last attempt, or if that was long enough ago."""
        until = self._unreachable_until_ms.get(broker_name)
        return until is None or self._clock_ms() >= until


def _loop_ms() -> float:
    return asyncio.get_running_loop().time() * 1000


class Producer(GroupClient):
    """Producer of messages; use it with ``async with``, or start and close it.

    Attributes:
        options: its settings.
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
            group: its group's name.
            options: its settings.
            credentials: to sign requests with.
            handlers: of requests that brokers send, by code.

        Raises:
            OptionError: no address of a name server.
            MessageError: a bad group.
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
        self._queue_turns: dict[str, int] = {}  # by topic: the place of the next queue in turn
        self._tracer = Tracer(options.trace_topic, self._send_trace, options.clock_ms) if options.enable_trace else None

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

    # Sending.

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """List the writable queues of a topic; for a new topic, the queues that the broker will create.

        Raises:
            NoRouteError: there are none.
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
            message: what to send.
            queue: the queue to send to, without retries; the topic's queues in turn if it is not given.
            selector: chooses the queue; without retries, too.
            argument: passed to the selector.
            timeout_s: for all attempts together.

        Returns:
            Where the message is stored, and how safely.

        Raises:
            MessageError: a broker would refuse it.
            NoRouteError: the topic does not exist and cannot be created.
            BrokerError: the broker refuses it, with code and remark.
            SendFailedError: all attempts failed.
            TransportError: of a chosen queue's broker, or of all name servers.
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
            message: what to send.
            queue: where to; the topic's queues in turn if it is not given.
            timeout_s: for sending and waiting together; ``send_timeout_s`` if it is None.

        Raises:
            NoReplyError: it was sent, and no reply has arrived.
            MessageError, NoRouteError, BrokerError, SendFailedError, TransportError: it could not be sent, as by
                ``send``.
        """
        timeout_s = self.options.send_timeout_s if timeout_s is None else timeout_s
        deadline = asyncio.get_running_loop().time() + timeout_s
        await self.queues(message.topic)
        if message.topic not in self._registered_topics:  # replies are pushed only to clients known by a heartbeat
            await self._cluster.send_heartbeats()
            self._registered_topics.add(message.topic)
        asking, reply = self._pending_replies.prepare(message, self.client_id, timeout_s)
        try:
            await self.send(asking, queue=queue, timeout_s=timeout_s)
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
        """Send a message without an answer of the broker: the message may not be stored.

        Raises:
            MessageError, NoRouteError: as ``send``.
            ConnectError: the broker cannot be connected to.
        """
        packet = self._packer.single(message)
        queues = await self.queues(message.topic)
        if selector is not None:
            queue = selector(queues, message, argument)
        queue = queue or self._choose(queues, None)
        address = self._cluster.address(queue.broker_name)
        await self._cluster.remoting.invoke_oneway(address, packet.request(queue.queue_id))

    async def _send_trace(self, message: Message) -> None:
        await self.send(message, timeout_s=SEND_TIMEOUT_S)

    async def _send(self, packet: Packet, queue: MessageQueue | None, timeout_s: float | None) -> SendResult:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.options.send_timeout_s if timeout_s is None else timeout_s)
        queues = await self.queues(packet.topic)
        if queue is not None:
            return await self._attempt(packet, queue, deadline - loop.time())
        tried: list[str] = []
        failed: RemotingError | None = None
        result: SendResult | None = None
        while len(tried) <= self.options.retries and (left_s := deadline - loop.time()) > 0:
            chosen = self._choose(queues, tried[-1] if tried else None)
            tried.append(chosen.broker_name)
            try:
                result = await self._attempt(packet, chosen, left_s)
            except BrokerError as error:
                if error.code not in _RETRY_CODES:
                    raise
                failed = error
            except (TransportError, NoRouteError) as error:
                failed = error
            else:
                if result.status is SendStatus.SEND_OK or not self.options.retry_when_not_stored_well:
                    return result
        if result is not None:
            return result
        raise _send_failed(failed, tried) from failed

    async def _attempt(self, packet: Packet, queue: MessageQueue, timeout_s: float) -> SendResult:
        """Send one request to one broker."""
        address, command = self._cluster.address(queue.broker_name), packet.request(queue.queue_id)
        now_s = asyncio.get_running_loop().time
        begin_s = now_s()
        name, counts_faults = queue.broker_name, self.options.send_latency_fault
        try:
            answer = await self._cluster.remoting.invoke(address, command, timeout_s)
            result = _result(answer, packet, queue, address)
        except RemotingError as error:
            if counts_faults:
                latency_ms = (now_s() - begin_s) * 1000
                self._faults.update(name, latency_ms, failed=True, reachable=not isinstance(error, TransportError))
            raise
        if counts_faults:
            self._faults.update(name, (now_s() - begin_s) * 1000)
        if self._tracer is not None and packet.topic != self._tracer.topic:
            cost_ms = int((now_s() - begin_s) * 1000)
            trace_sent(self._tracer, self.group, packet, result, answer.ext_fields, address, cost_ms)
        return result

    def _choose(self, queues: Sequence[MessageQueue], last_broker: str | None) -> MessageQueue:
        """Choose the next queue in turn, at another available broker than the last if there is any."""
        topic, count = queues[0].topic, len(queues)
        begin = self._queue_turns.get(topic)
        if begin is None:
            begin = random.randrange(count)
        step = self._steps_to_usable(queues, begin, last_broker)
        self._queue_turns[topic] = begin + step + 1
        return queues[(begin + step) % count]

    def _steps_to_usable(self, queues: Sequence[MessageQueue], begin: int, last_broker: str | None) -> int:
        """Count the queues to pass over, as ``TopicPublishInfo#selectOneMessageQueue`` does; 0 where none is usable."""
        if not self.options.send_latency_fault and last_broker is None:
            return 0
        for is_able in self._filters():
            for step in range(len(queues)):
                name = queues[(begin + step) % len(queues)].broker_name
                if name != last_broker and is_able(name):
                    return step
        return 0

    def _filters(self) -> list[Callable[[str], bool]]:
        if self.options.send_latency_fault:
            return [self._faults.is_available, self._faults.is_reachable]
        return [lambda _: True]


def _result(answer: RemotingCommand, packet: Packet, queue: MessageQueue, address: str) -> SendResult:
    """Build the send result from an answer. Raises BrokerError if the message is not stored."""
    status = _STATUSES.get(answer.code)
    if status is None:
        raise BrokerError(address, answer.code, answer.remark)
    stored = read_fields(answer, SendAnswer)
    if stored.queue_id != queue.queue_id:  # the broker may choose, as for retry topics
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


def _send_failed(error: RemotingError | None, tried: list[str]) -> SendFailedError:
    if isinstance(error, BrokerError):
        return SendFailedError(error.code, f"{error.address}: {error.remark}", tried)
    if isinstance(error, NoRouteError):
        return SendFailedError(error.code, error.remark, tried)
    timed_out = error is None or isinstance(error, RequestTimeoutError)
    code = ResponseCode.RPC_TIME_OUT if timed_out else ResponseCode.RPC_SEND_TO_CHANNEL_FAILED
    return SendFailedError(code, str(error) if error is not None else "no time was left", tried)
