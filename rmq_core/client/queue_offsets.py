"""What brokers know of a queue's offsets: its bounds, the one at a time, a group's."""

import time

from rmq_core.client.cluster import Cluster
from rmq_core.client.message import RETRY_TOPIC_PREFIX
from rmq_core.client.options import ConsumerOptions, StartPosition
from rmq_core.remoting.bodies import MessageQueue
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.fields import Fields, Int64, read_fields
from rmq_core.remoting.requests import QueryConsumerOffset, Queue, SearchOffset, UpdateConsumerOffset

_HALF_AN_HOUR_MS = 30 * 60 * 1000


class _Offset(Fields, frozen=True, kw_only=True):
    offset: Int64


class QueueOffsets:
    """Asks masters, or slaves of those that are gone; methods raise NoRouteError, BrokerError or TransportError.

    What a slave is told stays there: when the master is back, its group goes on where the master had it.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def min(self, queue: MessageQueue) -> int:
        """The first offset that is still there."""
        return await self._bound(queue, RequestCode.GET_MIN_OFFSET)

    async def max(self, queue: MessageQueue, *, any_id: bool = True) -> int:
        """The offset that the next message will have; not by a slave unless ``any_id``."""
        return await self._bound(queue, RequestCode.GET_MAX_OFFSET, any_id=any_id)

    async def search(self, queue: MessageQueue, timestamp_ms: int, *, any_id: bool = True) -> int:
        """The first offset that was stored at a time or later; the next message's if there is none; likewise."""
        fields = SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        address = await self._cluster.broker_of(queue, any_id=any_id)
        return (await self._cluster.ask_for(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields, _Offset)).offset

    async def committed(self, queue: MessageQueue, group: str) -> int | None:
        """A group's offset; None if it has none."""
        fields = QueryConsumerOffset(consumer_group=group, topic=queue.topic, queue_id=queue.queue_id)
        answer = await self._cluster.ask(
            await self._cluster.broker_of(queue, any_id=True),
            RequestCode.QUERY_CONSUMER_OFFSET,
            fields,
            also=(ResponseCode.QUERY_NOT_FOUND,),
        )
        return None if answer.code == ResponseCode.QUERY_NOT_FOUND else read_fields(answer, _Offset).offset

    async def commit(self, queue: MessageQueue, group: str, offset: int) -> None:
        """Store a group's offset: that of the next message to be consumed."""
        fields = UpdateConsumerOffset(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        address = await self._cluster.broker_of(queue, any_id=True)
        await self._cluster.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    async def start(self, queue: MessageQueue, options: ConsumerOptions) -> int:
        """Where a group without an offset begins; of an end only the master knows, to which a slave may not have come.

        Source: ``RebalancePushImpl#computePullFromWhere``.
        """
        is_retry = queue.topic.startswith(RETRY_TOPIC_PREFIX)
        if options.start is StartPosition.FIRST:
            return 0  # a queue whose first messages are gone says so
        if options.start is StartPosition.LAST:
            return 0 if is_retry else await self.max(queue, any_id=False)
        if is_retry:
            return await self.max(queue, any_id=False)
        timestamp_ms = options.start_timestamp_ms
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000 - _HALF_AN_HOUR_MS
        return await self.search(queue, timestamp_ms, any_id=False)

    async def _bound(self, queue: MessageQueue, code: RequestCode, *, any_id: bool = True) -> int:
        fields = Queue(topic=queue.topic, queue_id=queue.queue_id)
        address = await self._cluster.broker_of(queue, any_id=any_id)
        return (await self._cluster.ask_for(address, code, fields, _Offset)).offset
