"""The proxy's port for both TLS and plain connections, with certificates that are reloaded when their files change.

A port of gRPC accepts either TLS or plain connections. So gRPC listens on two loopback ports, and the first byte of a
connection decides to which of them its bytes are forwarded.

Source: ``ProxyAndTlsProtocolNegotiator``, which does so within Netty.
"""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Final, cast

import grpc

from rmq_core.remoting.access.tls import ClientAuth, ServerTls, TlsFile, TlsMode
from rmq_core.remoting.connection import address_text
from rmq_core.remoting.errors import ListenError
from rmq_core.remoting.tls_detector import HANDSHAKE_BYTE
from rmq_formats.errors import OptionError

LOOPBACK: Final = "127.0.0.1"
FIRST_BYTE_S: Final = 10.0
_HIGH_WATER_BYTES: Final = 256 << 10  # in the write buffer of one end, above which the other end is not read
_BACKLOG: Final = 1024
log = logging.getLogger("rmq.proxy")


# Addresses of clients by the loopback address that gRPC sees: its handlers know only the address of a connection.
FORWARDED_CLIENTS: Final[dict[str, str]] = {}


class PortForwarder:
    """Listener at one address that forwards each connection to the port for plain or for TLS connections."""

    def __init__(self, plain_port: int, tls_port: int) -> None:
        """Create a forwarder to two ports of the loopback address."""
        self.ports = {False: plain_port, True: tls_port}  # by whether the first byte begins a TLS handshake
        self._server: asyncio.Server | None = None
        self.ends: set[_ForwardedEnd] = set()

    async def listen(self, address: str) -> str:
        """Listen at ``host:port``; return the bound address. Raises ListenError."""
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: _ClientEnd(self), host.strip("[]"), int(port), backlog=_BACKLOG
            )
        except (OSError, ValueError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ListenError(address, f"cannot listen: {reason}") from error
        return address_text(self._server.sockets[0].getsockname())

    def close(self) -> None:
        """Stop listening, and end all connections."""
        if self._server is not None:
            self._server.close()
        for end in list(self.ends):
            end.abort()


class _ForwardedEnd(asyncio.Protocol):
    """One end of a forwarded connection: writes its received bytes to the other end, and closes with it."""

    def __init__(self, forwarder: PortForwarder, other: "_ForwardedEnd | None" = None) -> None:
        self._forwarder = forwarder
        self.transport: asyncio.Transport | None = None
        self.other = other

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self._forwarder.ends.add(self)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        other = None if self.other is None else self.other.transport
        if other is not None and not other.is_closing():
            other.resume_reading()

    def connection_lost(self, _error: Exception | None) -> None:
        self._forwarder.ends.discard(self)
        self.transport = None
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        if self.transport is not None:
            self.transport.abort()


class _ClientEnd(_ForwardedEnd):
    """The client's end, whose first byte decides the target port."""

    def __init__(self, forwarder: PortForwarder) -> None:
        super().__init__(forwarder)
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(FIRST_BYTE_S, self.abort)
        self._loopback_address = ""

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
        elif self._task is None and self.transport is not None:
            self._timer.cancel()
            self.transport.pause_reading()
            self._task = asyncio.get_running_loop().create_task(self._forward(data, self.transport))

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        FORWARDED_CLIENTS.pop(self._loopback_address, None)
        super().connection_lost(error)

    async def _forward(self, data: bytes, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            # gRPC sends its settings at once, so the inner end must know the other end before it is connected.
            port = self._forwarder.ports[data[0] == HANDSHAKE_BYTE]
            inner, end = await loop.create_connection(lambda: _ForwardedEnd(self._forwarder, self), LOOPBACK, port)
        except OSError:
            self.abort()
            return
        if transport.is_closing():
            inner.abort()
            return
        self._loopback_address = address_text(inner.get_extra_info("sockname"))
        FORWARDED_CLIENTS[self._loopback_address] = address_text(transport.get_extra_info("peername"))
        self.other = end
        inner.write(data)
        transport.resume_reading()


def certificates(file: TlsFile) -> grpc.ServerCredentials:
    """Load the server's certificate. Raises OptionError with the file's name if gRPC cannot use it."""
    if file.key_password:
        raise OptionError(f"{file.path}: tls.server.keyPassword: gRPC takes keys without a password only")
    if file.client_auth is ClientAuth.OPTIONAL:
        raise OptionError(f"{file.path}: tls.server.need.client.auth=optional: give none or require for gRPC")
    checked = ServerTls(TlsMode.ENFORCING, file)  # with errors that name the file

    def reload_certificates() -> grpc.ServerCertificateConfiguration | None:
        """Return the new certificate at a connection; None leaves gRPC's current one."""
        try:
            return _read(file) if checked.reload() else None
        except (OptionError, OSError) as error:
            log.error("the proxy's certificate stays: %(why)s", {"why": str(error)})
            return None

    required = file.client_auth is ClientAuth.REQUIRE
    return grpc.dynamic_ssl_server_credentials(_read(file), reload_certificates, require_client_authentication=required)


def self_signed() -> grpc.ServerCredentials | None:
    """Make a certificate for this run, in memory, as in Java; None if ``cryptography`` is not installed.

    The official clients of RocketMQ 5 in Java and Go speak TLS unless told otherwise, and trust any certificate.
    """
    return None if find_spec("cryptography") is None else grpc.ssl_server_credentials([make_self_signed()])


def make_self_signed() -> tuple[bytes, bytes]:
    """Make a private key and its certificate, as PEM."""
    from cryptography import x509  # noqa: PLC0415 # it may not be there
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "rmq proxy")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=3650))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    key_pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return key_pem, certificate.public_bytes(serialization.Encoding.PEM)


def _read(file: TlsFile) -> grpc.ServerCertificateConfiguration:
    roots = None if file.client_auth is ClientAuth.NONE else Path(str(file.trust_cert_path)).read_bytes()
    chain = [(Path(str(file.key_path)).read_bytes(), Path(str(file.cert_path)).read_bytes())]
    return grpc.ssl_server_certificate_configuration(chain, root_certificates=roots)
