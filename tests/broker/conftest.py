"""A broker on free ports of the loopback, and a client that asks it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.bodies.clients import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.clock import now_ms
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.store.config import FlushDiskType, StoreConfig
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import StoredMessage, decode_record


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What users get."""
    return {"uvloop": uvloop.new_event_loop}


class Clock:
    """The time, and how far a test has set it forward."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return now_ms() + self.ahead_ms


class Asker:
    """A client of one broker.

    Attributes:
        broker: the broker.
        client: the client.
        handlers: of what the broker asks, by code.
        told: requests that the broker has sent.
    """

    def __init__(self, broker: Broker, client: RemotingClient, handlers: dict[int, Handler]) -> None:
        self.broker, self.client, self.handlers = broker, client, handlers
        self.told: list[RemotingCommand] = []
        handlers[RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] = self._note

    def _note(self, command: RemotingCommand, _: Connection) -> None:
        self.told.append(command)

    async def ask(
        self, code: int, fields: dict[str, object] | None = None, body: bytes = b"", version: int = 479
    ) -> RemotingCommand:
        """Send a request and read its answer."""
        command = request(code, {name: str(value) for name, value in (fields or {}).items()}, body)
        command.version = version
        return await self.client.invoke(self.broker.address, command)

    async def send(self, topic: str, body: bytes = b"hello", queue_id: int = 0, **more: object) -> RemotingCommand:
        """Send a message; ``properties`` is a dictionary, other fields have their letters."""
        properties = more.pop("properties", {"UNIQ_KEY": "0A0B", "WAIT": "true"})
        assert isinstance(properties, dict)
        fields: dict[str, object] = {
            "a": "pg", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1_700_000_000_000, "h": 0,
            "i": encode_properties(properties).decode(), "j": 0, "k": "false", "m": "false",
        }  # fmt: skip
        return await self.ask(RequestCode.SEND_MESSAGE_V2, fields | more, body)

    async def pull(self, topic: str, offset: int = 0, queue_id: int = 0, **more: object) -> RemotingCommand:
        """Pull messages, with a subscription of their own unless ``sysFlag`` says otherwise."""
        fields: dict[str, object] = {
            "consumerGroup": "cg", "topic": topic, "queueId": queue_id, "queueOffset": offset, "maxMsgNums": 32,
            "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 1000, "subscription": "*", "subVersion": 0,
            "expressionType": "TAG",
        }  # fmt: skip
        return await self.ask(RequestCode.PULL_MESSAGE, fields | more)

    async def heartbeat(
        self, group: str = "cg", *subscriptions: SubscriptionData, client_id: str = "c1", model: str = "CLUSTERING"
    ) -> RemotingCommand:
        """Be a member of a consumer group and of the producer group ``pg``."""
        data = ConsumerData(group_name=group, subscription_data_set=list(subscriptions), message_model=model)
        beat = HeartbeatData(
            client_id=client_id, consumer_data_set=[data], producer_data_set=[ProducerData(group_name="pg")]
        )
        return await self.ask(RequestCode.HEART_BEAT, {}, encode_body(beat))


def messages(answer: RemotingCommand) -> list[StoredMessage]:
    """The messages in a body."""
    found, at = [], 0
    while at < len(answer.body):
        found.append(decode_record(answer.body, at))
        at += found[-1].size
    return found


async def eventually(what: Callable[[], Awaitable[object]], seconds: float = 10) -> None:
    """Wait until something is so."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not await what():
        assert asyncio.get_running_loop().time() < deadline, f"not within {seconds} s"
        await asyncio.sleep(0.02)


@pytest.fixture
def clock() -> Clock:
    """The broker's clock."""
    return Clock()


@pytest.fixture
def config() -> BrokerConfig:
    """Settings of the broker; tests override the fixture with others. A busy machine gets no send refused."""
    return BrokerConfig(listen_port=0, wait_time_mills_in_send_queue=60_000)


@pytest.fixture
def store_config(tmp_path: Path) -> StoreConfig:
    """Settings of the store; likewise."""
    return small_store(tmp_path / "store")


def small_store(path: Path, flush: FlushDiskType = FlushDiskType.ASYNC) -> StoreConfig:
    """A store of small files."""
    return StoreConfig(
        root=str(path),
        commitlog_file_bytes=1 << 20,
        consumequeue_file_bytes=2000,
        index_slots=500,
        index_entries=2000,
        disk_max_used_ratio=99,
        disk_warning_ratio=100,
        flush_disk_type=flush,
    )


@pytest.fixture
async def asker(config: BrokerConfig, store_config: StoreConfig, clock: Clock) -> AsyncIterator[Asker]:
    """A running broker with its client."""
    handlers: dict[int, Handler] = {}
    async with Broker(config, store_config, clock) as broker, RemotingClient(handlers) as client:
        yield Asker(broker, client, handlers)
