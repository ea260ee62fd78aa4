"""A broker that is killed in the midst of transactions: what is committed is delivered, what is rolled back never."""

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rmq_core.broker.config import load_config
from rmq_core.client import (
    Message,
    ProducerOptions,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from rmq_core.remoting.errors import RemotingError
from tests.broker.test_commands import conf
from tests.broker.test_kill import QUEUES, stored
from tests.store.derived_from_log import check_derived
from tests.support.processes.broker_processes import Standalone, standalone
from tests.support.torture import TIMES

ROUNDS = 5 * TIMES
SENDERS = 8
LONGEST_LOAD_S = 0.6
PATIENCE_S = 240  # a machine may be busy
# Producers are asked all the time, and notes are written in between: a kill meets each step.
SETTINGS = (
    "transactionCheckInterval=50\ntransactionTimeOut=100\ntransactionCheckMax=1000000\ntransactionOpBatchInterval=30\n"
)
OPTIONS = ProducerOptions(retries=0, send_timeout_s=PATIENCE_S, default_topic_queue_nums=QUEUES)
COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


@dataclass
class Database:
    """The local transactions, which no kill undoes.

    Attributes:
        states: what became of each, by transaction id.
        bodies: likewise, by the message's body.
    """

    states: dict[str, TransactionState] = field(default_factory=dict)
    bodies: dict[bytes, TransactionState] = field(default_factory=dict)

    def execute(self, message: Message, transaction_id: str) -> TransactionState:
        """Half of them succeed; half of them answer later."""
        number = int(message.body.split()[1])
        state = COMMIT if number % 2 else ROLLBACK
        self.states[transaction_id] = self.bodies[message.body] = state
        return UNKNOWN if number % 4 > 1 else state

    def check(self, message: ReceivedMessage) -> TransactionState:
        """What was not carried out is rolled back."""
        return self.states.get(message.msg_id, ROLLBACK)

    def committed(self) -> set[bytes]:
        """What has to be delivered."""
        return {body for body, state in self.bodies.items() if state is COMMIT}


async def load_and_kill(running: Standalone, after_s: float, database: Database, sent: list[int]) -> None:
    """Kill the broker in the midst of transactions."""

    async def one(sender: int) -> None:
        while True:
            sent[sender] += 1
            await producer.send_in_transaction(Message("T", b"%d %d" % (sender, sent[sender])), database.execute)

    async with TransactionProducer(running.namesrv, "pg", database.check, OPTIONS) as producer:
        await producer.send(Message("Warm", b"up"))
        asyncio.get_running_loop().call_later(after_s, running.process.kill)
        for result in await asyncio.gather(*map(one, range(SENDERS)), return_exceptions=True):
            assert isinstance(result, RemotingError), result


async def until_all_are_delivered(running: Standalone, database: Database) -> None:
    """Answer the broker until it has asked about all that was committed."""
    async with TransactionProducer(running.namesrv, "pg", database.check, OPTIONS), asyncio.timeout(PATIENCE_S):
        while database.committed() - set((await stored(running.broker, [0] * QUEUES)).values()):
            await asyncio.sleep(0.1)


@pytest.mark.torture
def test_each_committed_message_is_delivered_and_no_other(tmp_path: Path) -> None:
    settings = conf(tmp_path, SETTINGS)
    database, sent, source = Database(), [0] * SENDERS, random.Random()  # the moments cannot be repeated
    for _ in range(ROUNDS):
        with standalone(tmp_path / "store", "-c", settings, log=tmp_path / "log") as running:
            asyncio.run(load_and_kill(running, LONGEST_LOAD_S * source.random(), database, sent))
    with standalone(tmp_path / "store", "-c", settings, log=tmp_path / "log") as running:
        asyncio.run(until_all_are_delivered(running, database))
        delivered = set(asyncio.run(stored(running.broker, [0] * QUEUES)).values())
        assert running.stop() == 0
    assert delivered - {b"up"} == database.committed()
    assert len(database.bodies) > ROUNDS
    _, config, _ = load_config(str(tmp_path / "store"), Path(settings), environ={})
    check_derived(config)
