"""Sources of exports by queue offsets: the queues of a running cluster, or those of a store and its tier."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from rmq_formats.arrow.batches import pulled_frames
from rmq_formats.arrow.rows import FrameRows
from rmq_formats.errors import ClusterError
from rmq_lakehouse.live.client import ClusterConnection, resolve_access
from rmq_lakehouse.live.options import ALL_TAGS, ClusterQueue, ClusterReadOptions, read_options
from rmq_lakehouse.live.plan import Offsets, QueueConnection, Span, missing_offsets_message
from rmq_lakehouse.raw_files import TaskRows

_MESSAGE_BYTES: Final = 1 << 10  # a guess at the size of a message, for the size of files

Bounds = Mapping[ClusterQueue, tuple[int, int]]
Gap = tuple[ClusterQueue, int, int]


class ExportConnection(QueueConnection, Protocol):
    """Connection to queues that are exported."""

    def clusters(self) -> Mapping[str, str]:
        """Find the cluster of each broker, by name."""

    def gaps(self, begins: Offsets, ends: Offsets) -> Sequence[Gap]:
        """List the ranges of deleted messages within ranges of queues: queue, begin, end."""

    def first_at(self, bounds: Bounds, physical_offset: int) -> Offsets:
        """Find the first message of each queue that begins at a physical offset or after it; else the queue's end."""

    def physical_end_of(self, queue: ClusterQueue, end: int) -> int:
        """Return a physical offset after all messages below a queue offset; 0 if physical offsets are not unique."""


class SpanReader(Protocol):
    """Reads offset ranges of queues."""

    @property
    def has_physical_offsets(self) -> bool:
        """Whether physical offsets identify rows."""

    def tasks(self, spans: Sequence[Span]) -> tuple[Sequence[TaskRows], int]:
        """Plan the read as tasks, and the bytes that these read."""

    def frame(self, spark: SparkSession, spans: Sequence[Span]) -> DataFrame:
        """Read the rows as a DataFrame."""


class QueueExportSource(Protocol):
    """Queues that are exported, by offsets."""

    @property
    def name(self) -> str:
        """Name of the source in errors."""

    def link(self) -> AbstractContextManager[ExportConnection]:
        """Connect to it."""

    def options(self, read: Mapping[str, str], topics: Iterable[str]) -> ClusterReadOptions:
        """Parse options of the source ``rmq`` that choose queues and offsets. Raises OptionError."""

    def reader(self, options: ClusterReadOptions, read: Mapping[str, str]) -> SpanReader:
        """Make the reader of ranges, from parsed options and from the same options as text."""


def span_options(spans: Sequence[Span], key: Callable[[ClusterQueue], Any]) -> dict[str, str]:
    """Return the options of a source that reads ranges of queues, which ``key`` identifies within their topics."""
    queues: dict[str, list[Any]] = {}
    begins: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for span in spans:
        topic, queue = span.queue.topic, key(span.queue)
        queues.setdefault(topic, []).append(queue)
        begins.setdefault(topic, {})[str(queue)] = span.begin
        ends.setdefault(topic, {})[str(queue)] = span.end
    options = {"assign": queues, "startingOffsets": begins, "endingOffsets": ends}
    return {name: json.dumps(value) for name, value in options.items()}


class ClusterQueues(ClusterConnection):
    """Connection to the queues of a running cluster."""

    def gaps(self, begins: Offsets, ends: Offsets) -> Sequence[Gap]:  # noqa: ARG002 # what it has, it has whole
        return ()

    def first_at(self, bounds: Bounds, physical_offset: int) -> Offsets:
        """See ``ExportConnection``; the queues are of one broker, and within a queue physical offsets grow."""
        offsets: Offsets = {}
        for queue in bounds:
            low, high = bounds[queue]
            middle = low  # most often it is the first: one pull
            while low < high:
                if self._physical_offset_of(queue, middle) < physical_offset:
                    low = middle + 1
                else:
                    high = middle
                middle = (low + high) // 2
            offsets[queue] = low
        return offsets

    def physical_end_of(self, queue: ClusterQueue, end: int) -> int:
        return self._physical_offset_of(queue, end - 1) + 1

    def _physical_offset_of(self, queue: ClusterQueue, offset: int) -> int:
        """Pull one message, and return where it begins in its broker's log, in bytes. Raises ClusterError."""
        for records, _ in self.read(queue, offset, offset + 1, ALL_TAGS, None):
            frames = pulled_frames(records, offset, offset + 1, verify_crc=False)
            if len(frames.frames):
                return int(FrameRows(frames.data, frames.frames).physical_offsets[0])
        raise ClusterError(f"{missing_offsets_message(queue, offset, offset + 1)}: deleted while they were read")


@dataclass(frozen=True, slots=True)
class ClusterExportSource:
    """The queues of a running cluster; ``access`` is as of ``live.client.resolve_access``."""

    namesrv: str
    access: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, namesrv: str, read: Mapping[str, str]) -> "ClusterExportSource":
        """Return the cluster that options of the source ``rmq`` name. Raises OptionError."""
        return cls(namesrv, resolve_access(read_options({**read, "subscribe": "-"})).access)

    @property
    def name(self) -> str:
        return f"cluster of the name server {self.namesrv}"

    def link(self) -> AbstractContextManager[ExportConnection]:
        return ClusterQueues(self.namesrv, None, self.access)

    def options(self, read: Mapping[str, str], topics: Iterable[str]) -> ClusterReadOptions:
        return read_options({**read, "subscribe": ",".join(topics)})

    def reader(self, options: ClusterReadOptions, read: Mapping[str, str]) -> "PulledSpans":
        return PulledSpans(options, self.access, read)


@dataclass(frozen=True, slots=True)
class PulledRows:
    """Messages of an offset range of a queue, which a task pulls; see ``raw_files.TaskRows``."""

    span: Span
    options: ClusterReadOptions = field(repr=False)

    def batches(
        self,
        columns: Sequence[str],
        *,
        by_topic: bool = False,  # noqa: ARG002 # a queue has one topic
    ) -> Iterator[pa.RecordBatch]:
        from rmq_lakehouse.live.read import read_span  # noqa: PLC0415 # loads the client, where it is used

        return read_span(self.span, self.options, columns)


@dataclass(frozen=True, slots=True)
class PulledSpans:
    """Reader of ranges of a running cluster's queues; ``read`` is ``options`` as text, without topics."""

    options: ClusterReadOptions
    access: Mapping[str, str] = field(repr=False)
    read: Mapping[str, str] = field(repr=False)

    @property
    def has_physical_offsets(self) -> bool:
        return True

    def tasks(self, spans: Sequence[Span]) -> tuple[list[PulledRows], int]:
        options = replace(self.options, access=self.access)
        rows = [PulledRows(span, options) for span in spans]
        return rows, sum(span.end - span.begin for span in spans) * _MESSAGE_BYTES

    def frame(self, spark: SparkSession, spans: Sequence[Span]) -> DataFrame:
        queue_options = span_options(spans, lambda queue: queue.name)
        return spark.read.format("rmq").options(**self.read, **queue_options).load()
