"""Benchmarks the export of a store to Delta and Iceberg, beside Spark's rewrite of its rows from Parquet to Delta."""

import json
import shutil
import statistics
import sys
from pathlib import Path

from benchmarks import offline
from benchmarks.measure import Figure, run, seconds
from jobs import export_delta
from rmq_formats.spark import session

TARGET, STREAM_TARGET, ICEBERG_TARGET = 3.0, 1.2, 1.1
_RUNS = 3  # the first is the JVM's to compile in; the mean of the others counts


def figures(work: Path, messages: int) -> list[Figure]:
    """Measure on the store of the offline part, which is made where it is not there.

    Args:
        work: directory of the benchmarks' stores.
        messages: records of the store.
    """
    store = offline.warm_store(work, messages)
    taken = json.loads(run("-m", "benchmarks.lakehouse", str(store), str(work / "lake")).splitlines()[-1])
    names = ("rewrite", "batch", "available-now", "iceberg")
    rewrite, batch, stream, iceberg = (statistics.mean(taken[name][1:]) for name in names)
    return [
        Figure(
            f"`jobs/export_delta.py`, raw table, {taken['files']} files of {taken['file_bytes'] / (1 << 20):,.0f} MiB",
            f"{taken['bytes'] / batch / 1e6:,.0f} MB/s",
            "3 × Spark",
            rewrite / batch >= TARGET,
            f"{taken['bytes'] / rewrite / 1e6:,.0f} MB/s (Spark, Parquet to Delta)",
            rewrite / batch,
        ),
        Figure(
            "the same, `--mode available-now`",
            f"{taken['bytes'] / stream / 1e6:,.0f} MB/s",
            "at most 1.2 × the time",
            stream <= STREAM_TARGET * batch,
            f"{taken['bytes'] / batch / 1e6:,.0f} MB/s (ours, batch)",
            batch / stream,
        ),
        Figure(
            "the same, `--format iceberg`",
            f"{taken['bytes'] / iceberg / 1e6:,.0f} MB/s",
            "at most 1.1 × the time",
            iceberg <= ICEBERG_TARGET * batch,
            f"{taken['bytes'] / batch / 1e6:,.0f} MB/s (ours, Delta)",
            batch / iceberg,
        ),
    ]


def main(store: str, lake: str) -> None:
    """Measure all of it in one session; prints one JSON object."""
    spark = session("bench", master="local[2]")
    directory = Path(lake)
    parquet, delta, iceberg = directory / "parquet", directory / "delta", directory / "iceberg"
    spark.read.format("rmq_commitlog").load(store).write.parquet(str(parquet))
    taken: dict[str, list[float]] = {"rewrite": [], "batch": [], "available-now": [], "iceberg": []}
    bytes_, sizes = 0, [0]
    for _ in range(_RUNS):
        rewrite = spark.read.parquet(str(parquet)).write.format("delta")
        taken["rewrite"].append(seconds(lambda: rewrite.save(str(delta))))  # noqa: B023 # called at once
        shutil.rmtree(delta)
        for mode in ("batch", "available-now"):
            given = export_delta.parser().parse_args(["--store", store, "--table", str(delta), "--mode", mode])
            report, _ = export_delta.main(given, spark)
            taken[mode].append(report["seconds"])
            bytes_ = report["bytes"]
            sizes = [path.stat().st_size for path in delta.glob("*=*/**/*.parquet")]
            shutil.rmtree(delta)
        given = ["--store", store, "--table", str(iceberg / "messages"), "--format", "iceberg"]
        report, _ = export_delta.main(export_delta.parser().parse_args(given), spark)
        taken["iceberg"].append(report["seconds"])
        shutil.rmtree(iceberg)
    spark.stop()
    shutil.rmtree(directory)
    print(json.dumps({**taken, "bytes": bytes_, "files": len(sizes), "file_bytes": statistics.median(sizes)}))


if __name__ == "__main__":
    main(*sys.argv[1:3])
