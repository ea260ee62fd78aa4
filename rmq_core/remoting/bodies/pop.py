"""Bodies of POP and of lite topics (5.5), and the allocation of queues that clients make, and brokers for POP.

Source: ``BatchAckMessageRequestBody``, ``QueryAssignmentRequestBody``, ``MessageQueueAssignment``,
``AllocateMessageQueueAveragely``, ``AllocateMessageQueueAveragelyByCircle``, ``LiteSubscriptionCtlRequestBody``,
``LiteSubscriptionDTO``, ``GetBrokerLiteInfoResponseBody`` and its neighbours.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from rmq_core.remoting.bodies.codec import (
    BodyStruct,
    LiteSubscriptionAction,
    MessageModel,
    MessageQueue,
    OffsetOptionType,
    RequestMode,
)
from rmq_core.remoting.bodies.stats import ConsumeOffset, TopicOffset

# Attributes of groups that brokers and proxies use. Source: ``SubscriptionGroupAttributes``.
LITE_PARENT: Final = "lite.bind.topic"
LITE_QUOTA: Final = "lite.sub.client.quota"

Allocation = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""Function of a client id, the sorted queues and the sorted client ids of the group; it returns the client's queues,
none if the client is not in the group."""


class BatchAck(BodyStruct, frozen=True, kw_only=True):
    """Acknowledged messages of one check point, in BATCH_ACK_MESSAGE's body.

    Attributes:
        b: base64 of a ``java.util.BitSet``: bit i stands for the queue offset ``so`` + i.
        c: consumer group.
        it: invisible time, ms.
        pt: time of the pop, ms since 1970.
        q: queue id.
        r: kind of the popped topic.
        rq: revive queue.
        so: start offset.
        t: topic, without the prefix of a retry topic.
    """

    b: str = ""
    c: str = ""
    it: int = 0
    pt: int = 0
    q: int = 0
    r: str = "0"
    rq: int = 0
    so: int = 0
    t: str = ""


class BatchAcks(BodyStruct, frozen=True, kw_only=True):
    """Body of BATCH_ACK_MESSAGE."""

    acks: list[BatchAck] = msgspec.field(default_factory=list)
    broker_name: str = ""


class QueryAssignment(BodyStruct, frozen=True, kw_only=True):
    """Body of QUERY_ASSIGNMENT (400), a request for the queues of a client."""

    client_id: str = ""
    consumer_group: str = ""
    message_model: MessageModel = "CLUSTERING"
    strategy_name: str = ""
    topic: str = ""


class Assignment(BodyStruct, frozen=True, kw_only=True):
    """Queue assigned to a client; the queue id -1 means all queues of a broker."""

    message_queue: MessageQueue
    mode: RequestMode


class Assignments(BodyStruct, frozen=True, kw_only=True):
    """Response to QUERY_ASSIGNMENT."""

    message_queue_assignments: list[Assignment] | None = None


def averagely(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Allocate contiguous blocks of queues; the first clients get one more queue each if there is a remainder."""
    if client_id not in client_ids:
        return []
    index, (size, more) = client_ids.index(client_id), divmod(len(queues), len(client_ids))
    begin = index * size + min(index, more)
    return list(queues[begin : begin + size + (index < more)])


def by_circle(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Allocate queues to clients in turn (round robin)."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


# Lite topics.


class OffsetOption(BodyStruct, frozen=True, kw_only=True):
    """Start position of a group in a lite topic. POLICY 1 begins at the first message, 2 at the next message."""

    type: OffsetOptionType = ""
    value: int = 0


class LiteSubscription(BodyStruct, frozen=True, kw_only=True):
    """Change of a client's subscriptions to lite topics of the parent ``topic``."""

    action: LiteSubscriptionAction = ""
    client_id: str = ""
    group: str = ""
    lite_topic_set: list[str] = msgspec.field(default_factory=list)
    offset_option: OffsetOption | None = None
    topic: str = ""
    version: int = 0


class LiteSubscriptions(BodyStruct, frozen=True, kw_only=True):
    """Body of LITE_SUBSCRIPTION_CTL (200071)."""

    subscription_set: list[LiteSubscription] = msgspec.field(default_factory=list)


class BrokerLiteInfo(BodyStruct, frozen=True, kw_only=True):
    """Response to GET_BROKER_LITE_INFO (200074).

    Attributes:
        cq_table_size: number of topics and light queues.
        event_map_size: number of clients that are notified of messages.
        group_meta: groups by parent topic.
        order_info_count: number of light queues with unacknowledged messages.
        topic_meta: time to live of lite topics by parent topic, min.
    """

    cq_table_size: int
    current_lmq_num: int
    event_map_size: int
    group_meta: dict[str, list[str]]
    lite_subscription_count: int
    max_lmq_num: int
    offset_table_size: int
    order_info_count: int
    store_type: str = "default"
    topic_meta: dict[str, int]


class ParentTopicInfo(BodyStruct, frozen=True, kw_only=True):
    """Response to GET_PARENT_TOPIC_INFO (200075)."""

    groups: list[str] | None
    lite_topic_count: int
    lmq_num: int
    topic: str
    ttl: int


class ClientGroup(BodyStruct, frozen=True, kw_only=True):
    """Client of a group; ``*`` means all clients of a wildcard group."""

    client_id: str
    group: str


class LiteTopicInfo(BodyStruct, frozen=True, kw_only=True):
    """Response to GET_LITE_TOPIC_INFO (200076); ``sharding_to_broker`` is True if this broker stores the lite topic."""

    lite_topic: str
    parent_topic: str
    sharding_to_broker: bool
    subscriber: list[ClientGroup]
    topic_offset: TopicOffset


class LiteClientInfo(BodyStruct, frozen=True, kw_only=True):
    """Response to GET_LITE_CLIENT_INFO (200077); times in ms since 1970, -1 for an unknown client."""

    client_id: str
    group: str
    last_access_time: int
    last_consume_time: int = 0
    lite_topic_count: int
    lite_topic_set: list[str] | None
    parent_topic: str


class LiteLag(BodyStruct, frozen=True, kw_only=True):
    """Consumer lag of a group in a lite topic; the time in ms since 1970."""

    earliest_unconsumed_timestamp: int = -1
    lag_count: int
    lite_topic: str


class LiteGroupInfo(BodyStruct, frozen=True, kw_only=True):
    """Response to GET_LITE_GROUP_INFO (200078).

    Attributes:
        earliest_unconsumed_timestamp: store time of the first unconsumed message, ms since 1970; -1 without one.
        lag_count_top_k: lite topics with the most unconsumed messages.
        lag_timestamp_top_k: lite topics with the oldest unconsumed messages.
        lite_topic_offset_wrapper: consumer offset of the group in ``lite_topic``.
    """

    earliest_unconsumed_timestamp: int = -1
    group: str
    lag_count_top_k: list[LiteLag] | None = None
    lag_timestamp_top_k: list[LiteLag] | None = None
    lite_topic: str | None = None
    lite_topic_offset_wrapper: ConsumeOffset | None = None
    parent_topic: str
    total_lag_count: int = 0
