"""Benchmarks our own producer and push consumer at our broker, each in a process of its own."""

import asyncio
import time
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.measure import Figure
from rmq_core.client import Credentials, Message, Producer, ProducerOptions, ReceivedMessage
from tools.consuming import consume_until
from tools.processes import standalone

TOPIC: Final = "ClientLoad"
SECONDS: Final = 5.0
BODY: Final = b"x" * 1024
CONCURRENT: Final = 256


def figures(work: Path) -> list[Figure]:
    """Measure sends one by one, sends with many in flight, and their consumption."""
    with standalone(work / "client", "") as broker:
        sent, per_second = uvloop.run(send(broker.namesrv, SECONDS))
        consumed_per_second = uvloop.run(consume(broker.namesrv, TOPIC, sent))
    return [
        Figure(f"our producer, single sends, {CONCURRENT} under way", f"{per_second:,.0f}/s", "30,000/s",
               per_second >= 30_000),
        Figure("our push consumer", f"{consumed_per_second:,.0f}/s", "60,000/s", consumed_per_second >= 60_000),
    ]  # fmt: skip


async def send(
    namesrv: str, seconds: float, options: ProducerOptions | None = None, credentials: Credentials | None = None
) -> tuple[int, float]:
    """Send for some seconds; return how many, and how many a second."""
    async with Producer(namesrv, "client-load", options or ProducerOptions(), credentials=credentials) as producer:
        await producer.send(Message(TOPIC, BODY))
        begin = time.perf_counter()
        counts = await asyncio.gather(*(_send_until(producer, begin + seconds) for _ in range(CONCURRENT)))
        took = time.perf_counter() - begin
    return sum(counts) + 1, sum(counts) / took


async def _send_until(producer: Producer, end: float) -> int:
    count = 0
    while time.perf_counter() < end:
        await producer.send(Message(TOPIC, BODY))
        count += 1
    return count


async def consume(namesrv: str, topic: str, count: int) -> float:
    """Consume so many with a new group; messages a second from the first to the last."""
    consumed, first, last = 0, 0.0, 0.0

    def on_messages(received: list[ReceivedMessage]) -> bool:
        nonlocal consumed, first, last
        first = first or time.perf_counter()
        consumed += len(received)
        if consumed < count:
            return False
        last = time.perf_counter()
        return True

    await consume_until(namesrv, "client-load", [topic], on_messages, batch_size=32)
    return consumed / (last - first)
