"""Rebalance: allocates the group's queues to this member, locks them if in order, starts and stops their pull loops.

Source: ``RebalanceImpl``, ``RebalancePushImpl``.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar

from rmq_core.client.cluster import Cluster
from rmq_core.client.consumer.offset_store import OffsetStore
from rmq_core.client.errors import NoRouteError
from rmq_core.client.message import RETRY_TOPIC_PREFIX
from rmq_core.client.options import ConsumerOptions
from rmq_core.client.pull.request import QueueOffsets
from rmq_core.remoting.bodies.clients import ConsumerIdList, LockBatchRequest, LockBatchResponse, SubscriptionData
from rmq_core.remoting.bodies.codec import MessageQueue, decode_body, encode_body
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.fields import write_fields
from rmq_core.remoting.header import request
from rmq_core.remoting.requests import ConsumerGroupName
from rmq_formats.errors import RmqError

_EXPIRY_S: Final = 30.0  # ProcessQueue#REBALANCE_LOCK_MAX_LIVE_TIME: half of what brokers keep them for
log = logging.getLogger("rmq.client")
_UNBALANCED_S: Final = 0.5  # until the next try if not all queues could be taken, as another holds their locks


class ConsumerQueueLocks:
    """Queue locks of one consumer at the brokers."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._until_s: dict[MessageQueue, float] = {}

    def is_locked(self, queue: MessageQueue) -> bool:
        """Return True if the lock of a queue is certainly this consumer's now."""
        return asyncio.get_running_loop().time() < self._until_s.get(queue, 0.0)

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Acquire or renew locks; return the queues that are locked for this consumer now."""
        locked: set[MessageQueue] = set()
        for broker_name, requested in _by_broker(queues).items():
            begin_s = asyncio.get_running_loop().time()
            body = self._body(requested)
            try:
                address = self._cluster.address(broker_name)
                answer = await self._cluster.request(address, RequestCode.LOCK_BATCH_MQ, None, body)
                granted = set(decode_body(answer.body, LockBatchResponse).lock_ok_mq_set)
            except RemotingError as error:  # locks that it has run on until they expire
                log.warning("cannot lock queues at %s: %s", broker_name, error)
                continue
            locked |= granted & set(requested)
            for queue in requested:
                self._until_s[queue] = begin_s + _EXPIRY_S if queue in granted else 0.0
        return locked

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Release locks; at an unreachable broker, locks expire."""
        for broker_name, ours in _by_broker(queues).items():
            for queue in ours:
                self._until_s.pop(queue, None)
            try:
                address = self._cluster.address(broker_name)
                await self._cluster.request(address, RequestCode.UNLOCK_BATCH_MQ, None, self._body(ours))
            except RemotingError as error:
                log.warning("cannot unlock queues at %s: %s", broker_name, error)

    def _body(self, queues: list[MessageQueue]) -> bytes:
        return encode_body(
            LockBatchRequest(client_id=self._cluster.client_id, consumer_group=self._group, mq_set=queues)
        )


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    queues_of: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        queues_of.setdefault(queue.broker_name, []).append(queue)
    return queues_of


class Work(Protocol):
    """Pull loop of an assigned queue; ``is_revoked`` is set before it is stopped for good."""

    is_revoked: bool

    @property
    def is_abandoned(self) -> bool:
        """Return True if work of the queue may continue after the stop: then the queue's lock stays."""

    def start(self, offset: int) -> None:
        """Start pulling at an offset."""

    async def stop(self) -> None:
        """Stop; return when no work of the queue continues."""


_W = TypeVar("_W", bound=Work)


