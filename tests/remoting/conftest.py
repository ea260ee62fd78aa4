"""Servers and clients on free ports of the loopback, on both event loops."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest
import uvloop

from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.frames import FrameParser, encode_frame
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.remoting.server import RemotingServer


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Each test of a coroutine runs on both loops."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def echo(command: RemotingCommand, _connection: Connection) -> RemotingCommand:
    """Answer with the request's fields and body."""
    return command.response(0, None, command.ext_fields, command.body)


ECHO = 1000
Serve = Callable[..., Awaitable[tuple[RemotingServer, str]]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts servers; all are closed at the end."""
    servers: list[RemotingServer] = []

    async def start(handlers: Mapping[int, Handler] | None = None, **options: Any) -> tuple[RemotingServer, str]:
        server = RemotingServer({ECHO: echo, **(handlers or {})}, **options)
        servers.append(server)
        host, port = await server.listen("127.0.0.1", 0)
        return server, f"{host}:{port}"

    yield start
    for server in servers:
        await server.close(0.2)


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    """A client; closed at the end."""
    async with RemotingClient() as made:
        yield made


class Raw:
    """A peer that writes any bytes and reads commands."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._parser = FrameParser()
        self._found: list[RemotingCommand] = []

    async def read(self, count: int = 1) -> list[RemotingCommand]:
        """So many commands; fewer if the stream ends."""
        while len(self._found) < count:
            async with asyncio.timeout(60):
                data = await self.reader.read(1 << 16)
            if not data:
                break
            self._found += self._parser.feed(data)
        found, self._found = self._found[:count], self._found[count:]
        return found

    async def is_closed(self) -> bool:
        """Whether the other side ends the connection (within a minute)."""
        async with asyncio.timeout(60):
            try:
                while await self.reader.read(1 << 16):
                    pass
            except ConnectionError:
                pass
        return True

    def write(self, data: bytes) -> None:
        """Write bytes as they are."""
        self.writer.write(data)

    async def ask(self, command: RemotingCommand | None = None) -> RemotingCommand:
        """Send a request and read its answer."""
        self.write(encode_frame(command or request(ECHO)))
        return (await self.read())[0]


Connect = Callable[[str], Awaitable[Raw]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Connects raw peers; all are closed at the end."""
    peers: list[Raw] = []

    async def open_raw(address: str) -> Raw:
        host, port = address.split(":")
        peers.append(Raw(*await asyncio.open_connection(host, int(port))))
        return peers[-1]

    yield open_raw
    for peer in peers:
        peer.writer.close()
        try:
            await peer.writer.wait_closed()
        except ConnectionError:
            continue
