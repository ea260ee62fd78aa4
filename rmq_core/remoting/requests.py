"""The extension fields of requests and answers, as ``read_fields`` and ``write_fields`` take them.

Members without a default have to be there (``@CFNotNull``). The fields that every 5.x client adds (``bname``,
``ns``, ``nsd``, ``oway``, ``lo``) are ignored: they are for proxies.

Source: the classes of ``org.apache.rocketmq.remoting.protocol.header``.
"""

from rmq_core.remoting.fields import Fields, Int32, Int64


class SendMessage(Fields, frozen=True, kw_only=True):
    """Codes 10 and 324."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    batch: bool = False
    max_reconsume_times: Int32 | None = None


_LETTERS = {
    "producer_group": "a", "topic": "b", "default_topic": "c", "default_topic_queue_nums": "d", "queue_id": "e",
    "sys_flag": "f", "born_timestamp": "g", "flag": "h", "properties": "i", "reconsume_times": "j",
    "unit_mode": "k", "max_reconsume_times": "l", "batch": "m",
}  # fmt: skip


class SendMessageV2(SendMessage, frozen=True, kw_only=True, rename=_LETTERS):
    """Codes 310, 320 and 325: the same under names of one letter."""

    # Only a struct's own members are renamed, so they are declared again.
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    batch: bool = False
    max_reconsume_times: Int32 | None = None


class SendResult(Fields, frozen=True, kw_only=True):
    """The answer to a send."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None


class PullMessage(Fields, frozen=True, kw_only=True):
    """Codes 11 and 361. ``sys_flag``: 1 commits, 2 may wait, 4 brings its subscription, 8 class filter, 16 lite."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None


class PullResult(Fields, frozen=True, kw_only=True):
    """The answer to a pull."""

    suggest_which_broker_id: Int64 = 0
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


class QueryMessage(Fields, frozen=True, kw_only=True):
    """Code 12; times in ms."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64


class QueryConsumerOffset(Fields, frozen=True, kw_only=True):
    """Code 14."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool = True


class UpdateConsumerOffset(Fields, frozen=True, kw_only=True):
    """Code 15."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class CreateTopic(Fields, frozen=True, kw_only=True):
    """Code 17. ``attributes``: ``+message.type=FIFO,-reserve.time``."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 = 0
    order: bool
    attributes: str | None = None
    force: bool = False


class Queue(Fields, frozen=True, kw_only=True):
    """Codes 30, 31 and 32: a queue."""

    topic: str
    queue_id: Int32
    committed: bool = True


class SearchOffset(Fields, frozen=True, kw_only=True):
    """Code 29; the time in ms. ``boundary_type``: LOWER or UPPER."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str = "LOWER"


class ViewMessage(Fields, frozen=True, kw_only=True):
    """Code 33."""

    topic: str | None = None
    offset: Int64


_CLIENT_ID = {"client_id": "clientID", "producer_group": "producerGroup", "consumer_group": "consumerGroup"}


class UnregisterClient(Fields, frozen=True, kw_only=True, rename=_CLIENT_ID):
    """Code 35."""

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


class SendBack(Fields, frozen=True, kw_only=True):
    """Code 36. ``delay_level``: -1 no more retries, 0 as the broker counts, above 0 that level."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class EndTransaction(Fields, frozen=True, kw_only=True):
    """Code 37. ``commit_or_rollback``: the sys_flag's bits 4 and 8; 0 not known yet."""

    topic: str | None = None
    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None


class CheckTransaction(Fields, frozen=True, kw_only=True):
    """Code 39."""

    topic: str | None = None
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ConsumerGroup(Fields, frozen=True, kw_only=True):
    """Codes 38, 40 and 203: a consumer group."""

    consumer_group: str


class ProducerGroup(Fields, frozen=True, kw_only=True):
    """Code 204: a producer group."""

    producer_group: str


class Topic(Fields, frozen=True, kw_only=True):
    """Codes 202, 215, 217, 300 and 351: a topic."""

    topic: str


class Group(Fields, frozen=True, kw_only=True):
    """Codes 343, 345 and 352: a group, perhaps with a topic."""

    group: str
    topic: str | None = None


class DeleteGroup(Fields, frozen=True, kw_only=True):
    """Code 207."""

    group_name: str
    clean_offset: bool = False


class ConsumeStatsOf(Fields, frozen=True, kw_only=True):
    """Code 208; ``topic_list`` is separated by semicolons."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class ResetOffset(Fields, frozen=True, kw_only=True):
    """Codes 220 and 222; the time in ms, -1 for the end; ``queue_id`` -1 for all."""

    group: str
    topic: str
    queue_id: Int32 = -1
    offset: Int64 | None = None
    timestamp: Int64
    is_force: bool


class GetConsumerStatus(Fields, frozen=True, kw_only=True):
    """Codes 221 and 223."""

    topic: str
    group: str
    client_addr: str | None = None


class ConsumeTimeSpan(Fields, frozen=True, kw_only=True):
    """Code 303."""

    topic: str
    group: str


class RunningInfo(Fields, frozen=True, kw_only=True):
    """Code 307."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class CorrectionOffset(Fields, frozen=True, kw_only=True):
    """Code 308; ``filter_groups`` is separated by commas."""

    filter_groups: str | None = None
    compare_group: str
    topic: str


class ConsumeDirectly(Fields, frozen=True, kw_only=True):
    """Code 309."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None


class CloneGroupOffset(Fields, frozen=True, kw_only=True):
    """Code 314."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class ViewStats(Fields, frozen=True, kw_only=True):
    """Code 315."""

    stats_name: str
    stats_key: str


class ConsumeStatsInBroker(Fields, frozen=True, kw_only=True):
    """Code 317."""

    is_order: bool


class QueryConsumeQueue(Fields, frozen=True, kw_only=True):
    """Code 321."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class ResumeCheckHalf(Fields, frozen=True, kw_only=True):
    """Code 323."""

    topic: str | None = None
    msg_id: str | None = None


class PushReply(Fields, frozen=True, kw_only=True):
    """Code 326: a reply on its way to who asked."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp: Int64


class GroupForbidden(Fields, frozen=True, kw_only=True):
    """Code 353."""

    group: str
    topic: str
    readable: bool | None = None


class RecallMessage(Fields, frozen=True, kw_only=True):
    """Code 370."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class ResetMasterFlushOffset(Fields, frozen=True, kw_only=True):
    """Code 908."""

    master_flush_offset: Int64
