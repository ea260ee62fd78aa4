"""The demo's first step: starts our broker, sends real messages to it, and consumes each of them."""

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path

from rmq_core.client import Message, Producer, ReceivedMessage
from tools.consuming import consume_until
from tools.processes import standalone

# Small files, so that the store shows how they roll; the names are broker.conf's own.
CONSUMEQUEUE_FILE_BYTES, INDEX_SLOTS, INDEX_ENTRIES = 6000, 500, 2000
BROKER_CONF = f"""mappedFileSizeCommitLog={256 << 10}
mappedFileSizeConsumeQueue={CONSUMEQUEUE_FILE_BYTES}
maxHashSlotNum={INDEX_SLOTS}
maxIndexNum={INDEX_ENTRIES}
"""
REBUILD_SIZES = [
    "--consumequeue-file-bytes", str(CONSUMEQUEUE_FILE_BYTES), "--index-slots", str(INDEX_SLOTS),
    "--index-entries", str(INDEX_ENTRIES),
]  # fmt: skip
TOPICS = {
    "Orders": ("created", "paid", "cancelled"),
    "Payments": ("card", "transfer"),
    "Shipments": ("sent", "arrived"),
}
ORDERS = 1000
_CONCURRENT_SENDS = 64


@dataclass(frozen=True, slots=True)
class Traffic:
    """The messages that went through the broker.

    Attributes:
        sent: messages that the broker acknowledged.
        consumed: messages that the consumer got, each counted once.
        send_s: seconds that the sends took.
        consume_s: seconds from the consumer's start to the last message.
    """

    sent: int
    consumed: int
    send_s: float
    consume_s: float


def run_traffic(work: Path) -> tuple[Path, Traffic]:
    """Start ``rmq standalone``, send, consume, stop it; return the store and what went through. Raises RuntimeError."""
    store = work / "store"
    with standalone(store, BROKER_CONF) as broker:
        return store, asyncio.run(_send_and_consume(broker.namesrv))


def _messages() -> list[Message]:
    messages = []
    for number in range(ORDERS):
        for topic, tags in TOPICS.items():
            body = {"order": f"order-{number:05d}", "event": tags[number % len(tags)], "amount": number % 97 * 1.25}
            messages.append(
                Message(
                    topic, json.dumps(body).encode(), tags=body["event"], keys=body["order"],
                    properties={"region": ("emea", "apac")[number % 2]},
                )
            )  # fmt: skip
    return messages


async def _send_and_consume(namesrv: str) -> Traffic:
    messages = _messages()
    async with Producer(namesrv, "demo-producer") as producer:
        for topic in TOPICS:  # the first send makes the topic
            await producer.send(messages.pop(next(i for i, m in enumerate(messages) if m.topic == topic)))
        begin = time.perf_counter()
        unsent = iter(messages)

        async def send_some() -> None:
            for message in unsent:
                await producer.send(message)

        await asyncio.gather(*(send_some() for _ in range(_CONCURRENT_SENDS)))
        send_s = time.perf_counter() - begin
    sent = len(messages) + len(TOPICS)
    consumed_ids: set[str] = set()
    last = begin = time.perf_counter()

    def on_messages(received: list[ReceivedMessage]) -> bool:
        nonlocal last
        consumed_ids.update(message.msg_id for message in received)
        last = time.perf_counter()
        return len(consumed_ids) >= sent

    await consume_until(namesrv, "demo-consumer", TOPICS, on_messages)
    return Traffic(sent, len(consumed_ids), send_s, last - begin)
