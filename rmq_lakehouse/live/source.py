"""The data source ``rmq``: messages of a running cluster, read and written by way of its name server."""

from collections.abc import MutableMapping
from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from rmq_formats.spark.options import schemas
from rmq_formats.spark.options.schemas import get_source_options, table_options, with_options
from rmq_formats.spark.versions import need_spark
from rmq_lakehouse.live.options import batch_only, read_options, stream_only, write_options
from rmq_lakehouse.live.reader import COLUMNS, ClusterReader

# The client and the kernels are imported where they are first needed, as in ``commitlog``.
_OUTAGE_S: Final = 15.0  # a restarting broker is back after some seconds


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
