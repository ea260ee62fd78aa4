"""Source of exports of a store with its tier: rows of the source ``rmq_commitlog``, by offsets of queues."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from rmq_formats.read.fsync import fsync_log
from rmq_formats.spark.commitlog.batch import plans_of
from rmq_formats.spark.options.read import commitlog_options
from rmq_lakehouse.cluster.sources import ExportLink, span_options
from rmq_lakehouse.live.options import ClusterReadOptions, read_options
from rmq_lakehouse.live.plan import Span
from rmq_lakehouse.raw_files import StoreRows
from rmq_lakehouse.tier.queues import TierQueues

_CHOICE: Final = ("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp")
_BY_TIME: Final = ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp")
_NO_CLUSTER: Final = {"namesrv": "127.0.0.1:9876"}  # the parser of choices wants one; nobody connects to it


@dataclass(frozen=True, slots=True)
class TierSource:
    """The queues of a store and its tier; see ``sources.QueueSource``."""

    store: str
    tier: str

    @property
    def name(self) -> str:
        return f"{self.store} and {self.tier}"

    def link(self) -> AbstractContextManager[ExportLink]:
        """See ``QueueSource``: reads the queues again."""
        return TierQueues(self.store, self.tier)

    def options(self, read: Mapping[str, str], topics: Iterable[str]) -> ClusterReadOptions:
        range_options = {name: value for name, value in read.items() if name in {*_CHOICE, *_BY_TIME}}
        return read_options({**range_options, **_NO_CLUSTER, "subscribe": ",".join(topics)})

    def reader(self, options: ClusterReadOptions, read: Mapping[str, str]) -> "TieredSpans":  # noqa: ARG002
        body_options = {name: value for name, value in read.items() if name in {"columns", "decompress"}}
        return TieredSpans(self.store, self.tier, body_options)


@dataclass(frozen=True, slots=True)
class TieredSpans:
    """Reads ranges of queues of a store and its tier; see ``sources.SpanReader``.

    Attributes:
        read: options of the source ``rmq_commitlog``: columns, and decompression of bodies.
    """

    store: str
    tier: str
    read: Mapping[str, str]

    @property
    def has_physical_offsets(self) -> bool:
        """A record's physical offset in the tier is not that in the log, and not unique among queues."""
        return False

    def tasks(self, spans: Sequence[Span]) -> tuple[list[StoreRows], int]:
        self._force()
        source_options = commitlog_options({**self._options(spans), "path": self.store})
        plan = plans_of(source_options)[0].plan
        assert plan is not None  # a store that is missing is an error here
        return [StoreRows(source_options.path, source_options.read, task) for task in plan.tasks], plan.scanned_bytes

    def frame(self, spark: SparkSession, spans: Sequence[Span]) -> DataFrame:
        self._force()
        return spark.read.format("rmq_commitlog").options(**self._options(spans)).load(self.store)

    def _force(self) -> None:
        """Sync the log to disk before it is read, so that no power cut loses exported messages."""
        storage, segments, begin, end = TierQueues(self.store, self.tier).log_range()
        fsync_log(storage, segments, begin, end)

    def _options(self, spans: Sequence[Span]) -> dict[str, str]:
        return {**self.read, "tier": self.tier, **span_options(spans, lambda queue: queue.queue_id)}
