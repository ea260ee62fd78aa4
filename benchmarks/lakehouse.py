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
    """Measure on the store of the offline part; create a missing store."""
    store = offline.warm_store(work, messages)
    times = json.loads(run("-m", "benchmarks.lakehouse", str(store), str(work / "lake")).splitlines()[-1])
    names = ("rewrite", "batch", "available-now", "iceberg")
    rewrite, batch, stream, iceberg = (statistics.mean(times[name][1:]) for name in names)
    return [
        Figure(
            f"`jobs/export_delta.py`, raw table, {times['files']} files of {times['file_bytes'] / (1 << 20):,.0f} MiB",
            f"{times['bytes'] / batch / 1e6:,.0f} MB/s",
            "3 × Spark",
            rewrite / batch >= TARGET,
            f"{times['bytes'] / rewrite / 1e6:,.0f} MB/s (Spark, Parquet to Delta)",
            rewrite / batch,
        ),
        Figure(
            "the same, `--mode available-now`",
            f"{times['bytes'] / stream / 1e6:,.0f} MB/s",
            "at most 1.2 × the time",
            stream <= STREAM_TARGET * batch,
            f"{times['bytes'] / batch / 1e6:,.0f} MB/s (ours, batch)",
            batch / stream,
        ),
        Figure(
            "the same, `--format iceberg`",
            f"{times['bytes'] / iceberg / 1e6:,.0f} MB/s",
            "at most 1.1 × the time",
            iceberg <= ICEBERG_TARGET * batch,
            f"{times['bytes'] / batch / 1e6:,.0f} MB/s (ours, Delta)",
            batch / iceberg,
        ),
    ]


def main(store: str, lake: str) -> None:
    """Measure all of it in one session; prints one JSON object."""
    spark = session("bench", master="local[2]")
    directory = Path(lake)
    parquet, delta, iceberg = directory / "parquet", directory / "delta", directory / "iceberg"
    spark.read.format("rmq_commitlog").load(store).write.parquet(str(parquet))
    seconds_by_mode: dict[str, list[float]] = {"rewrite": [], "batch": [], "available-now": [], "iceberg": []}
    bytes_, sizes = 0, [0]
    for _ in range(_RUNS):
        rewrite = spark.read.parquet(str(parquet)).write.format("delta")
        seconds_by_mode["rewrite"].append(seconds(lambda: rewrite.save(str(delta))))  # noqa: B023 # called at once
        shutil.rmtree(delta)
        for mode in ("batch", "available-now"):
            arguments = export_delta.parser().parse_args(["--store", store, "--table", str(delta), "--mode", mode])
            report, _ = export_delta.main(export_delta.check(arguments), spark)
            seconds_by_mode[mode].append(report["seconds"])
            bytes_ = report["bytes"]
            sizes = [path.stat().st_size for path in delta.glob("*=*/**/*.parquet")]
            shutil.rmtree(delta)
        arguments = ["--store", store, "--table", str(iceberg / "messages"), "--format", "iceberg"]
        report, _ = export_delta.main(export_delta.check(export_delta.parser().parse_args(arguments)), spark)
        seconds_by_mode["iceberg"].append(report["seconds"])
        shutil.rmtree(iceberg)
    spark.stop()
    shutil.rmtree(directory)
    print(json.dumps({**seconds_by_mode, "bytes": bytes_, "files": len(sizes), "file_bytes": statistics.median(sizes)}))


if __name__ == "__main__":
    main(*sys.argv[1:3])
