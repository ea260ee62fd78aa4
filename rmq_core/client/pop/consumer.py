"""The POP consumer: receives messages for an invisible time, and acknowledges each.

::

    consumer = PopConsumer("127.0.0.1:9876", "billing")
    consumer.subscribe("Orders", "Paid")
    async with consumer:
        while True:
            for message in await consumer.receive(16):
                print(message.body)
                await consumer.ack(message)

Queues are not assigned: any number of members pop from all queues, and no member waits for a slow one.

Source: ``DefaultMQPushConsumerImpl#popMessage``, ``ConsumeMessagePopConcurrentlyService``,
``ConsumeMessagePopOrderlyService``.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from itertools import count
from typing import Any, Final

from rmq_core.client.errors import NoRouteError
from rmq_core.client.listener import Later, Listener, call_listener
from rmq_core.client.message import ReceivedMessage
from rmq_core.client.options import PopOptions
from rmq_core.client.pop.requests import PopRequests, handle_of
from rmq_core.client.producer.group_client import GroupClient
from rmq_core.client.pull.request import ALL, subscription
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.bodies.clients import HeartbeatData, SubscriptionData
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.pop import MAX_INVISIBLE_MS, MAX_MESSAGES
from rmq_formats.errors import FormatError, OptionError, RmqError

_AFTER_ERROR_S: Final = 1.0  # pause after failed requests
_TO_DEAD_LETTERS: Final = -1
RETRY_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)  # by level
_FIRST_LEVEL: Final = 3  # after the first failure
log = logging.getLogger("rmq.client")
_DEFAULTS: Final = PopOptions()
_NO_ROUTE_S: Final = 1.0  # pause before the next request for missing routes
# Pause after an immediate response without messages: the broker can park no more requests.
_FULL_POLLING_RETRY_S: Final = 0.1
SubscribedBroker = tuple[SubscriptionData, str]
"""Subscription of a topic, and the name of a broker with queues of the topic."""


class ConsumeMessagePopService:
    """Loop that receives messages and calls a listener, until cancelled."""

    def __init__(
        self,
        receive: Callable[[int], Awaitable[list[ReceivedMessage]]],
        requests: PopRequests,
        options: PopOptions,
        listener: Listener,
    ) -> None:
        self._receive = receive
        self._requests = requests
        self._options = options
        self._listener = listener
        self._free = options.concurrency
        self._freed = asyncio.Event()
        self._calls: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Receive only as many messages as calls are free, as a waiting message's invisible time would run out."""
        try:
            while True:
                while self._free < 1:
                    self._freed.clear()
                    await self._freed.wait()
                try:
                    messages = await self._receive(min(self._free, MAX_MESSAGES))
                except RmqError as error:
                    log.warning("cannot receive: %s", error)
                    await asyncio.sleep(_AFTER_ERROR_S)
                    continue
                except Exception:
                    log.exception("receiving failed")
                    await asyncio.sleep(_AFTER_ERROR_S)
                    continue
                for sequence in self._split_into_sequences(messages):
                    self._call(sequence)
        finally:
            await self._end()

    def _split_into_sequences(self, messages: list[ReceivedMessage]) -> Iterable[list[ReceivedMessage]]:
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
        if self._calls:
            _, late_tasks = await asyncio.wait(self._calls, timeout=self._options.close_timeout_s)
            for task in late_tasks:
                task.cancel()
            await asyncio.gather(*late_tasks, return_exceptions=True)

    async def _consume(self, messages: list[ReceivedMessage]) -> None:
        """Consume messages one after the other; a failed message delays the messages after it."""
        for index, message in enumerate(messages):
            later = await call_listener(self._listener, [message])
            try:
                if later is None or later.done >= 1:
                    await self._requests.ack([message])
                elif (
                    later.delay_level == _TO_DEAD_LETTERS
                    or message.reconsume_times >= self._options.max_reconsume_times
                ):
                    await self._requests.send_to_dead_letters(message)
                else:
                    for delayed in messages[index:]:
                        await self._requests.change(delayed, self._delay_s(delayed, later))
                    return
            except RmqError as error:  # the message is delivered again after its invisible time
                log.warning("cannot acknowledge %s, or change its invisible time: %s", message.msg_id, error)
                if later is not None and later.done < 1:  # in order the messages after it come again, too
                    return

    def _delay_s(self, message: ReceivedMessage, later: Later) -> float:
        if self._options.in_order:
            return self._options.suspend_queue_s if later.suspend_s is None else later.suspend_s
        level = later.delay_level or _FIRST_LEVEL + message.reconsume_times
        return float(RETRY_S[min(level, len(RETRY_S)) - 1])


