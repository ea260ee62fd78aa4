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

# Attributes of groups that brokers and proxies heed. Source: ``SubscriptionGroupAttributes``.
LITE_PARENT: Final = "lite.bind.topic"
LITE_QUOTA: Final = "lite.sub.client.quota"

Allocation = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""Takes a client's id, the sorted queues and the sorted ids of the group's clients; gives that client's queues,
none if it is not among them."""


class BatchAck(BodyStruct, frozen=True, kw_only=True):
    """Acknowledged messages of one check point, in BATCH_ACK_MESSAGE's body.

    Attributes:
        b: base64 of the bits, as ``java.util.BitSet`` has them: bit i is the queue offset ``so`` + i.
        c: consumer group.
        it: for how long they are invisible, ms.
        pt: when they were popped.
        q: queue id.
        r: kind of the topic that they were popped from.
        rq: revive queue.
        so: start offset.
        t: the normal topic.
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
    """Body of QUERY_ASSIGNMENT (400): which queues of a topic a client is to read."""

    client_id: str = ""
    consumer_group: str = ""
    message_model: MessageModel = "CLUSTERING"
    strategy_name: str = ""
    topic: str = ""


class Assignment(BodyStruct, frozen=True, kw_only=True):
    """A queue, or with the queue id -1 all of a broker, to read."""

    message_queue: MessageQueue
    mode: RequestMode


class Assignments(BodyStruct, frozen=True, kw_only=True):
    """Answer to QUERY_ASSIGNMENT."""

    message_queue_assignments: list[Assignment] | None = None


def averagely(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Allocate contiguous blocks of queues; the first clients get a further queue each on a remainder."""
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
    """Start position of a group in a lite topic.

    Attributes:
        type: POLICY (1 from the first message on, 2 from the next), OFFSET, TAIL_N or TIMESTAMP.
    """

    type: OffsetOptionType = ""
    value: int = 0


class LiteSubscription(BodyStruct, frozen=True, kw_only=True):
    """A change of what a client subscribes to.

    Attributes:
        action: PARTIAL_ADD, PARTIAL_REMOVE, COMPLETE_ADD or COMPLETE_REMOVE.
        lite_topic_set: children.
        offset_option: where the group is to begin in them.
        topic: their parent.
    """

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
    """Answer to GET_BROKER_LITE_INFO (200074).

    Attributes:
        cq_table_size: topics and light queues.
        event_map_size: clients that may be told of messages.
        group_meta: groups by the topic that they are bound to.
        lite_subscription_count: subscriptions of all clients.
        max_lmq_num: light queues at most.
        offset_table_size: entries in the table of consumer offsets.
        order_info_count: light queues with messages that are under way.
        topic_meta: minutes after which a lite topic expires, by parent.
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
    """Answer to GET_PARENT_TOPIC_INFO (200075)."""

    groups: list[str] | None
    lite_topic_count: int
    lmq_num: int
    topic: str
    ttl: int


class ClientGroup(BodyStruct, frozen=True, kw_only=True):
    """A client of a group; ``*`` stands for all of a wildcard group."""

    client_id: str
    group: str


class LiteTopicInfo(BodyStruct, frozen=True, kw_only=True):
    """Answer to GET_LITE_TOPIC_INFO (200076). ``sharding_to_broker``: whether this broker is to have its messages."""

    lite_topic: str
    parent_topic: str
    sharding_to_broker: bool
    subscriber: list[ClientGroup]
    topic_offset: TopicOffset


class LiteClientInfo(BodyStruct, frozen=True, kw_only=True):
    """Answer to GET_LITE_CLIENT_INFO (200077). Times in ms since 1970; -1 for a client that is not known."""

    client_id: str
    group: str
    last_access_time: int
    last_consume_time: int = 0
    lite_topic_count: int
    lite_topic_set: list[str] | None
    parent_topic: str


class LiteLag(BodyStruct, frozen=True, kw_only=True):
    """How far a group lags in a lite topic; the time in ms since 1970."""

    earliest_unconsumed_timestamp: int = -1
    lag_count: int
    lite_topic: str


class LiteGroupInfo(BodyStruct, frozen=True, kw_only=True):
    """Answer to GET_LITE_GROUP_INFO (200078).

    Attributes:
        earliest_unconsumed_timestamp: store time of the first message that is not consumed, ms since 1970; or -1.
        lag_count_top_k: lite topics with the most messages that are not consumed.
        lag_timestamp_top_k: those whose first such message is the oldest.
        lite_topic_offset_wrapper: the group's place in it.
        parent_topic: that it is bound to.
        total_lag_count: messages that are not consumed.
    """

    earliest_unconsumed_timestamp: int = -1
    group: str
    lag_count_top_k: list[LiteLag] | None = None
    lag_timestamp_top_k: list[LiteLag] | None = None
    lite_topic: str | None = None
    lite_topic_offset_wrapper: ConsumeOffset | None = None
    parent_topic: str
    total_lag_count: int = 0
