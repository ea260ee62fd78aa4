"""Benchmarks the export of a store to Delta and Iceberg, beside Spark's rewrite of the rows from Parquet to Delta.

A small export is measured from the command to the prompt. The decoding of JSON bodies is measured alone.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks import offline
from benchmarks.measure import Figure, last_line_json, run, run_rmq, seconds, throughput_figure
from jobs import export_delta
from rmq_formats.spark import session
from rmq_lakehouse.decode.bodies import decoded
from rmq_lakehouse.decode.json_body import decoder
from rmq_lakehouse.decode.json_structs import bodies_decoder
from rmq_lakehouse.decode.times import TimeUnits

TARGET, STREAM_TARGET, ICEBERG_TARGET = 3.6, 1.2, 1.1
_RUNS = 3  # in the first the JVM compiles; the mean of the others counts
FIRST_MESSAGES = 20_000
FIRST_TARGET_S = 5.0
_COMMAND_RUNS = 3  # the fastest counts
DECODE_TARGET: Final = 3.0
_BODIES: Final = 10_000  # an Arrow batch of Spark
_BODY_BYTES: Final = 1024
_DECODE_RUNS: Final = 5  # the fastest counts
_COLUMNS: Final = pa.struct(
    [("id", pa.int64()), ("name", pa.string()), ("amount", pa.decimal128(12, 2)), ("at", pa.timestamp("us", "UTC"))]
)


def figures(work: Path, messages: int) -> list[Figure]:
    """Measure on the store of the offline part; create a missing store."""
    store = offline.warm_store(work, messages)
    times = last_line_json(run("-m", "benchmarks.lakehouse", str(store), str(work / "lake")))
    names = ("rewrite", "batch", "available-now", "iceberg")
    rewrite, batch, stream, iceberg = (times["bytes"] / statistics.mean(times[name][1:]) for name in names)
    name = f"`jobs/export_delta.py`, raw table, {times['files']} files of {times['file_bytes'] / (1 << 20):,.0f} MiB"
    stream_target, iceberg_target = (f"at most {target} × the time" for target in (STREAM_TARGET, ICEBERG_TARGET))
    return [
        throughput_figure(name, batch, rewrite, TARGET, f"{TARGET} × Spark", " (Spark, Parquet to Delta)"),
        throughput_figure(
            "the same, `--mode available-now`", stream, batch, 1 / STREAM_TARGET, stream_target, " (ours, batch)"
        ),
        throughput_figure(
            "the same, `--format iceberg`", iceberg, batch, 1 / ICEBERG_TARGET, iceberg_target, " (ours, Delta)"
        ),
    ]


def main(store: str, lake: str) -> None:
    """Measure all modes in one session; print one JSON object."""
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
            report = _export(spark, "--store", store, "--table", str(delta), "--mode", mode)
            seconds_by_mode[mode].append(report["seconds"])
            bytes_ = report["bytes"]
            sizes = [path.stat().st_size for path in delta.glob("*=*/**/*.parquet")]
            shutil.rmtree(delta)
        report = _export(spark, "--store", store, "--table", str(iceberg / "messages"), "--format", "iceberg")
        seconds_by_mode["iceberg"].append(report["seconds"])
        shutil.rmtree(iceberg)
    spark.stop()
    shutil.rmtree(directory)
    print(json.dumps({**seconds_by_mode, "bytes": bytes_, "files": len(sizes), "file_bytes": statistics.median(sizes)}))


def _export(spark: SparkSession, *arguments: str) -> dict[str, Any]:
    report, _ = export_delta.main(export_delta.check(export_delta.parser().parse_args(arguments)), spark)
    return report


def first_result_figures(work: Path) -> list[Figure]:
    """Measure ``rmq export`` beside the Spark job, on a store of 20,000 messages of 1 KiB."""
    store = work / "small"
    run_rmq("generate", str(store), "--messages", str(FIRST_MESSAGES), "--body-bytes", "1024", "--keys", "--tags")
    rmq = [str(Path(sys.executable).parent / "rmq"), "export"]
    command = min(_cost([*rmq, "--store", str(store)], work / "small-lake") for _ in range(_COMMAND_RUNS))
    spark = [sys.executable, "jobs/export_delta.py"]
    job, _ = _cost([*spark, "--store", str(store)], work / "small-lake")  # without the JVM's processor time
    return [
        Figure(
            f"`rmq export` of {FIRST_MESSAGES:,} messages of 1 KiB, from the command to the prompt",
            f"{command[0]:.1f} s, {command[1]:.1f} s of processors",
            f"{FIRST_TARGET_S:.0f} s",
            command[0] <= FIRST_TARGET_S,
            f"{job:.1f} s (`jobs/export_delta.py`)",
            job / command[0],
        )
    ]


def _cost(words: Sequence[str], table: Path) -> tuple[float, float]:
    """Return the wall-clock seconds and the processor seconds of a command that creates a table."""
    shutil.rmtree(table, ignore_errors=True)
    begin, before = time.perf_counter(), os.times()
    subprocess.run([*words, "--table", str(table)], check=True, capture_output=True)
    after = os.times()
    processors = after.children_user - before.children_user + after.children_system - before.children_system
    return time.perf_counter() - begin, processors


def decode_figures() -> list[Figure]:
    """Measure msgspec structs beside the decoder of single bodies, on bodies of 1 KiB with four members as columns."""
    bodies = pa.array([_body(number) for number in range(_BODIES)], pa.binary())
    decode = decoder(_COLUMNS, TimeUnits(), "UTC")
    decode_bodies = bodies_decoder(_COLUMNS, TimeUnits(), "UTC", decode, _COLUMNS, 0)
    single = min(_processor_us(lambda: decoded(bodies, decode, _COLUMNS)) for _ in range(_DECODE_RUNS))
    batch = min(_processor_us(lambda: decode_bodies(bodies)) for _ in range(_DECODE_RUNS))
    return [
        Figure(
            "JSON bodies of 1 KiB to four Arrow columns, a processor",
            f"{batch:.1f} µs a body",
            f"{DECODE_TARGET:.0f} ×",
            single / batch >= DECODE_TARGET,
            f"{single:.1f} µs (one body after the other, `json_body`)",
            single / batch,
        )
    ]


def _body(number: int) -> bytes:
    members = {"id": number, "name": f"n{number % 100}", "amount": number % 1000 + 0.25}
    members["at"] = f"2024-02-03T04:05:{number % 60:02}.123Z"
    return json.dumps({**members, "more": "z" * (_BODY_BYTES - len(json.dumps(members)))}).encode()


def _processor_us(action: Callable[[], object]) -> float:
    """Measure the microseconds of a processor for each body."""
    begin = time.process_time()
    action()
    return (time.process_time() - begin) / _BODIES * 1e6


if __name__ == "__main__":
    main(*sys.argv[1:3])
