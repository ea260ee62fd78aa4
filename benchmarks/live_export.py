"""Benchmarks the export of a running broker of ours to a typed Delta table: JSON messages of 1 KiB."""

import asyncio
import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks.measure import Figure, run
from jobs import export_delta
from rmq_core.client import Admin, Message, Producer
from rmq_core.remoting.loop import run as run_loop
from rmq_formats.spark import session
from tools.processes import standalone

MESSAGES: Final = 400_000
TARGET: Final = 80_000
_TOPIC: Final = "Live"
_QUEUES: Final = 8
_BATCH: Final = 100
_RUNS: Final = 3  # the first is the JVM's to compile in; the mean of the others counts
_SPEC: Final = f"""[[topics]]
topic = "{_TOPIC}"
format = "json"
schema = "order_id STRING, amount DECIMAL(12,2), note STRING"
table = "live"
"""


def figures(work: Path) -> list[Figure]:
    """Measure on a broker with a new store under ``work``."""
    work.mkdir(parents=True, exist_ok=True)
    with standalone(work / "live", "") as broker:
        run_loop(_fill(broker.namesrv))
        output = run("-m", "benchmarks.live_export", broker.namesrv, str(work / "live-lake"))
    seconds = json.loads(output.splitlines()[-1])
    rate = MESSAGES / statistics.mean(seconds[1:])
    name = "`jobs/export_delta.py --namesrv`, typed table, JSON messages of 1 KiB"
    return [Figure(name, f"{rate:,.0f}/s", f"{TARGET:,}/s", rate >= TARGET)]


async def _fill(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic(_TOPIC, queues=_QUEUES)
        while _TOPIC not in await admin.topics():
            await asyncio.sleep(0.1)
    async with Producer(namesrv, "bench") as producer:
        for begin in range(0, MESSAGES, _BATCH * _QUEUES):
            batches = range(begin, min(begin + _BATCH * _QUEUES, MESSAGES), _BATCH)
            await asyncio.gather(*(producer.send_batch(_messages(first)) for first in batches))


def _messages(first: int) -> list[Message]:
    return [
        Message(_TOPIC, json.dumps({"order_id": f"{number:012d}", "amount": number / 100, "note": "x" * 960}).encode())
        for number in range(first, first + _BATCH)
    ]


def main(namesrv: str, lake: str) -> None:
    """Export all to a new table, several times in one session; prints the seconds."""
    spark = session("bench", master="local[2]")
    directory = Path(lake)
    run_seconds = []
    for _ in range(_RUNS):
        directory.mkdir()
        spec = directory / "spec.toml"
        spec.write_text(_SPEC, encoding="utf-8")
        arguments = export_delta.parser().parse_args(["--namesrv", namesrv, "--typed", str(spec)])
        options = export_delta.check(arguments)
        begin = time.perf_counter()
        report, _ = export_delta.main(options, spark)
        run_seconds.append(time.perf_counter() - begin)
        assert report["messages"] == MESSAGES
        shutil.rmtree(directory)
    spark.stop()
    print(json.dumps(run_seconds))


if __name__ == "__main__":
    main(*sys.argv[1:3])
