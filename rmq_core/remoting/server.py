"""Remoting server, which listens on one or several ports, with a table of handlers."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from rmq_core.remoting.access.tls import ServerTls
from rmq_core.remoting.connection import Connection, Handler, close_all, log
from rmq_core.remoting.errors import ListenError
from rmq_core.remoting.frames import MAX_FRAME_BYTES
from rmq_core.remoting.loop import Closable
from rmq_core.remoting.tls_detector import TlsDetector

_TICKS_PER_TIMEOUT: Final = 4  # checks of a connection's idle time within the timeout
_BACKLOG: Final = 1024
_DRAIN_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of a server for its clients.

    Attributes:
        max_frame_bytes: maximum size of a frame; a larger one ends its connection. Java's limit.
        max_header_bytes: maximum size of a header; a larger one ends its connection. The largest valid one has 32,767
            characters of properties, with up to six bytes each in JSON.
        max_connections: maximum number of connections; further ones are closed at once.
        max_held_bytes: maximum memory of all connections together: unfinished frames, requests without a response,
            parked requests and unsent responses. Above it the connection with the most bytes is closed. Without it
            1,000 slow senders of 16 MiB would take 16 GiB.
        max_waiting_bytes: requests of a connection wait while its requests without a response have more bytes. Some
            8,000 requests fit, as many as one flush of a disk serves.
        idle_timeout_s: a connection without a byte in either direction for so long (up to a quarter longer) is closed.
        write_high_water_bytes: requests of a connection wait while its write buffer has more bytes.
    """

    max_frame_bytes: int = MAX_FRAME_BYTES
    max_header_bytes: int = 256 << 10
    max_connections: int = 16_384
    max_held_bytes: int = 512 << 20
    max_waiting_bytes: int = 16 << 20
    idle_timeout_s: float = 120.0
    write_high_water_bytes: int = 1 << 20


