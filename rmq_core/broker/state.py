"""The state of a broker that its request handlers share."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

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
from rmq_core.broker.wall_clock import WallClock
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.errors import ResponseError
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.hosts import Host


@dataclass(slots=True)
class BrokerState:
    """Settings, store and tables, shared by all processors of a broker.

    Attributes:
        config: settings; replaced whole when one is changed over the wire.
        store_host: the broker's address as records have it.
        locks: queue locks of orderly consumers.
        clock_ms: the time of day, ms since 1970, for stored and reported times.
        steady_ms: the steady clock, for all waits.
        rights: of connected clients, at the moment of a push.
        page_cache: whether an append has just taken too long.
        timers: checks timer messages, and redirects them to their topic; set before the broker listens.
        dispatch: makes appended messages readable, after a batch of them, and in turns where that takes long.
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
        """``host:port`` that the broker advertises to clients."""
        return self.store_host.text

    def time_of_day(self, steady_ms: int) -> int:
        """Return the time of day at a time of the steady clock."""
        return steady_ms - self.steady_ms() + self.clock_ms()

    def refuse_unknown_topic(self, topic: str) -> None:
        """Raise the error response for a topic that does not exist."""
        if self.topics.get(topic) is None:
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
