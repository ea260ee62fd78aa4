"""Benchmarks the sink ``rmq_commitlog``: writes rows with bodies of 1 KiB, beside Spark's ``noop`` of the same rows."""

import json
import shutil
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.measure import Figure, last_line_json, run, seconds
from rmq_formats.spark import session

TARGET_BYTES_PER_S = 200e6
BODY_BYTES = 1024
MAX_MESSAGES = 2_000_000  # a store of some files


def figures(work: Path, messages: int) -> list[Figure]:
    """Measure the write of that many messages, in a session of its own."""
    count = min(messages, MAX_MESSAGES)
    measured = last_line_json(run("-m", "benchmarks.write", str(work / "written"), str(count)))
    shutil.rmtree(work / "written", ignore_errors=True)
    rate = measured["bytes"] / measured["write_s"]
    without = measured["bytes"] / measured["noop_s"]
    return [
        Figure(
            "write with `rmq_commitlog`, bodies of 1 KiB, local[2]",
            f"{rate / 1e6:,.0f} MB/s (the same rows to `noop`: {without / 1e6:,.0f})",
            f"{TARGET_BYTES_PER_S / 1e6:.0f} MB/s",
            rate >= TARGET_BYTES_PER_S,
        )
    ]


def rows(spark: SparkSession, count: int) -> DataFrame:
    """Build messages of two topics with four queues, a tag and a key, in a small part of the measured time.

    Bodies are cast, since ``encode`` would process each byte.
    """
    number = F.col("id")
    return spark.range(0, count, 1, 4).select(
        F.concat(F.lit("Topic"), number % 2).alias("topic"),
        (number % 4).cast("int").alias("queue_id"),
        F.concat(F.lpad(number.cast("string"), 8, "0"), F.lit("x" * (BODY_BYTES - 8))).cast("binary").alias("body"),
        F.lit("TagA").alias("tags"),
        F.array(F.concat(F.lit("order-"), number)).alias("keys"),
    )


def main(store: str, count: int) -> None:
    """Measure both writes; print one JSON object."""
    spark = session("bench", master="local[2]", delta=False)
    frame = rows(spark, count)
    noop_s, write_s = (second_write_s(frame, kind, store) for kind in ("noop", "rmq_commitlog"))
    spark.stop()
    print(json.dumps({"bytes": count * BODY_BYTES, "noop_s": noop_s, "write_s": write_s}))


def second_write_s(frame: DataFrame, kind: str, store: str) -> float:
    """Return the seconds of the second write: during the first, the JVM compiles."""
    write_s = 0.0
    for _ in range(2):
        shutil.rmtree(store, ignore_errors=True)
        write_s = seconds(lambda: frame.write.format(kind).mode("overwrite").save(store))
    return write_s


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
