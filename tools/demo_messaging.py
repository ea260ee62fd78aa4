"""The demo's transaction, its message that waits, and its failover: a name server, a master and its slave."""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rmq_core.client import (
    Admin,
    Message,
    Producer,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    SendStatus,
    StartPosition,
    TransactionProducer,
    TransactionState,
)
from rmq_core.remoting.errors import RemotingError

TOPIC = "Payments"
ORDERS = 10
DELAY_S = 2.0
_BOTH = "brokerName=demo\nslaveReadEnable=true\nflushDiskType=ASYNC_FLUSH\n"
_MASTER = f"{_BOTH}brokerRole=SYNC_MASTER\ninSyncReplicas=2\n"
_SLAVE = f"{_BOTH}brokerRole=SLAVE\nbrokerId=1\n"
_PATIENCE_S = 120


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of it.

    Attributes:
        paid: orders whose payment was committed.
        rolled_back: those whose was not.
        stored: messages that consumers are to get, all in all.
        before: payments that a consumer got while the master was there.
        waited_s: how long the message that waits did.
        after: messages that a new consumer got from the slave, the master being dead.
    """

    paid: int
    rolled_back: int
    stored: int
    before: int
    waited_s: float
    after: int


def run_messaging(work: Path) -> Seen:
    """Start the three, go through it, end them."""
    with ExitStack() as stack:
        listen = [f"127.0.0.1:{port}" for port in _free_ports(3)]
        namesrv = listen[0]
        stack.enter_context(_running(work / "namesrv", "namesrv", "--listen", namesrv))
        master = stack.enter_context(_broker(work / "master", _MASTER, namesrv, listen[1]))
        asyncio.run(_registered(namesrv, 1))
        stack.enter_context(_broker(work / "slave", _SLAVE, namesrv, listen[2]))
        asyncio.run(_registered(namesrv, 2))
        return asyncio.run(_scenes(namesrv, master))


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in taken]


def _broker(store: Path, conf: str, namesrv: str, listen: str) -> AbstractContextManager["subprocess.Popen[bytes]"]:
    path = store.with_suffix(".conf")
    path.write_text(conf, encoding="utf-8")
    return _running(store, "broker", "--store", str(store), "--namesrv", namesrv, "--listen", listen, "-c", str(path))


@contextmanager
def _running(beside: Path, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A command of ``rmq``, ended by SIGTERM; what it says is in a log of that name."""
    with beside.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "rmq"), *arguments], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


async def _registered(namesrv: str, count: int) -> None:
    """Wait until the name server knows so many brokers."""
    async with asyncio.timeout(_PATIENCE_S), Admin(namesrv) as admin:
        while True:
            try:
                table = (await admin.cluster()).broker_addr_table
                if sum(len(broker.broker_addrs) for broker in table.values()) == count:
                    return
            except RemotingError:  # it is still starting
                pass
            await asyncio.sleep(0.1)


async def _scenes(namesrv: str, master: "subprocess.Popen[bytes]") -> Seen:
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
    return Seen(paid, ORDERS - paid, stored, before.count("paid"), waited_s, len(after))


async def _pay(namesrv: str) -> int:
    """A payment for each order, every third of which fails; how many were committed."""
    ledger: dict[str, TransactionState] = {}  # a database

    def pay(message: Message, transaction_id: str) -> TransactionState:
        fails = int(message.body) % 3 == 0
        ledger[transaction_id] = TransactionState.ROLLBACK if fails else TransactionState.COMMIT
        return ledger[transaction_id]

    def was_paid(message: ReceivedMessage) -> TransactionState:
        return ledger.get(message.msg_id, TransactionState.ROLLBACK)

    async with TransactionProducer(namesrv, "demo-payments", was_paid) as producer:
        for number in range(ORDERS):
            await producer.send_in_transaction(Message(TOPIC, b"%d" % number, tags="paid"), pay)
    return sum(state is TransactionState.COMMIT for state in ledger.values())


async def _consume(namesrv: str, group: str, count: int) -> list[str]:
    """The tags of what a new group gets; that many messages, the last of which waits for its time."""
    tags: dict[str, str] = {}
    complete = asyncio.Event()

    def on_messages(received: list[ReceivedMessage]) -> None:
        tags.update({message.msg_id: message.tags for message in received})
        if len(tags) >= count:
            complete.set()

    consumer = PushConsumer(namesrv, group, on_messages, PushOptions(start=StartPosition.FIRST))
    consumer.subscribe(TOPIC)
    async with consumer, asyncio.timeout(_PATIENCE_S):
        await complete.wait()
    return list(tags.values())
