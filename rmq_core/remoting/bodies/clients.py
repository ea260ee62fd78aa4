"""Bodies about producers and consumers: heartbeats, connections, queue locks, running info."""

# ruff: noqa: RUF012 # an empty list or dictionary as a default is made anew for each struct

from msgspec import UNSET, Raw, field

from rmq_core.remoting.bodies.codec import (
    BodyStruct,
    ConsumeFromWhere,
    ConsumeType,
    Language,
    Maybe,
    MessageModel,
    MessageQueue,
    QueueKeyedBody,
)


class SubscriptionData(BodyStruct, frozen=True, kw_only=True):
    """A consumer's subscription of a topic."""

    class_filter_mode: bool = False
    code_set: list[int] = []
    expression_type: Maybe[str] = "TAG"
    sub_string: str = "*"
    sub_version: int = 0
    tags_set: list[str] = []
    topic: str = ""


class ConsumerData(BodyStruct, frozen=True, kw_only=True):
    """A consumer group of a client, in its heartbeat."""

    consume_from_where: ConsumeFromWhere = "CONSUME_FROM_LAST_OFFSET"
    consume_type: ConsumeType = "CONSUME_PASSIVELY"
    group_name: str = ""
    message_model: MessageModel = "CLUSTERING"
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class ProducerData(BodyStruct, frozen=True, kw_only=True):
    """A producer group of a client, in its heartbeat."""

    group_name: str = ""


class HeartbeatData(BodyStruct, frozen=True, kw_only=True):
    """A client's heartbeat, sent every 30 s (code 34). The Go client leaves the last three members out."""

    client_id: str = field(name="clientID", default="")
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: int = 0
    producer_data_set: list[ProducerData] = []
    without_sub: bool = False


class LongHeartbeat(BodyStruct, frozen=True, kw_only=True):
    """Client's heartbeat (code 34) with encoded consumer groups, as there may be thousands."""

    client_id: str = field(name="clientID", default="")
    consumer_data_set: list[Raw] = []
    producer_data_set: list[ProducerData] = []
    without_sub: bool = False


class ProxiedClient(BodyStruct, frozen=True, kw_only=True):
    """A client of a proxy, with its session number there (code 900034)."""

    client_addr: str = ""
    client_id: str = field(name="clientID", default="")
    consumer_data_set: list[ConsumerData] = []
    language: Language = "OTHER"
    number: int = 0
    producer_data_set: list[ProducerData] = []
    version: int = 0


class ProxiedClients(BodyStruct, frozen=True, kw_only=True):
    """Changes among a proxy's clients since the last report on the same connection."""

    clients: list[ProxiedClient] = []
    gone: list[int] = []


class ConnectionBody(BodyStruct, frozen=True, kw_only=True):
    """A connected client."""

    client_addr: str = ""
    client_id: str = ""
    language: Maybe[Language] = UNSET
    version: int = 0


class ConsumerConnection(BodyStruct, frozen=True, kw_only=True):
    """The clients of a consumer group (code 203)."""

    connection_set: list[ConnectionBody] = []
    consume_from_where: Maybe[ConsumeFromWhere] = UNSET
    consume_type: Maybe[ConsumeType] = UNSET
    message_model: Maybe[MessageModel] = UNSET
    subscription_table: dict[str, SubscriptionData] = {}


class ProducerConnection(BodyStruct, frozen=True, kw_only=True):
    """The clients of a producer group (code 204)."""

    connection_set: list[ConnectionBody] = []


class ProducerInfo(BodyStruct, frozen=True, kw_only=True):
    """A connected producer."""

    client_id: str = ""
    language: Maybe[Language] = UNSET
    last_update_timestamp: int = 0
    remote_ip: str = field(name="remoteIP", default="")
    version: int = 0


class ProducerTable(BodyStruct, frozen=True, kw_only=True):
    """All producers by group (code 328)."""

    data: dict[str, list[ProducerInfo]] = {}


class ConsumerIdList(BodyStruct, frozen=True, kw_only=True):
    """The client ids of a consumer group (code 38)."""

    consumer_id_list: list[str] = []


class GroupList(BodyStruct, frozen=True, kw_only=True):
    """Names of consumer groups (code 300)."""

    group_list: list[str] = []


class LockBatchRequest(BodyStruct, frozen=True, kw_only=True):
    """The queues that a consumer wants to lock or unlock (codes 41, 42)."""

    client_id: str = ""
    consumer_group: str = ""
    mq_set: list[MessageQueue] = []
    only_this_broker: bool = False


class LockBatchResponse(BodyStruct, frozen=True, kw_only=True):
    """The queues that were locked."""

    lock_ok_mq_set: list[MessageQueue] = field(name="lockOKMQSet", default_factory=list)


class CheckClientBody(BodyStruct, frozen=True, kw_only=True):
    """A subscription for the broker to check (code 46)."""

    client_id: str = ""
    group: str = ""
    namespace: Maybe[str] = UNSET
    subscription_data: SubscriptionData = SubscriptionData()


class QuerySubscription(BodyStruct, frozen=True, kw_only=True):
    """A group's subscription of a topic (code 345)."""

    group: str = ""
    subscription_data: Maybe[SubscriptionData] = UNSET
    topic: str = ""


class ProcessQueueInfo(BodyStruct, frozen=True, kw_only=True):
    """The state of a queue that is assigned to a consumer. ``droped`` is Java's spelling."""

    cached_msg_count: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_size_in_mib: int = field(name="cachedMsgSizeInMiB", default=0)
    commit_offset: int = 0
    droped: bool = False
    last_consume_timestamp: int = 0
    last_lock_timestamp: int = 0
    last_pull_timestamp: int = 0
    locked: bool = False
    transaction_msg_count: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_min_offset: int = 0
    try_unlock_times: int = 0


class PopProcessQueueInfo(BodyStruct, frozen=True, kw_only=True):
    """The state of a queue that a consumer pops."""

    droped: bool = False
    last_pop_timestamp: int = 0
    wait_ack_count: int = 0


class ConsumeStatus(BodyStruct, frozen=True, kw_only=True):
    """Pull and consume rates of a topic in a consumer; times in ms."""

    consume_failed_msgs: int = 0
    consume_failed_tps: float = field(name="consumeFailedTPS", default=0.0)
    consume_ok_tps: float = field(name="consumeOKTPS", default=0.0)
    consume_rt: float = field(name="consumeRT", default=0.0)
    pull_rt: float = field(name="pullRT", default=0.0)
    pull_tps: float = field(name="pullTPS", default=0.0)


class ConsumerRunningInfo(QueueKeyedBody, frozen=True, kw_only=True):
    """The running info of a consumer (code 307); its tables of queues are keyed by ``queue_key``."""

    jstack: Maybe[str] = UNSET
    mq_pop_table: dict[str, PopProcessQueueInfo] = {}
    mq_table: dict[str, ProcessQueueInfo] = {}
    properties: dict[str, str | int | float | bool] = {}
    status_table: dict[str, ConsumeStatus] = {}
    subscription_set: list[SubscriptionData] = []
    user_consumer_info: dict[str, str] = {}


class ConsumeDirectlyResult(BodyStruct, frozen=True, kw_only=True):
    """The result of consuming one message (code 309). ``consume_result``: CR_SUCCESS, CR_LATER and others."""

    auto_commit: bool = True
    consume_result: Maybe[str | int] = UNSET
    order: bool = False
    remark: Maybe[str] = UNSET
    spent_time_mills: int = 0
