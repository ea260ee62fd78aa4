"""Rows of a DataFrame as Parquet files written by Arrow, for a table format without a writer for Spark here."""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from rmq_formats.spark.versions import SPARK_VERSION, arrow_schema
from rmq_lakehouse.parquet import Layout, PartitionedFiles, WrittenFile
from rmq_lakehouse.raw_files import check_visible
from rmq_offline.spark.runner import SparkRunner

_FILES = "action STRING, path STRING, rows LONG, bytes LONG"
_WRITTEN = pa.schema([("action", pa.string()), ("path", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())])


Read = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def write_frame(frame: DataFrame, layout: Layout) -> list[WrittenFile]:
    """Write the rows in tasks, after a shuffle that brings the rows of a partition together.

    Args:
        frame: the rows, with the table's columns or some of them.

    Raises:
        StoreError: a file that cannot be written, or was written where the driver does not see it.
    """
    names = frame.columns
    # Spark takes the names that mapInArrow is given apart at dots and backticks. No projection is above the hint: of
    # a shuffle without rows Spark would drop what is below it, and with it what is observed there.
    numbered_frame = frame.toDF(*(f"c{at}" for at in range(len(names))))
    lower_names = [name.lower() for name in names]
    sources = [lower_names.index(layout.files.partition_source(name).lower()) for name in layout.partitions]
    if sources:
        numbered_frame = numbered_frame.hint("rebalance", *(f"c{position}" for position in sources))

    def with_real_names(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (batch.rename_columns(names) for batch in batches)

    return write_parts(numbered_frame, layout, arrow_schema(frame.schema), with_real_names)


def write_parts(parts: DataFrame, layout: Layout, schema: pa.Schema, read: Read) -> list[WrittenFile]:
    """Write in each task the rows that it reads, without a shuffle.

    Args:
        parts: input of ``read``; each task writes its own files.
    """
    SparkRunner(parts.sparkSession).check_shared("--table", layout.table)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = PartitionedFiles(layout, schema)
        try:
            for batch in read(batches):
                files.write(_with_offsets(batch))
            written = files.close()
        except BaseException:
            files.abort()
            raise
        file_rows = [{name: getattr(file, name) for name in _WRITTEN.names} for file in written]
        yield pa.RecordBatch.from_pylist(file_rows, _WRITTEN)

    written = [WrittenFile(**row.asDict()) for row in parts.mapInArrow(write, _FILES).collect()]
    check_visible(written, layout.file_store)
    return written


def _with_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a batch of a Spark before 4.2, in which empty lists within others have no offsets: nbytes reads them."""
    if SPARK_VERSION >= (4, 2) or not any(pa.types.is_nested(field.type) for field in batch.schema):
        return batch
    return batch.take(pa.array(np.arange(batch.num_rows)))
