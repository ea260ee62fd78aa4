"""The extension fields of what name servers are asked; see ``requests``."""

from rmq_core.remoting.fields import Fields, Int32, Int64


class KVConfigKey(Fields, frozen=True, kw_only=True):
    """Codes 101 and 102."""

    namespace: str
    key: str


class KVConfigValue(Fields, frozen=True, kw_only=True):
    """Code 100."""

    namespace: str
    key: str
    value: str


class Namespace(Fields, frozen=True, kw_only=True):
    """Code 219."""

    namespace: str


class BrokerId(Fields, frozen=True, kw_only=True):
    """Codes 104 and 322: which broker it is."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class RegisterBroker(BrokerId, frozen=True, kw_only=True):
    """Code 103; ``body_crc32`` without its sign bit, 0 unchecked."""

    ha_server_addr: str
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = 0


class BrokerHeartbeat(Fields, frozen=True, kw_only=True):
    """Code 904."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    heartbeat_timeout_mills: Int64 | None = None


class BrokerName(Fields, frozen=True, kw_only=True):
    """Codes 205 and 327: a broker."""

    broker_name: str


class BrokerMembersOf(Fields, frozen=True, kw_only=True):
    """Code 901."""

    cluster_name: str
    broker_name: str


class Cluster(Fields, frozen=True, kw_only=True):
    """Code 224."""

    cluster: str


class GetRoute(Fields, frozen=True, kw_only=True):
    """Code 105."""

    topic: str
    accept_standard_json_only: bool | None = None


class DeleteTopicInNamesrv(Fields, frozen=True, kw_only=True):
    """Code 216."""

    topic: str
    cluster_name: str | None = None


class MinBrokerIdChange(Fields, frozen=True, kw_only=True):
    """Code 905."""

    min_broker_id: Int64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None
