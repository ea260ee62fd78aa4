"""A broker that looks through half messages when a test says so, and a producer that is asked about them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.store.config import FlushDiskType
from rmq_formats.codecs.record import StoredMessage
from tests.broker.conftest import Asker, Clock, eventually, messages, small_store

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What users get."""
    return {"uvloop": uvloop.new_event_loop}


class Transactor(Asker):
    """A client that sends half messages, ends them, and notes what it is asked about.

    Attributes:
        checks: requests for the state of a transaction.
    """

    def __init__(self, broker: Broker, client: RemotingClient, handlers: dict[int, Handler], clock: Clock) -> None:
        super().__init__(broker, client, handlers)
        self.clock = clock
        self.checks: list[RemotingCommand] = []
        handlers[RequestCode.CHECK_TRANSACTION_STATE] = self._asked

    def _asked(self, command: RemotingCommand, _: Connection) -> None:
        command.ext_fields  # noqa: B018 # its bytes are the connection's
        self.checks.append(command)

    async def half(self, body: bytes = b"half", key: str = "U1", queue_id: int = 0, **more: str) -> RemotingCommand:
        """Send a half message of the group ``pg``."""
        properties = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": key, "WAIT": "true"} | more
        return await self.send("T", body, queue_id, f=4, g=self.clock(), properties=properties)

    def fields(self, sent: RemotingCommand, outcome: int, **more: object) -> dict[str, str]:
        """Those of the request that ends a half message."""
        given = {
            "producerGroup": "pg", "tranStateTableOffset": sent.ext_fields["queueOffset"],
            "commitLogOffset": int(sent.ext_fields["msgId"][-16:], 16), "commitOrRollback": outcome,
            "fromTransactionCheck": "false", "msgId": sent.ext_fields["transactionId"],
        } | more  # fmt: skip
        return {name: str(value) for name, value in given.items()}

    async def end(self, sent: RemotingCommand, outcome: int, **more: object) -> RemotingCommand:
        """End a half message."""
        return await self.ask(RequestCode.END_TRANSACTION, dict(self.fields(sent, outcome, **more)))

    async def answer(self, check: RemotingCommand, outcome: int) -> RemotingCommand:
        """Say what the broker asks for."""
        asked = check.ext_fields
        fields: dict[str, object] = {
            "producerGroup": "pg", "tranStateTableOffset": asked["tranStateTableOffset"],
            "commitLogOffset": asked["commitLogOffset"], "commitOrRollback": outcome, "fromTransactionCheck": "true",
            "msgId": asked["msgId"],
        }  # fmt: skip
        return await self.ask(RequestCode.END_TRANSACTION, fields)

    async def say_nothing_known(self, sent: RemotingCommand) -> None:
        """Tell the broker that it is not known yet; there is no answer."""
        command = request(RequestCode.END_TRANSACTION, self.fields(sent, UNKNOWN))
        await self.client.invoke_oneway(self.broker.address, command)

    async def stored(self, topic: str, count: int, queue_id: int = 0) -> list[StoredMessage]:
        """The messages of a queue, once there are so many."""

        async def are_there() -> bool:
            return len(messages(await self.pull(topic, queue_id=queue_id))) >= count

        await eventually(are_there, 60)
        found = messages(await self.pull(topic, queue_id=queue_id))
        assert len(found) == count
        return found

    async def asked(self, count: int) -> list[RemotingCommand]:
        """The broker's questions, once there are so many."""

        async def are_there() -> bool:
            return len(self.checks) >= count

        await eventually(are_there, 60)
        assert len(self.checks) == count
        return self.checks

    async def look_through(self, later_s: int) -> None:
        """Have the broker go over the half messages, some time later."""
        self.clock.ahead_ms += later_s * 1000
        await self.broker.checks.check()


def quiet_config(**more: Any) -> BrokerConfig:
    """A broker that does nothing by itself while a test lasts."""
    hour_ms = 3_600_000
    intervals = {"transaction_check_interval_ms": hour_ms, "transaction_op_batch_interval_ms": hour_ms}
    return BrokerConfig(listen_port=0, **intervals | more)


@pytest.fixture
def clock() -> Clock:
    """The broker's clock, and the producer's."""
    return Clock()


@pytest.fixture
def config() -> BrokerConfig:
    """Settings of the broker; tests override the fixture with others."""
    return quiet_config()


@pytest.fixture
def flush() -> FlushDiskType:
    """When the store is forced; likewise."""
    return FlushDiskType.ASYNC


@pytest.fixture
async def asker(config: BrokerConfig, tmp_path: Path, flush: FlushDiskType, clock: Clock) -> AsyncIterator[Transactor]:
    """A running broker with its client."""
    handlers: dict[int, Handler] = {}
    store = small_store(tmp_path / "store", flush)
    async with Broker(config, store, clock) as broker, RemotingClient(handlers) as client:
        yield Transactor(broker, client, handlers, clock)