class PopConsumer(GroupClient):
    """POP consumer; subscribe, then use it with ``async with``, or start and close it.

    Attributes:
        options: settings of the client.
    """

    def __init__(
        self, namesrv: str, group: str, options: PopOptions = _DEFAULTS, *, credentials: Credentials | None = None
    ) -> None:
        """Create a consumer without connections.

        Args:
            namesrv: ``host:port`` of the name servers, separated by semicolons.
            group: name of the group.
            options: settings of the client.
            credentials: to sign requests with.

        Raises:
            OptionError: ``namesrv`` has no valid address.
            MessageError: the group's name is invalid.
        """
        super().__init__("consumer", namesrv, group, options, credentials)
        self.options = options
        self._requests = PopRequests(self._cluster, group, options)
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._turns = count(random.randrange(1 << 16))

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> None:
        """Subscribe to a topic.

        Args:
            topic: the topic.
            tags: ``*``, or tags with ``||`` between them.
            sql: an SQL92 expression over properties instead; the broker has to allow it.

        Raises:
            OptionError: the tags are invalid.
        """
        self._subscriptions[topic] = subscription(topic, tags, sql=sql, version=self._next_version())
        self._send_heartbeat()

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic."""
        self._subscriptions.pop(topic, None)
        self._send_heartbeat()

    async def start(self) -> None:
        """Join the group; a topic is consumed once it exists.

        Raises:
            OptionError: a consumer of this process has the same group and client id.
            TransportError: no name server responds.
            BrokerError: a broker refuses the consumer (code 16).
        """
        await self._join(self._subscriptions)

    async def close(self) -> None:
        """Leave the group; unacknowledged messages come back after their invisible time."""
        self._started_ms = 0
        await self._cluster.stop_tasks()
        await self._leave()

    async def receive(
        self, max_messages: int = MAX_MESSAGES, *, timeout_s: float | None = None
    ) -> list[ReceivedMessage]:
        """Pop messages of a topic at a broker, both in turn; wait if there are none.

        Args:
            max_messages: maximal number of messages, 1 to 32.
            timeout_s: how long to wait; by default ``suspend_timeout_s`` of the options.

        Returns:
            Messages that are invisible to others for ``invisible_time_s``; none after a timeout.

        Raises:
            OptionError: no topic is subscribed to, or ``max_messages`` is not 1 to 32.
            BrokerError: requests to all brokers failed, and a broker refused the request.
            TransportError: requests to all brokers failed, and a broker did not respond.
            FormatError: requests to all brokers failed, and a broker's response cannot be decoded.
        """
        if not self._subscriptions:
            raise OptionError("a POP consumer must subscribe before it receives")
        if not 1 <= max_messages <= MAX_MESSAGES:
            raise OptionError(f"max_messages must be 1 to {MAX_MESSAGES}, not {max_messages}")
        now_s = asyncio.get_running_loop().time
        end_s = now_s() + (self.options.suspend_timeout_s if timeout_s is None else timeout_s)
        while True:
            brokers = await self._subscribed_brokers()
            began_s = now_s()
            remaining_s = max(0.0, min(end_s - began_s, self.options.suspend_timeout_s))
            messages = await self._pop_any(brokers, max_messages, remaining_s)
            if messages or now_s() >= end_s:
                return messages
            if now_s() - began_s < _FULL_POLLING_RETRY_S:
                await asyncio.sleep(min(_FULL_POLLING_RETRY_S if brokers else _NO_ROUTE_S, remaining_s))

    async def _subscribed_brokers(self) -> list[SubscribedBroker]:
        """List the brokers of each topic, the next broker in turn first."""
        brokers: list[SubscribedBroker] = []
        for topic, data in list(self._subscriptions.items()):
            try:
                route = await self._cluster.route(topic)
            except NoRouteError as error:
                log.warning("topic %s cannot be consumed yet: %s", topic, error)
                continue
            brokers += [(data, name) for name in sorted({queue.broker_name for queue in route.read_queues})]
        at = next(self._turns) % max(1, len(brokers))
        return brokers[at:] + brokers[:at]

    async def _pop_any(
        self, brokers: list[SubscribedBroker], max_messages: int, wait_s: float
    ) -> list[ReceivedMessage]:
        """Pop at the first broker that has messages, or wait until a broker has some.

        The wait is a notification, not a pop, as messages popped at all brokers at once would be invisible in vain.
        """
        is_single = len(brokers) == 1
        failures: list[RmqError] = []
        for data, name in brokers:
            try:
                messages = await self._requests.pop(name, data, max_messages, wait_s if is_single else 0.0)
            except (RemotingError, FormatError) as error:
                log.warning("a pop of %s at %s failed: %s", data.topic, name, error)
                failures.append(error)
                continue
            if messages:
                return messages
        if failures and len(failures) == len(brokers):
            raise failures[0]
        if brokers and not is_single and wait_s > 0:
            await self._wait_any([self._requests.wait(name, data, wait_s) for data, name in brokers])
        return []

    @staticmethod
    async def _wait_any(waits: list[Coroutine[Any, Any, bool]]) -> None:
        """Wait until one wait returns True, or all are over; ignore a failed wait, as the next pop raises its error."""
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        try:
            for task in asyncio.as_completed(tasks):
                try:
                    if await task:
                        return
                except (RemotingError, FormatError) as error:
                    log.debug("a notification of messages failed: %s", error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def ack(self, *messages: ReceivedMessage) -> None:
        """Acknowledge messages, so that the broker does not deliver them again.

        Raises:
            MessageError: a message was not popped.
            BrokerError: the broker refuses, such as for a single message with the receipt handle of another queue.
            TransportError: the server did not respond.
        """
        await self._requests.ack(messages)

    async def change_invisible_time(self, message: ReceivedMessage, invisible_s: float) -> None:
        """Change a message's invisible time: the message comes back that long from now.

        Raises:
            MessageError: the message was not popped.
            OptionError: the time is not 0 s to 3 days.
            BrokerError: the broker refuses.
            TransportError: the server did not respond.
        """
        if not 0 <= invisible_s * 1000 <= MAX_INVISIBLE_MS:
            raise OptionError(f"an invisible time must be 0 to {MAX_INVISIBLE_MS // 1000} s, not {invisible_s:g}")
        await self._requests.change(message, invisible_s)

    async def consume(self, listener: Listener) -> None:
        """Call a listener with messages until cancelled; acknowledge consumed messages.

        A failed message is delivered again after 10 s, 30 s, 1 min, … up to 2 h, and after ``max_reconsume_times``
        failures it is a dead letter. In orderly consumption its queue pauses for ``suspend_queue_s``.

        Args:
            listener: listener like that of a push consumer, called with one message at a time.

        Raises:
            OptionError: no topic is subscribed to.
        """
        await ConsumeMessagePopService(self.receive, self._requests, self.options, listener).run()

    def _send_heartbeat(self) -> None:
        if self._started_ms:
            self._cluster.run(self._cluster.send_heartbeats())

    def _heartbeat(self) -> HeartbeatData | None:
        return self._consumer_heartbeat(self.options.start, self._subscriptions.values(), consume_type="CONSUME_POP")
