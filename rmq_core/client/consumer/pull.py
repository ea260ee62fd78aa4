"""The pull consumer: polls queues, allocated by rebalance or assigned by the caller, from offsets that can be set.

::

    consumer = PullConsumer("127.0.0.1:9876", "audit")
    consumer.subscribe("Orders")
    async with consumer:
        while True:
            for message in await consumer.poll(timeout_s=5):
                print(message.body)

Each assigned queue has one pull in flight while its cache has room, so that ``poll`` mostly returns messages that have
arrived already.

Source: ``DefaultLitePullConsumerImpl``.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rmq_core.client.consumer.broker_callbacks import consumer_handlers
from rmq_core.client.consumer.offset_store import RemoteOffsets
from rmq_core.client.consumer.pulled_queue import Arrivals, PulledQueue
from rmq_core.client.consumer.rebalance import Rebalancer
from rmq_core.client.message import ReceivedMessage
from rmq_core.client.options import PullOptions
from rmq_core.client.producer.group_client import GroupClient
from rmq_core.client.pull.request import ALL, Puller, QueueOffsets, subscription
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.bodies.clients import ConsumerRunningInfo, HeartbeatData, SubscriptionData
from rmq_core.remoting.bodies.codec import MessageQueue, queue_key
from rmq_core.remoting.codes import CURRENT_VERSION_NAME
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.errors import OptionError

log = logging.getLogger("rmq.client")
_DEFAULTS: Final = PullOptions()


class PullConsumer(GroupClient):
    """Consumer that polls queues; use it with ``async with``, or start and close it.

    The consumer either subscribes to topics, whose queues are shared out in its group, or the caller assigns queues.

    Attributes:
        group: name of the group, under which consumer offsets are stored.
        options: settings of the client.
        offsets: queries and commits of queue offsets.
    """

    def __init__(
        self, namesrv: str, group: str, options: PullOptions = _DEFAULTS, *, credentials: Credentials | None = None
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
        super().__init__(
            "consumer",
            namesrv,
            group,
            options,
            credentials,
            handlers=consumer_handlers(group, self._rebalance_soon, self.running_info),
        )
        self.options = options
        self.offsets = QueueOffsets(self._cluster)
        self._puller = Puller(self._cluster, group, options, sends_subscription=True)
        # Offsets after the messages that ``poll`` returned before its last call.
        self._consumed = RemoteOffsets(group, self.offsets)
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._rebalancer = Rebalancer(
            self._cluster, group, options, self._subscriptions, self._consumed, None, self._make_pulled
        )
        self._assigned: dict[MessageQueue, PulledQueue] = self._rebalancer.pull_loops
        self._is_subscribed: bool | None = None  # None before ``subscribe`` and ``assign``
        self._arrivals = Arrivals()

    async def start(self) -> None:
        """Start the client, and join the group after a ``subscribe``.

        Raises:
            OptionError: a consumer of this process has the same group and client id.
            TransportError: the consumer has subscribed, and no name server responds.
            BrokerError: the consumer has subscribed, and a broker refuses it (code 16).
        """
        await self._join(self._subscriptions)
        if self._is_subscribed:
            self._cluster.run(self._rebalancer.run())
        else:
            self._cluster.run(self._cluster.send_heartbeats())
        if self.options.auto_commit:
            self._cluster.run_every(self.options.persist_interval_s, self._persist)

    async def close(self) -> None:
        """Commit if that is automatic, leave the group, and close all connections."""
        self._started_ms = 0
        await self._cluster.stop_tasks()
        await self._rebalancer.close()
        await self._leave()

    def _heartbeat(self) -> HeartbeatData | None:
        subscriptions = self._heartbeat_subscriptions()
        if not subscriptions:
            return None
        return self._consumer_heartbeat(self.options.start, subscriptions, consume_type="CONSUME_ACTIVELY")

    def _heartbeat_subscriptions(self) -> list[SubscriptionData]:
        subscriptions = self._subscriptions or {
            pulled.subscription.topic: pulled.subscription for pulled in self._assigned.values()
        }
        return list(subscriptions.values())

    async def running_info(self) -> ConsumerRunningInfo:
        """Return the running info for ``mqadmin consumerStatus``; raises as ``offsets.committed``."""
        queues = {}
        for queue, pulled in list(self._assigned.items()):
            offset = self._consumed.get(queue)
            queues[queue_key(queue)] = pulled.info(await self.committed(queue) if offset is None else offset)
        properties: dict[str, str | int | float | bool] = {
            "PROP_CONSUME_TYPE": "CONSUME_ACTIVELY",
            "PROP_CLIENT_VERSION": CURRENT_VERSION_NAME,
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_NAMESERVER_ADDR": self._cluster.namesrv,
        }
        return ConsumerRunningInfo(
            mq_table=queues, properties=properties, subscription_set=self._heartbeat_subscriptions()
        )

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> None:
        """Subscribe to a topic: rebalance allocates its queues among the consumers of the group that have subscribed.

        A missing topic is consumed once it exists.

        Args:
            topic: the topic.
            tags: ``*``, or tags with ``||`` between them.
            sql: an SQL92 expression over properties instead; the broker has to allow it.

        Raises:
            OptionError: the tags are invalid, or queues are assigned.
        """
        data = subscription(topic, tags, sql=sql, version=self._next_version())
        is_first = self._is_subscribed is None
        self._set_mode(subscribes=True)
        self._subscriptions[topic] = data
        for pulled in self._assigned.values():
            if pulled.queue.topic == topic:
                self._update_subscription(pulled, data)
        if self._started_ms:
            self._cluster.run(self._announce())
            if is_first:
                self._cluster.run(self._rebalancer.run())

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic."""
        self._subscriptions.pop(topic, None)
        self._rebalancer.rebalance_soon()
        if self._started_ms:
            self._cluster.run(self._announce())

    def _set_mode(self, *, subscribes: bool) -> None:
        if self._is_subscribed not in {None, subscribes}:
            raise OptionError("a pull consumer either subscribes to topics or is assigned queues, not both")
        self._is_subscribed = subscribes

    async def _announce(self) -> None:
        await self._cluster.register_at_brokers(self._subscriptions)
        self._rebalancer.rebalance_soon()

    def _rebalance_soon(self) -> None:
        self._rebalancer.rebalance_soon()

    def _make_pulled(self, queue: MessageQueue, data: SubscriptionData) -> PulledQueue:
        return PulledQueue(queue, data, self._puller, self.options, self._begin_offset, self._arrivals)

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """List the readable queues of a topic.

        Raises:
            NoRouteError: the topic does not exist.
            TransportError: no name server responds.
        """
        return (await self._cluster.refresh_route(topic)).read_queues

    async def light_queues(self, name: str, topic: str) -> Sequence[MessageQueue]:
        """List the queues of a light queue (LMQ), one at each broker of a topic, to be assigned.

        The messages have the topic to which they were sent, and their offset in the light queue as queue offset.

        Args:
            name: name of the light queue, with the prefix ``%LMQ%``.
            topic: topic whose brokers may have the light queue, such as one whose messages name it.

        Raises:
            OptionError: the name is no light queue's name.
            NoRouteError: the topic does not exist.
            TransportError: no name server responds.
        """
        if not name.startswith(LIGHT_QUEUE_PREFIX):
            raise OptionError(f"{name!r} does not begin with {LIGHT_QUEUE_PREFIX}, as names of light queues do")
        return (await self._cluster.lmq_route(name, topic)).read_queues

    def assign(self, queues: Iterable[MessageQueue], tags: str = ALL, *, sql: str | None = None) -> None:
        """Assign exactly these queues; queues of the former assignment continue at their positions.

        Args:
            queues: queues of any topics.
            tags: ``*``, or tags with ``||`` between them.
            sql: an SQL92 expression over properties instead; the broker has to allow it.

        Raises:
            OptionError: the tags are invalid, or the consumer has subscribed.
        """
        version = self._next_version()
        subscriptions = {queue: subscription(queue.topic, tags, sql=sql, version=version) for queue in queues}
        self._set_mode(subscribes=False)
        for queue in self._assigned.keys() - subscriptions.keys():
            self._assigned.pop(queue).cancel()
        for queue, data in subscriptions.items():
            pulled = self._assigned.get(queue)
            if pulled is None:
                pulled = self._assigned[queue] = self._make_pulled(queue, data)
                pulled.start(None)
            else:
                self._update_subscription(pulled, data)
        if subscriptions:
            self._cluster.run(self._cluster.send_heartbeats())

    def _update_subscription(self, pulled: PulledQueue, data: SubscriptionData) -> None:
        old = pulled.subscription
        if (old.sub_string, old.expression_type) != (data.sub_string, data.expression_type):
            pulled.subscription = data
            pulled.start(pulled.position)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues assigned by the caller or by rebalance."""
        return list(self._assigned)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at a queue offset; messages that were pulled but not returned yet are dropped.

        Raises:
            OptionError: the queue is not assigned, or the offset is below 0.
        """
        if offset < 0:
            raise OptionError(f"offset {offset} is below 0")
        self._assigned_queue(queue).start(offset)
        if self.options.auto_commit:  # else closing would commit an offset that the caller has not committed
            self._consumed.update(queue, offset, only_up=False)

    async def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Seek to the min offset of some or of all assigned queues; raises as ``offsets.min``."""
        for queue in queues or self.assignment:
            self.seek(queue, await self.offsets.min(queue))

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Seek to the max offset, where the next messages will be; raises as ``offsets.max``."""
        for queue in queues or self.assignment:
            self.seek(queue, await self.offsets.max(queue))

    async def seek_to_time(self, timestamp_ms: int, *queues: MessageQueue) -> None:
        """Seek to the first message stored at a time or later, in ms; raises as ``offsets.search``."""
        for queue in queues or self.assignment:
            self.seek(queue, await self.offsets.search(queue, timestamp_ms))

    def pause(self, *queues: MessageQueue) -> None:
        """Return no messages of these queues from ``poll`` until ``resume``."""
        for queue in queues:
            self._assigned_queue(queue).is_paused = True

    def resume(self, *queues: MessageQueue) -> None:
        """Resume queues that were paused."""
        for queue in queues:
            self._assigned_queue(queue).is_paused = False
        self._arrivals.changed.set()

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset of the message that ``poll`` returns next; None before the broker's first response."""
        return self._assigned_queue(queue).position

    async def poll(self, timeout_s: float = 5.0, max_messages: int | None = None) -> list[ReceivedMessage]:
        """Return the next messages, of all queues in turn; messages of a queue are in order.

        Args:
            timeout_s: maximal wait for a first message; then the list is empty.
            max_messages: maximal number of messages; ``pull_batch_size`` if it is not given.

        Raises:
            BrokerError, FormatError: since the last call, a pull was refused or its response could not be decoded;
                pulls that may succeed later, as while a broker restarts, are repeated instead.
        """
        if self.options.auto_commit:
            for queue, pulled in self._assigned.items():
                if pulled.position is not None:
                    self._consumed.update(queue, pulled.position, only_up=False)
        limit = max_messages or self.options.pull_batch_size
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            messages = self._poll_cached(limit)
            if messages:
                return messages
            if self._arrivals.error is not None:
                error, self._arrivals.error = self._arrivals.error, None
                raise error
            self._arrivals.changed.clear()
            remaining_s = deadline - loop.time()
            if remaining_s <= 0:
                return []
            try:
                async with asyncio.timeout(remaining_s):
                    await self._arrivals.changed.wait()
            except TimeoutError:
                return self._poll_cached(limit)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit the messages that ``poll`` has returned; raises as ``offsets.commit``.

        Args:
            offsets: queue offsets of the next messages to consume, to commit instead. Queues that are not assigned are
                skipped, as another member of the group may have them.
        """
        if offsets is None:
            offsets = {
                queue: pulled.position for queue, pulled in self._assigned.items() if pulled.position is not None
            }
        for queue, offset in offsets.items():
            if queue in self._assigned:
                self._consumed.update(queue, offset, only_up=False)
                await self.offsets.commit(queue, self.group, offset)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue; raises as ``offsets.committed``."""
        return await self.offsets.committed(queue, self.group)

    async def _persist(self) -> None:
        await self._consumed.persist(list(self._assigned))

    def _assigned_queue(self, queue: MessageQueue) -> PulledQueue:
        try:
            return self._assigned[queue]
        except KeyError:
            raise OptionError(f"{queue.topic} {queue.broker_name} {queue.queue_id} is not assigned") from None

    def _poll_cached(self, limit: int) -> list[ReceivedMessage]:
        messages: list[ReceivedMessage] = []
        for queue, pulled in list(self._assigned.items()):
            polled = pulled.poll(limit - len(messages))
            if polled:
                messages += polled
                # Moved to the end, so that the next call begins with another queue.
                self._assigned[queue] = self._assigned.pop(queue)
            if len(messages) == limit:
                break
        return messages

    async def _begin_offset(self, queue: MessageQueue) -> int:
        committed = await self.offsets.committed(queue, self.group)
        return await self.offsets.start(queue, self.options) if committed is None else committed
