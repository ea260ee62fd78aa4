"""Client settings: frozen dataclasses with the names and defaults of Java's clients, units at the end of names."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from rmq_core.client.allocation import Allocation, averagely
from rmq_core.remoting.access.tls import Tls
from rmq_core.remoting.clock import now_ms
from rmq_formats.codecs.compression import DEFAULT_LEVEL, Compression
from rmq_formats.codecs.layout import MAX_BODY_BYTES
from rmq_formats.codecs.topics import TEMPLATE_TOPIC
from rmq_formats.codecs.trace import TRACE_TOPIC
from rmq_formats.errors import OptionError
from rmq_formats.times import check_milliseconds

DEFAULT_INSTANCE: Final = "DEFAULT"
MAX_INVISIBLE_TIME_S: Final = 300  # DefaultMQPushConsumerImpl#checkConfig: 10 s to 300 s
MAX_PULL_INTERVAL_S: Final = 65.535  # DefaultMQPushConsumerImpl#checkConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Settings that all clients have.

    Attributes:
        instance_name: distinguishes the clients of one machine; DEFAULT stands for the process id and a number.
        unit_name: appended to the client id.
        route_poll_interval_s: how often the routes of known topics are refreshed.
        heartbeat_interval_s: how often heartbeats are sent.
        request_timeout_s: for requests without a timeout of their own.
        tls: TLS settings for name servers and brokers, Java's ``useTLS``; None for plain connections.
        clock_ms: the time of day, ms since 1970, for born timestamps, unique keys, starts by time and traces; waits use
            the event loop's time.
    """

    instance_name: str = DEFAULT_INSTANCE
    unit_name: str = ""
    route_poll_interval_s: float = 30.0
    heartbeat_interval_s: float = 30.0
    request_timeout_s: float = 3.0
    tls: Tls | None = None
    clock_ms: Callable[[], int] = now_ms


@dataclass(frozen=True, slots=True)
class Backoff:
    """Time for which a broker is avoided after a slow or failed send.

    Source: ``MQFaultStrategy``, ``latencyMax`` and ``notAvailableDuration``.

    Attributes:
        steps_ms: pairs of a minimal latency and the time of avoiding, by rising latency.
        failure_ms: latency that stands for a failure.
    """

    steps_ms: tuple[tuple[int, int], ...]
    failure_ms: int

    def __post_init__(self) -> None:
        latencies = [latency for latency, _ in self.steps_ms]
        if not latencies or latencies != sorted(set(latencies)) or any(min(step) < 0 for step in self.steps_ms):
            raise OptionError(f"steps_ms of a back-off must be pairs with rising latencies, not {self.steps_ms}")

    def duration_ms(self, latency_ms: float, failed: bool = False) -> int:
        """Return how long a broker is avoided after a send, in ms."""
        latency = self.failure_ms if failed else latency_ms
        return next((duration for least, duration in reversed(self.steps_ms) if latency >= least), 0)


