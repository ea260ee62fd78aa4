"""A push consumer that ends when it has what is wanted, for the demo and the benchmarks."""

import asyncio
from collections.abc import Callable, Iterable

from rmq_core.client import PushConsumer, PushOptions, ReceivedMessage, StartPosition

_PATIENCE_S = 120


async def consume_until(
    namesrv: str,
    group: str,
    topics: Iterable[str],
    take: Callable[[list[ReceivedMessage]], bool],
    *,
    batch_size: int = 1,
) -> None:
    """Consume topics from their first messages on, with a new group, until ``take`` is True. Raises TimeoutError."""
    complete = asyncio.Event()

    def listen(received: list[ReceivedMessage]) -> None:
        if take(received):
            complete.set()

    options = PushOptions(start=StartPosition.FIRST, consume_batch_size=batch_size)
    consumer = PushConsumer(namesrv, group, listen, options)
    for topic in topics:
        consumer.subscribe(topic)
    async with consumer, asyncio.timeout(_PATIENCE_S):
        await complete.wait()
