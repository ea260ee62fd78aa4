"""The producer.

::

    async with Producer("127.0.0.1:9876", "orders") as producer:
        result = await producer.send(Message("Orders", b"paid", tags="Paid", keys="4711"))

Source: ``DefaultMQProducerImpl``.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

import msgspec

from rmq_core.client.cluster import Cluster
from rmq_core.client.errors import BrokerError, NoReplyError, NoRouteError, SendFailedError
from rmq_core.client.latency import LatencyFaults
from rmq_core.client.message import Message, ReceivedMessage, SendResult, SendStatus
from rmq_core.client.options import ProducerOptions
from rmq_core.client.packet import MAX_GROUP_CHARACTERS, Packer, Packet, check_name
from rmq_core.client.request_reply import Requests
from rmq_core.client.selectors import QueueSelector
from rmq_core.client.trace import SEND_TIMEOUT_S, Tracer
from rmq_core.client.trace_sends import trace_sent
from rmq_core.remoting.acl import Credentials
from rmq_core.remoting.bodies import HeartbeatData, MessageQueue, ProducerData
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Handler
from rmq_core.remoting.errors import RemotingError, RequestTimeoutError, TransportError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import SendResult as SendAnswer
from rmq_core.remoting.requests import UnregisterClient

DEFAULT_GROUP: Final = "DEFAULT_PRODUCER"
_DEFAULTS: Final = ProducerOptions()
_STATUSES: Final = {status.value: status for status in SendStatus}
# DefaultMQProducer#retryResponseCodes: another broker may do better.
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


class Producer:
    """Sends messages; use it with ``async with``, or start and close it. Any number of sends may be on their way.

    Attributes:
        group: its group's name.
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
        """Prepare.

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
        check_name("group", group, MAX_GROUP_CHARACTERS)
        self.group = group
        self.options = options
        self._requests = Requests()
        self._asked_brokers_of: set[str] = set()
        asked = {int(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT): self._requests.arrived, **(handlers or {})}
        self._cluster = Cluster(namesrv, options, credentials=credentials, handlers=asked, heartbeat=self._heartbeat)
        self._packer = Packer(group, options)
        self._faults = LatencyFaults()
        self._turn = random.randrange(1 << 16)
        self._tracer = Tracer(options.trace_topic, self._send_trace) if options.enable_trace else None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Begin; brokers are connected to when they are needed."""
        await self._cluster.start()
        if self._tracer is not None:
            self._tracer.start()

    async def close(self) -> None:
        """Tell the brokers, and end."""
        if self._tracer is not None:
            await self._tracer.close()
        await self._cluster.to_masters(
            RequestCode.UNREGISTER_CLIENT,
            UnregisterClient(client_id=self._cluster.client_id, producer_group=self.group),
        )
        await self._cluster.close()

    @property
    def client_id(self) -> str:
        """What brokers know it by."""
        return self._cluster.client_id

    def _heartbeat(self) -> HeartbeatData:
        return HeartbeatData(client_id=self._cluster.client_id, producer_data_set=[ProducerData(group_name=self.group)])

    # Sending.

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """The queues that messages of a topic go to; of a topic that does not exist yet those that it will have.

        Raises:
            NoRouteError: there are none.
        """
        route = self._cluster.known_route(topic)
        if route is None or not route.write_queues:
            self._cluster.forget_route(topic)
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
        """Send a message and wait until it is stored.

        Args:
            message: what to send.
            queue: where to; the topic's queues in turn if it is not given. Then nothing is tried again.
            selector: chooses the queue; likewise.
            argument: what it chooses by.
            timeout_s: for all attempts together.

        Returns:
            Where it is, and how well it is stored.

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
        """Send messages of one topic in one request, to one queue; raises as ``send``.

        ``packet.split_batch`` cuts what is too large.
        """
        return await self._send(self._packer.batch(messages), queue, timeout_s)

    async def request(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> ReceivedMessage:
        """Send a message and wait for the reply to it, see ``request_reply``.

        Args:
            message: what to send.
            queue: where to; the topic's queues in turn if it is not given.
            timeout_s: for sending and waiting together; ``send_timeout_s`` if it is None.

        Raises:
            NoReplyError: it was sent, and no reply has come.
            MessageError, NoRouteError, BrokerError, SendFailedError, TransportError: it could not be sent, as by
                ``send``.
        """
        timeout_s = self.options.send_timeout_s if timeout_s is None else timeout_s
        deadline = asyncio.get_running_loop().time() + timeout_s
        await self.queues(message.topic)
        if message.topic not in self._asked_brokers_of:  # they hand replies over to clients that they know
            await self._cluster.send_heartbeats()
            self._asked_brokers_of.add(message.topic)
        asking, reply = self._requests.prepare(message, self.client_id, timeout_s)
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
        """Send a message without an answer: whether it was stored is not known.

        Raises:
            MessageError, NoRouteError: as ``send``.
            ConnectError: the broker is not there.
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
        """One request to one broker."""
        address, command = self._cluster.address(queue.broker_name), packet.request(queue.queue_id)
        begin = time.monotonic()
        name, counts_faults = queue.broker_name, self.options.send_latency_fault
        try:
            answer = await self._cluster.remoting.invoke(address, command, timeout_s)
            result = _result(answer, packet, queue, address)
        except RemotingError as error:
            if counts_faults:
                latency_ms = (time.monotonic() - begin) * 1000
                self._faults.update(name, latency_ms, failed=True, reachable=not isinstance(error, TransportError))
            raise
        if counts_faults:
            self._faults.update(name, (time.monotonic() - begin) * 1000)
        if self._tracer is not None and packet.topic != self._tracer.topic:
            cost_ms = int((time.monotonic() - begin) * 1000)
            trace_sent(self._tracer, self.group, packet, result, answer.ext_fields, address, cost_ms)
        return result

    def _choose(self, queues: Sequence[MessageQueue], last_broker: str | None) -> MessageQueue:
        """The next queue in turn, on another broker than the last one if there is one, and on an able one."""
        count, begin = len(queues), self._turn
        self._turn = begin + 1
        if not self.options.send_latency_fault and last_broker is None:
            return queues[begin % count]
        in_turn = [queues[(begin + step) % count] for step in range(count)]
        for is_able in self._filters():
            for queue in in_turn:
                if queue.broker_name != last_broker and is_able(queue.broker_name):
                    return queue
        return in_turn[0]

    def _filters(self) -> list[Callable[[str], bool]]:
        if self.options.send_latency_fault:
            return [self._faults.is_available, self._faults.is_reachable]
        return [lambda _: True]


def _result(answer: RemotingCommand, packet: Packet, queue: MessageQueue, address: str) -> SendResult:
    """What an answer says.

    Raises:
        BrokerError: the message is not stored.
    """
    status = _STATUSES.get(answer.code)
    if status is None:
        raise BrokerError(address, answer.code, answer.remark)
    stored = read_fields(answer, SendAnswer)
    if stored.queue_id != queue.queue_id:  # the broker may choose, as for retry topics
        queue = msgspec.structs.replace(queue, queue_id=stored.queue_id)
    return SendResult(
        status, packet.msg_id, stored.msg_id, queue, stored.queue_offset, stored.transaction_id, stored.recall_handle
    )


def _send_failed(error: RemotingError | None, tried: list[str]) -> SendFailedError:
    if isinstance(error, BrokerError):
        return SendFailedError(error.code, f"{error.address}: {error.remark}", tried)
    if isinstance(error, NoRouteError):
        return SendFailedError(error.code, error.remark, tried)
    timed_out = error is None or isinstance(error, RequestTimeoutError)
    code = ResponseCode.RPC_TIME_OUT if timed_out else ResponseCode.RPC_SEND_TO_CHANNEL_FAILED
    return SendFailedError(code, str(error) if error is not None else "no time was left", tried)
