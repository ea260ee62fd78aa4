"""Settings of clients: frozen dataclasses; names and defaults are those of Java's clients, with units at the end."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from rmq_core.client.allocation import Allocation, averagely
from rmq_formats.compression import DEFAULT_LEVEL, Compression
from rmq_formats.errors import OptionError
from rmq_formats.layout import MAX_BODY_BYTES
from rmq_formats.trace import TRACE_TOPIC

DEFAULT_INSTANCE: Final = "DEFAULT"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """What all clients have.

    Attributes:
        instance_name: tells clients of one machine apart; DEFAULT takes the process and a number.
        unit_name: appended to the client's id.
        route_poll_interval_s: how often the routes of known topics are asked for.
        heartbeat_interval_s: how often brokers are told that the client is there.
        request_timeout_s: for all requests that have no timeout of their own.
    """

    instance_name: str = DEFAULT_INSTANCE
    unit_name: str = ""
    route_poll_interval_s: float = 30.0
    heartbeat_interval_s: float = 30.0
    request_timeout_s: float = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions(ClientOptions):
    """Settings of a producer.

    Attributes:
        send_timeout_s: for a send with all its attempts.
        retries: attempts after the first, on other brokers where there are any.
        retry_when_not_stored_well: whether an answer such as FLUSH_DISK_TIMEOUT is tried again elsewhere; the
            message may then be there twice.
        compress_above_bytes: bodies of that size or more are compressed; batches never are.
        compression: by which codec.
        compression_level: 0 to 9.
        max_body_bytes: larger bodies are refused; the broker has a limit of its own.
        create_topic_key: the topic whose queues stand for those of a topic that does not exist yet.
        default_topic_queue_nums: how many queues such a topic gets.
        send_latency_fault: whether brokers that are slow or fail are left out for a while (``latency``).
        enable_trace: whether each send is told to the topic of traces.
        trace_topic: which topic that is.
    """

    send_timeout_s: float = 3.0
    retries: int = 2
    retry_when_not_stored_well: bool = False
    compress_above_bytes: int = 4096
    compression: Compression = Compression.ZLIB
    compression_level: int = DEFAULT_LEVEL
    max_body_bytes: int = MAX_BODY_BYTES
    create_topic_key: str = "TBW102"
    default_topic_queue_nums: int = 4
    send_latency_fault: bool = False
    enable_trace: bool = False
    trace_topic: str = TRACE_TOPIC

    def __post_init__(self) -> None:
        if self.retries < 0 or self.send_timeout_s <= 0 or self.default_topic_queue_nums < 1:
            raise OptionError("retries, send_timeout_s and default_topic_queue_nums of a producer must be positive")
        if not 0 <= self.compression_level <= 9:
            raise OptionError(f"compression_level must be 0 to 9, not {self.compression_level}")


class StartPosition(Enum):
    """Where a group begins in a queue of which it has no offset."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class MessageModel(Enum):
    """Who of a group gets a message."""

    CLUSTERING = "CLUSTERING"  # one of the group
    BROADCASTING = "BROADCASTING"  # each of the group


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(ClientOptions):
    """What all consumers have.

    Attributes:
        start: where a group begins in a queue of which it has no offset.
        start_timestamp_ms: for ``StartPosition.TIMESTAMP``; half an hour before now if it is None.
        pull_batch_size: messages of a pull; the broker has limits of its own.
        pull_batch_bytes: what a broker may send at once; 5.3.3 does not look at it.
        suspend_timeout_s: how long a broker may hold a pull until there is a message.
        pull_timeout_s: how long its answer may take in all.
        max_cached_messages: of a queue; above that nothing is pulled.
        max_cached_bytes: likewise.
        max_span: between the first and the last cached offset of a queue; likewise, unless in order.
        persist_interval_s: how often offsets are stored.
    """

    start: StartPosition = StartPosition.LAST
    start_timestamp_ms: int | None = None
    pull_batch_size: int = 32
    pull_batch_bytes: int = 256 << 10
    suspend_timeout_s: float = 15.0
    pull_timeout_s: float = 30.0
    max_cached_messages: int = 1000
    max_cached_bytes: int = 100 << 20
    max_span: int = 2000
    persist_interval_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("pull_batch_size", "max_cached_messages", "max_cached_bytes", "max_span"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} of a consumer must be 1 or more, not {getattr(self, name)}")
        if self.pull_timeout_s <= self.suspend_timeout_s:
            raise OptionError("pull_timeout_s must be longer than suspend_timeout_s, for the answer to arrive")


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions(ConsumerOptions):
    """Settings of a pull consumer.

    Attributes:
        auto_commit: whether what ``poll`` has given is committed every ``persist_interval_s``.
    """

    auto_commit: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions(ConsumerOptions):
    """Settings of a push consumer.

    Attributes:
        model: who of the group gets a message.
        in_order: one message after the other of a queue; a failure holds up its queue and no other.
        consume_batch_size: messages of a call of the listener.
        concurrency: calls of the listener at a time, unless in order; they all run on the event loop.
        max_reconsume_times: failures after which a message goes to the dead-letter topic; -1 is 16, and no end in
            order.
        consume_timeout_s: a message whose call takes longer is sent back, unless in order.
        suspend_queue_s: in order, how long a queue waits after a failure.
        rebalance_interval_s: how often queues are shared out anew, if nobody comes or goes.
        lock_interval_s: in order, how often the locks on queues are renewed; brokers forget them after 60 s.
        allocation: how queues are shared out.
        local_offset_dir: where offsets are kept when broadcasting.
        close_timeout_s: how long calls of the listener may take to end when the consumer is closed.
        enable_trace: whether each call of the listener is told to the topic of traces.
        trace_topic: which topic that is.
    """

    model: MessageModel = MessageModel.CLUSTERING
    in_order: bool = False
    consume_batch_size: int = 1
    concurrency: int = 20
    max_reconsume_times: int = -1
    consume_timeout_s: float = 15 * 60.0
    suspend_queue_s: float = 1.0
    rebalance_interval_s: float = 20.0
    lock_interval_s: float = 20.0
    allocation: Allocation = averagely
    local_offset_dir: Path = Path("~/.rocketmq_offsets")
    close_timeout_s: float = 5.0
    enable_trace: bool = False
    trace_topic: str = TRACE_TOPIC

    def __post_init__(self) -> None:
        ConsumerOptions.__post_init__(self)
        for name in ("consume_batch_size", "concurrency"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} of a consumer must be 1 or more, not {getattr(self, name)}")
