"""Batch reader of the source ``rmq``, and what its stream reader shares with it: columns and partitions."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StringType, StructField, StructType

from rmq_formats.arrow.schema import BROKER_NAME
from rmq_formats.spark.options import schemas
from rmq_lakehouse.live.options import ClusterReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_lakehouse.live.plan import Span

# The client and the kernels are imported where they are first needed, as in ``commitlog``.
_log = logging.getLogger("rmq_formats.spark")
COLUMNS: Final = StructType([*schemas.COMMITLOG.fields, StructField(BROKER_NAME, StringType())])


@dataclass
class SpanPartition(InputPartition):
    """Input partition: one offset range of a queue."""

    span: "Span"


class ClusterReader(DataSourceReader):
    """Batch reader: freezes the queues' max offsets when it plans, and reads one offset range a partition."""

    def __init__(self, options: ClusterReadOptions, schema: StructType) -> None:
        from rmq_lakehouse.live.client import resolve_access  # noqa: PLC0415

        self._options = resolve_access(options)
        self._columns = schemas.check_requested_columns(COLUMNS, schema, options.columns)

    def partitions(self) -> list[InputPartition]:
        """Plan the offset ranges; actions on the bare frame of one ``load()`` see the same messages."""
        from rmq_lakehouse.live import plan  # noqa: PLC0415
        from rmq_lakehouse.live.client import ClusterConnection  # noqa: PLC0415

        options = self._options
        with ClusterConnection(options.namesrv, options.group, options.access) as link:
            queues = plan.chosen_queues(link, options)
            bounds = link.bounds(queues)
            begins = plan.starting_offsets(link, options, queues, bounds)
            ends = plan.ending_offsets(link, options, queues, bounds)
        begins, lost = plan.check_present(begins, bounds, options.fail_on_data_loss)
        for text in lost:
            _log.warning("%s", text)
        return [SpanPartition(span) for span in plan.spans(begins, ends, options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        if not isinstance(partition, SpanPartition):
            return  # Spark's stand-in for an empty list of partitions
        from rmq_lakehouse.live.read import read_span  # noqa: PLC0415

        yield from read_span(partition.span, self._options, self._columns)
