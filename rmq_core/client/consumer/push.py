"""The push consumer: pulls the queues that rebalance assigns, and calls a listener with their messages.

::

    async def on_messages(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            await handle(message.body)

    consumer = PushConsumer("127.0.0.1:9876", "billing", on_messages)
    consumer.subscribe("Orders", "Paid || Refunded")
    async with consumer:
        await asyncio.Event().wait()

Source: ``DefaultMQPushConsumerImpl``.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from rmq_core.client.consumer.broker_callbacks import consumer_handlers, push_consumer_handlers
from rmq_core.client.consumer.consume_message import (
    ConsumeMessageConcurrentlyService,
    ConsumeMessageOrderlyService,
    ConsumeMessageService,
)
from rmq_core.client.consumer.offset_store import LocalOffsets, OffsetStore, RemoteOffsets
from rmq_core.client.consumer.queue_pull_loop import QueuePullLoop
from rmq_core.client.consumer.rebalance import ConsumerQueueLocks, Rebalancer
from rmq_core.client.consumer.send_back import MAX_INT, SendBack
from rmq_core.client.listener import Later, Listener, call_listener
from rmq_core.client.message import RETRY_TOPIC_PREFIX, ReceivedMessage
from rmq_core.client.options import MessageModel, ProducerOptions, PushOptions
from rmq_core.client.producer.group_client import GroupClient
from rmq_core.client.producer.packet import MAX_GROUP_CHARACTERS
from rmq_core.client.producer.producer import Producer
from rmq_core.client.producer.tracer import GROUP_PREFIX, SEND_TIMEOUT_S, Tracer, traced
from rmq_core.client.pull.request import ALL, Puller, QueueOffsets, subscription
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.bodies.clients import (
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    HeartbeatData,
    ProcessQueueInfo,
    SubscriptionData,
)
from rmq_core.remoting.bodies.codec import MessageQueue, queue_key
from rmq_core.remoting.codes import CURRENT_VERSION_NAME

log = logging.getLogger("rmq.client")
_DEFAULTS: Final = PushOptions()
_MAX_RECONSUME_TIMES: Final = 16  # DefaultMQPushConsumerImpl#getMaxReconsumeTimes


class PushConsumer(GroupClient):
    """Consumer that calls a listener; subscribe, then use it with ``async with``, or start and close it.

    Attributes:
        options: settings of the client.
    """

    def __init__(
        self,
        namesrv: str,
        group: str,
        listener: Listener,
        options: PushOptions = _DEFAULTS,
        *,
        credentials: Credentials | None = None,
    ) -> None:
        """Create a consumer without connections.

        Args:
            namesrv: ``host:port`` of the name servers, separated by semicolons.
            group: name of the group.
            listener: the function that consumes messages.
            options: settings of the client.
            credentials: to sign requests with.

        Raises:
            OptionError: ``namesrv`` has no valid address.
            MessageError: the group's name is invalid.
        """
        self._broadcasts = options.model is MessageModel.BROADCASTING
        super().__init__(
            "consumer",
            namesrv,
            group,
            options,
            credentials,
            handlers=consumer_handlers(group, self._rebalance_soon, self.running_info)
            | push_consumer_handlers(group, self.go_to, self.known_offsets, self.consume_directly),
            has_fixed_instance_name=self._broadcasts,
        )
        self.options = options
        self._listener = listener
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._offsets = self._offset_store()
        self._locks = ConsumerQueueLocks(self._cluster, group) if options.in_order and not self._broadcasts else None
        self._tracing = TraceSender(namesrv, group, options, credentials) if options.enable_trace else None
        self._consuming = self._create_consume_service()
        self._puller = Puller(self._cluster, group, options, sends_subscription=False)
        self._rebalancer = Rebalancer(
            self._cluster,
            group,
            options,
            self._subscriptions,
            self._offsets,
            self._locks,
            self._create_pull_loop,
            is_broadcasting=self._broadcasts,
        )
        self._may_pull = asyncio.Event()
        self._may_pull.set()
        if not self._broadcasts:
            self.subscribe(RETRY_TOPIC_PREFIX + group)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The assigned queues."""
        return sorted(self._rebalancer.pull_loops)

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> None:
        """Subscribe to a topic.

        Args:
            topic: the topic.
            tags: ``*``, or tags with ``||`` between them.
            sql: an SQL92 expression over properties instead; the broker has to allow it.

        Raises:
            OptionError: the tags are invalid.
        """
        data = self._subscriptions[topic] = subscription(topic, tags, sql=sql, version=self._next_version())
        for queue, work in self._rebalancer.pull_loops.items():
            if queue.topic == topic:
                work.subscription = data
        if self._started_ms:
            self._cluster.run(self._announce())

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic."""
        self._subscriptions.pop(topic, None)
        if self._started_ms:
            self._cluster.run(self._announce())

    def pause(self) -> None:
        """Stop pulling; pulled messages are still consumed."""
        self._may_pull.clear()

    def resume(self) -> None:
        """Resume pulling."""
        self._may_pull.set()

    async def start(self) -> None:
        """Join the group; a topic is consumed once it exists.

        Raises:
            OptionError: a consumer of this process has the same group and client id.
            TransportError: no name server responds.
            BrokerError: a broker refuses the consumer (code 16).
        """
        await self._join(self._subscriptions)
        if self._tracing is not None:
            await self._tracing.start()
        self._consuming.start()
        self._cluster.run(self._rebalancer.run())
        self._cluster.run_every(self.options.persist_interval_s, self._persist)
        if self._locks is not None:
            self._cluster.run_every(self.options.lock_interval_s, self._renew_locks)

    async def close(self) -> None:
        """Leave the group, after running listener calls; persist offsets, so that other members get the queues."""
        self._started_ms = 0
        await self._cluster.stop_tasks()
        for work in self._rebalancer.pull_loops.values():
            work.stop_pulling()
        if self._locks is not None:
            self._cluster.run_every(self.options.lock_interval_s, self._renew_locks)  # while the last calls run
        await self._consuming.close()
        await self._rebalancer.close()
        if self._tracing is not None:
            await self._tracing.close()
        await self._leave()

    def _offset_store(self) -> OffsetStore:
        if not self._broadcasts:
            return RemoteOffsets(self.group, QueueOffsets(self._cluster))
        directory = self.options.local_offset_dir.expanduser()
        return LocalOffsets(directory / self._cluster.client_id / self.group / "offsets.json")

    def _create_consume_service(self) -> ConsumeMessageService:
        options = self.options
        listener = self._listener if self._tracing is None else self._tracing.traced(self._listener)
        limit = options.max_reconsume_times
        if limit == -1:
            limit = MAX_INT if options.in_order else _MAX_RECONSUME_TIMES
        send_back = None if self._broadcasts else SendBack(self._cluster, self.group, limit, options.clock_ms)
        if options.in_order:
            return ConsumeMessageOrderlyService(listener, self._offsets, options, send_back, self._is_locked)
        return ConsumeMessageConcurrentlyService(listener, self._offsets, options, send_back)

    def _is_locked(self, queue: MessageQueue) -> bool:
        return self._locks is None or self._locks.is_locked(queue)

    def _create_pull_loop(self, queue: MessageQueue, data: SubscriptionData) -> QueuePullLoop:
        return QueuePullLoop(queue, data, self._puller, self._offsets, self._consuming, self.options, self._may_pull)

    def _heartbeat(self) -> HeartbeatData | None:
        options = self.options
        return self._consumer_heartbeat(options.start, self._subscriptions.values(), message_model=options.model.value)

    async def _announce(self) -> None:
        await self._cluster.send_heartbeats()
        self._rebalancer.rebalance_soon()

    async def _persist(self) -> None:
        await self._offsets.persist(list(self._rebalancer.pull_loops))

    async def _renew_locks(self) -> None:
        if self._locks is not None:
            await self._locks.lock(list(self._rebalancer.pull_loops))

    # Requests from brokers.

    def _rebalance_soon(self) -> None:
        self._rebalancer.rebalance_soon()

    def go_to(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue from other offsets, given by queue; queues that are not assigned are ignored."""
        for queue, offset in offsets.items():
            work = self._rebalancer.pull_loops.get(queue)
            if work is not None:
                self._cluster.run(work.restart_at(offset))

    def known_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Return the consumer offsets of a topic in memory."""
        offsets = {queue: self._offsets.get(queue) for queue in self._rebalancer.pull_loops if queue.topic == topic}
        return {queue: offset for queue, offset in offsets.items() if offset is not None}

    async def running_info(self) -> ConsumerRunningInfo:
        """Return the running info for ``mqadmin consumerStatus``."""
        properties: dict[str, str | int | float | bool] = {
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMEORDERLY": str(self.options.in_order).lower(),
            "PROP_CLIENT_VERSION": CURRENT_VERSION_NAME,
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_NAMESERVER_ADDR": self._cluster.namesrv,
            "PROP_THREADPOOL_CORE_SIZE": str(self.options.concurrency),
        }
        return ConsumerRunningInfo(
            mq_table={queue_key(queue): self._queue_info(work) for queue, work in self._rebalancer.pull_loops.items()},
            properties=properties,
            subscription_set=list(self._subscriptions.values()),
        )

    def _queue_info(self, work: QueuePullLoop) -> ProcessQueueInfo:
        messages = work.messages
        first, last = messages.bounds
        return ProcessQueueInfo(
            cached_msg_count=len(messages),
            cached_msg_min_offset=first,
            cached_msg_max_offset=last,
            cached_msg_size_in_mib=messages.cached_bytes >> 20,
            commit_offset=self._offsets.get(work.queue) or 0,
            droped=work.is_revoked or messages.is_dropped,
            last_pull_timestamp=work.last_pull_ms,
            locked=self.options.in_order and self._is_locked(work.queue),
        )

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult:
        """Consume a message at once, for ``mqadmin queryMsgById -d``."""
        response = await call_listener(self._listener, [message])
        result = "CR_LATER" if isinstance(response, Later) else "CR_SUCCESS"
        return ConsumeDirectlyResult(consume_result=result, order=self.options.in_order)


class TraceSender:
    """Sender of a consumer's message traces, with a separate producer."""

    def __init__(self, namesrv: str, group: str, options: PushOptions, credentials: Credentials | None) -> None:
        self._group = group
        self._timeout_s = options.consume_timeout_s
        self._producer = Producer(
            namesrv,
            f"{GROUP_PREFIX}-CONSUME-{group}"[:MAX_GROUP_CHARACTERS],
            ProducerOptions(
                unit_name=options.unit_name, send_timeout_s=SEND_TIMEOUT_S, tls=options.tls, clock_ms=options.clock_ms
            ),
            credentials=credentials,
        )
        self._tracer = Tracer(options.trace_topic, self._producer.send, options.clock_ms)

    def traced(self, listener: Listener) -> Listener:
        """Wrap a listener so that its calls are traced."""
        return traced(listener, self._group, self._tracer, self._timeout_s)

    async def start(self) -> None:
        """Start the producer and the sending of traces."""
        await self._producer.start()
        self._tracer.start()

    async def close(self) -> None:
        """Send the remaining records, and stop."""
        await self._tracer.close()
        await self._producer.close()
