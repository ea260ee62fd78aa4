"""Rows of a queue of a running cluster, pulled where a task writes them into files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from rmq_formats.spark.live.options import ClusterReadOptions
from rmq_formats.spark.live.plan import Span


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
