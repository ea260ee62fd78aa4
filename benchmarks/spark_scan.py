"""Times scans of the ``rmq_commitlog`` source, and of a source that repeats ready batches.

It prints one JSON object. The latter, ``ceiling``, has the same schema and tasks: each makes one batch as ours does,
and gives it again and again until it has given as many rows. What is left is Spark's own work, the most that any Python
source can reach. The two take turns.

Each scan runs three times, and the mean of the last two counts: during the first, the JVM compiles what Spark
generated for it, which costs five to ten seconds of processor time however long the log is.
"""

import json
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.measure import seconds
from rmq_formats.spark import session
from rmq_formats.spark.commitlog.batch import CommitLogReader
from rmq_formats.storage.store_files import open_store
from rmq_offline.spark.commitlog_source import CommitLogSource

_ROUNDS = 3
_ROWS = "ceilingRows"  # of a task


class CeilingReader(CommitLogReader):
    """Reader that reads the first batch of a task, and repeats the batch up to the task's number of rows."""

    rows = 0

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one batch many times."""
        batch, remaining = next(super().read(partition)), self.rows
        while remaining:
            piece = batch.slice(0, remaining)
            yield piece
            remaining -= piece.num_rows


class CeilingSource(CommitLogSource):
    """The source ``ceiling``: as ``rmq_commitlog``, without reading more than one batch a task."""

    def __init__(self, options: dict[str, str]) -> None:
        self._rows = int(options[_ROWS])
        super().__init__({name: value for name, value in options.items() if name.lower() != _ROWS.lower()})

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "ceiling"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create the reader."""
        reader = CeilingReader(self._options(schema), schema)
        reader.rows = self._rows
        return reader


def main(store: str, dispatch_columns: str, messages: str) -> None:
    """Scan few columns, then all columns; each by both sources."""
    spark = session("bench", master="local[2]")
    spark.dataSource.register(CeilingSource)
    few = scans_s(spark, store, int(messages), {"columns": dispatch_columns})
    everything = scans_s(spark, store, int(messages), {})
    spark.stop()
    segments = open_store(store).segments
    size = sum(segment.size_bytes for segment in segments)
    print(json.dumps({"dispatch_s": few, "all_s": everything, "bytes": size}))


def scans_s(spark: SparkSession, store: str, messages: int, options: dict[str, str]) -> dict[str, list[float]]:
    """Return the seconds of three scans by each source: the first, then the others."""
    ours = spark.read.format("rmq_commitlog").options(**options).load(store)
    tasks = ours.rdd.getNumPartitions()
    ceiling = spark.read.format("ceiling").options(**options).option(_ROWS, -(-messages // tasks)).load(store)
    seconds_by_source: dict[str, list[float]] = {"ours": [], "ceiling": []}
    for _ in range(_ROUNDS):
        seconds_by_source["ours"].append(_scan_s(ours))
        seconds_by_source["ceiling"].append(_scan_s(ceiling))
    return seconds_by_source


def _scan_s(frame: DataFrame) -> float:
    return seconds(lambda: frame.write.format("noop").mode("overwrite").save())


if __name__ == "__main__":
    main(*sys.argv[1:4])
