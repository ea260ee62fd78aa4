"""Benchmarks the export of a running broker of ours to a typed Delta table: JSON messages of 1 KiB.

From the command to the prompt, the export is compared with Spark's reading of the same lines of a text file.
"""

import asyncio
import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks.client import create_topic
from benchmarks.measure import Figure, last_line_json, rate_figure, run, seconds
from jobs import export_delta
from rmq_core.client import Message, Producer
from rmq_core.remoting.loop import run as run_loop
from rmq_formats.spark import session
from tools.processes import standalone

MESSAGES: Final = 400_000
TARGET: Final = 80_000
_TOPIC: Final = "Live"
_QUEUES: Final = 8
_BATCH: Final = 100
_RUNS: Final = 3  # in the first the JVM compiles; the mean of the others counts
_COMMAND_RUNS: Final = 3  # the fastest counts
_SCHEMA: Final = "order_id STRING, amount DECIMAL(12,2), note STRING"
_SPEC: Final = f"""[[topics]]
topic = "{_TOPIC}"
format = "json"
schema = "{_SCHEMA}"
table = "live"
"""


def figures(work: Path) -> list[Figure]:
    """Measure on a broker with a new store under ``work``."""
    lake, lines = work / "live-lake", work / "live.json"
    lake.mkdir(parents=True, exist_ok=True)
    (lake / "spec.toml").write_text(_SPEC, encoding="utf-8")
    lines.write_bytes(b"".join(_body(number) + b"\n" for number in range(MESSAGES)))
    with standalone(work / "live", "") as broker:
        run_loop(_fill(broker.namesrv))
        output = run("-m", "benchmarks.live_export", broker.namesrv, str(lake))
        job = ("jobs/export_delta.py", "--namesrv", broker.namesrv, "--typed", str(lake / "spec.toml"))
        job_s, spark_s = [], []
        for _ in range(_COMMAND_RUNS):
            job_s.append(seconds(lambda: run(*job)))
            shutil.rmtree(lake / "live")
            spark_s.append(seconds(lambda: run("-m", "benchmarks.live_export", str(lines), str(lake), "text")))
            shutil.rmtree(lake / "text")
    rate = MESSAGES / statistics.mean(last_line_json(output)[1:])
    name = "`jobs/export_delta.py --namesrv`, typed table, JSON messages of 1 KiB"
    ours_s, theirs_s = min(job_s), min(spark_s)
    return [
        rate_figure(name, rate, TARGET),
        Figure(
            f"the same, {MESSAGES:,} messages from the command to the prompt",
            f"{ours_s:.1f} s",
            "1.0 × Spark",
            ours_s <= theirs_s,
            f"{theirs_s:.1f} s (Spark, the same lines of a text file)",
            theirs_s / ours_s,
        ),
    ]


async def _fill(namesrv: str) -> None:
    await create_topic(namesrv, _TOPIC, _QUEUES)
    async with Producer(namesrv, "bench") as producer:
        for begin in range(0, MESSAGES, _BATCH * _QUEUES):
            batches = range(begin, min(begin + _BATCH * _QUEUES, MESSAGES), _BATCH)
            await asyncio.gather(*(producer.send_batch(_messages(first)) for first in batches))


def _messages(first: int) -> list[Message]:
    return [Message(_TOPIC, _body(number)) for number in range(first, first + _BATCH)]


def _body(number: int) -> bytes:
    return json.dumps({"order_id": f"{number:012d}", "amount": number / 100, "note": "x" * 960}).encode()


def export(namesrv: str, lake: str) -> None:
    """Export all to a new table, several times in one session; prints the seconds."""
    spark = session("bench", master="local[2]")
    spec = Path(lake, "spec.toml")
    run_seconds = []
    for _ in range(_RUNS):
        arguments = export_delta.parser().parse_args(["--namesrv", namesrv, "--typed", str(spec)])
        options = export_delta.check(arguments)
        begin = time.perf_counter()
        report, _ = export_delta.main(options, spark)
        run_seconds.append(time.perf_counter() - begin)
        assert report["messages"] == MESSAGES
        shutil.rmtree(Path(lake, "live"))
    spark.stop()
    print(json.dumps(run_seconds))


def rewrite_text(lines: str, lake: str) -> None:
    """Write the lines of a text file to a new table, as Spark itself reads JSON."""
    spark = session("bench", master="local[2]")
    spark.read.schema(_SCHEMA).json(lines).write.format("delta").save(str(Path(lake, "text")))
    spark.stop()


if __name__ == "__main__":
    (rewrite_text if sys.argv[3:] else export)(*sys.argv[1:3])
