"""The running info of a consumer, which a broker fetches from it (codes 307, 309)."""

# ruff: noqa: RUF012 # an empty list or dictionary as a default is made anew for each struct

from msgspec import UNSET, field

from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.remoting.bodies.codec import BodyStruct, Maybe, QueueKeyedBody


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
