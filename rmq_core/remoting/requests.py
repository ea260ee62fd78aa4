"""Extension fields of requests and responses, as structs for ``read_fields`` and ``write_fields``.

Members without a default have to be there (``@CFNotNull``). The fields that every 5.x client adds (``bname``,
``ns``, ``nsd``, ``oway``, ``lo``) are ignored: they are for proxies.

Source: the classes of ``org.apache.rocketmq.remoting.protocol.header``.
"""

from msgspec import field

from rmq_core.remoting.fields import Fields, GroupQueue, Int32, Int64


class ProducedMessage(Fields, frozen=True, kw_only=True):
    """Fields that sends and pushed replies have."""

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

    @property
    def properties_bytes(self) -> bytes:
        """UTF-8 of the properties; empty without properties."""
        return (self.properties or "").encode("utf-8", "replace")


class SendMessage(ProducedMessage, frozen=True, kw_only=True):
    """Fields of SEND_MESSAGE (10) and SEND_REPLY_MESSAGE (324)."""

    batch: bool = False
    max_reconsume_times: Int32 | None = None


_LETTERS = {
    "producer_group": "a", "topic": "b", "default_topic": "c", "default_topic_queue_nums": "d", "queue_id": "e",
    "sys_flag": "f", "born_timestamp": "g", "flag": "h", "properties": "i", "reconsume_times": "j",
    "unit_mode": "k", "max_reconsume_times": "l", "batch": "m",
}  # fmt: skip


class SendMessageV2(SendMessage, frozen=True, kw_only=True, rename=_LETTERS):
    """Fields of SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), SEND_REPLY_MESSAGE_V2 (325): names of one letter."""

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


class SendResponse(Fields, frozen=True, kw_only=True):
    """Fields of the response to a send."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None


class PullMessage(GroupQueue, frozen=True, kw_only=True):
    """Fields of pulls (11, 361). ``sys_flag``: 1 commits, 2 may wait, 4 has a subscription, 8 class filter, 16 lite."""

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
    lite_topic: str | None = None


class PullResult(Fields, frozen=True, kw_only=True):
    """Fields of the response to a pull."""

    suggest_which_broker_id: Int64 = 0
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


class QueryMessage(Fields, frozen=True, kw_only=True):
    """Fields of QUERY_MESSAGE (12); times in ms."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    index_type: str | None = None


class QueryConsumerOffset(GroupQueue, frozen=True, kw_only=True):
    """Fields of QUERY_CONSUMER_OFFSET (14)."""

    set_zero_if_not_found: bool = True


class UpdateConsumerOffset(GroupQueue, frozen=True, kw_only=True):
    """Fields of UPDATE_CONSUMER_OFFSET (15)."""

    commit_offset: Int64


class CreateTopic(Fields, frozen=True, kw_only=True):
    """Fields of UPDATE_AND_CREATE_TOPIC (17). ``attributes``: ``+message.type=FIFO,-reserve.time``."""

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
    """A queue: fields of GET_MAX_OFFSET (30), GET_MIN_OFFSET (31) and GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: Int32
    committed: bool = True


class QueryConsumeQueue(Fields, frozen=True, kw_only=True):
    """Fields of QUERY_CONSUME_QUEUE (321): read ``count`` units from queue offset ``index``.

    ``consumer_group`` selects the filter to evaluate.
    """

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class SearchOffset(Fields, frozen=True, kw_only=True):
    """Fields of SEARCH_OFFSET_BY_TIMESTAMP (29); the time in ms. ``boundary_type``: LOWER or UPPER."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str = "LOWER"
    lite_topic: str | None = None


class ViewMessage(Fields, frozen=True, kw_only=True):
    """Fields of VIEW_MESSAGE_BY_ID (33)."""

    topic: str | None = None
    offset: Int64


class UnregisterClient(Fields, frozen=True, kw_only=True):
    """Fields of UNREGISTER_CLIENT (35)."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class SendBackFields(Fields, frozen=True, kw_only=True):
    """Fields of CONSUMER_SEND_MSG_BACK (36). ``delay_level``: -1 dead letter, 0 by the retries so far, else a level."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class EndTransaction(Fields, frozen=True, kw_only=True):
    """Fields of END_TRANSACTION (37). ``commit_or_rollback``: the sys_flag's bits 4 and 8; 0 not known yet."""

    topic: str | None = None
    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None


class CheckTransaction(Fields, frozen=True, kw_only=True):
    """Fields of CHECK_TRANSACTION_STATE (39)."""

    topic: str | None = None
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ConsumerGroupName(Fields, frozen=True, kw_only=True):
    """Fields of codes 38, 40 and 203: a consumer group."""

    consumer_group: str


class ProducerGroup(Fields, frozen=True, kw_only=True):
    """A producer group: fields of GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


class Topic(Fields, frozen=True, kw_only=True):
    """A topic: fields of codes 202, 215, 217, 300 and 351."""

    topic: str


class Group(Fields, frozen=True, kw_only=True):
    """A group, perhaps with a topic: fields of codes 343, 345 and 352."""

    group: str
    topic: str | None = None


class DeleteGroup(Fields, frozen=True, kw_only=True):
    """Fields of DELETE_SUBSCRIPTIONGROUP (207)."""

    group_name: str
    clean_offset: bool = False


class GetConsumeStats(Fields, frozen=True, kw_only=True):
    """Fields of GET_CONSUME_STATS (208); ``topic_list`` is separated by semicolons."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class ResetOffset(Fields, frozen=True, kw_only=True):
    """Fields of codes 220 and 222 (reset of offsets); the time in ms, -1 for the end; ``queue_id`` -1 for all."""

    group: str
    topic: str
    queue_id: Int32 = -1
    offset: Int64 | None = None
    timestamp: Int64
    is_force: bool


class GetConsumerStatus(Fields, frozen=True, kw_only=True):
    """Fields of codes 221 and 223: the consumer offsets in clients' memory."""

    topic: str
    group: str
    client_addr: str | None = None


class ConsumeTimeSpan(Fields, frozen=True, kw_only=True):
    """Fields of QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str


class RunningInfo(Fields, frozen=True, kw_only=True):
    """Fields of GET_CONSUMER_RUNNING_INFO (307)."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeDirectly(Fields, frozen=True, kw_only=True):
    """Fields of CONSUME_MESSAGE_DIRECTLY (309)."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None


class CloneGroupOffset(Fields, frozen=True, kw_only=True):
    """Fields of CLONE_GROUP_OFFSET (314)."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class ViewStats(Fields, frozen=True, kw_only=True):
    """Fields of VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


class ConsumeStatsInBroker(Fields, frozen=True, kw_only=True):
    """Fields of GET_BROKER_CONSUME_STATS (317)."""

    is_order: bool


class ResumeCheckHalf(Fields, frozen=True, kw_only=True):
    """Fields of RESUME_CHECK_HALF_MESSAGE (323)."""

    topic: str | None = None
    msg_id: str | None = None


class PushReply(ProducedMessage, frozen=True, kw_only=True):
    """Fields of PUSH_REPLY_MESSAGE_TO_CLIENT (326): a reply on its way to the requester."""

    born_host: str
    store_host: str
    store_timestamp: Int64


class RecallMessage(Fields, frozen=True, kw_only=True):
    """Fields of RECALL_MESSAGE (370)."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class AccessFields(Fields, frozen=True, kw_only=True):
    """Fields of the requests about users and policies (3001 to 3010), each of which has some of them."""

    username: str | None = None
    filter: str | None = None
    subject: str | None = None
    resource: str | None = None
    policy_type: str | None = None
    subject_filter: str | None = None
    resource_filter: str | None = None
