"""Stream writer of the sink ``rmq``; its base class is in Spark since 4.1."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from rmq_lakehouse.live.options import ClusterWriteOptions
from rmq_lakehouse.live.write import write_rows


class ClusterStreamWriter(DataSourceStreamArrowWriter):
    """Stream writer; a micro batch that runs again is sent again."""

    def __init__(self, options: ClusterWriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_rows(self._options, iterator)
