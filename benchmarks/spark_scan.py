"""Times the ``rmq_commitlog`` source in a session of its own; prints one JSON object."""

import json
import sys

from benchmarks.measure import seconds
from rmq_formats.segment import commitlog_segments, open_storage
from rmq_formats.spark import session


def main(store: str, dispatch_columns: str) -> None:
    """Scan twice: few columns, all columns."""
    spark = session("bench", master="local[2]")
    # What starts once a session (the first Python worker, the first query plan) is not the scan's.
    first = spark.read.format("rmq_commitlog").option("columns", "size").option("endingPhysicalOffset", 1 << 20)
    first.load(store).count()
    few = spark.read.format("rmq_commitlog").option("columns", dispatch_columns).load(store)
    dispatch_s = seconds(lambda: few.write.format("noop").mode("overwrite").save())
    everything = spark.read.format("rmq_commitlog").load(store)
    all_s = seconds(lambda: everything.write.format("noop").mode("overwrite").save())
    spark.stop()
    segments = commitlog_segments(*open_storage(store))
    size = sum(segment.size_bytes for segment in segments)
    print(json.dumps({"dispatch_s": dispatch_s, "all_s": all_s, "bytes": size}))


if __name__ == "__main__":
    main(*sys.argv[1:3])
