"""The state of a broker that its request handlers share, with its clock."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from rmq_core.broker.access.guard import PushRights
from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.fast_failure import PageCache
from rmq_core.broker.replication import Replication
from rmq_core.broker.slices import Slices
from rmq_core.broker.tables.clients import Consumers, Producers, QueueLocks, ReplyRequests
from rmq_core.broker.tables.consumer_offsets import ConsumerOffsets
from rmq_core.broker.tables.registered_filters import ConsumerFilters
from rmq_core.broker.tables.stats import Stats
from rmq_core.broker.tables.subscription_groups import Groups
from rmq_core.broker.tables.table_file import TableFiles
from rmq_core.broker.tables.timer_admission import TimerAdmission
from rmq_core.broker.tables.topics import Topics
from rmq_core.remoting.bodies.configs import TopicConfig
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.errors import ResponseError
from rmq_core.store.results import PutResult
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.record import StoredMessage

HELP: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
APPLY_FIRST: Final = f", apply first please! {HELP}"
_MIN_CLOCK_STEP_MS: Final = 1000  # a smaller difference is no step yet
_MAX_CLOCK_STEPS: Final = 256


class WallClock:
    """Time of day, with the changes of the clock.

    A record has the time of day of its write. After the clock was set back an hour, a record of a minute ago seems to
    come from the future; after the clock was set forward, the record seems an hour old. The physical offset of a record
    shows whether the change came before or after the record.

    Example: a record at 1000 was stored at 12:00:00; the clock is set to 11:00:00 while the log ends at 1200; at
    11:00:05 the record is 5 s old, for its offset is before that end.
    """

    def __init__(self, wall_ms: Callable[[], int], steady_ms: Callable[[], int], log_end: Callable[[], int]) -> None:
        """Begin without changes of the clock; ``log_end`` returns the physical offset of the next record."""
        self._wall_ms = wall_ms
        self._steady_ms = steady_ms
        self._log_end = log_end
        self._steps: list[tuple[int, int]] = []  # the log's end at a step, and the change of the clock
        self.lead_ms = wall_ms() - steady_ms()  # lead of the time of day over the steady clock

    def __call__(self) -> int:
        wall_ms = self._wall_ms()
        step_ms = wall_ms - self._steady_ms() - self.lead_ms
        if not -_MIN_CLOCK_STEP_MS < step_ms < _MIN_CLOCK_STEP_MS:
            self._steps.append((self._log_end(), step_ms))
            del self._steps[:-_MAX_CLOCK_STEPS]
            self.lead_ms += step_ms
        return wall_ms

    def age_ms(self, timestamp_ms: int, physical_offset: int) -> int:
        age_ms = self() - timestamp_ms
        return age_ms - sum(step_ms for end, step_ms in self._steps if physical_offset < end)


@dataclass(slots=True)
class BrokerState:
    """Settings, store and tables, shared by all processors of a broker.

    Attributes:
        config: settings; replaced as a whole when an administrator changes one.
        store_host: the broker's address in records.
        clock_ms: the time of day, ms since 1970, for stored and reported times.
        steady_ms: the steady clock, for all waits.
        dispatch: makes appended messages readable; called after each batch of appends.
        long_requests: lock of requests about all queues of a topic, whose responses may each fill a frame.
    """

    config: BrokerConfig
    store: MessageStore
    store_host: Host
    files: TableFiles
    topics: Topics
    groups: Groups
    offsets: ConsumerOffsets
    consumers: Consumers
    producers: Producers
    locks: QueueLocks
    stats: Stats
    replication: Replication
    clock_ms: WallClock
    steady_ms: Callable[[], int]
    rights: PushRights
    reply_requests: ReplyRequests = field(init=False, default_factory=ReplyRequests)
    page_cache: PageCache = field(init=False)
    timers: TimerAdmission = field(init=False)
    filters: ConsumerFilters = field(init=False)
    dispatch: Callable[[], None] = field(init=False)
    long_requests: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.page_cache = PageCache(self.store.config.os_page_cache_busy_timeout_ms)
        self.filters = ConsumerFilters(self.files, self.config, self.clock_ms)

    @property
    def slices(self) -> Slices:
        return self.files.slices

    @property
    def address(self) -> str:
        return self.store_host.text

    def time_of_day(self, steady_ms: int) -> int:
        """Return the time of day at a time of the steady clock."""
        return steady_ms - self.steady_ms() + self.clock_ms()

    def require_topic(self, topic: str, hint: str = "") -> TopicConfig:
        """Return the settings of a topic or light queue. Raises ResponseError, with a hint, for an unknown topic."""
        config = self.topics.get(topic)
        if config is None:
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist{hint}")
        return config

    def put_copy(
        self,
        message: StoredMessage,
        queue: tuple[str, int],
        properties_bytes: bytes,
        now_ms: int,
        *,
        sys_flag: int | None = None,
        added_tries: int = 0,
        born_host: bytes | None = None,
    ) -> PutResult:
        """Append a copy of a stored message to a queue, with other properties; flags and host are the message's."""
        return self.store.appender.put(
            *queue,
            message.body,
            properties_bytes,
            message.born_timestamp_ms,
            born_host or message.born_host.to_bytes(),
            now_ms,
            flag=message.flag,
            sys_flag=message.sys_flag if sys_flag is None else sys_flag,
            reconsume_times=message.reconsume_times + added_tries,
        )
