"""What a broker knows: the tables that its handlers share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from rmq_core.broker.clients import Consumers, Producers
from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.consumer_filters import ConsumerFilters
from rmq_core.broker.consumer_offsets import ConsumerOffsets
from rmq_core.broker.groups import Groups
from rmq_core.broker.queue_locks import QueueLocks
from rmq_core.broker.replication import Replication
from rmq_core.broker.stats import Stats
from rmq_core.broker.timers_admission import TimerAdmission
from rmq_core.broker.topics import Topics
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.errors import ResponseError
from rmq_core.store.store import MessageStore
from rmq_formats.hosts import Host


@dataclass(slots=True)
class BrokerState:
    """The tables.

    Attributes:
        config: settings; replaced whole when one is changed over the wire.
        store: messages.
        store_host: the broker's address as records have it.
        topics: by name.
        groups: consumer groups by name.
        offsets: how far groups are.
        consumers: who consumes.
        producers: who produces.
        locks: who has queues for itself.
        stats: what was put and got.
        replication: slaves, or the master.
        clock_ms: the time, ms since 1970.
        timers: sends messages for a time of their own to where they wait; set before the broker listens.
        filters: SQL92 filters that groups have registered.
    """

    config: BrokerConfig
    store: MessageStore
    store_host: Host
    topics: Topics
    groups: Groups
    offsets: ConsumerOffsets
    consumers: Consumers
    producers: Producers
    locks: QueueLocks
    stats: Stats
    replication: Replication
    clock_ms: Callable[[], int]
    timers: TimerAdmission = field(init=False)
    filters: ConsumerFilters = field(init=False)

    def __post_init__(self) -> None:
        """Load the filters; from now on messages get bit maps of them, if the settings say so."""
        self.filters = ConsumerFilters(self.store.config.root, self.config, self.clock_ms)
        if self.config.enable_calc_filter_bit_map:
            self.store.calculate_bit_maps(self.filters.bit_map)

    @property
    def address(self) -> str:
        """``host:port`` that clients are told."""
        return self.store_host.text

    def refuse_unknown_topic(self, topic: str) -> None:
        """Answer for a topic that is not there.

        Raises:
            ResponseError: it is not.
        """
        if topic not in self.topics.table:
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
