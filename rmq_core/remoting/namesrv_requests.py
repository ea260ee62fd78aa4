"""The extension fields of requests to name servers; see ``requests``."""

from rmq_core.remoting.fields import Fields, Int32, Int64


class KVConfigKey(Fields, frozen=True, kw_only=True):
    """Fields of GET_KV_CONFIG (101) and DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


class KVConfigValue(KVConfigKey, frozen=True, kw_only=True):
    """Fields of PUT_KV_CONFIG (100)."""

    value: str


class Namespace(Fields, frozen=True, kw_only=True):
    """Fields of GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str


class BrokerId(Fields, frozen=True, kw_only=True):
    """Fields that name a broker, of UNREGISTER_BROKER (104) and QUERY_DATA_VERSION (322)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class RegisterBroker(BrokerId, frozen=True, kw_only=True):
    """Fields of REGISTER_BROKER (103); ``body_crc32`` is without its sign bit, 0 unchecked."""

    ha_server_addr: str
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = 0


class BrokerHeartbeat(Fields, frozen=True, kw_only=True):
    """Fields of BROKER_HEARTBEAT (904)."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    heartbeat_timeout_mills: Int64 | None = None


class BrokerName(Fields, frozen=True, kw_only=True):
    """A broker name, of WIPE_WRITE_PERM_OF_BROKER (205) and ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


class GetBrokerMemberGroup(Fields, frozen=True, kw_only=True):
    """Fields of GET_BROKER_MEMBER_GROUP (901)."""

    cluster_name: str
    broker_name: str


class ClusterName(Fields, frozen=True, kw_only=True):
    """Fields of GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


class GetRoute(Fields, frozen=True, kw_only=True):
    """Fields of GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool | None = None


class DeleteTopicInNamesrv(Fields, frozen=True, kw_only=True):
    """Fields of DELETE_TOPIC_IN_NAMESRV (216)."""

    topic: str
    cluster_name: str | None = None


class MinBrokerIdChange(Fields, frozen=True, kw_only=True):
    """Fields of NOTIFY_MIN_BROKER_ID_CHANGE (905)."""

    min_broker_id: Int64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None