class Rebalancer(Generic[_W]):
    """Assigns queues to a consumer, as members and queues of its group come and go."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        options: ConsumerOptions,
        subscriptions: dict[str, SubscriptionData],
        offsets: OffsetStore,
        locks: ConsumerQueueLocks | None,
        make_work: Callable[[MessageQueue, SubscriptionData], _W],
        *,
        is_broadcasting: bool = False,
    ) -> None:
        """Create a rebalancer without queues.

        Args:
            subscriptions: by topic; changes are seen at the next round.
            offsets: where a queue's pull loop starts, and where it ends.
            locks: taken before a pull loop starts; None for concurrent consumption.
            is_broadcasting: assign all queues to this consumer.
        """
        self.works: dict[MessageQueue, _W] = {}
        self._cluster = cluster
        self._group = group
        self._options = options
        self._subscriptions = subscriptions
        self._offsets = offsets
        self._locks = locks
        self._make_work = make_work
        self._is_broadcasting = is_broadcasting
        self._round_requested = asyncio.Event()
        self._queue_offsets = QueueOffsets(cluster)

    def rebalance_soon(self) -> None:
        """Rebalance soon: a member has joined or left the group."""
        self._round_requested.set()

    async def run(self) -> None:
        """Rebalance periodically."""
        while True:
            self._round_requested.clear()
            is_balanced = await self.rebalance()
            try:
                async with asyncio.timeout(self._options.rebalance_interval_s if is_balanced else _UNBALANCED_S):
                    await self._round_requested.wait()
            except TimeoutError:
                continue

    async def rebalance(self) -> bool:
        """Rebalance once; return True if the consumer has all its allocated queues."""
        is_balanced = True
        for queue in self.works:
            if queue.topic not in self._subscriptions:
                self._revoke(queue)
        for topic in list(self._subscriptions):
            try:
                allocated = await self._allocate(topic)
                is_balanced &= allocated is not None and await self._update_assignment(topic, allocated)
            except NoRouteError as error:
                if topic.startswith(RETRY_TOPIC_PREFIX):  # brokers make it at the first heartbeat
                    is_balanced &= not self._cluster.has_brokers
                else:
                    log.warning("topic %s cannot be consumed yet: %s", topic, error)
            except (RmqError, OSError) as error:
                log.warning("rebalance of topic %s failed: %s", topic, error)
                is_balanced = False
            except Exception:  # an allocation of the user's may raise anything
                log.exception("rebalance of topic %s failed", topic)
                is_balanced = False
        return is_balanced

    async def _allocate(self, topic: str) -> set[MessageQueue] | None:
        """Allocate this consumer's queues of a topic; None if a broker does not have the group yet."""
        queues = sorted((await self._cluster.route(topic)).read_queues)
        if self._is_broadcasting:
            return set(queues)
        client_ids = await self._client_ids(topic)
        if not queues or self._cluster.client_id not in client_ids:
            return None
        return set(self._options.allocation(self._cluster.client_id, queues, client_ids))

    async def _client_ids(self, topic: str) -> list[str]:
        """Return the group's client ids, sorted, from a random broker of the topic."""
        fields = write_fields(ConsumerGroupName(consumer_group=self._group))
        failed: RemotingError | None = None
        names = list((await self._cluster.route(topic)).brokers)
        for broker_name in random.sample(names, len(names)):
            command = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields)
            try:
                address = self._cluster.address(broker_name, any_id=True)
                answer = await self._cluster.send_command(address, command, 3.0, (ResponseCode.SYSTEM_ERROR,))
            except RemotingError as error:
                failed = error
                continue
            if answer.code == ResponseCode.SUCCESS:  # otherwise it does not know the group yet
                return sorted(decode_body(answer.body, ConsumerIdList).consumer_id_list)
        if failed is not None:
            raise failed
        return []

    async def _update_assignment(self, topic: str, allocated: set[MessageQueue]) -> bool:
        """Start and stop pull loops; return whether all allocated queues are assigned now, or soon will be."""
        assigned = {queue for queue in self.works if queue.topic == topic}
        for queue in sorted(assigned - allocated):
            self._revoke(queue)
        new = allocated - assigned
        if new and self._locks is not None:
            new &= await self._locks.lock(sorted(new))
        for queue in sorted(new):
            await self._assign(queue)
        return allocated <= self.works.keys()

    async def _assign(self, queue: MessageQueue) -> None:
        self._offsets.evict(queue)
        offset = await self._offsets.read(queue)
        if offset is None:
            offset = await self._queue_offsets.start(queue, self._options)
        subscription = self._subscriptions.get(queue.topic)  # it may have changed while the broker was asked
        if subscription is None:
            if self._locks is not None:
                await self._locks.unlock([queue])
            return
        log.info("%s: %s is assigned, from offset %d on", self._group, queue, offset)
        work = self.works[queue] = self._make_work(queue, subscription)
        work.start(offset)

    def _revoke(self, queue: MessageQueue) -> None:
        """Stop a queue's pull loop, without waiting: an orderly queue stays, with its lock, while its call runs."""
        work = self.works[queue]
        if not work.is_revoked:
            work.is_revoked = True
            self._cluster.run(self._finish_revoke(queue, work))

    async def _finish_revoke(self, queue: MessageQueue, work: _W) -> None:
        await work.stop()
        log.info("%s: %s is no longer assigned", self._group, queue)
        try:
            await self._offsets.persist([queue])
        except RmqError as error:
            log.warning("cannot commit the offset of %s: %s", queue, error)
        self._offsets.evict(queue)
        del self.works[queue]
        if self._locks is not None:
            await self._locks.unlock([queue])
        self.rebalance_soon()  # it may have been allocated anew in the meantime

    async def close(self) -> None:
        """Stop all pull loops, persist the offsets, and release the locks.

        The lock of a queue whose call was cancelled expires at the broker: a thread of the call may still be at work.
        """
        await asyncio.gather(*(work.stop() for work in self.works.values()))
        works = self.works.copy()
        self.works.clear()
        try:
            await self._offsets.persist(list(works))
        except RmqError as error:
            log.warning("cannot commit the offsets of %s: %s", self._group, error)
        if self._locks is not None:
            await self._locks.unlock(queue for queue, work in works.items() if not work.is_abandoned)
