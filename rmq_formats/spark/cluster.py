"""The data source ``rmq``: messages of a running cluster, read and written by way of its name server."""

import logging
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StringType, StructField, StructType

from rmq_formats.spark import schemas
from rmq_formats.spark.cluster_options import (
    ClusterReadOptions,
    batch_only,
    read_options,
    stream_only,
    write_options,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_formats.spark.cluster_plan import Span

BROKER_NAME: Final = "broker_name"
COLUMNS: Final = StructType([*schemas.COMMITLOG.fields, StructField(BROKER_NAME, StringType())])

# The client and the kernels are imported where they are first needed, as in ``commitlog``.

_log = logging.getLogger("rmq_formats.spark")


class ClusterSource(DataSource):
    """``spark.read.format("rmq").option("namesrv", …).option("subscribe", …).load()``, and as a sink."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)  # which options there can be depends on what is to be done

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "rmq"

    def schema(self) -> StructType:
        """The columns, or those of the option ``columns``."""
        return schemas.project(COLUMNS, read_options(self._given).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of a batch."""
        return ClusterReader(batch_only(read_options(self._given)), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 # Spark's name
        """A reader that follows the queues."""
        from rmq_formats.spark.cluster_stream import ClusterStreamReader  # noqa: PLC0415 # it imports this module

        return ClusterStreamReader(stream_only(read_options(self._given)), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer of a batch."""
        from rmq_formats.spark.cluster_write import ClusterWriter, check_target  # noqa: PLC0415

        return ClusterWriter(check_target(write_options(self._given), schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A writer of a stream's batches."""
        from rmq_formats.spark.cluster_write import ClusterStreamWriter, check_target  # noqa: PLC0415

        return ClusterStreamWriter(check_target(write_options(self._given), schema, overwrite))


class SpanPartition(InputPartition):
    """One stretch of a queue."""

    def __init__(self, span: "Span") -> None:
        super().__init__(None)
        self.span = span

    def __repr__(self) -> str:
        return f"SpanPartition({self.span!r})"


class ClusterReader(DataSourceReader):
    """Fixes the queues' ends when it plans, and reads one stretch a partition."""

    def __init__(self, options: ClusterReadOptions, schema: StructType) -> None:
        self._options = options
        self._columns = schemas.check_asked(COLUMNS, schema, options.columns)

    def partitions(self) -> list[InputPartition]:
        """The stretches; all actions on one ``load()`` see the same messages."""
        from rmq_formats.spark import cluster_plan as plan  # noqa: PLC0415
        from rmq_formats.spark.cluster_link import ClusterLink  # noqa: PLC0415

        options = self._options
        with ClusterLink(options.namesrv, options.group) as link:
            queues = plan.chosen_queues(link, options)
            bounds = link.bounds(queues)
            begins = plan.starting_offsets(link, options, queues, bounds)
            ends = plan.ending_offsets(link, options, queues, bounds)
        begins, lost = plan.check_present(begins, bounds, options.fail_on_data_loss)
        for text in lost:
            _log.warning("%s", text)
        return [SpanPartition(span) for span in plan.spans(begins, ends, options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Arrow batches of one stretch."""
        if not isinstance(partition, SpanPartition):
            return  # Spark's stand-in for an empty list of partitions
        from rmq_formats.spark.cluster_read import read_span  # noqa: PLC0415

        yield from read_span(partition.span, self._options, self._columns)
