"""Bulk reads of queue offset ranges: undecoded stored records, by several concurrent pulls.

For programs that read whole queues and decode by kernels, as the Spark source does. Nothing is committed.

Source: ``PullMessageProcessor``; the limits of one pull are ``maxTransferCountOnMessageInMemory`` and the like.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from rmq_core.client.cluster import Cluster
from rmq_core.client.options import ClientOptions
from rmq_core.client.pull.request import ALL, PullStatus, QueueOffsets, subscription
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.remoting.bodies.codec import MessageQueue, decode_body
from rmq_core.remoting.bodies.routes import ClusterInfo, TopicList
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.errors import TransportError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.requests import PullMessage, PullResult

READER_GROUP: Final = "TOOLS_CONSUMER"  # MixAll.TOOLS_CONSUMER_GROUP: every broker has it
_HAS_SUBSCRIPTION: Final = 4
_OTHER_STATUSES: Final = tuple(status.value for status in PullStatus if status is not PullStatus.FOUND)
_MOST: Final = 1024  # messages of a pull; most brokers give 32 of them
_PROBE_EVERY: Final = 16  # rounds
_MAX_DEPTH: Final = 8  # pulls at a time; an answer has 4 MiB and some at most
_PULL_TIMEOUT_S: Final = 30.0
_ATTEMPTS: Final = 4  # a broker that restarts is back after some seconds
_FIRST_PAUSE_S: Final = 0.5
_DEFAULTS: Final = ClientOptions()


@dataclass(frozen=True, slots=True)
class BulkPulled:
    """Result of a pull.

    Attributes:
        next_offset: the queue offset for the next pull.
        records: as they stand in the broker's log; they may go beyond what was asked for.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: bytes | memoryview


class BulkReader:
    """Reader of queues outside of any consumer group; use it with ``async with``."""

    def __init__(
        self,
        namesrv: str,
        group: str = READER_GROUP,
        options: ClientOptions = _DEFAULTS,
        *,
        credentials: Credentials | None = None,
    ) -> None:
        """Create a reader without connections.

        Args:
            namesrv: ``host:port`` of the name servers, separated by semicolons.
            group: the group to pull as; brokers have to know it, or to create groups on demand.

        Raises:
            OptionError: no address of a name server.
        """
        self._cluster = Cluster(namesrv, options, credentials=credentials)
        self._group = group
        self.offsets = QueueOffsets(self._cluster)

    async def __aenter__(self) -> "BulkReader":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._cluster.close()

    async def topics(self) -> list[str]:
        """List all topics of the name servers; raises BrokerError, TransportError."""
        answer = await self._cluster.request_name_servers(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(decode_body(answer.body, TopicList).topic_list)

    async def clusters(self) -> dict[str, str]:
        """Find the cluster of each registered broker; raises BrokerError, TransportError."""
        answer = await self._cluster.request_name_servers(RequestCode.GET_BROKER_CLUSTER_INFO)
        clusters = decode_body(answer.body, ClusterInfo).cluster_addr_table
        return {broker: cluster for cluster, brokers in clusters.items() for broker in brokers}

    async def queues(self, topic: str) -> list[MessageQueue]:
        """List the readable queues of a topic. Raises NoRouteError, TransportError."""
        return list((await self._cluster.refresh_route(topic)).read_queues)

    async def read(
        self, queue: MessageQueue, begin: int, end: int, tags: str = ALL, *, sql: str | None = None
    ) -> AsyncIterator[list[BulkPulled]]:
        """Read a range of a queue.

        Args:
            end: one past the last.
            tags: ``*``, or tags with ``||`` between them; brokers compare hashes.
            sql: an SQL92 expression instead.

        Yields:
            Answers in the order of the queue. One whose status is OFFSET_ILLEGAL has no records: messages
            before its ``next_offset`` are gone. Those of a file that was just deleted are passed over without
            a word: without a filter, a queue offset that no record has is gone as well.

        Raises:
            BrokerError, NoRouteError, TransportError, OptionError: it cannot be read.
        """
        data = subscription(queue.topic, tags, sql=sql)
        is_filtered = tags != ALL or sql is not None
        step, depth, until_probe = _MOST, 1, 0
        answers: list[BulkPulled] = []
        while begin < end:
            # From time to time one pull probes how many messages the broker returns; later ones ask for as many.
            is_probe = is_filtered or until_probe == 0
            step, count = (_MOST, 1) if is_probe else (step, depth)
            starts = range(begin, min(end, begin + step * count), step)
            pulls = asyncio.gather(*(self._pull(queue, start, min(step, end - start), data) for start in starts))
            pulls.add_done_callback(_retrieve_error)
            try:
                if answers:
                    await asyncio.sleep(0)  # the pulls are sent, so that the broker reads while the caller decodes
                    yield answers
                pulled_answers = await pulls
            finally:
                pulls.cancel()
            answers, continued_at = [], begin
            for start, pulled in zip(starts, pulled_answers, strict=True):
                if start != continued_at:
                    break  # the pull before brought less: this one is repeated from there
                answers.append(pulled)
                continued_at = max(pulled.next_offset, start)
            if continued_at == begin:  # a queue that has become shorter than it was
                raise TransportError(f"{queue.broker_name} {queue.topic}:{queue.queue_id}", f"ends at {begin}")
            if is_probe:
                step, until_probe = min(continued_at - begin, _MOST), _PROBE_EVERY
            elif continued_at < min(starts[-1] + step, end):
                depth, until_probe = 1, 0
            else:
                depth, until_probe = min(2 * depth, _MAX_DEPTH), until_probe - 1
            begin = continued_at
        if answers:
            yield answers

    async def _pull(self, queue: MessageQueue, offset: int, count: int, data: SubscriptionData) -> BulkPulled:
        """Pull once; retry while the broker cannot be reached."""
        pause_s = _FIRST_PAUSE_S
        for _ in range(_ATTEMPTS - 1):
            try:
                return await self._request(queue, offset, count, data)
            except TransportError:
                await asyncio.sleep(pause_s)
                pause_s *= 2
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
        answer = await self._cluster.request(
            self._cluster.address(queue.broker_name, any_id=True),
            RequestCode.PULL_MESSAGE,
            fields,
            timeout_s=_PULL_TIMEOUT_S,
            also=_OTHER_STATUSES,
        )
        status, result = PullStatus(answer.code), read_fields(answer, PullResult)
        records = answer.body if status is PullStatus.FOUND else b""
        return BulkPulled(status, result.next_begin_offset, result.min_offset, result.max_offset, records)


def _retrieve_error(pulls: "asyncio.Future[list[BulkPulled]]") -> None:
    """Retrieve the error of pulls that nobody waits for any more: asyncio would log it."""
    if not pulls.cancelled():
        pulls.exception()
