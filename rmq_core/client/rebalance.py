"""Sharing out queues within a group, and beginning and ending work on them as the shares change.

Source: ``RebalanceImpl``, ``RebalancePushImpl``.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from rmq_core.client.cluster import Cluster
from rmq_core.client.errors import NoRouteError
from rmq_core.client.locks import QueueLocks
from rmq_core.client.message import RETRY_TOPIC_PREFIX
from rmq_core.client.offset_store import OffsetStore
from rmq_core.client.options import MessageModel, PushOptions
from rmq_core.client.queue_offsets import QueueOffsets
from rmq_core.client.queue_work import QueueWork
from rmq_core.remoting.bodies import ConsumerIdList, MessageQueue, SubscriptionData, decode_body
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.fields import write_fields
from rmq_core.remoting.header import request
from rmq_core.remoting.requests import ConsumerGroup
from rmq_formats.errors import RmqError

log = logging.getLogger("rmq.client")
_UNBALANCED_S: Final = 0.5  # until the next try when not all queues could be had, as where another has the locks
MakeWork = Callable[[MessageQueue, SubscriptionData], QueueWork]


class Rebalancer:
    """Keeps the right queues at work.

    Attributes:
        works: the queues that the consumer has.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        options: PushOptions,
        subscriptions: dict[str, SubscriptionData],
        offsets: OffsetStore,
        locks: QueueLocks | None,
        make_work: MakeWork,
    ) -> None:
        """Prepare.

        Args:
            cluster: the client's.
            group: whose queues.
            options: the consumer's.
            subscriptions: by topic; changes are seen at the next round.
            offsets: where a queue's work begins, and where it leaves off.
            locks: taken before work begins; None if others may have the queue too.
            make_work: makes work on a queue.
        """
        self.works: dict[MessageQueue, QueueWork] = {}
        self._cluster = cluster
        self._group = group
        self._options = options
        self._subscriptions = subscriptions
        self._offsets = offsets
        self._locks = locks
        self._make_work = make_work
        self._wanted = asyncio.Event()
        self._queue_offsets = QueueOffsets(cluster)

    def soon(self) -> None:
        """Share out anew: somebody came or went."""
        self._wanted.set()

    async def run(self) -> None:
        """Share out again and again."""
        while True:
            self._wanted.clear()
            is_balanced = await self.rebalance()
            try:
                async with asyncio.timeout(self._options.rebalance_interval_s if is_balanced else _UNBALANCED_S):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    async def rebalance(self) -> bool:
        """Share out once; whether the consumer has all that it should."""
        is_balanced = True
        for queue in [queue for queue in self.works if queue.topic not in self._subscriptions]:
            await self._end(queue)
        for topic, wanted in list(self._subscriptions.items()):
            try:
                share = await self._share(topic)
                is_balanced &= share is not None and await self._apply(topic, wanted, share)
            except (RmqError, OSError) as error:
                # The retry topic is made by the first heartbeat, and known some time later.
                if not (isinstance(error, NoRouteError) and topic.startswith(RETRY_TOPIC_PREFIX)):
                    log.warning("the queues of %s are not shared out: %s", topic, error)
                is_balanced = False
            except Exception:  # an allocation of the user's may raise anything
                log.exception("the queues of %s are not shared out", topic)
                is_balanced = False
        return is_balanced

    async def _share(self, topic: str) -> set[MessageQueue] | None:
        """This consumer's queues of a topic; None if that cannot be told now."""
        queues = sorted((await self._cluster.route(topic)).read_queues)
        if self._options.model is MessageModel.BROADCASTING:
            return set(queues)
        client_ids = await self._client_ids(topic)
        if not queues or self._cluster.client_id not in client_ids:
            return None
        return set(self._options.allocation(self._cluster.client_id, queues, client_ids))

    async def _client_ids(self, topic: str) -> list[str]:
        """The group's clients, sorted, as any broker of the topic knows them."""
        fields = write_fields(ConsumerGroup(consumer_group=self._group))
        failed: RemotingError | None = None
        for broker_name in (await self._cluster.route(topic)).brokers:
            command = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields)
            try:
                address = self._cluster.address(broker_name, any_id=True)
                answer = await self._cluster.ask_command(address, command, 3.0, (ResponseCode.SYSTEM_ERROR,))
            except RemotingError as error:
                failed = error
                continue
            if answer.code == ResponseCode.SUCCESS:  # else it has not heard of the group yet
                return sorted(decode_body(answer.body, ConsumerIdList).consumer_id_list)
        if failed is not None:
            raise failed
        return []

    async def _apply(self, topic: str, wanted: SubscriptionData, share: set[MessageQueue]) -> bool:
        """Begin and end work; whether all of the share is at work now."""
        had = {queue for queue in self.works if queue.topic == topic}
        for queue in had - share:
            await self._end(queue)
        new = share - had
        if new and self._locks is not None:
            new &= await self._locks.lock(sorted(new))
        for queue in sorted(new):
            await self._begin(queue, wanted)
        return share <= self.works.keys()

    async def _begin(self, queue: MessageQueue, wanted: SubscriptionData) -> None:
        self._offsets.forget(queue)
        offset = await self._offsets.read(queue)
        if offset is None:
            offset = await self._queue_offsets.start(queue, self._options)
        log.info("%s: %s is ours, from %d on", self._group, queue, offset)
        work = self.works[queue] = self._make_work(queue, wanted)
        work.start(offset)

    async def _end(self, queue: MessageQueue) -> None:
        work = self.works.pop(queue)
        await work.stop()
        log.info("%s: %s is no longer ours", self._group, queue)
        try:
            await self._offsets.persist([queue])
        except RmqError as error:
            log.warning("the offset of %s is not stored: %s", queue, error)
        self._offsets.forget(queue)
        if self._locks is not None:
            await self._locks.unlock([queue])

    async def close(self) -> None:
        """End all work, and give back what was locked."""
        await asyncio.gather(*(work.stop() for work in self.works.values()))
        queues = list(self.works)
        self.works.clear()
        try:
            await self._offsets.persist(queues)
        except RmqError as error:
            log.warning("the offsets of %s are not stored: %s", self._group, error)
        if self._locks is not None:
            await self._locks.unlock(queues)
