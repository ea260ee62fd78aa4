"""Remoting client: one connection for each address, made on demand, and again after its end."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ssl import SSLError
from typing import Final

from rmq_core.remoting.access import acl
from rmq_core.remoting.access.tls import Tls, handshake_failure
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.connection import Connection, Handler, close_all
from rmq_core.remoting.errors import ConnectError
from rmq_core.remoting.frames import MAX_FRAME_BYTES
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.loop import Closable

DEFAULT_TIMEOUT_S: Final = 3.0
_CLOSE_GRACE_S: Final = 0.5  # to write the buffered requests


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Timeouts and limits of a client.

    A larger frame ends its connection, and requests wait while the write buffer has more bytes. The timeout of a plain
    connection attempt is Java's, the one with TLS and its handshake is Netty's.
    """

    max_frame_bytes: int = MAX_FRAME_BYTES
    connect_timeout_s: float = 3.0
    tls_timeout_s: float = 10.0
    write_high_water_bytes: int = 1 << 20


class RemotingClient(Closable):
    """Client that sends requests to servers, and handles their requests; use it with ``async with``, or close it."""

    def __init__(
        self,
        handlers: Mapping[int, Handler] | None = None,
        *,
        limits: ClientLimits = ClientLimits(),
        credentials: acl.Credentials | None = None,
        tls: Tls | None = None,
        on_disconnect: Callable[[str], None] | None = None,
    ) -> None:
        """Create a client without connections.

        ``handlers`` handle requests from servers, by request code. ``on_disconnect`` is called with the address of each
        connection that has ended. Raises OptionError if a file of ``tls`` cannot be used.
        """
        self.handlers = {} if handlers is None else handlers
        self.limits = limits
        self._credentials = credentials
        self._tls_context = None if tls is None else tls.context()
        self._server_name = None if tls is None else tls.server_name
        self._on_disconnect = on_disconnect
        self._connections: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Task[Connection]] = {}
        self._open: dict[Connection, None] = {}  # in the order of their begin
        self._is_closed = False

    async def invoke(
        self, address: str, request: RemotingCommand, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> RemotingCommand:
        """Send a request, and return its response with any code.

        The request is numbered, and signed if the client has credentials. ``timeout_s`` does not count the connection
        attempt.

        Raises:
            ConnectError: no connection could be made; nothing was sent.
            ConnectionLostError, RequestTimeoutError: no response came; the server may have handled the request.
            FormatError: the request cannot be encoded.
        """
        connection = self._connections.get(address) or await self.connect(address)
        if self._credentials is not None:
            acl.sign(request, self._credentials)
        response = await connection.invoke(request, timeout_s)
        if response.code == ResponseCode.GO_AWAY:  # the server will stop: the next request goes to a new connection
            self._remove(address, connection)
            connection.close()
        return response

    async def invoke_oneway(self, address: str, request: RemotingCommand) -> None:
        """Send a one-way request; return when the request is in the write buffer. Raises ConnectError, FormatError."""
        connection = self._connections.get(address) or await self.connect(address)
        if self._credentials is not None:
            acl.sign(request, self._credentials)
        await connection.writable()
        connection.send_oneway(request)

    async def connect(self, address: str) -> Connection:
        """Return the connection to an address or make one; concurrent callers share an attempt. Raises ConnectError."""
        connection = self._connections.get(address)
        if connection is not None and not connection.is_closing:
            return connection
        if self._is_closed:
            raise ConnectError(address, "the client is closed")
        task = self._connecting.get(address)
        if task is None:
            task = self._connecting[address] = asyncio.ensure_future(self._connect(address))
            task.add_done_callback(lambda done: self._on_attempt_end(address, done))
        return await asyncio.shield(task)

    def _on_attempt_end(self, address: str, attempt: "asyncio.Task[Connection]") -> None:
        del self._connecting[address]
        if not attempt.cancelled():
            attempt.exception()  # read here, as all callers may have been cancelled: else asyncio logs it

    async def _connect(self, address: str) -> Connection:
        host, port = _split(address)
        loop, context, limits = asyncio.get_running_loop(), self._tls_context, self.limits
        server_name = None if context is None else self._server_name or host
        timeout_s = limits.connect_timeout_s if context is None else limits.tls_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(
                    lambda: _ClientConnection(self, address), host, port, ssl=context, server_hostname=server_name
                )
        except TimeoutError as error:
            raise ConnectError(address, f"no connection within {timeout_s:g} s") from error
        except (OSError, ValueError) as error:  # such as an address with U+0000
            raise ConnectError(address, _reason(error, has_tls=context is not None)) from error
        self._connections[address] = connection
        return connection

    def disconnect(self, address: str) -> None:
        """Close the connection to an address after pending writes, if the connection exists."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    async def close(self) -> None:
        """Close all connections; requests without a response fail."""
        self._is_closed = True
        for task in list(self._connecting.values()):
            task.cancel()
        if self._connecting:
            await asyncio.wait(list(self._connecting.values()))
        await close_all(self._open, _CLOSE_GRACE_S)

    def _remove(self, address: str, connection: Connection) -> None:
        if self._connections.get(address) is connection:
            del self._connections[address]

    def on_open(self, connection: Connection) -> None:
        """Register a new connection; the connection calls this."""
        self._open[connection] = None

    def on_end(self, address: str, connection: Connection) -> None:
        """Remove an ended connection; the connection calls this."""
        self._open.pop(connection, None)
        self._remove(address, connection)
        if self._on_disconnect is not None:
            self._on_disconnect(address)


class _ClientConnection(Connection):
    def __init__(self, client: RemotingClient, address: str) -> None:
        super().__init__(
            client.handlers,
            max_frame_bytes=client.limits.max_frame_bytes,
            write_high_water_bytes=client.limits.write_high_water_bytes,
            reads_only_while_writable=False,
        )
        self._client = client
        self._address = address

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._client.on_open(self)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._client.on_end(self._address, self)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConnectError(address, "not a host and a port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _reason(error: OSError | ValueError, *, has_tls: bool) -> str:
    is_reachable = isinstance(error, SSLError | ConnectionError) and not isinstance(error, ConnectionRefusedError)
    if has_tls and is_reachable:
        return handshake_failure(error)
    return f"cannot connect: {error.strerror if isinstance(error, OSError) and error.strerror else error}"