LONG_BACKOFF: Final = Backoff(
    ((50, 0), (100, 0), (550, 30_000), (1000, 60_000), (2000, 120_000), (3000, 180_000), (15_000, 600_000)), 30_000
)
SHORT_BACKOFF: Final = Backoff(
    ((50, 0), (100, 0), (550, 2000), (1800, 5000), (3000, 6000), (5000, 10_000), (15_000, 30_000)), 10_000
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions(ClientOptions):
    """Settings of a producer.

    Attributes:
        send_timeout_s: timeout of a send with all attempts.
        retries: attempts after the first one, at other brokers if possible.
        retry_when_not_stored_well: send again to another broker after a status such as FLUSH_DISK_TIMEOUT; the message
            may then be stored twice.
        compress_above_bytes: minimal size of bodies that are compressed; batches are never compressed.
        compression: codec of the compression.
        compression_level: 0 to 9.
        max_body_bytes: larger bodies are refused; the broker has a limit of its own.
        create_topic_key: template topic, whose route is used for a topic that does not exist yet.
        default_topic_queue_nums: number of queues of a topic created by a send.
        send_latency_fault: avoid slow and failing brokers for a while.
        backoff: time of avoiding: ``SHORT_BACKOFF`` of 5.3.3, ``LONG_BACKOFF`` of 4.x, or another one.
        enable_trace: trace each send.
        trace_topic: the topic of trace messages.
    """

    send_timeout_s: float = 3.0
    retries: int = 2
    retry_when_not_stored_well: bool = False
    compress_above_bytes: int = 4096
    compression: Compression = Compression.ZLIB
    compression_level: int = DEFAULT_LEVEL
    max_body_bytes: int = MAX_BODY_BYTES
    create_topic_key: str = TEMPLATE_TOPIC
    default_topic_queue_nums: int = 4
    send_latency_fault: bool = False
    backoff: Backoff = SHORT_BACKOFF
    enable_trace: bool = False
    trace_topic: str = TRACE_TOPIC

    def __post_init__(self) -> None:
        if self.retries < 0 or self.send_timeout_s <= 0 or self.default_topic_queue_nums < 1:
            raise OptionError("retries, send_timeout_s and default_topic_queue_nums of a producer must be positive")
        if not 0 <= self.compression_level <= 9:
            raise OptionError(f"compression_level must be 0 to 9, not {self.compression_level}")


def check_time(name: str, value: int) -> int:
    """Return a time, or refuse one in seconds or microseconds. Raises OptionError."""
    try:
        return check_milliseconds(value)
    except ValueError as error:
        raise OptionError(f"{name}: {error}") from None


class StartPosition(Enum):
    """First offset of a group in a queue without a consumer offset."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class MessageModel(Enum):
    """Delivery of each message: to one consumer of a group (clustering), or to all (broadcasting)."""

    CLUSTERING = "CLUSTERING"  # one of the group
    BROADCASTING = "BROADCASTING"  # each of the group


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(ClientOptions):
    """Settings that all consumers have.

    Attributes:
        start: start position in a queue without a consumer offset of the group.
        start_timestamp_ms: for ``StartPosition.TIMESTAMP``; None for half an hour ago.
        pull_batch_size: maximal messages of a pull; the broker limits them, too.
        pull_batch_bytes: maximal bytes of a pull; 5.3.3 ignores the setting.
        suspend_timeout_s: long polling: maximal time for which a broker parks a pull.
        pull_timeout_s: timeout of a pull, the long polling included.
        max_cached_messages: number of cached messages above which a queue is not pulled.
        max_cached_bytes: bytes of cached messages above which a queue is not pulled.
        max_span: difference of the last and the first cached offset above which a queue is not pulled, unless in order.
        persist_interval_s: how often consumer offsets are committed.
        rebalance_interval_s: how often rebalance runs, if no member joins or leaves.
        allocation: strategy that allocates queues to members.
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
    rebalance_interval_s: float = 20.0
    allocation: Allocation = averagely

    def __post_init__(self) -> None:
        self._check_positive("pull_batch_size", "max_cached_messages", "max_cached_bytes", "max_span")
        if self.start_timestamp_ms is not None:
            check_time("start_timestamp_ms", self.start_timestamp_ms)
        if self.pull_timeout_s <= self.suspend_timeout_s:
            raise OptionError("pull_timeout_s must be longer than suspend_timeout_s, for the answer to arrive")

    def _check_positive(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                raise OptionError(f"{name} of a consumer must be 1 or more, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions(ConsumerOptions):
    """Settings of a pull consumer.

    Attributes:
        auto_commit: commit the messages that ``poll`` returned before its last call, every ``persist_interval_s`` and
            on close.
    """

    auto_commit: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PopOptions(ClientOptions):
    """Settings of a consumer that pops.

    Attributes:
        invisible_time_s: time after which an unacknowledged message is delivered again.
        start: start position of a group without a consumer offset: ``FIRST`` or ``LAST``.
        in_order: orderly consumption: no further message of a queue is popped while a popped one is neither
            acknowledged nor visible again.
        suspend_timeout_s: long polling: maximal time for which a broker parks a request.
        concurrency: concurrent listener calls of ``consume``.
        max_reconsume_times: number of failed listener calls after which a message is a dead letter.
        suspend_queue_s: in orderly consumption, pause of a queue after a failed call.
        close_timeout_s: time for running listener calls when ``consume`` is cancelled.
    """

    invisible_time_s: float = 60.0
    start: StartPosition = StartPosition.LAST
    in_order: bool = False
    suspend_timeout_s: float = 15.0
    concurrency: int = 20
    max_reconsume_times: int = 16
    suspend_queue_s: float = 1.0
    close_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        if not 1.0 <= self.invisible_time_s <= MAX_INVISIBLE_TIME_S:
            raise OptionError(f"invisible_time_s must be 1 to {MAX_INVISIBLE_TIME_S}, not {self.invisible_time_s:g}")
        if self.start is StartPosition.TIMESTAMP:
            raise OptionError("a consumer that pops starts at the first or the last message, not at a time")
        if self.concurrency < 1 or self.max_reconsume_times < 0:
            raise OptionError("concurrency must be 1 or more, and max_reconsume_times 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions(ConsumerOptions):
    """Settings of a push consumer.

    Attributes:
        model: clustering or broadcasting.
        in_order: orderly consumption: one message of a queue after the other; a failure blocks only its queue.
        consume_batch_size: maximal messages of a listener call.
        concurrency: concurrent calls of the listener, unless in order; they all run on the event loop.
        max_reconsume_times: number of failures after which a message is a dead letter; -1 stands for 16, or for no
            limit in orderly consumption.
        consume_timeout_s: a message whose listener call takes longer is sent back, unless in order.
        suspend_queue_s: in orderly consumption, pause of a queue after a failure.
        pull_interval_s: pause of a queue after a pull with messages.
        lock_interval_s: in order, how often queue locks are renewed; they expire at brokers after 60 s.
        local_offset_dir: directory of the offsets in broadcasting.
        close_timeout_s: time for running listener calls when the consumer is closed.
        enable_trace: trace each listener call.
        trace_topic: the topic of trace messages.
    """

    model: MessageModel = MessageModel.CLUSTERING
    in_order: bool = False
    consume_batch_size: int = 1
    concurrency: int = 20
    max_reconsume_times: int = -1
    consume_timeout_s: float = 15 * 60.0
    suspend_queue_s: float = 1.0
    pull_interval_s: float = 0.0
    lock_interval_s: float = 20.0
    local_offset_dir: Path = Path("~/.rocketmq_offsets")
    close_timeout_s: float = 5.0
    enable_trace: bool = False
    trace_topic: str = TRACE_TOPIC

    def __post_init__(self) -> None:
        ConsumerOptions.__post_init__(self)
        self._check_positive("consume_batch_size", "concurrency")
        if not 0 <= self.pull_interval_s <= MAX_PULL_INTERVAL_S:
            raise OptionError(f"pull_interval_s must be 0 to {MAX_PULL_INTERVAL_S}, not {self.pull_interval_s:g}")
