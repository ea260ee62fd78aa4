"""Times scans of the ``rmq_commitlog`` source in a session of its own; prints one JSON object.

Each scan runs three times, and the mean of the last two counts: during the first, the JVM compiles what Spark
generated for it, which costs five to ten seconds of processor time however long the log is.
"""

import json
import sys

from pyspark.sql import DataFrame

from benchmarks.measure import seconds
from rmq_formats.spark import session
from rmq_formats.storage.segments import commitlog_segments, open_storage


def main(store: str, dispatch_columns: str) -> None:
    """Scan few columns, then all columns."""
    spark = session("bench", master="local[2]")
    few = scans_s(spark.read.format("rmq_commitlog").option("columns", dispatch_columns).load(store))
    everything = scans_s(spark.read.format("rmq_commitlog").load(store))
    spark.stop()
    segments = commitlog_segments(*open_storage(store))
    size = sum(segment.size_bytes for segment in segments)
    print(json.dumps({"dispatch_s": few, "all_s": everything, "bytes": size}))


def scans_s(frame: DataFrame) -> list[float]:
    """Return the seconds of three scans: the first, then the others."""
    return [seconds(lambda: frame.write.format("noop").mode("overwrite").save()) for _ in range(3)]


if __name__ == "__main__":
    main(*sys.argv[1:3])
