"""Benchmarks a replay of messages of 1 KiB to our broker, and to Apache's."""

import asyncio
import sys
import time
from pathlib import Path

import psutil

from benchmarks.broker import build_peer, java_broker, our_broker
from benchmarks.measure import Figure
from rmq_core.client import Admin
from rmq_core.remoting.loop import run
from rmq_formats.read.query import Query
from rmq_offline.generate import generate_store
from rmq_offline.replay.run import count, send
from rmq_offline.replay.selection import build_selection
from rmq_offline.replay.source import Replay

MESSAGES = 400_000
TARGET = 50_000
_TOPIC = "Replayed"
_QUEUES = 8


def figures(work: Path) -> list[Figure]:
    """Measure one replay to each broker, on stores under ``work``."""
    build_peer()
    store = work / "replayed"
    generate_store(
        str(store), messages=MESSAGES, body_bytes=1024, topics=[_TOPIC], queues=_QUEUES, keys=True, tags=True
    )
    with our_broker(work / "replay-ours", "ASYNC_FLUSH") as broker:
        ours = per_second(store, broker.namesrv)
    with java_broker(work / "replay-java", "ASYNC_FLUSH") as broker:
        java = per_second(store, broker.namesrv)
    name, ratio = "replay to our broker, messages of 1 KiB", ours / java
    return [Figure(name, f"{ours:,.0f}/s", f"{TARGET:,}/s", ours >= TARGET, f"{java:,.0f}/s", ratio)]


def per_second(store: Path, namesrv: str) -> float:
    """Return messages a second of one replay, the pass that counts included."""

    async def make_topic() -> None:
        async with Admin(namesrv) as admin:
            await admin.create_topic(_TOPIC, queues=_QUEUES)
            while _TOPIC not in await admin.topics():
                await asyncio.sleep(0.1)

    run(make_topic())
    replay = Replay(str(store), "bench", build_selection(Query(), None, None), namesrv)
    begin, begin_cpu_s = time.perf_counter(), psutil.Process().cpu_times()
    counts = count(replay)
    run(send(replay, counts))
    seconds, end_cpu_s = time.perf_counter() - begin, psutil.Process().cpu_times()
    spent_s = end_cpu_s.user + end_cpu_s.system - begin_cpu_s.user - begin_cpu_s.system
    print(f"replay to {namesrv}: {seconds:.1f} s, of which {spent_s:.1f} s of a processor are ours", file=sys.stderr)
    return counts.messages / seconds
