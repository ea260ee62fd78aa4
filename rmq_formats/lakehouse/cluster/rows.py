"""Rows of a queue of a running cluster, pulled where a task writes them into files."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from rmq_formats.spark.live.options import ClusterReadOptions
from rmq_formats.spark.live.plan import Span

_MESSAGE_BYTES: Final = 1 << 10  # a guess at the size of a message, for the size of files


@dataclass(frozen=True, slots=True)
class SpanRows:
    """Messages of an offset range of a queue; see ``raw_files.TaskRows``.

    Attributes:
        span: the range.
        options: of the read.
    """

    span: Span
    options: ClusterReadOptions = field(repr=False)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Pull the messages."""
        from rmq_formats.spark.live.read import read_span  # noqa: PLC0415 # loads the client, where it is used

        return read_span(self.span, self.options, columns)


@dataclass(frozen=True, slots=True)
class PulledSpans:
    """Reads ranges of a running cluster's queues; see ``sources.SpanReader``.

    Attributes:
        options: of the reads.
        access: credentials and TLS of the tasks.
        read: the same as options of the source ``rmq``, without topics.
    """

    options: ClusterReadOptions
    access: Mapping[str, str] = field(repr=False)
    read: Mapping[str, str] = field(repr=False)

    @property
    def has_physical_offsets(self) -> bool:
        """A broker's messages have unique physical offsets."""
        return True

    def tasks(self, spans: Sequence[Span]) -> tuple[list[SpanRows], int]:
        options = replace(self.options, access=self.access)
        return [SpanRows(span, options) for span in spans], sum(
            span.end - span.begin for span in spans
        ) * _MESSAGE_BYTES

    def frame(self, spark: SparkSession, spans: Sequence[Span]) -> DataFrame:
        names: dict[str, list[str]] = {}
        for span in spans:
            names.setdefault(span.queue.topic, []).append(span.queue.name)
        starts, ends = (_by_name(spans, name) for name in ("begin", "end"))
        range_options = {
            "assign": json.dumps(names),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
        }
        return spark.read.format("rmq").options(**self.read, **range_options).load()


def _by_name(spans: Sequence[Span], bound: str) -> dict[str, dict[str, int]]:
    offsets: dict[str, dict[str, int]] = {}
    for span in spans:
        offsets.setdefault(span.queue.topic, {})[span.queue.name] = getattr(span, bound)
    return offsets
