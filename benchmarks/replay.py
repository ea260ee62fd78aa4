"""Benchmarks a replay of messages of 1 KiB to our broker, and to Apache's."""

import sys
import time
from pathlib import Path

import psutil

from benchmarks.broker import build_peer, java_broker, our_broker
from benchmarks.client import create_topic
from benchmarks.measure import Figure, processor_seconds
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
    """Return messages a second of one replay with its counting pass."""
    run(create_topic(namesrv, _TOPIC, _QUEUES))
    replay = Replay(str(store), "bench", build_selection(Query(), None, None), namesrv)
    begin, begin_cpu_s = time.perf_counter(), processor_seconds(psutil.Process())
    counts = count(replay)
    run(send(replay, counts))
    seconds, spent_s = time.perf_counter() - begin, processor_seconds(psutil.Process()) - begin_cpu_s
    print(f"replay to {namesrv}: {seconds:.1f} s, of which {spent_s:.1f} s of a processor are ours", file=sys.stderr)
    return counts.messages / seconds
