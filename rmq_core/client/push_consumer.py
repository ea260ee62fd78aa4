"""The push consumer: it reads its share of its group's queues, and calls a listener with what comes.

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
import time
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from rmq_core.client.broker_requests import handlers
from rmq_core.client.cluster import Cluster
from rmq_core.client.consuming import ConcurrentConsuming, Consuming
from rmq_core.client.consuming_in_order import ConsumingInOrder
from rmq_core.client.listener import Later, Listener, call_listener
from rmq_core.client.locks import QueueLocks
from rmq_core.client.message import RETRY_TOPIC_PREFIX, ReceivedMessage
from rmq_core.client.offset_store import LocalOffsets, OffsetStore, RemoteOffsets
from rmq_core.client.options import MessageModel, PushOptions
from rmq_core.client.packet import MAX_GROUP_CHARACTERS, check_name
from rmq_core.client.pull import Puller
from rmq_core.client.queue_offsets import QueueOffsets
from rmq_core.client.queue_work import QueueWork
from rmq_core.client.rebalance import Rebalancer
from rmq_core.client.send_back import MAX_INT, SendBack
from rmq_core.client.subscription import ALL, subscription
from rmq_core.client.trace_consumer import TraceSender
from rmq_core.remoting.acl import Credentials
from rmq_core.remoting.bodies import (
    ConsumerData,
    ConsumerRunningInfo,
    HeartbeatData,
    MessageQueue,
    ProcessQueueInfo,
    SubscriptionData,
    queue_key,
)
from rmq_core.remoting.bodies.running import ConsumeDirectlyResult
from rmq_core.remoting.codes import CURRENT_VERSION_NAME, RequestCode
from rmq_core.remoting.requests import UnregisterClient
from rmq_formats.errors import RmqError

log = logging.getLogger("rmq.client")
_DEFAULTS: Final = PushOptions()
_MAX_RECONSUME_TIMES: Final = 16  # DefaultMQPushConsumerImpl#getMaxReconsumeTimes


class PushConsumer:
    """Calls a listener; subscribe, then use it with ``async with``, or start and close it.

    Attributes:
        group: its group's name.
        options: its settings.
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
        """Prepare.

        Args:
            namesrv: ``host:port`` of the name servers, separated by semicolons.
            group: its group's name.
            listener: takes messages.
            options: its settings.
            credentials: to sign requests with.

        Raises:
            OptionError: no address of a name server.
            MessageError: a bad group.
        """
        check_name("group", group, MAX_GROUP_CHARACTERS)
        self.group = group
        self.options = options
        self._listener = listener
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._broadcasts = options.model is MessageModel.BROADCASTING
        self._cluster = Cluster(
            namesrv,
            options,
            credentials=credentials,
            handlers=handlers(self, self._run),
            heartbeat=self._heartbeat,
            keeps_instance_name=self._broadcasts,
        )
        self._offsets = self._offset_store()
        self._locks = QueueLocks(self._cluster, group) if options.in_order and not self._broadcasts else None
        self._tracing = TraceSender(namesrv, group, options, credentials) if options.enable_trace else None
        self._consuming = self._make_consuming()
        self._puller = Puller(self._cluster, group, options, sends_subscription=False)
        self._rebalancer = Rebalancer(
            self._cluster, group, options, self._subscriptions, self._offsets, self._locks, self._make_work
        )
        self._may_pull = asyncio.Event()
        self._may_pull.set()
        self._started_ms = 0
        if not self._broadcasts:
            self.subscribe(RETRY_TOPIC_PREFIX + group)

    async def __aenter__(self) -> "PushConsumer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """What brokers know it by."""
        return self._cluster.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that it has now."""
        return sorted(self._rebalancer.works)

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> None:
        """Take messages of a topic too.

        Args:
            topic: which.
            tags: ``*``, or tags with ``||`` between them.
            sql: an SQL92 expression over properties instead; the broker has to allow it.

        Raises:
            OptionError: bad tags.
        """
        self._subscriptions[topic] = subscription(topic, tags, sql=sql)
        if self._started_ms:
            self._run(self._announce())

    def unsubscribe(self, topic: str) -> None:
        """Take no more messages of a topic."""
        self._subscriptions.pop(topic, None)
        if self._started_ms:
            self._run(self._announce())

    def pause(self) -> None:
        """Pull nothing; what was pulled goes on."""
        self._may_pull.clear()

    def resume(self) -> None:
        """Pull again."""
        self._may_pull.set()

    async def start(self) -> None:
        """Join the group.

        Raises:
            NoRouteError: a topic does not exist.
            TransportError: no name server answers.
        """
        await self._cluster.start()
        try:
            for topic in self._subscriptions:
                if not topic.startswith(RETRY_TOPIC_PREFIX):
                    await self._cluster.route(topic)
            self._started_ms = time.time_ns() // 1_000_000
            await self._cluster.send_heartbeats()
        except BaseException:
            await self._cluster.close()
            raise
        if self._tracing is not None:
            await self._tracing.start()
        self._consuming.start()
        self._run(self._rebalancer.run())
        self._run(self._persist_again_and_again())
        if self._locks is not None:
            self._run(self._lock_again_and_again(self._locks))

    async def close(self) -> None:
        """Leave the group: calls of the listener end, offsets are stored, others get the queues."""
        self._started_ms = 0
        await self._cluster.stop_tasks()
        for work in self._rebalancer.works.values():
            work.pull_no_more()
        await self._consuming.close()
        await self._rebalancer.close()
        if self._tracing is not None:
            await self._tracing.close()
        await self._cluster.to_masters(
            RequestCode.UNREGISTER_CLIENT,
            UnregisterClient(client_id=self._cluster.client_id, consumer_group=self.group),
        )
        await self._cluster.close()

    # What it is made of.

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._cluster.run(work)

    def _offset_store(self) -> OffsetStore:
        if not self._broadcasts:
            return RemoteOffsets(self.group, QueueOffsets(self._cluster))
        directory = self.options.local_offset_dir.expanduser()
        return LocalOffsets(directory / self._cluster.client_id / self.group / "offsets.json")

    def _make_consuming(self) -> Consuming:
        options = self.options
        listener = self._listener if self._tracing is None else self._tracing.traced(self._listener)
        limit = options.max_reconsume_times
        if options.in_order:
            back = None if self._broadcasts else SendBack(self._cluster, self.group, MAX_INT if limit == -1 else limit)
            return ConsumingInOrder(listener, self._offsets, options, back, self._is_locked)
        most = _MAX_RECONSUME_TIMES if limit == -1 else limit
        back = None if self._broadcasts else SendBack(self._cluster, self.group, most)
        return ConcurrentConsuming(listener, self._offsets, options, back)

    def _is_locked(self, queue: MessageQueue) -> bool:
        return self._locks is None or self._locks.holds(queue)

    def _make_work(self, queue: MessageQueue, wanted: SubscriptionData) -> QueueWork:
        return QueueWork(queue, wanted, self._puller, self._offsets, self._consuming, self.options, self._may_pull)

    def _heartbeat(self) -> HeartbeatData | None:
        if not self._started_ms:
            return None
        data = ConsumerData(
            group_name=self.group,
            consume_from_where=self.options.start.value,
            message_model=self.options.model.value,
            subscription_data_set=list(self._subscriptions.values()),
        )
        return HeartbeatData(client_id=self._cluster.client_id, consumer_data_set=[data])

    # What goes on beside.

    async def _announce(self) -> None:
        await self._cluster.send_heartbeats()
        self._rebalancer.soon()

    async def _persist_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(self.options.persist_interval_s)
            try:
                await self._offsets.persist(list(self._rebalancer.works))
            except RmqError as error:
                log.warning("the offsets of %s are not stored: %s", self.group, error)

    async def _lock_again_and_again(self, locks: QueueLocks) -> None:
        while True:
            await asyncio.sleep(self.options.lock_interval_s)
            await locks.lock(list(self._rebalancer.works))

    # What brokers ask for.

    def rebalance_soon(self) -> None:
        """Share out queues anew: somebody came or went."""
        self._rebalancer.soon()

    async def go_to(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at other offsets; queues that it does not have are passed over.

        Args:
            offsets: of the next message, by queue.
        """
        for queue, offset in offsets.items():
            work = self._rebalancer.works.get(queue)
            if work is not None:
                await work.begin_anew(offset)

    def known_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Offsets in memory, of one topic."""
        known = {queue: self._offsets.known(queue) for queue in self._rebalancer.works if queue.topic == topic}
        return {queue: offset for queue, offset in known.items() if offset is not None}

    def running_info(self) -> ConsumerRunningInfo:
        """How it is, as ``mqadmin consumerStatus`` shows it."""
        properties: dict[str, str | int | float | bool] = {
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMEORDERLY": str(self.options.in_order).lower(),
            "PROP_CLIENT_VERSION": CURRENT_VERSION_NAME,
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_NAMESERVER_ADDR": self._cluster.namesrv,
            "PROP_THREADPOOL_CORE_SIZE": str(self.options.concurrency),
        }
        return ConsumerRunningInfo(
            mq_table={queue_key(queue): self._queue_info(work) for queue, work in self._rebalancer.works.items()},
            properties=properties,
            subscription_set=list(self._subscriptions.values()),
        )

    def _queue_info(self, work: QueueWork) -> ProcessQueueInfo:
        messages = work.messages
        first, last = messages.bounds
        return ProcessQueueInfo(
            cached_msg_count=len(messages),
            cached_msg_min_offset=first,
            cached_msg_max_offset=last,
            cached_msg_size_in_mib=messages.cached_bytes >> 20,
            commit_offset=self._offsets.known(work.queue) or 0,
            droped=messages.is_dropped,
            last_pull_timestamp=work.last_pull_ms,
            locked=self.options.in_order and self._is_locked(work.queue),
        )

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult:
        """Consume a message out of turn, as ``mqadmin queryMsgById -d`` asks for."""
        answer = await call_listener(self._listener, [message])
        result = "CR_LATER" if isinstance(answer, Later) else "CR_SUCCESS"
        return ConsumeDirectlyResult(consume_result=result, order=self.options.in_order)
