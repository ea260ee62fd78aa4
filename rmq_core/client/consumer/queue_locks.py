"""Queue locks for orderly consumption, which brokers grant to a single consumer of a group.

Source: ``RebalanceImpl#lock``, ``#lockAll``, ``#unlock``.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from rmq_core.client.cluster.cluster import Cluster
from rmq_core.remoting.bodies.clients import LockBatchRequest, LockBatchResponse
from rmq_core.remoting.bodies.codec import MessageQueue, decode_body, encode_body
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.errors import RemotingError

log = logging.getLogger("rmq.client")
_EXPIRY_S: Final = 30.0  # ProcessQueue#REBALANCE_LOCK_MAX_LIVE_TIME: half of what brokers keep them for


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
