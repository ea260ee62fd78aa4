"""Requests of a pull consumer: pulls by a subscription, with the meaning of the response, and queue offsets.

Source: ``PullAPIWrapper``, ``MQClientAPIImpl#processPullResponse``, ``FilterAPI#buildSubscriptionData``.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from rmq_core.client.cluster import Cluster
from rmq_core.client.message import RETRY_TOPIC_PREFIX, ReceivedMessage
from rmq_core.client.options import ConsumerOptions, StartPosition, check_time
from rmq_core.client.pull.record_decoder import decode_records
from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_core.remoting.clock import now_ms
from rmq_core.remoting.codes import MASTER_ID, RequestCode, ResponseCode
from rmq_core.remoting.fields import Fields, Int64, read_fields
from rmq_core.remoting.requests import (
    PullMessage,
    PullResult,
    QueryConsumerOffset,
    Queue,
    SearchOffset,
    UpdateConsumerOffset,
)
from rmq_formats.codecs.hashing import java_string_hash
from rmq_formats.errors import OptionError

ALL: Final = "*"
_TAG, _SQL92 = "TAG", "SQL92"
_COMMIT_FLAG: Final = 1
_SUSPEND_FLAG: Final = 2
_SUBSCRIPTION_FLAG: Final = 4
_HALF_AN_HOUR_MS = 30 * 60 * 1000


def subscription(
    topic: str, tags: str = ALL, *, sql: str | None = None, version: int | None = None
) -> SubscriptionData:
    """Build a subscription.

    Tags are separated by ``||``. Brokers retain the highest version, by default the time in ms since 1970.
    Raises OptionError for tags and an expression, or tags without a tag.
    """
    version = now_ms() if version is None else version
    if sql is not None:
        if tags != ALL:
            raise OptionError(f"{topic}: tags or an SQL92 expression, not both")
        return SubscriptionData(topic=topic, sub_string=sql, expression_type=_SQL92, sub_version=version)
    expression = tags.strip() or ALL
    if expression == ALL:
        return SubscriptionData(topic=topic, sub_string=ALL, sub_version=version)
    tag_list = list(dict.fromkeys(tag.strip() for tag in expression.split("||") if tag.strip()))
    if not tag_list:
        raise OptionError(f"{topic}: no tag in {tags!r}")
    codes = list(dict.fromkeys(java_string_hash(tag) for tag in tag_list))
    return SubscriptionData(topic=topic, sub_string=tags, tags_set=tag_list, code_set=codes, sub_version=version)


def filter_messages(messages: list[ReceivedMessage], data: SubscriptionData) -> list[ReceivedMessage]:
    """Select the messages whose tags match exactly: brokers compare only hash codes of tags, which may collide."""
    if not data.tags_set:
        return messages
    tags = frozenset(data.tags_set)
    return [message for message in messages if message.tags in tags]


class PullStatus(Enum):
    """Outcome of a pull, by the code of its response."""

    FOUND = int(ResponseCode.SUCCESS)
    NO_NEW_MESSAGE = int(ResponseCode.PULL_NOT_FOUND)
    NO_MATCHED_MESSAGE = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
    OFFSET_ILLEGAL = int(ResponseCode.PULL_OFFSET_MOVED)


_STATUSES: Final = {status.value: status for status in PullStatus}
_OTHER_STATUSES: Final = tuple(code for code in _STATUSES if code != ResponseCode.SUCCESS)


@dataclass(frozen=True, slots=True)
class Pulled:
    """The result of a pull: status, messages that match the subscription, and the next (or corrected) offset."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[ReceivedMessage]


class Puller:
    """Sends pull requests for a consumer group."""

    def __init__(self, cluster: Cluster, group: str, options: ConsumerOptions, *, sends_subscription: bool) -> None:
        """Create the puller of a group; without ``sends_subscription`` brokers get the subscription by heartbeats."""
        self._cluster = cluster
        self._group = group
        self._options = options
        self._sends_subscription = sends_subscription
        self._broker_ids: dict[MessageQueue, int] = {}  # the broker id that the broker suggests to pull each queue from

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        data: SubscriptionData,
        *,
        commit_offset: int = 0,
        waits: bool = True,
        max_messages: int | None = None,
    ) -> Pulled:
        """Pull once.

        A ``commit_offset`` above 0 is committed with the pull. If the client ``waits``, the broker may park the request
        until there is a message (long polling). Raises BrokerError for other codes than those of ``PullStatus``,
        NoRouteError, TransportError, FormatError.
        """
        options = self._options
        await self._cluster.route(queue.topic)  # the caller may have built the queue
        broker_id = self._broker_ids.get(queue, MASTER_ID)
        address = self._cluster.address(queue.broker_name, broker_id, any_id=True)
        commits = commit_offset > 0 and broker_id == MASTER_ID
        flags = (_COMMIT_FLAG if commits else 0) | (_SUSPEND_FLAG if waits else 0)
        by_request = self._sends_subscription
        fields = PullMessage(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=max_messages or options.pull_batch_size,
            sys_flag=flags | (_SUBSCRIPTION_FLAG if by_request else 0),
            commit_offset=commit_offset if commits else 0,
            suspend_timeout_millis=int(options.suspend_timeout_s * 1000),
            sub_version=data.sub_version,
            subscription=data.sub_string if by_request else None,
            expression_type=str(data.expression_type),
            max_msg_bytes=options.pull_batch_bytes,
        )
        response = await self._cluster.request(
            address, RequestCode.PULL_MESSAGE, fields, timeout_s=options.pull_timeout_s, also=_OTHER_STATUSES
        )
        result = read_fields(response, PullResult)
        self._broker_ids[queue] = result.suggest_which_broker_id
        status = _STATUSES[response.code]
        messages = decode_records(response.body, queue) if status is PullStatus.FOUND else []
        if messages and messages[0].queue_offset < offset:  # an inner batch is returned whole
            messages = [message for message in messages if message.queue_offset >= offset]
        messages = filter_messages(messages, data)
        return Pulled(status, result.next_begin_offset, result.min_offset, result.max_offset, messages)


class _Offset(Fields, frozen=True, kw_only=True):
    offset: Int64


class QueueOffsets:
    """Requests about offsets; methods raise NoRouteError, BrokerError or TransportError.

    Without a master requests go to a slave. A commit to a slave is lost for the master: when the master returns, groups
    continue at the offsets of the master.
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
        """Return the first offset stored at a time or later, or the max; slaves as for ``max``.

        Raises OptionError for a time in seconds or microseconds.
        """
        timestamp = check_time("timestamp_ms", timestamp_ms)
        fields = SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp)
        address = await self._cluster.broker_of(queue, any_id=any_id)
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return (await self._cluster.request_fields(address, code, fields, _Offset)).offset

    async def committed(self, queue: MessageQueue, group: str) -> int | None:
        """Return a group's consumer offset, or None."""
        fields = QueryConsumerOffset(consumer_group=group, topic=queue.topic, queue_id=queue.queue_id)
        address, not_found = await self._cluster.broker_of(queue, any_id=True), ResponseCode.QUERY_NOT_FOUND
        response = await self._cluster.request(address, RequestCode.QUERY_CONSUMER_OFFSET, fields, also=(not_found,))
        return None if response.code == not_found else read_fields(response, _Offset).offset

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
            return 0  # if the first messages are deleted, the pull returns the min offset
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