class RemotingServer(Closable):
    """Server on the running event loop; use it with ``async with``, or close it.

    ``held_bytes`` is the memory of all connections together; see ``ServerLimits.max_held_bytes``.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        limits: ServerLimits = ServerLimits(),
        on_connect: Callable[[Connection], None] | None = None,
        on_disconnect: Callable[[Connection], None] | None = None,
        after_batch: Callable[[], None] | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """Create a server, which ``listen`` starts.

        Each request looks its handler up, so the table may change. ``after_batch`` is called after each batch of
        requests of a connection, before their responses are written. Without ``tls`` all connections are plain.
        """
        self.pending_handshakes: dict[TlsDetector, None] = {}  # in the order of their begin
        self._tls = tls
        self.connections: dict[_ServerConnection, None] = {}
        self.held_bytes = 0
        self.limits = limits
        self._handlers = handlers
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        self.after_batch = after_batch
        self._servers: list[asyncio.Server] = []
        self._ended_with_requests: set[_ServerConnection] = set()  # ended connections whose requests are still handled
        self._tick_timer: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int, handlers: Mapping[int, Handler] | None = None) -> tuple[str, int]:
        """Listen on an additional address; return the address that is listened on.

        Host ``0.0.0.0`` means all addresses, port 0 a free port; ``handlers`` replace those of the server on this port.
        Raises ListenError.
        """
        if not 0 <= port < 1 << 16:  # uvloop would use its lower 16 bits
            raise ListenError(f"{host}:{port}", "cannot listen: the port is not of 0 to 65535")
        try:
            server = await asyncio.get_running_loop().create_server(
                self._protocol_factory(handlers), host, port, backlog=_BACKLOG
            )
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise ListenError(f"{host}:{port}", f"cannot listen: {reason}") from error
        return self._add_listener(server)

    async def listen_on(self, bound: socket.socket, handlers: Mapping[int, Handler] | None = None) -> tuple[str, int]:
        """Listen on a socket that is bound already; see ``listen``."""
        try:
            server = await asyncio.get_running_loop().create_server(
                self._protocol_factory(handlers), sock=bound, backlog=_BACKLOG
            )
            # Set once the socket listens: before, other processes could bind the port as well. Without the option, the
            # next process cannot listen while the kernel has connections of this process.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        except OSError as error:
            raise ListenError(str(bound.getsockname()), f"cannot listen: {error.strerror}") from error
        return self._add_listener(server)

    def _add_listener(self, server: asyncio.Server) -> tuple[str, int]:
        self._servers.append(server)
        if self._tick_timer is None:
            self._tick()
        name = server.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    def _protocol_factory(self, handlers: Mapping[int, Handler] | None) -> Callable[[], asyncio.Protocol]:
        table = self._handlers if handlers is None else handlers

        def connection() -> _ServerConnection:
            return _ServerConnection(self, table)

        tls = self._tls
        return connection if tls is None else lambda: TlsDetector(self, tls, connection)

    @property
    def is_full(self) -> bool:
        """Return True if there is no room for one more connection."""
        return len(self.connections) + len(self.pending_handshakes) >= self.limits.max_connections

    async def close(self, grace_s: float = 1.0) -> None:
        """Stop listening, wait for the responses of current requests, and close all connections.

        ``grace_s`` is the maximum wait for the responses, and then again for their delivery.
        """
        for server in self._servers:
            server.close()
        for detector in list(self.pending_handshakes):
            detector.abort()
        for connection in self.connections:
            connection.refuses_requests = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        while any(connection.pending_response_count for connection in self.connections) and loop.time() < deadline:
            await asyncio.sleep(_DRAIN_POLL_S)
        await close_all(self.connections, grace_s)
        # Handlers of ended connections may wait for ever for something that has stopped.
        cancelled = [task for connection in self._ended_with_requests for task in connection.cancel_responses()]
        if cancelled:
            await asyncio.wait(cancelled, timeout=grace_s)
        if self._tick_timer is not None:
            self._tick_timer.cancel()
            self._tick_timer = None
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()

    def _tick(self) -> None:
        self._ended_with_requests = {
            connection for connection in self._ended_with_requests if connection.pending_response_count
        }
        for connection in list(self.connections):
            connection.idle_ticks += 1
            if connection.idle_ticks > _TICKS_PER_TIMEOUT:
                log.info(
                    "closed %(client)s: idle for %(seconds)g s",
                    {"client": connection.remote_address, "seconds": self.limits.idle_timeout_s},
                )
                connection.abort()
        loop = asyncio.get_running_loop()
        self._tick_timer = loop.call_later(self.limits.idle_timeout_s / _TICKS_PER_TIMEOUT, self._tick)

    def enforce_memory_limit(self) -> None:
        """Close the connections with the most bytes, until all together are below the limit."""
        for connection in self.connections:
            connection.count()  # part of the write buffer was sent since
        while self.held_bytes > self.limits.max_held_bytes and self.connections:
            largest = max(self.connections, key=attrgetter("held_bytes"))
            log.warning(
                "closed %(client)s: all connections exceed maxHeldBytes, and this one has the most, "
                "%(most_bytes)d of %(held_bytes)d B",
                {"client": largest.remote_address, "most_bytes": largest.held_bytes, "held_bytes": self.held_bytes},
            )
            largest.abort_and_release()

    def on_open(self, connection: "_ServerConnection") -> None:
        """Register a new connection; the connection calls this."""
        if len(self.connections) >= self.limits.max_connections:
            log.warning(
                "refused %(client)s: %(connections)d connections are open",
                {"client": connection.remote_address, "connections": len(self.connections)},
            )
            connection.abort()
            return
        self.connections[connection] = None
        if self._on_connect is not None:
            self._on_connect(connection)

    def on_end(self, connection: "_ServerConnection") -> None:
        """Remove an ended connection; the connection calls this."""
        if connection in self.connections:
            del self.connections[connection]
            if connection.pending_response_count:
                self._ended_with_requests.add(connection)
            if self._on_disconnect is not None:
                self._on_disconnect(connection)


class _ServerConnection(Connection):
    def __init__(self, server: RemotingServer, handlers: Mapping[int, Handler]) -> None:
        super().__init__(
            handlers,
            max_frame_bytes=server.limits.max_frame_bytes,
            max_header_bytes=server.limits.max_header_bytes,
            write_high_water_bytes=server.limits.write_high_water_bytes,
            reads_only_while_writable=True,
            max_waiting_bytes=server.limits.max_waiting_bytes,
            after_batch=server.after_batch,
            logs_refusals=True,
        )
        self.held_bytes = 0
        self._server = server
        self._is_released = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.on_open(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._unparsed:  # else the batch has ended with a flush
            self._count()

    def _flush(self) -> None:
        super()._flush()
        self._count()

    def _add_memory_bytes(self, size: int) -> None:
        if not self._is_released:
            self.held_bytes += size
            self._server.held_bytes += size
            self._check_limit()

    def _count(self) -> None:
        self.count()
        self._check_limit()

    def _check_limit(self) -> None:
        if self._server.held_bytes > self._server.limits.max_held_bytes:
            self._server.enforce_memory_limit()

    def count(self) -> None:
        if self._is_released:
            return
        held_bytes = self._parser.buffered_bytes + self.waiting_bytes + self.parked_bytes
        if self._unparsed:
            held_bytes += sum(len(data) for _, data in self._unparsed)
        if self._transport is not None:
            held_bytes += self._transport.get_write_buffer_size()
        if held_bytes != self.held_bytes:
            self._server.held_bytes += held_bytes - self.held_bytes
            self.held_bytes = held_bytes

    def cancel_responses(self) -> list[asyncio.Future[Any]]:
        """Cancel the handling of requests without a response; return the futures, to wait for their end."""
        for task in self._tasks:
            task.cancel()
        return list(self._tasks)

    def abort_and_release(self) -> None:
        self._release_memory_bytes()
        self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._release_memory_bytes()
        self._server.on_end(self)

    def _release_memory_bytes(self) -> None:
        self._server.held_bytes -= self.held_bytes
        self.held_bytes = 0
        self._is_released = True
