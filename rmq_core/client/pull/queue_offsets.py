"""Queries and commits of queue offsets at brokers: min, max, by store time, and a group's consumer offset."""

from rmq_core.client.cluster.cluster import Cluster
from rmq_core.client.message import RETRY_TOPIC_PREFIX
from rmq_core.client.options import ConsumerOptions, StartPosition
from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.fields import Fields, Int64, read_fields
from rmq_core.remoting.requests import QueryConsumerOffset, Queue, SearchOffset, UpdateConsumerOffset

_HALF_AN_HOUR_MS = 30 * 60 * 1000


class _Offset(Fields, frozen=True, kw_only=True):
    offset: Int64


class QueueOffsets:
    """Requests about offsets; methods raise NoRouteError, BrokerError or TransportError.

    Requests go to a slave where the master is gone. A commit to a slave stays there: when the master is back, its
    groups continue where the master had them.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def min(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that is still stored."""
        return await self._bound(queue, RequestCode.GET_MIN_OFFSET)

    async def max(self, queue: MessageQueue, *, any_id: bool = True) -> int:
        """Return the offset that the next message will get; not from a slave unless ``any_id``."""
        return await self._bound(queue, RequestCode.GET_MAX_OFFSET, any_id=any_id)

    async def search(self, queue: MessageQueue, timestamp_ms: int, *, any_id: bool = True) -> int:
        """Return the first offset stored at a time or later, the max if there is none; slaves as for ``max``."""
        fields = SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        address = await self._cluster.broker_of(queue, any_id=any_id)
        return (
            await self._cluster.request_fields(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields, _Offset)
        ).offset

    async def committed(self, queue: MessageQueue, group: str) -> int | None:
        """Return a group's consumer offset, or None."""
        fields = QueryConsumerOffset(consumer_group=group, topic=queue.topic, queue_id=queue.queue_id)
        answer = await self._cluster.request(
            await self._cluster.broker_of(queue, any_id=True),
            RequestCode.QUERY_CONSUMER_OFFSET,
            fields,
            also=(ResponseCode.QUERY_NOT_FOUND,),
        )
        return None if answer.code == ResponseCode.QUERY_NOT_FOUND else read_fields(answer, _Offset).offset

    async def commit(self, queue: MessageQueue, group: str, offset: int) -> None:
        """Commit a group's consumer offset: that of the next message to be consumed."""
        fields = UpdateConsumerOffset(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        address = await self._cluster.broker_of(queue, any_id=True)
        await self._cluster.request(address, RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    async def start(self, queue: MessageQueue, options: ConsumerOptions) -> int:
        """Return the first offset of a group without one; from a master only, as a slave may lag.

        Source: ``RebalancePushImpl#computePullFromWhere``.
        """
        is_retry = queue.topic.startswith(RETRY_TOPIC_PREFIX)
        if options.start is StartPosition.FIRST:
            return 0  # where the first messages are deleted, the pull is answered with the min offset
        if options.start is StartPosition.LAST:
            return 0 if is_retry else await self.max(queue, any_id=False)
        if is_retry:
            return await self.max(queue, any_id=False)
        timestamp_ms = options.start_timestamp_ms
        if timestamp_ms is None:
            timestamp_ms = options.clock_ms() - _HALF_AN_HOUR_MS
        return await self.search(queue, timestamp_ms, any_id=False)

    async def _bound(self, queue: MessageQueue, code: RequestCode, *, any_id: bool = True) -> int:
        fields = Queue(topic=queue.topic, queue_id=queue.queue_id)
        address = await self._cluster.broker_of(queue, any_id=any_id)
        return (await self._cluster.request_fields(address, code, fields, _Offset)).offset
