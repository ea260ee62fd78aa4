"""Bodies for administrators: statistics of topics, groups and brokers, replication, units of queues.

Tables keyed by a message queue have ``queue_key`` texts as keys.
"""

# ruff: noqa: RUF012 # an empty list or dictionary as a default is made anew for each struct

from msgspec import UNSET

from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.remoting.bodies.codec import BodyStruct, Maybe, MessageQueue, QueueKeyedBody


class TopicOffset(BodyStruct, frozen=True, kw_only=True):
    """Min and max offset of a queue; the store time of its last message, ms since 1970, 0 without one."""

    last_update_timestamp: int = 0
    max_offset: int = 0
    min_offset: int = 0


class TopicStats(QueueKeyedBody, frozen=True, kw_only=True):
    """The offsets of a topic's queues on a broker (code 202)."""

    offset_table: dict[str, TopicOffset] = {}
    topic_put_tps: float = 0.0


class ConsumeOffset(BodyStruct, frozen=True, kw_only=True):
    """A group's consumer offset in a queue, and the queue's max offset (``OffsetWrapper``)."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int = 0


class ConsumeStats(QueueKeyedBody, frozen=True, kw_only=True):
    """The consumer offsets of a group (code 208)."""

    consume_tps: float = 0.0
    offset_table: dict[str, ConsumeOffset] = {}


class BrokerConsumeStats(QueueKeyedBody, frozen=True, kw_only=True):
    """The consumer offsets of all groups of a broker (code 317)."""

    broker_addr: Maybe[str] = UNSET
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []
    total_diff: int = 0
    total_inflight_diff: int = 0


class OffsetsBody(QueueKeyedBody, frozen=True, kw_only=True):
    """Offsets by queue (codes 220, 222)."""

    offset_table: dict[str, int] = {}


class ConsumerStatus(QueueKeyedBody, frozen=True, kw_only=True):
    """The consumer offsets in clients' memory (codes 221, 223)."""

    consumer_table: dict[str, dict[str, int]] = {}
    message_queue_table: dict[str, int] = {}


class QueueTimeSpan(BodyStruct, frozen=True, kw_only=True):
    """The store times in ms of a queue's first and last message, and of the last one that a group has consumed."""

    consume_time_stamp: int = 0
    delay_time: int = 0
    max_time_stamp: int = 0
    message_queue: MessageQueue
    min_time_stamp: int = 0


class ConsumeTimeSpans(BodyStruct, frozen=True, kw_only=True):
    """Time spans by queue: the response to QUERY_CONSUME_TIME_SPAN (303)."""

    consume_time_span_set: list[QueueTimeSpan] = []


class BrokerStatsItem(BodyStruct, frozen=True, kw_only=True):
    """One counter over one period: its sum, its rate, and the average of one event."""

    avgpt: float = 0.0
    sum: int = 0
    tps: float = 0.0


class BrokerStats(BodyStruct, frozen=True, kw_only=True):
    """One counter over a minute, an hour and a day: the response to VIEW_BROKER_STATS_DATA (315)."""

    stats_day: BrokerStatsItem = BrokerStatsItem()
    stats_hour: BrokerStatsItem = BrokerStatsItem()
    stats_minute: BrokerStatsItem = BrokerStatsItem()


class HaConnection(BodyStruct, frozen=True, kw_only=True):
    """A slave's connection as its master sees it; offsets and sizes in bytes."""

    addr: str = ""
    diff: int = 0
    in_sync: bool = False
    slave_ack_offset: int = 0
    transfer_from_where: int = 0
    transferred_byte_in_second: int = 0


class HaClient(BodyStruct, frozen=True, kw_only=True):
    """A slave's connection to its master, as the slave sees it."""

    activated: bool = False
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_addr: Maybe[str] = UNSET
    master_flush_offset: int = 0
    max_offset: int = 0
    transferred_byte_in_second: int = 0


class HaStatus(BodyStruct, frozen=True, kw_only=True):
    """The state of replication: the response to GET_BROKER_HA_STATUS (907)."""

    ha_client_runtime_info: HaClient = HaClient()
    ha_connection_info: list[HaConnection] = []
    in_sync_slave_nums: int = 0
    master: bool = True
    master_commit_log_max_offset: int = 0


class QueueUnit(BodyStruct, frozen=True, kw_only=True):
    """A ConsumeQueue unit (``ConsumeQueueData``). ``eval``: the filter of the group may match the message."""

    eval: bool = False
    extend_data_json: Maybe[str] = UNSET
    msg: Maybe[str] = UNSET
    physic_offset: int
    physic_size: int  # bytes
    tags_code: int


class QueueUnits(BodyStruct, frozen=True, kw_only=True):
    """Units of a queue with its min and max offset (code 321); for a group, also its subscription and filter."""

    filter_data: Maybe[str] = UNSET
    max_queue_index: int
    min_queue_index: int
    queue_data: list[QueueUnit] = []
    subscription_data: Maybe[SubscriptionData] = UNSET


class QueueExtData(BodyStruct, frozen=True, kw_only=True):
    """A ConsumeQueueExt unit in the response with code 321."""

    bit_map_size: int
    filter_bit_map: str
    msg_store_time: int
    size: int
    tags_code: int
