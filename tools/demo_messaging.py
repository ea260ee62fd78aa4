"""The demo's transactions, timer message and failover, on a name server, a master and its slave."""

import asyncio
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
from tools.processes import broker, free_ports, running

TOPIC = "Payments"
ORDERS = 10
DELAY_S = 2.0
_BOTH = "brokerName=demo\nslaveReadEnable=true\nflushDiskType=ASYNC_FLUSH\n"
_MASTER = f"{_BOTH}brokerRole=SYNC_MASTER\ninSyncReplicas=2\n"
_SLAVE = f"{_BOTH}brokerRole=SLAVE\nbrokerId=1\n"
_PATIENCE_S = 120


@dataclass(frozen=True, slots=True)
class Seen:
    """The observed results.

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
        listen = [f"127.0.0.1:{port}" for port in free_ports(3)]
        namesrv = listen[0]
        stack.enter_context(running(work / "namesrv.log", "namesrv", "--listen", namesrv))
        master = stack.enter_context(broker(work / "master", _MASTER, namesrv, listen[1]))
        asyncio.run(_registered(namesrv, 1))
        stack.enter_context(broker(work / "slave", _SLAVE, namesrv, listen[2]))
        asyncio.run(_registered(namesrv, 2))
        return asyncio.run(_scenes(namesrv, master))


async def _registered(namesrv: str, count: int) -> None:
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
    return Seen(paid, ORDERS - paid, stored, before.count("paid"), waited_s, len(after))


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
        for number in range(ORDERS):
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
