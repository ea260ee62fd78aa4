"""The data source ``rmq_commitlog``: records of a store's CommitLog as rows."""

import logging
from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceWriter
from pyspark.sql.types import StructType

from rmq_formats.spark.commitlog.batch import CommitLogReader
from rmq_formats.spark.options import schemas
from rmq_formats.spark.options.read import SourceOptions, commitlog_options, refuse_batch_options, refuse_stream_options
from rmq_formats.spark.options.schemas import get_source_options, table_options, with_options
from rmq_formats.spark.versions import need_spark

_log = logging.getLogger("rmq_formats.spark")


class CommitLogSource(DataSource):
    """Data source and sink of CommitLog records: ``spark.read.format("rmq_commitlog").load(STORE)``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = options

    def _options(self, schema: StructType) -> SourceOptions:
        return commitlog_options(table_options(schema, self._given))

    @classmethod
    def name(cls) -> str:
        return "rmq_commitlog"

    def schema(self) -> StructType:
        full = schemas.of_read(schemas.COMMITLOG, commitlog_options(get_source_options(self._given)))
        return with_options(full, self._given)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create the batch reader.

        The reader takes none of Spark's filters: Spark keeps the filters of one query with the ``load()``, and reads by
        them in all other queries over it, and in other parts of the same query; a union of two filters had the rows of
        one filter.
        """
        options = refuse_stream_options(self._options(schema))
        if options.pushdown:
            _log.warning("%s: option pushdown does nothing: give subscribe and the like instead", options.path)
        return CommitLogReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 # Spark's name
        need_spark((4, 2), "a stream of rmq_commitlog")
        from rmq_formats.spark.commitlog.stream import CommitLogStreamReader  # noqa: PLC0415

        return CommitLogStreamReader(refuse_batch_options(self._options(schema)), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from rmq_offline.spark.writers import CommitLogWriter  # noqa: PLC0415

        return CommitLogWriter(self._given, schema, overwrite)
