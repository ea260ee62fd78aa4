"""Writes a DataFrame's rows as Parquet files by Arrow, for a table format that Spark has no writer of here."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from rmq_formats.lakehouse.parquet import Layout, PartitionedFiles, WrittenFile
from rmq_formats.lakehouse.raw_files import check_seen
from rmq_formats.spark.runner import SparkRunner

_FILES = "action STRING, path STRING, rows LONG, bytes LONG"
_WRITTEN = pa.schema([("action", pa.string()), ("path", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())])


def write_frame(frame: DataFrame, layout: Layout) -> list[WrittenFile]:
    """Have tasks write the rows; those of a partition are brought together first.

    Args:
        frame: the rows, with the table's columns or some of them.
        layout: of the files.

    Raises:
        StoreError: a file that cannot be written, or was written where the driver does not see it.
    """
    SparkRunner(frame.sparkSession).check_shared("--table", layout.table)
    schema = to_arrow_schema(frame.schema, timezone="UTC")

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = PartitionedFiles(layout, schema)
        try:
            for batch in batches:
                files.write(batch)
            written = files.close()
        except BaseException:
            files.abort()
            raise
        told = [{name: getattr(file, name) for name in _WRITTEN.names} for file in written]
        yield pa.RecordBatch.from_pylist(told, _WRITTEN)

    together = frame.hint("rebalance", *layout.partitions) if layout.partitions else frame
    written = [WrittenFile(**row.asDict()) for row in together.mapInArrow(write, _FILES).collect()]
    check_seen(written, layout.place)
    return written
