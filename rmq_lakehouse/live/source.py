"""The data source ``rmq``: messages of a running cluster, read and written by way of its name server."""

import logging
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
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

from rmq_formats.arrow.schema import BROKER_NAME
from rmq_formats.spark.options import schemas
from rmq_formats.spark.options.schemas import get_source_options, table_options, with_options
from rmq_formats.spark.versions import need_spark
from rmq_lakehouse.live.options import ClusterReadOptions, batch_only, read_options, stream_only, write_options

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_lakehouse.live.plan import Span

# The client and the kernels are imported where they are first needed, as in ``commitlog``.
_OUTAGE_S: Final = 15.0  # a restarting broker is back after some seconds
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


class ClusterSource(DataSource):
    """Data source and sink: ``spark.read.format("rmq").option("namesrv", …).option("subscribe", …).load()``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)  # which options there can be depends on what is to be done

    @classmethod
    def name(cls) -> str:
        return "rmq"

    def schema(self) -> StructType:
        columns = read_options(get_source_options(self._given)).columns
        return with_options(schemas.project(COLUMNS, columns), self._given)

    def reader(self, schema: StructType) -> DataSourceReader:
        return ClusterReader(batch_only(read_options(table_options(schema, self._given))), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 # Spark's name
        need_spark((4, 2), "a stream of rmq")
        from rmq_lakehouse.live.stream import ClusterStreamReader  # noqa: PLC0415

        options = read_options(table_options(schema, self._given))
        return ClusterStreamReader(stream_only(options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from rmq_lakehouse.live.write import ClusterWriter, check_target  # noqa: PLC0415

        return ClusterWriter(check_target(write_options(self._given), schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        need_spark((4, 1), "a stream written to rmq")
        from rmq_lakehouse.live.write import check_target  # noqa: PLC0415
        from rmq_lakehouse.live.write_stream import ClusterStreamWriter  # noqa: PLC0415

        # Spark makes a writer for each micro batch: a broker that restarts meanwhile does not end the query.
        options = check_target(write_options(self._given), schema, overwrite, patience_s=_OUTAGE_S)
        return ClusterStreamWriter(options)
