"""The demo's messages: those of its first step, sent to our broker and consumed, and those of its last.

The last are transactions, a timer message and a failover, on a name server, a master and its slave.
"""

import asyncio
import json
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rmq_core.client import (
    Admin,
    Message,
    Producer,
    ReceivedMessage,
    SendStatus,
    TransactionProducer,
    TransactionState,
)
from rmq_core.remoting.errors import RemotingError
from tools.consuming import consume_until
from tools.processes import broker, free_ports, running, standalone

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
TOPIC = "Payments"
TRANSACTIONS = 10
DELAY_S = 2.0
_BOTH = "brokerName=demo\nslaveReadEnable=true\nflushDiskType=ASYNC_FLUSH\n"
_MASTER = f"{_BOTH}brokerRole=SYNC_MASTER\ninSyncReplicas=2\n"
_SLAVE = f"{_BOTH}brokerRole=SLAVE\nbrokerId=1\n"
_ANY_PORTS = "127.0.0.1:0"  # a broker has a fast port below its own and one for slaves: it finds free ones itself
_PATIENCE_S = 120


@dataclass(frozen=True, slots=True)
class Traffic:
    """Numbers of messages that the broker acknowledged and the consumer got, each once, and the seconds of both."""

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
                    topic,
                    json.dumps(body).encode(),
                    tags=body["event"],
                    keys=body["order"],
                    properties={"region": ("emea", "apac")[number % 2]},
                )
            )
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


@dataclass(frozen=True, slots=True)
class Seen:
    """The observed results of transactions, timer message and failover.

    Attributes:
        paid: orders whose payment was committed.
        rolled_back: orders whose payment was rolled back.
        stored: messages that consumers are to get, all in all.
        before: payments that a consumer got while the master was there.
        waited_s: seconds until the timer message came.
        after: messages that a new consumer got from the slave, the master being dead.
    """

    paid: int
    rolled_back: int
    stored: int
    before: int
    waited_s: float
    after: int


def run_messaging(work: Path) -> Seen:
    """Start name server, master and slave; run all steps; stop the three."""
    with ExitStack() as stack:
        namesrv = f"127.0.0.1:{free_ports(1)[0]}"
        stack.enter_context(running(work / "namesrv.log", "namesrv", "--listen", namesrv))
        master = stack.enter_context(broker(work / "master", _MASTER, namesrv, _ANY_PORTS))
        asyncio.run(_wait_for_brokers(namesrv, 1))
        stack.enter_context(broker(work / "slave", _SLAVE, namesrv, _ANY_PORTS))
        asyncio.run(_wait_for_brokers(namesrv, 2))
        return asyncio.run(_scenes(namesrv, master))


async def _wait_for_brokers(namesrv: str, count: int) -> None:
    """Wait until the name server has so many registered brokers."""
    async with asyncio.timeout(_PATIENCE_S), Admin(namesrv) as admin:
        while True:
            try:
                table = (await admin.cluster()).broker_addr_table
                if sum(len(broker.broker_addrs) for broker in table.values()) == count:
                    return
            except RemotingError:  # it is still starting
                pass
            await asyncio.sleep(0.1)


async def _scenes(namesrv: str, master: "subprocess.Popen[str]") -> Seen:
    async with Producer(namesrv, "demo-producer") as producer, asyncio.timeout(_PATIENCE_S):
        stored = 1
        first = Message(TOPIC, b"hello")
        while (await producer.send(first, timeout_s=30)).status is not SendStatus.SEND_OK:  # until the slave has it
            stored += 1
            await asyncio.sleep(0.1)
        paid = await _pay(namesrv)
        stored += paid + 1
        due = time.time() + DELAY_S
        await producer.send(Message(TOPIC, b"reminder", tags="reminder", deliver_at_ms=int(due * 1000)))
    before = await _consume(namesrv, "readers", stored)
    waited_s = time.time() - due + DELAY_S
    master.kill()
    master.wait(60)
    after = await _consume(namesrv, "readers-of-the-slave", stored)
    return Seen(paid, TRANSACTIONS - paid, stored, before.count("paid"), waited_s, len(after))


async def _pay(namesrv: str) -> int:
    """Send a payment for each order in a transaction, every third of which fails; return how many were committed."""
    ledger: dict[str, TransactionState] = {}  # a database

    def pay(message: Message, transaction_id: str) -> TransactionState:
        fails = int(message.body) % 3 == 0
        ledger[transaction_id] = TransactionState.ROLLBACK if fails else TransactionState.COMMIT
        return ledger[transaction_id]

    def was_paid(message: ReceivedMessage) -> TransactionState:
        return ledger.get(message.msg_id, TransactionState.ROLLBACK)

    async with TransactionProducer(namesrv, "demo-payments", was_paid) as producer:
        for number in range(TRANSACTIONS):
            await producer.send_in_transaction(Message(TOPIC, b"%d" % number, tags="paid"), pay)
    return sum(state is TransactionState.COMMIT for state in ledger.values())


async def _consume(namesrv: str, group: str, count: int) -> list[str]:
    """Consume so many messages with a new group, the last of which is a timer message; return their tags."""
    tags: dict[str, str] = {}

    def on_messages(received: list[ReceivedMessage]) -> bool:
        tags.update({message.msg_id: message.tags for message in received})
        return len(tags) >= count

    await consume_until(namesrv, group, [TOPIC], on_messages)
    return list(tags.values())
