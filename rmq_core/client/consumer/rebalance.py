"""Rebalance: allocates the group's queues to this member, locks them if in order, starts and stops their pull loops.

Source: ``RebalanceImpl``, ``RebalancePushImpl``.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from rmq_core.client.cluster import Cluster
from rmq_core.client.consumer.offset_store import OffsetStore
from rmq_core.client.consumer.pulled_queue import PulledQueue
from rmq_core.client.consumer.queue_pull_loop import QueuePullLoop
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

_EXPIRY_S: Final = 30.0  # ProcessQueue#REBALANCE_LOCK_MAX_LIVE_TIME: half of the time for which brokers lock
log = logging.getLogger("rmq.client")
_UNBALANCED_RETRY_S: Final = 0.5  # pause before the next rebalance if another consumer still has a lock


class ConsumerQueueLocks:
    """Queue locks of one consumer at the brokers."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._until_s: dict[MessageQueue, float] = {}

    def is_locked(self, queue: MessageQueue) -> bool:
        """Return True if this consumer certainly has the lock of a queue."""
        return asyncio.get_running_loop().time() < self._until_s.get(queue, 0.0)

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Acquire or renew locks; return the queues that this consumer has locked."""
        locked_queues: set[MessageQueue] = set()
        for broker_name, requested in _by_broker(queues).items():
            begin_s = asyncio.get_running_loop().time()
            body = self._body(requested)
            try:
                address = self._cluster.address(broker_name)
                response = await self._cluster.request(address, RequestCode.LOCK_BATCH_MQ, None, body)
                granted = set(decode_body(response.body, LockBatchResponse).lock_ok_mq_set)
            except RmqError as error:  # granted locks are valid until they expire
                log.warning("cannot lock queues at %s: %s", broker_name, error)
                continue
            locked_queues |= granted & set(requested)
            for queue in requested:
                self._until_s[queue] = begin_s + _EXPIRY_S if queue in granted else 0.0
        return locked_queues

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Release locks; at an unreachable broker, locks expire."""
        for broker_name, broker_queues in _by_broker(queues).items():
            for queue in broker_queues:
                self._until_s.pop(queue, None)
            try:
                address = self._cluster.address(broker_name)
                await self._cluster.request(address, RequestCode.UNLOCK_BATCH_MQ, None, self._body(broker_queues))
            except RmqError as error:
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


_PullLoop = TypeVar("_PullLoop", PulledQueue, QueuePullLoop)


