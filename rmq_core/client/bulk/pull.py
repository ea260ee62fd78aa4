"""Bulk reads of queue offset ranges: undecoded stored records, by several concurrent pulls.

For programs that read whole queues and decode by kernels, as the Spark source does. Nothing is committed.

Source: ``PullMessageProcessor``; the limits of one pull are ``maxTransferCountOnMessageInMemory`` and the like.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from rmq_core.client.cluster import Cluster
from rmq_core.client.options import ClientOptions
from rmq_core.client.pull.request import ALL, PullStatus, QueueOffsets, subscription
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_core.remoting.bodies.routes import ClusterInfo, TopicList
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.errors import RemotingError, TransportError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.loop import Closable
from rmq_core.remoting.requests import PullMessage, PullResult

READER_GROUP: Final = "TOOLS_CONSUMER"  # MixAll.TOOLS_CONSUMER_GROUP: every broker has it
_HAS_SUBSCRIPTION: Final = 4
_OTHER_STATUSES: Final = tuple(status.value for status in PullStatus if status is not PullStatus.FOUND)
_MAX_MESSAGES: Final = 1024  # messages of a pull; most brokers return 32 at most
_ROUNDS_PER_PROBE: Final = 16
_MAX_DEPTH: Final = 8  # concurrent pulls; a response has little more than 4 MiB
_PULL_TIMEOUT_S: Final = 30.0
_ATTEMPTS: Final = 4  # a restarting broker is back after some seconds
_FIRST_PAUSE_S: Final = 0.5
_DEFAULTS: Final = ClientOptions()


@dataclass(frozen=True, slots=True)
class BulkPulled:
    """Result of a pull.

    ``records`` has stored records of the broker's log; there may be more than requested.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: bytes | memoryview


class BulkReader(Closable):
    """Reader of queues outside of any consumer group; use it with ``async with``."""

    def __init__(
        self,
        namesrv: str,
        group: str = READER_GROUP,
        options: ClientOptions = _DEFAULTS,
        *,
        credentials: Credentials | None = None,
    ) -> None:
        """Create a reader; ``namesrv`` has ``host:port``, separated by semicolons. Raises OptionError.

        Pulls are those of ``group``, which must exist at the brokers, unless brokers create groups on demand.
        """
        self._cluster = Cluster(namesrv, options, credentials=credentials)
        self._group = group
        self.offsets = QueueOffsets(self._cluster)

    async def close(self) -> None:
        """Close all connections."""
        await self._cluster.close()

    async def topics(self) -> list[str]:
        """List all topics of the name servers; raises BrokerError, TransportError."""
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        return sorted((await self._cluster.request_name_servers_body(code, TopicList)).topic_list)

    async def clusters(self) -> dict[str, str]:
        """Find the cluster of each registered broker; raises BrokerError, TransportError."""
        info = await self._cluster.request_name_servers_body(RequestCode.GET_BROKER_CLUSTER_INFO, ClusterInfo)
        return {broker: cluster for cluster, brokers in info.cluster_addr_table.items() for broker in brokers}

    async def refresh_routes(self) -> None:
        """Refresh the cached routes; a route that cannot be fetched stays."""
        await self._cluster.refresh_routes()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """List the readable queues of a topic. Raises NoRouteError, TransportError."""
        return list((await self._cluster.refresh_route(topic)).read_queues)

    async def read(
        self, queue: MessageQueue, begin: int, end: int, tags: str = ALL, *, sql: str | None = None
    ) -> AsyncIterator[list[BulkPulled]]:
        """Yield a range of a queue in order; ``end`` is the queue offset after the last message.

        Brokers compare only hashes of ``tags``, which are separated by ``||``; ``sql`` is an SQL92 expression instead.
        A result with the status OFFSET_ILLEGAL has no records: messages before its ``next_offset`` are deleted.
        Messages of a file that was just deleted are skipped silently: without a filter, a queue offset without a record
        is deleted as well.

        Raises BrokerError, NoRouteError, TransportError, OptionError.
        """
        data = subscription(queue.topic, tags, sql=sql)
        is_filtered = tags != ALL or sql is not None
        step, depth, until_probe = _MAX_MESSAGES, 1, 0
        responses: list[BulkPulled] = []
        while begin < end:
            # Every few rounds one pull probes how many messages the broker returns; later pulls request as many.
            is_probe = is_filtered or until_probe == 0
            step, count = (_MAX_MESSAGES, 1) if is_probe else (step, depth)
            starts = range(begin, min(end, begin + step * count), step)
            pulls = asyncio.gather(*(self._pull(queue, start, min(step, end - start), data) for start in starts))
            pulls.add_done_callback(_retrieve_error)
            try:
                if responses:
                    await asyncio.sleep(0)  # sends the pulls, so that the broker reads while the caller decodes
                    yield responses
                pulled_answers = await pulls
            finally:
                pulls.cancel()
            responses, continued_at = [], begin
            for start, pulled in zip(starts, pulled_answers, strict=True):
                if start != continued_at:
                    break  # the previous pull returned fewer messages, so this one is repeated
                responses.append(pulled)
                continued_at = max(pulled.next_offset, start)
            if continued_at == begin:  # the queue is shorter than before
                raise TransportError(f"{queue.broker_name} {queue.topic}:{queue.queue_id}", f"ends at {begin}")
            if is_probe:
                step, until_probe = min(continued_at - begin, _MAX_MESSAGES), _ROUNDS_PER_PROBE
            elif continued_at < min(starts[-1] + step, end):
                depth, until_probe = 1, 0
            else:
                depth, until_probe = min(2 * depth, _MAX_DEPTH), until_probe - 1
            begin = continued_at
        if responses:
            yield responses

    async def _pull(self, queue: MessageQueue, offset: int, count: int, data: SubscriptionData) -> BulkPulled:
        """Pull once; retry if the broker cannot be reached."""
        pause_s = _FIRST_PAUSE_S
        for _ in range(_ATTEMPTS - 1):
            try:
                return await self._request(queue, offset, count, data)
            except TransportError:
                await asyncio.sleep(pause_s)
                pause_s *= 2
                with suppress(RemotingError):  # the broker may have another address by now
                    await self._cluster.refresh_route(queue.topic)
        return await self._request(queue, offset, count, data)

    async def _request(self, queue: MessageQueue, offset: int, count: int, data: SubscriptionData) -> BulkPulled:
        await self._cluster.route(queue.topic)
        fields = PullMessage(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=_HAS_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=data.sub_version,
            subscription=data.sub_string,
            expression_type=str(data.expression_type),
        )
        response = await self._cluster.request(
            self._cluster.address(queue.broker_name, any_id=True),
            RequestCode.PULL_MESSAGE,
            fields,
            timeout_s=_PULL_TIMEOUT_S,
            also=_OTHER_STATUSES,
        )
        status, result = PullStatus(response.code), read_fields(response, PullResult)
        records = response.body if status is PullStatus.FOUND else b""
        return BulkPulled(status, result.next_begin_offset, result.min_offset, result.max_offset, records)


def _retrieve_error(pulls: "asyncio.Future[list[BulkPulled]]") -> None:
    """Retrieve the error of abandoned pulls, which asyncio would log otherwise."""
    if not pulls.cancelled():
        pulls.exception()
