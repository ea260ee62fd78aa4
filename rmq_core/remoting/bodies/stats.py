"""How far topics and groups are, and how a broker does.

Tables keyed by a message queue have ``queue_key`` texts as keys.
"""

# ruff: noqa: RUF012 # an empty list or dictionary as a default is made anew for each struct

from msgspec import UNSET

from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.remoting.bodies.codec import BodyStruct, Maybe, MessageQueue


class TopicOffset(BodyStruct, frozen=True, kw_only=True):
    """A queue's bounds; the time in ms of its last message, 0 if there is none."""

    last_update_timestamp: int = 0
    max_offset: int = 0
    min_offset: int = 0


class TopicStats(BodyStruct, frozen=True, kw_only=True):
    """A topic's queues on a broker (code 202)."""

    offset_table: dict[str, TopicOffset] = {}
    topic_put_tps: float = 0.0


class ConsumeOffset(BodyStruct, frozen=True, kw_only=True):
    """How far a group is in a queue (``OffsetWrapper``)."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int = 0


class ConsumeStats(BodyStruct, frozen=True, kw_only=True):
    """How far a group is (code 208)."""

    consume_tps: float = 0.0
    offset_table: dict[str, ConsumeOffset] = {}


class BrokerConsumeStats(BodyStruct, frozen=True, kw_only=True):
    """How far all groups of a broker are (code 317)."""

    broker_addr: Maybe[str] = UNSET
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []
    total_diff: int = 0
    total_inflight_diff: int = 0


class QueueOffsets(BodyStruct, frozen=True, kw_only=True):
    """Offsets by queue (codes 220, 222)."""

    offset_table: dict[str, int] = {}


class ConsumerStatus(BodyStruct, frozen=True, kw_only=True):
    """Offsets that clients hold (codes 221, 223)."""

    consumer_table: dict[str, dict[str, int]] = {}
    message_queue_table: dict[str, int] = {}


class CorrectionOffsets(BodyStruct, frozen=True, kw_only=True):
    """Offsets by queue id (code 308)."""

    correction_offsets: dict[int, int] = {}


class QueueTimeSpan(BodyStruct, frozen=True, kw_only=True):
    """Times in ms of a queue's messages, and of what a group has consumed."""

    consume_time_stamp: int = 0
    delay_time: int = 0
    max_time_stamp: int = 0
    message_queue: MessageQueue
    min_time_stamp: int = 0


class ConsumeTimeSpans(BodyStruct, frozen=True, kw_only=True):
    """The answer to code 303."""

    consume_time_span_set: list[QueueTimeSpan] = []


class QueueUnit(BodyStruct, frozen=True, kw_only=True):
    """A unit of a ConsumeQueue, and whether it matches a subscription."""

    bit_map: Maybe[str] = UNSET
    eval: bool = False
    extend_data_json: Maybe[str] = UNSET
    msg: Maybe[str] = UNSET
    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0


class QueueUnits(BodyStruct, frozen=True, kw_only=True):
    """The answer to code 321."""

    filter_data: Maybe[str] = UNSET
    max_queue_index: int = 0
    min_queue_index: int = 0
    queue_data: list[QueueUnit] = []
    subscription_data: Maybe[SubscriptionData] = UNSET


class BrokerStatsItem(BodyStruct, frozen=True, kw_only=True):
    """A sum, its rate, and the average of one time."""

    avgpt: float = 0.0
    sum: int = 0
    tps: float = 0.0


class BrokerStats(BodyStruct, frozen=True, kw_only=True):
    """The answer to code 315."""

    stats_day: BrokerStatsItem = BrokerStatsItem()
    stats_hour: BrokerStatsItem = BrokerStatsItem()
    stats_minute: BrokerStatsItem = BrokerStatsItem()


class HaConnection(BodyStruct, frozen=True, kw_only=True):
    """A slave as its master sees it; offsets and sizes in bytes."""

    addr: str = ""
    diff: int = 0
    in_sync: bool = False
    slave_ack_offset: int = 0
    transfer_from_where: int = 0
    transferred_byte_in_second: int = 0


class HaClient(BodyStruct, frozen=True, kw_only=True):
    """A slave's own side."""

    activated: bool = False
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_addr: Maybe[str] = UNSET
    master_flush_offset: int = 0
    max_offset: int = 0
    transferred_byte_in_second: int = 0


class HaStatus(BodyStruct, frozen=True, kw_only=True):
    """The answer to code 907."""

    ha_client_runtime_info: HaClient = HaClient()
    ha_connection_info: list[HaConnection] = []
    in_sync_slave_nums: int = 0
    master: bool = True
    master_commit_log_max_offset: int = 0
