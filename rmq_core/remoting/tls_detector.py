"""TLS detection on a port: the first byte of a connection decides between TLS and the plain protocol."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

from rmq_core.remoting.access.tls import ServerTls, TlsMode
from rmq_core.remoting.connection import log
from rmq_formats.errors import OptionError

HANDSHAKE_BYTE: Final = 0x16  # first byte of a TLS record; a frame's size begins with 0 or 1
HANDSHAKE_TIMEOUT_S: Final = 10.0
MAX_EARLY_BYTES: Final = 1 << 20  # that a client may send during its handshake


class TlsServer(Protocol):
    """Part of ``RemotingServer`` that a detector needs."""

    pending_handshakes: "dict[TlsDetector, None]"

    @property
    def is_full(self) -> bool:
        """Return True if there is no room for one more connection."""
        ...


class TlsDetector(asyncio.Protocol):
    """Protocol of a connection before its first byte; ``make`` then makes the protocol that replaces it."""

    def __init__(self, server: TlsServer, tls: ServerTls, make: Callable[[], asyncio.Protocol]) -> None:
        self._server, self._tls, self._make = server, tls, make
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._early = bytearray()  # bytes after the handshake, before the next protocol is set
        self._remote = ""
        self._is_in_tls = False
        timeout = f"no request within {HANDSHAKE_TIMEOUT_S:g} s"
        self._timer = self._loop.call_later(HANDSHAKE_TIMEOUT_S, self._refuse, timeout)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first byte, if there is room."""
        self._transport = cast(asyncio.Transport, transport)
        host, port, *_ = transport.get_extra_info("peername") or ("", "")
        self._remote = f"{host}:{port}"
        if self._server.is_full:
            self.abort()
            return
        self._server.pending_handshakes[self] = None

    def data_received(self, data: bytes) -> None:
        """Detect TLS by the first byte; buffer bytes after a handshake for the next protocol."""
        if self._is_in_tls:
            self._early += data
            if len(self._early) > MAX_EARLY_BYTES:
                self._refuse("sent too much before its connection was made")
            return
        if data[0] == HANDSHAKE_BYTE:
            self._is_in_tls = True
            cast(asyncio.Transport, self._transport).pause_reading()  # until start_tls has set its protocol
            self._task = self._loop.create_task(self._shake_hands(data))
        elif self._tls.mode is TlsMode.ENFORCING:
            self._refuse("speaks no TLS")
        else:
            self._start_protocol(cast(asyncio.Transport, self._transport), data)

    def connection_lost(self, _error: Exception | None) -> None:
        """Remove a connection that has ended."""
        self._remove()
        if self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        """End the connection at once."""
        self.connection_lost(None)
        if self._transport is not None:
            self._transport.abort()

    async def _shake_hands(self, hello: bytes) -> None:
        """Finish the handshake, whose first bytes were read already, and start the connection."""
        transport = cast(asyncio.Transport, self._transport)
        self._reload()
        starting = self._loop.create_task(
            self._loop.start_tls(
                transport, self, self._tls.context, server_side=True, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S
            )
        )
        await asyncio.sleep(0)  # start_tls sets its protocol, and schedules its connection_made
        self._loop.call_soon(_feed, transport, hello)  # after connection_made, before more bytes are read
        try:
            inner = await starting
        except OSError as error:
            self._refuse(f"TLS handshake failed: {error}")
            return
        if inner is None:  # the connection has ended meanwhile
            self._remove()
            return
        self._start_protocol(inner, bytes(self._early))

    def _reload(self) -> None:
        """Reload changed certificates; after an error log it, and use the former ones."""
        try:
            if self._tls.reload():
                log.info("loaded the certificates of TLS again: their files have changed")
        except OptionError as error:
            log.warning("the certificates of TLS stay as they were: %(error)s", {"error": error})

    def _start_protocol(self, transport: asyncio.Transport, data: bytes) -> None:
        self._remove()
        protocol = self._make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if data:
            protocol.data_received(data)

    def _refuse(self, reason: str) -> None:
        log.info("closed %(client)s: %(reason)s", {"client": self._remote, "reason": reason})
        self.abort()

    def _remove(self) -> None:
        self._timer.cancel()
        self._server.pending_handshakes.pop(self, None)


def _feed(transport: asyncio.Transport, data: bytes) -> None:
    """Pass the bytes that were read before to the protocol of ``start_tls``."""
    protocol = cast(asyncio.BufferedProtocol, transport.get_protocol())
    while data and not transport.is_closing():
        room = cast(memoryview, protocol.get_buffer(len(data)))
        count = min(len(room), len(data))
        room[:count] = data[:count]
        protocol.buffer_updated(count)
        data = data[count:]
