"""Bodies of the name server: topic routes, clusters, lists of names, key-value tables."""

# ruff: noqa: RUF012 # an empty list or dictionary as a default is made anew for each struct

from msgspec import UNSET

from rmq_core.remoting.bodies.codec import BodyStruct, Maybe
from rmq_core.remoting.bodies.configs import TopicQueueMapping


class BrokerData(BodyStruct, frozen=True, kw_only=True):
    """A broker's addresses by broker id. The Go client takes ``brokerAddrs`` apart by hand: no spaces there."""

    broker_addrs: dict[int, str] = {}
    broker_name: str = ""
    cluster: str = ""
    enable_acting_master: bool = False
    zone_name: Maybe[str] = UNSET


class QueueData(BodyStruct, frozen=True, kw_only=True):
    """A topic's queues on one broker."""

    broker_name: str = ""
    perm: int = 0
    read_queue_nums: int = 0
    topic_sys_flag: int = 0
    write_queue_nums: int = 0


class TopicRouteData(BodyStruct, frozen=True, kw_only=True):
    """The route of a topic: its brokers and queues (code 105)."""

    broker_datas: list[BrokerData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: Maybe[str] = UNSET
    queue_datas: list[QueueData] = []
    topic_queue_mapping_by_broker: Maybe[dict[str, TopicQueueMapping]] = UNSET


class ClusterInfo(BodyStruct, frozen=True, kw_only=True):
    """All brokers by name, and broker names by cluster (code 106)."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class BrokerMemberGroup(BodyStruct, frozen=True, kw_only=True):
    """The addresses of a master and its slaves."""

    broker_addrs: dict[int, str] = {}
    broker_name: str = ""
    cluster: str = ""


class BrokerMembers(BodyStruct, frozen=True, kw_only=True):
    """A master and its slaves: the answer to GET_BROKER_MEMBER_GROUP (901)."""

    broker_member_group: BrokerMemberGroup = BrokerMemberGroup()


class TopicList(BodyStruct, frozen=True, kw_only=True):
    """Names of topics."""

    broker_addr: Maybe[str] = UNSET
    topic_list: list[str] = []


class KVTable(BodyStruct, frozen=True, kw_only=True):
    """Names and values; all values are strings, numbers too."""

    table: dict[str, str] = {}
