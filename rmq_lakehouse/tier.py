"""Export source of a store with its tier, by queue offsets, which messages keep when they move to the tier.

Rows are those of the source ``rmq_commitlog``.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Self

from pyspark.sql import DataFrame, SparkSession

from rmq_formats.arrow.schema import Mode
from rmq_formats.codecs import paths
from rmq_formats.codecs.layout import UNIT_BYTES
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.errors import OptionError, StoreNotFoundError
from rmq_formats.read.fsync import fsync_log
from rmq_formats.read.log_end import readable_segments
from rmq_formats.read.plan import plan_read
from rmq_formats.read.query import Query, QueueBounds, ReadOptions
from rmq_formats.read.queue_choice import open_queue
from rmq_formats.read.queues import ConsumeQueue
from rmq_formats.read.task import read_task
from rmq_formats.scan.splits import last_record_end
from rmq_formats.spark.commitlog.batch import plans_of
from rmq_formats.spark.options.read import commitlog_options
from rmq_formats.storage.queue_files import queue_topics, topic_queues
from rmq_formats.storage.queue_logs import LogKind, Logs, TieredLogs, tiered_brokers
from rmq_formats.storage.segments import Segment, Storage, open_storage
from rmq_formats.storage.store_files import StoreFiles, open_store
from rmq_lakehouse.cluster.sources import Bounds, ExportConnection, Gap, span_options
from rmq_lakehouse.live.options import ClusterQueue, ClusterReadOptions, read_options
from rmq_lakehouse.live.plan import Offsets, Span
from rmq_lakehouse.raw_files import StoreRows

_NO_TIMES: Final = "--tier does not accept timestamps. Select messages by queue offsets"
_CHOICE: Final = ("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp")
_BY_TIME: Final = ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp")
_NO_CLUSTER: Final = {"namesrv": "127.0.0.1:9876"}  # required by the parser of options; without a connection


@dataclass(frozen=True, slots=True)
class QueueRanges:
    """Messages of one queue in the CommitLog and in the tier, by queue offsets; ends are exclusive.

    Attributes:
        log_begin: offset of the first message in the CommitLog; ``log_end`` without any.
        log_end: offset after the last message of the ConsumeQueue; 0 without a ConsumeQueue.
    """

    tier_begin: int
    tier_end: int
    log_begin: int
    log_end: int

    @property
    def bounds(self) -> tuple[int, int]:
        """First offset, and the offset after the last message, of CommitLog and tier together."""
        if self.log_begin < self.log_end:
            return (self.tier_begin if self.tier_begin < self.tier_end else self.log_begin), self.log_end
        end = max(self.tier_end, self.log_end)
        return (self.tier_begin if self.tier_begin < self.tier_end else end), end

    @property
    def gap(self) -> tuple[int, int]:
        """Offsets that neither has: after the tier's end, and before the log's begin or up to the queue's end."""
        if self.tier_begin >= self.tier_end:
            return 0, 0
        return min(self.tier_end, self.log_begin), self.log_begin


