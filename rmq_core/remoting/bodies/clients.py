"""Producers and consumers: heartbeats, who is connected, locks on queues."""

# ruff: noqa: RUF012 # an empty list or dictionary as a default is made anew for each struct

from msgspec import UNSET, field

from rmq_core.remoting.bodies.codec import BodyStruct, Maybe, MessageQueue


class SubscriptionData(BodyStruct, frozen=True, kw_only=True):
    """What a consumer wants of a topic."""

    class_filter_mode: bool = False
    code_set: list[int] = []
    expression_type: Maybe[str] = "TAG"
    sub_string: str = "*"
    sub_version: int = 0
    tags_set: list[str] = []
    topic: str = ""


class ConsumerData(BodyStruct, frozen=True, kw_only=True):
    """A consumer group of a client."""

    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    consume_type: str = "CONSUME_PASSIVELY"
    group_name: str = ""
    message_model: str = "CLUSTERING"
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class ProducerData(BodyStruct, frozen=True, kw_only=True):
    """A producer group of a client."""

    group_name: str = ""


class HeartbeatData(BodyStruct, frozen=True, kw_only=True):
    """What a client says of itself every 30 s (code 34). The Go client leaves the last three out."""

    client_id: str = field(name="clientID", default="")
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: int = 0
    producer_data_set: list[ProducerData] = []
    without_sub: bool = False


class Connection(BodyStruct, frozen=True, kw_only=True):
    """A client that is connected."""

    client_addr: str = ""
    client_id: str = ""
    language: Maybe[str] = UNSET
    version: int = 0


class ConsumerConnection(BodyStruct, frozen=True, kw_only=True):
    """The clients of a consumer group (code 203)."""

    connection_set: list[Connection] = []
    consume_from_where: Maybe[str] = UNSET
    consume_type: Maybe[str] = UNSET
    message_model: Maybe[str] = UNSET
    subscription_table: dict[str, SubscriptionData] = {}


class ProducerConnection(BodyStruct, frozen=True, kw_only=True):
    """The clients of a producer group (code 204)."""

    connection_set: list[Connection] = []


class ProducerInfo(BodyStruct, frozen=True, kw_only=True):
    """A producer that is connected."""

    client_id: str = ""
    language: Maybe[str] = UNSET
    last_update_timestamp: int = 0
    remote_ip: str = field(name="remoteIP", default="")
    version: int = 0


class ProducerTable(BodyStruct, frozen=True, kw_only=True):
    """All producers by group (code 328)."""

    data: dict[str, list[ProducerInfo]] = {}


class ConsumerIdList(BodyStruct, frozen=True, kw_only=True):
    """Client ids of a group (code 38)."""

    consumer_id_list: list[str] = []


class GroupList(BodyStruct, frozen=True, kw_only=True):
    """Names of groups (code 300)."""

    group_list: list[str] = []


class LockBatchRequest(BodyStruct, frozen=True, kw_only=True):
    """Queues that a consumer wants to have, or to give back, for itself (codes 41, 42)."""

    client_id: str = ""
    consumer_group: str = ""
    mq_set: list[MessageQueue] = []
    only_this_broker: bool = False


class LockBatchResponse(BodyStruct, frozen=True, kw_only=True):
    """Those of them that it has now."""

    lock_ok_mq_set: list[MessageQueue] = field(name="lockOKMQSet", default_factory=list)


class CheckClientBody(BodyStruct, frozen=True, kw_only=True):
    """A subscription to be tried (code 46)."""

    client_id: str = ""
    group: str = ""
    namespace: Maybe[str] = UNSET
    subscription_data: SubscriptionData = SubscriptionData()


class QuerySubscription(BodyStruct, frozen=True, kw_only=True):
    """A group's subscription of a topic (code 345)."""

    group: str = ""
    subscription_data: Maybe[SubscriptionData] = UNSET
    topic: str = ""
