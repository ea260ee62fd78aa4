"""Timer messages that are all due in the same second, at our broker."""

import asyncio
import time
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.client import consume
from benchmarks.measure import Figure
from rmq_core.client import Message, Producer
from tools.standalone import standalone

TOPIC: Final = "TimerLoad"
COUNT: Final = 30_000
CONCURRENT: Final = 256
AHEAD_MS: Final = 30_000  # all are sent before


def figures(work: Path) -> list[Figure]:
    """Deliveries a second, as a push consumer of ours sees them."""
    with standalone(work / "timers", "") as broker:
        uvloop.run(_send(broker.namesrv))
        per_second = uvloop.run(consume(broker.namesrv, TOPIC, COUNT))
    name = f"{COUNT:,} timer messages of one second, delivered and consumed"
    return [Figure(name, f"{per_second:,.0f}/s", "", None, "10,000/s", per_second >= 10_000)]


async def _send(namesrv: str) -> None:
    due_ms = time.time_ns() // 1_000_000 + AHEAD_MS
    left = iter(range(COUNT))
    async with Producer(namesrv, "timer-load") as producer:

        async def send_some() -> None:
            for _ in left:
                await producer.send(Message(TOPIC, b"x" * 1024, deliver_at_ms=due_ms))

        await asyncio.gather(*(send_some() for _ in range(CONCURRENT)))
    if time.time_ns() // 1_000_000 >= due_ms:
        raise RuntimeError("the messages were due before all were sent")
