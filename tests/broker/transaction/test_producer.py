"""Our producer of transactions at our broker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.client import (
    Message,
    ProducerOptions,
    ReceivedMessage,
    SendStatus,
    TransactionProducer,
    TransactionState,
)
from rmq_core.namesrv.config import NamesrvConfig
from rmq_core.namesrv.server import NameServer
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.header import request
from tests.broker.conftest import Asker, Clock, eventually, messages, small_store
from tests.broker.transaction.conftest import quiet_config

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
QUICK = ProducerOptions(route_poll_interval_s=0.1, heartbeat_interval_s=0.1, default_topic_queue_nums=1)


class Ledger:
    """Local transactions: what became of each, by id, and which were asked about."""

    def __init__(self) -> None:
        self.states: dict[str, TransactionState] = {}
        self.asked: list[ReceivedMessage] = []

    def run(self, state: TransactionState) -> Callable[[Message, str], Awaitable[TransactionState]]:
        """A local transaction that comes to this, and answers so at once."""

        async def execute(_: Message, transaction_id: str) -> TransactionState:
            self.states[transaction_id] = state
            return state

        return execute

    async def check(self, message: ReceivedMessage) -> TransactionState:
        """What a broker asks for."""
        self.asked.append(message)
        return self.states.get(message.msg_id, ROLLBACK)


class Cluster:
    """A name server, a broker, and a client to look into it.

    Attributes:
        namesrv: the name server's address.
        broker: the broker.
        asker: asks it.
        clock: the broker's.
    """

    def __init__(self, namesrv: str, broker: Broker, client: RemotingClient, clock: Clock) -> None:
        self.namesrv, self.broker, self.clock = namesrv, broker, clock
        self.asker = Asker(broker, client, {})

    async def bodies(self, topic: str = "T") -> list[bytes]:
        """What a consumer of a topic's first queue gets."""
        return sorted(one.body for one in messages(await self.asker.pull(topic)))

    async def until(self, *bodies: bytes) -> None:
        """Wait until that is all there is to consume."""

        async def is_there() -> bool:
            return await self.bodies() == sorted(bodies)

        await eventually(is_there, 60)

    async def look_through(self, later_s: int) -> None:
        """Have the broker go over the half messages, some time later."""
        self.clock.ahead_ms += later_s * 1000
        await self.broker.checks.check()

    async def has_producer(self, group: str) -> None:
        """Wait until the broker has heard of a member of a group."""

        async def is_known() -> bool:
            return group in self.broker.state.producers.groups

        await eventually(is_known, 60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A running cluster."""
    settings = NamesrvConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kv.json"))
    clock = Clock()
    async with NameServer(settings) as namesrv, RemotingClient() as client:
        config = quiet_config(namesrv_addr=namesrv.address)
        async with Broker(config, small_store(tmp_path / "store"), clock) as broker:
            yield Cluster(namesrv.address, broker, client, clock)


async def test_what_is_committed_is_delivered_and_nothing_else(cluster: Cluster) -> None:
    ledger = Ledger()
    async with TransactionProducer(cluster.namesrv, "pg", ledger.check, QUICK) as producer:
        done = [
            await producer.send_in_transaction(Message("T", state.name.encode(), tags="A"), ledger.run(state))
            for state in TransactionState
        ]
        assert [(one.state, one.is_ended, one.sent.status) for one in done] == [
            (state, True, SendStatus.SEND_OK) for state in TransactionState
        ]
        assert list(ledger.states) == [one.sent.transaction_id for one in done]
        await cluster.until(b"COMMIT")
        await producer.send(Message("T", b"plain"))
        await cluster.until(b"COMMIT", b"plain")


async def test_a_producer_is_asked_what_it_did_not_know(cluster: Cluster) -> None:
    ledger = Ledger()
    async with TransactionProducer(cluster.namesrv, "pg", ledger.check, QUICK) as producer:
        kept = await producer.send_in_transaction(Message("T", b"kept", keys="k"), ledger.run(UNKNOWN))
        dropped = await producer.send_in_transaction(Message("T", b"dropped"), ledger.run(UNKNOWN))
        await cluster.has_producer("pg")
        ledger.states |= {kept.sent.msg_id: COMMIT, dropped.sent.msg_id: ROLLBACK}
        await cluster.look_through(7)
        await cluster.until(b"kept")
        asked = {one.msg_id: one for one in ledger.asked}
        assert asked.keys() == {kept.sent.transaction_id, dropped.sent.transaction_id}
        first = asked[kept.sent.msg_id]
        assert (first.topic, first.body, first.keys) == ("T", b"kept", ["k"])
        await cluster.look_through(60)
        assert len(ledger.asked) == 2


async def test_a_local_transaction_that_raises_is_asked_about(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger()

    async def execute(_: Message, transaction_id: str) -> TransactionState:
        ledger.states[transaction_id] = COMMIT
        raise OSError("the answer of the database was lost")

    async with TransactionProducer(cluster.namesrv, "pg", ledger.check, QUICK) as producer:
        done = await producer.send_in_transaction(Message("T", b"paid"), execute)
        assert done.state is UNKNOWN
        assert "the answer of the database was lost" in caplog.text
        await cluster.has_producer("pg")
        await cluster.look_through(7)
        await cluster.until(b"paid")


async def test_a_member_that_has_sent_nothing_is_asked_for_one_that_is_gone(cluster: Cluster) -> None:
    ledger = Ledger()
    async with TransactionProducer(cluster.namesrv, "pg", ledger.check, QUICK) as producer:
        done = await producer.send_in_transaction(Message("T", b"paid"), ledger.run(UNKNOWN))
    ledger.states[done.sent.msg_id] = COMMIT
    async with TransactionProducer(cluster.namesrv, "pg", ledger.check, QUICK):
        await cluster.has_producer("pg")
        await cluster.look_through(7)
        await cluster.until(b"paid")


async def test_a_broker_that_was_away_when_it_should_have_been_told_asks(cluster: Cluster) -> None:
    ledger = Ledger()

    async def execute(_: Message, transaction_id: str) -> TransactionState:
        ledger.states[transaction_id] = COMMIT
        await cluster.broker.close()
        return COMMIT

    async with TransactionProducer(cluster.namesrv, "pg", ledger.check, QUICK) as producer:
        done = await producer.send_in_transaction(Message("T", b"paid"), execute)
        assert (done.state, done.is_ended) == (COMMIT, False)
        await cluster.broker.start()
        await cluster.has_producer("pg")
        await cluster.look_through(7)
        await cluster.until(b"paid")


async def test_many_transactions_at_a_time(cluster: Cluster) -> None:
    ledger = Ledger()
    states = [list(TransactionState)[number % 3] for number in range(90)]
    async with TransactionProducer(cluster.namesrv, "pg", ledger.check, QUICK) as producer:
        await asyncio.gather(
            *(
                producer.send_in_transaction(Message("T", b"%02d" % number), ledger.run(state))
                for number, state in enumerate(states)
            )
        )
        await cluster.has_producer("pg")
        open_ones = [transaction_id for transaction_id, state in ledger.states.items() if state is UNKNOWN]
        ledger.states |= dict.fromkeys(open_ones, ROLLBACK)
        await cluster.look_through(7)

        async def are_asked() -> bool:
            return len(ledger.asked) == len(open_ones)

        await eventually(are_asked, 60)
    found = messages(await cluster.asker.pull("T", maxMsgNums=90))
    while len(found) < 30:
        found += messages(await cluster.asker.pull("T", offset=len(found), maxMsgNums=90))
    assert sorted(one.body for one in found) == [b"%02d" % number for number in range(0, 90, 3)]


async def test_a_question_that_cannot_be_read_is_passed_over(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger()
    async with TransactionProducer(cluster.namesrv, "pg", ledger.check, QUICK) as producer:
        await cluster.has_producer("pg")
        (connection,) = cluster.broker.state.producers.groups["pg"]
        fields = {"tranStateTableOffset": "0", "commitLogOffset": "0"}
        for code_fields, body in (({}, b""), (fields, b""), (fields, b"no record"), (fields, b"\0" * 200)):
            connection.send_oneway(request(RequestCode.CHECK_TRANSACTION_STATE, code_fields, body))

        async def are_told() -> bool:
            return caplog.text.count("bad transaction check from") == 4

        await eventually(are_told, 60)
        done = await producer.send_in_transaction(Message("T", b"paid"), ledger.run(COMMIT))
        assert done.is_ended
    assert ledger.asked == []
