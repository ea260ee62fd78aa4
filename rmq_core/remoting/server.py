"""The server: listens on one port or several, and answers by a table of handlers."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from rmq_core.remoting.connection import Connection, Handler, log
from rmq_core.remoting.errors import ListenError
from rmq_core.remoting.frames import MAX_FRAME_BYTES

_TICKS: Final = 4  # a connection's idle time is looked at so often within the timeout
_BACKLOG: Final = 1024
_DRAIN_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What a server lets its clients take.

    Attributes:
        max_frame_bytes: a larger frame ends its connection; Java's limit.
        max_connections: more are closed at once, so that those there are keep their share.
        max_held_bytes: of unfinished frames, all connections together: the connection that goes over it ends.
            Without it 1,000 slow senders of 16 MiB would take 16 GiB.
        idle_timeout_s: no byte either way for so long (up to a quarter longer) ends a connection; Java's.
        write_high_water_bytes: a connection's requests wait while more than this is on its way to it.
    """

    max_frame_bytes: int = MAX_FRAME_BYTES
    max_connections: int = 16_384
    max_held_bytes: int = 256 << 20
    idle_timeout_s: float = 120.0
    write_high_water_bytes: int = 1 << 20


class RemotingServer:
    """Listens and answers, on the running event loop; use it with ``async with``, or close it.

    Attributes:
        connections: those that are open.
        held_bytes: of unfinished frames, all connections together.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        limits: ServerLimits = ServerLimits(),
        on_connect: Callable[[Connection], None] | None = None,
        on_disconnect: Callable[[Connection], None] | None = None,
        after_batch: Callable[[], None] | None = None,
    ) -> None:
        """Prepare a server.

        Args:
            handlers: by request code; the table is looked at for each request and may change.
            limits: of what clients may take.
            on_connect: called with each new connection.
            on_disconnect: called with each connection that has ended.
            after_batch: called each time that all requests that had arrived on a connection are handled, before
                the answers are written: for what is done once for many.
        """
        self.connections: set[Connection] = set()
        self.held_bytes = 0
        self.limits = limits
        self._handlers = handlers
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        self.after_batch = after_batch
        self._servers: list[asyncio.Server] = []
        self._clock: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> "RemotingServer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def listen(self, host: str, port: int, handlers: Mapping[int, Handler] | None = None) -> tuple[str, int]:
        """Listen on an address, as well as on those before.

        Args:
            host: an address of this machine or a name; ``0.0.0.0`` is all.
            port: 0 takes a free one.
            handlers: instead of the server's own, for this port.

        Returns:
            The address that is listened on.

        Raises:
            ListenError: it cannot be had.
        """
        if not 0 <= port < 1 << 16:  # uvloop takes the lower 16 bits of it
            raise ListenError(f"{host}:{port}", "cannot listen there: no such port")
        loop = asyncio.get_running_loop()
        table = self._handlers if handlers is None else handlers
        try:
            server = await loop.create_server(lambda: _ServerConnection(self, table), host, port, backlog=_BACKLOG)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise ListenError(f"{host}:{port}", f"cannot listen there: {reason}") from error
        self._servers.append(server)
        if self._clock is None:
            self._tick()
        name = server.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    async def close(self, grace_s: float = 1.0) -> None:
        """Stop listening, let requests that wait for their answers have them, end all connections.

        Args:
            grace_s: how long to wait for the answers, and then again for the peers to take them.
        """
        for server in self._servers:
            server.close()
        for connection in self.connections:
            connection.refuses_requests = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        while any(connection.unanswered for connection in self.connections) and loop.time() < deadline:
            await asyncio.sleep(_DRAIN_POLL_S)
        for connection in list(self.connections):
            connection.close()
        closing = [asyncio.ensure_future(connection.wait_closed()) for connection in self.connections]
        if closing:
            await asyncio.wait(closing, timeout=grace_s)
        for connection in list(self.connections):
            connection.abort()
        await asyncio.gather(*closing)
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()

    def _tick(self) -> None:
        """End connections that have been idle for too long."""
        for connection in list(self.connections):
            connection.idle_ticks += 1
            if connection.idle_ticks > _TICKS:
                log.info(
                    "closed %(client)s: idle for %(seconds)g s",
                    {"client": connection.remote_address, "seconds": self.limits.idle_timeout_s},
                )
                connection.abort()
        loop = asyncio.get_running_loop()
        self._clock = loop.call_later(self.limits.idle_timeout_s / _TICKS, self._tick)

    def opened(self, connection: Connection) -> None:
        """A connection is there; it calls this itself."""
        if len(self.connections) >= self.limits.max_connections:
            log.warning(
                "refused %(client)s: %(connections)d connections are open",
                {"client": connection.remote_address, "connections": len(self.connections)},
            )
            connection.abort()
            return
        self.connections.add(connection)
        if self._on_connect is not None:
            self._on_connect(connection)

    def ended(self, connection: Connection) -> None:
        """A connection has ended; it calls this itself."""
        if connection in self.connections:
            self.connections.remove(connection)
            if self._on_disconnect is not None:
                self._on_disconnect(connection)


class _ServerConnection(Connection):
    """A client's connection; tells its server when it comes and goes, and what it holds."""

    def __init__(self, server: RemotingServer, handlers: Mapping[int, Handler]) -> None:
        super().__init__(
            handlers,
            max_frame_bytes=server.limits.max_frame_bytes,
            write_high_water_bytes=server.limits.write_high_water_bytes,
            reads_only_while_writable=True,
            after_batch=server.after_batch,
        )
        self._server = server
        self._held_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.opened(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        held_bytes = self._parser.held_bytes
        if held_bytes != self._held_bytes:
            server = self._server
            server.held_bytes += held_bytes - self._held_bytes
            self._held_bytes = held_bytes
            if server.held_bytes > server.limits.max_held_bytes:
                log.warning(
                    "closed %(client)s: %(held_bytes)d B of unfinished frames are held",
                    {"client": self.remote_address, "held_bytes": server.held_bytes},
                )
                self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._server.held_bytes -= self._held_bytes
        self._held_bytes = 0
        self._server.ended(self)