class Rebalancer(Generic[_PullLoop]):
    """Assigns queues to a consumer, as members and queues of its group come and go."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        options: ConsumerOptions,
        subscriptions: dict[str, SubscriptionData],
        offsets: OffsetStore,
        locks: ConsumerQueueLocks | None,
        create_pull_loop: Callable[[MessageQueue, SubscriptionData], _PullLoop],
        *,
        is_broadcasting: bool = False,
    ) -> None:
        """Create a rebalancer without queues.

        Changes of ``subscriptions`` take effect in the next rebalance. Pull loops start from ``offsets``, in orderly
        consumption after their queue is locked by ``locks``. Broadcasting assigns all queues to this consumer.
        """
        self.pull_loops: dict[MessageQueue, _PullLoop] = {}
        self._cluster = cluster
        self._group = group
        self._options = options
        self._subscriptions = subscriptions
        self._offsets = offsets
        self._locks = locks
        self._create_pull_loop: Callable[[MessageQueue, SubscriptionData], _PullLoop] = create_pull_loop
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
                async with asyncio.timeout(self._options.rebalance_interval_s if is_balanced else _UNBALANCED_RETRY_S):
                    await self._round_requested.wait()
            except TimeoutError:
                continue

    async def rebalance(self) -> bool:
        """Rebalance once; return True if the consumer has all its allocated queues."""
        is_balanced = True
        for queue in self.pull_loops:
            if queue.topic not in self._subscriptions:
                self._revoke(queue)
        for topic in list(self._subscriptions):
            try:
                allocated = await self._allocate(topic)
                is_balanced &= allocated is not None and await self._update_assignment(topic, allocated)
            except NoRouteError as error:
                if topic.startswith(RETRY_TOPIC_PREFIX):  # brokers create the retry topic at the first heartbeat
                    is_balanced &= not self._cluster.has_brokers
                else:
                    log.warning("topic %s cannot be consumed yet: %s", topic, error)
            except (RmqError, OSError) as error:
                log.warning("rebalance of topic %s failed: %s", topic, error)
                is_balanced = False
            except Exception:  # a user's allocation strategy may raise any exception
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
        last_error: RemotingError | None = None
        names = list((await self._cluster.route(topic)).brokers)
        for broker_name in random.sample(names, len(names)):
            command = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields)
            try:
                address = self._cluster.address(broker_name, any_id=True)
                response = await self._cluster.send_command(address, command, 3.0, (ResponseCode.SYSTEM_ERROR,))
            except RemotingError as error:
                last_error = error
                continue
            if response.code == ResponseCode.SUCCESS:  # else the broker does not know the group yet
                return sorted(decode_body(response.body, ConsumerIdList).consumer_id_list)
        if last_error is not None:
            raise last_error
        return []

    async def _update_assignment(self, topic: str, allocated: set[MessageQueue]) -> bool:
        """Start and stop pull loops; return whether all allocated queues are assigned now, or soon will be."""
        assigned = {queue for queue in self.pull_loops if queue.topic == topic}
        for queue in sorted(assigned - allocated):
            self._revoke(queue)
        new_queues = allocated - assigned
        if new_queues and self._locks is not None:
            new_queues &= await self._locks.lock(sorted(new_queues))
        async with asyncio.TaskGroup() as assigning:  # leaves no task that would assign a queue in the next round, too
            for queues in _by_broker(sorted(new_queues)).values():
                assigning.create_task(self._assign_all(queues))
        return allocated <= self.pull_loops.keys()

    async def _assign_all(self, queues: list[MessageQueue]) -> None:
        """Assign queues of one broker; after an error the rest waits for the next round, but not other brokers'."""
        for queue in queues:
            try:
                await self._assign(queue)
            except (RmqError, OSError) as error:
                log.warning("%s: %s cannot be assigned yet: %s", self._group, queue, error)
                return

    async def _assign(self, queue: MessageQueue) -> None:
        self._offsets.evict(queue)
        offset = await self._offsets.read(queue)
        if offset is None:
            offset = await self._queue_offsets.start(queue, self._options)
        subscription = self._subscriptions.get(queue.topic)  # the subscription may have changed during the request
        if subscription is None:
            if self._locks is not None:
                await self._locks.unlock([queue])
            return
        log.info("%s: %s is assigned, from offset %d on", self._group, queue, offset)
        pull_loop = self.pull_loops[queue] = self._create_pull_loop(queue, subscription)
        pull_loop.start(offset)

    def _revoke(self, queue: MessageQueue) -> None:
        """Stop a queue's pull loop without waiting; an orderly queue stays locked while its listener call runs."""
        pull_loop = self.pull_loops[queue]
        if not pull_loop.is_revoked:
            pull_loop.is_revoked = True
            self._cluster.run(self._finish_revoke(queue, pull_loop))

    async def _finish_revoke(self, queue: MessageQueue, pull_loop: _PullLoop) -> None:
        await pull_loop.stop()
        log.info("%s: %s is no longer assigned", self._group, queue)
        try:
            await self._offsets.persist([queue])
        except RmqError as error:
            log.warning("cannot commit the offset of %s: %s", queue, error)
        self._offsets.evict(queue)
        del self.pull_loops[queue]
        if self._locks is not None:
            await self._locks.unlock([queue])
        self.rebalance_soon()  # the queue may be allocated to this consumer again

    async def close(self) -> None:
        """Stop all pull loops, persist the offsets, and release the locks.

        The lock of a queue whose call was cancelled expires at the broker, as a thread of the call may still run.
        """
        await asyncio.gather(*(pull_loop.stop() for pull_loop in self.pull_loops.values()))
        pull_loops = self.pull_loops.copy()
        self.pull_loops.clear()
        try:
            await self._offsets.persist(list(pull_loops))
        except RmqError as error:
            log.warning("cannot commit the offsets of %s: %s", self._group, error)
        if self._locks is not None:
            await self._locks.unlock(queue for queue, pull_loop in pull_loops.items() if not pull_loop.is_abandoned)
