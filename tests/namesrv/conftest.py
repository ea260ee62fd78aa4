"""A name server on a free port of the loopback, and a client to ask it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from rmq_core.namesrv.config import NamesrvConfig
from rmq_core.namesrv.server import NameServer
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.header import RemotingCommand, request


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What users get."""
    return {"uvloop": uvloop.new_event_loop}


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    """The name server's clock."""
    return Clock()


class Asker:
    """A client of one name server."""

    def __init__(self, server: NameServer, client: RemotingClient) -> None:
        self.server, self.client = server, client

    async def ask(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b"", version: int = 479
    ) -> RemotingCommand:
        """Send a request and read its answer."""
        command = request(code, fields, body)
        command.version = version
        return await self.client.invoke(self.server.address, command)


@pytest.fixture
def config(tmp_path: Path) -> NamesrvConfig:
    """Settings; tests override the fixture with others."""
    return NamesrvConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        kv_config_path=str(tmp_path / "kvConfig.json"),
        scan_not_active_broker_interval_ms=20,
    )


@pytest.fixture
async def asker(config: NamesrvConfig, clock: Clock) -> AsyncIterator[Asker]:
    """A running name server with its client."""
    async with NameServer(config, clock) as server, RemotingClient() as client:
        yield Asker(server, client)