@dataclass(frozen=True)
class TierQueues:
    """Queues of a store and its tier, as they were at the first look-up; ``tier`` is ``tieredStoreFilePath``."""

    store: str
    tier: str
    _ranges: dict[ClusterQueue, QueueRanges] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @cached_property
    def broker(self) -> tuple[str, str]:
        """Cluster and name of the broker, as its directory in the tier has them. Raises StoreNotFoundError."""
        directory = self._tier_logs.directory
        return next(names for names, path in tiered_brokers(*open_storage(self.tier)).items() if path == directory)

    @cached_property
    def _tier_logs(self) -> TieredLogs:
        return TieredLogs.open(open_store(self.store), self.tier)

    @cached_property
    def _log(self) -> tuple[StoreFiles, Sequence[Segment]]:
        files = open_store(self.store)
        segments = tuple(readable_segments(files))
        queue_dir = paths.consumequeue_dir(files.root)
        if not files.storage.exists(queue_dir):
            raise StoreNotFoundError(
                f"{queue_dir}: no ConsumeQueue, so the offset at which the CommitLog continues the tier is unknown. "
                "Run rmq rebuild"
            )
        return files, segments

    @cached_property
    def _topics(self) -> Mapping[str, frozenset[int]]:
        """Queue ids of each topic."""
        queue_ids: dict[str, set[int]] = {}
        for topic, queue_id in self._tier_logs.queues():
            queue_ids.setdefault(topic, set()).add(queue_id)
        store, _ = self._log
        queue_dir = paths.consumequeue_dir(store.root)
        for topic in queue_topics(store.storage, queue_dir):
            if not topic.startswith(LIGHT_QUEUE_PREFIX):  # their messages are those of other topics
                queue_ids.setdefault(topic, set()).update(
                    queue.queue_id for queue in topic_queues(store.storage, queue_dir, topic)
                )
        return {topic: frozenset(numbers) for topic, numbers in queue_ids.items()}

    def clusters(self) -> dict[str, str]:
        cluster, name = self.broker
        return {name: cluster}

    def topics(self) -> list[str]:
        return sorted(self._topics)

    def queues(self, topic: str) -> list[ClusterQueue]:
        if topic not in self._topics:
            raise OptionError(f"{self.store} and {self.tier}: have no topic {topic!r}")
        return [ClusterQueue(topic, self.broker[1], queue_id) for queue_id in sorted(self._topics[topic])]

    def bounds(self, queues: Iterable[ClusterQueue]) -> dict[ClusterQueue, tuple[int, int]]:
        return {queue: self._queue_ranges(queue).bounds for queue in queues}

    def gaps(self, begins: Offsets, ends: Offsets) -> list[Gap]:
        """List the ranges of messages that the log had deleted before the tier had them."""
        gaps_ = []
        for queue, begin in begins.items():
            first, last = self._queue_ranges(queue).gap
            first, last = max(first, begin), min(last, ends[queue])
            if first < last:
                gaps_.append((queue, first, last))
        return gaps_

    def at_times(self, times_ms: Mapping[ClusterQueue, int]) -> dict[ClusterQueue, int]:
        if times_ms:
            raise OptionError(_NO_TIMES)
        return {}

    def committed(self, queues: Iterable[ClusterQueue], group: str) -> dict[ClusterQueue, int | None]:  # noqa: ARG002
        return dict.fromkeys(queues)

    # Physical offsets in the tier are not those of the log.

    def first_at(self, bounds: Bounds, physical_offset: int) -> Offsets:  # noqa: ARG002
        return {queue: low for queue, (low, _) in bounds.items()}

    def physical_end_of(self, queue: ClusterQueue, end: int) -> int:  # noqa: ARG002
        return 0

    def log_range(self) -> tuple[Storage, Sequence[Segment], int, int]:
        """Return where the CommitLog is, and where it begins and ends now."""
        store, segments = self._log
        return store.storage, segments, segments[0].start_offset, last_record_end(store.storage, list(segments))

    def _queue_ranges(self, queue: ClusterQueue) -> QueueRanges:
        if queue not in self._ranges:
            self._ranges[queue] = self._read_ranges(queue)
        return self._ranges[queue]

    def _read_ranges(self, queue: ClusterQueue) -> QueueRanges:
        log = self._tier_logs.log(queue.topic, queue.queue_id)
        tier_begin = log.units[0].start_offset // UNIT_BYTES if log.units else 0
        tier_end = log.units[-1].end_offset // UNIT_BYTES if log.units else 0
        store, segments = self._log
        units = open_queue(ConsumeQueue, store, queue.topic, queue.queue_id)
        log_begin = log_end = 0
        if units is not None:
            first, log_end = units.first_since(segments[0].start_offset), units.max_offset()
            log_begin = log_end if first is None else first.queue_offset  # all of it has expired
        if log.segments and tier_end < log_begin:
            without_units = self._records(queue, tier_end, log_begin)
            if without_units is not None:
                tier_begin = tier_begin if tier_begin < tier_end else without_units[0]
                tier_end = without_units[1]
        return QueueRanges(tier_begin, tier_end, log_begin, log_end)

    def _records(self, queue: ClusterQueue, begin: int, end: int) -> tuple[int, int] | None:
        """Find the first of the tier's records within some queue offsets, and one past the last; None without any."""
        name = (queue.topic, queue.queue_id)
        bounds = QueueBounds(first_offset=begin, end_offset=end)
        query = Query(queues={queue.topic: frozenset([queue.queue_id])}, bounds={name: bounds})
        store, _ = self._log
        plan = plan_read(store, query, logs=Logs(LogKind.TIERED, self.tier))
        options = ReadOptions(("queue_offset",), query, Mode.DROPMALFORMED)
        batches = (batch for task in plan.tasks for batch in read_task(self.store, task, options))
        ends = [(min(offsets), max(offsets)) for batch in batches if (offsets := batch[0].to_pylist())]
        return (min(first for first, _ in ends), max(last for _, last in ends) + 1) if ends else None


@dataclass(frozen=True, slots=True)
class TierExportSource:
    """The queues of a store and its tier."""

    store: str
    tier: str

    @property
    def name(self) -> str:
        return f"{self.store} and {self.tier}"

    def link(self) -> AbstractContextManager[ExportConnection]:
        """Read the queues again."""
        return TierQueues(self.store, self.tier)

    def options(self, read: Mapping[str, str], topics: Iterable[str]) -> ClusterReadOptions:
        range_options = {name: value for name, value in read.items() if name in {*_CHOICE, *_BY_TIME}}
        return read_options({**range_options, **_NO_CLUSTER, "subscribe": ",".join(topics)})

    def reader(self, options: ClusterReadOptions, read: Mapping[str, str]) -> "TieredSpans":  # noqa: ARG002
        body_options = {name: value for name, value in read.items() if name in {"columns", "decompress"}}
        return TieredSpans(self.store, self.tier, body_options)


@dataclass(frozen=True, slots=True)
class TieredSpans:
    """Reader of ranges of queues of a store and its tier; ``read`` has ``columns`` and ``decompress``."""

    store: str
    tier: str
    read: Mapping[str, str]

    @property
    def has_physical_offsets(self) -> bool:
        """A record's physical offset in the tier is not that in the log, and not unique among queues."""
        return False

    def tasks(self, spans: Sequence[Span]) -> tuple[list[StoreRows], int]:
        self._fsync_log()
        source_options = commitlog_options({**self._options(spans), "path": self.store})
        plan = plans_of(source_options)[0].plan
        assert plan is not None  # a store that is missing is an error here
        return [StoreRows(source_options.path, source_options.read, task) for task in plan.tasks], plan.scanned_bytes

    def frame(self, spark: SparkSession, spans: Sequence[Span]) -> DataFrame:
        self._fsync_log()
        return spark.read.format("rmq_commitlog").options(**self._options(spans)).load(self.store)

    def _fsync_log(self) -> None:
        """Sync the log to disk before it is read, so that no power cut loses exported messages."""
        storage, segments, begin, end = TierQueues(self.store, self.tier).log_range()
        fsync_log(storage, segments, begin, end)

    def _options(self, spans: Sequence[Span]) -> dict[str, str]:
        return {**self.read, "tier": self.tier, **span_options(spans, lambda queue: queue.queue_id)}
