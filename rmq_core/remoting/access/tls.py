"""TLS of connections: Java's settings of clients and servers, Java's file of them, and the reload of certificates.

Unlike Java, a client checks the server's certificate and name by default, a server without a certificate does not make
one, and a server always verifies a client's certificate.

Source: ``TlsMode``, ``TlsSystemConfig``, ``TlsHelper#buildSslContext``, ``#extractTlsConfigFromFile``,
``NettyRemotingServer``.
"""

import logging
import os
import ssl
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from rmq_formats.codecs.java_properties import parse_properties
from rmq_formats.errors import FormatError, OptionError

log = logging.getLogger("rmq.remoting")
_BOOLEANS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS settings of a client.

    Attributes:
        trust_cert_path: PEM file of trusted authorities or server certificates; None for those of the system.
        cert_path: PEM file of the client's certificate chain, for servers that request one.
        key_path: PEM file of the client's private key; None if ``cert_path`` contains the key.
        auth_server: verify the server's certificate. Without that, anybody on the path can read and change everything.
        server_name: name in the certificates of all servers; None for the host of the address.
    """

    trust_cert_path: str | None = None
    cert_path: str | None = None
    key_path: str | None = None
    key_password: str | None = field(default=None, repr=False)
    auth_server: bool = True
    server_name: str | None = None

    def context(self) -> ssl.SSLContext:
        """Load the certificates. Raises OptionError that names the unusable file."""
        if self.key_path is not None and self.cert_path is None:
            raise OptionError(f"tls.client.keyPath {self.key_path}: give tls.client.certPath, too")
        if self.server_name is not None and (not self.server_name.isascii() or self.server_name.startswith(".")):
            raise OptionError(f"tls.client.serverName {self.server_name}: not a host's name")
        try:
            context = ssl.create_default_context(cafile=self.trust_cert_path)
        except OSError as error:
            raise _unusable("tls.client.trustCertPath", self.trust_cert_path, error) from error
        if not self.auth_server:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert_path is not None:
            try:  # never without a password: OpenSSL would ask for it on the terminal
                context.load_cert_chain(self.cert_path, self.key_path, self.key_password or "")
            except (OSError, ValueError) as error:
                raise _unusable("tls.client.certPath", self.cert_path, error) from error
        return context


def _unusable(setting: str, path: str | None, error: Exception) -> OptionError:
    is_system = isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.strerror
    reason = error.strerror if isinstance(error, OSError) and is_system else "no certificate, or key of it, in PEM"
    return OptionError(f"{setting} {path}: {reason}")


def handshake_failure(error: Exception) -> str:
    """Describe the failure of a TLS handshake with a server."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {(error.reason or str(error)).replace('_', ' ').lower()}"
    return "the server ended the TLS handshake: it may speak no TLS, or want a client's certificate"


class TlsMode(StrEnum):
    """TLS mode of a server."""

    DISABLED = "disabled"  # plain connections only
    PERMISSIVE = "permissive"  # both on one port: the first byte decides
    ENFORCING = "enforcing"  # TLS connections only


class ClientAuth(StrEnum):
    """Requirement of a client's certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFile:
    """Settings in the file that ``tls.config.file`` names.

    Certificates and keys (PKCS#8) are PEM files. ``client`` is for the server's own connections to other servers.
    """

    path: str
    cert_path: str | None
    key_path: str | None
    key_password: str | None = field(default=None, repr=False)
    client_auth: ClientAuth = ClientAuth.NONE
    trust_cert_path: str | None = None
    client: Tls = field(default_factory=Tls)


def read_tls_file(path: str) -> TlsFile:
    """Read a file of TLS settings, a Java properties file with Java's keys. Raises OptionError."""
    try:
        properties = parse_properties(Path(path).read_bytes().decode())
        values = {
            key: os.path.expanduser(value) if key.endswith("Path") else value  # noqa: PTH111
            for key, value in properties.items()
        }
    except OSError as error:
        raise OptionError(f"tls.config.file {path}: {error.strerror}") from error
    except (UnicodeDecodeError, FormatError) as error:
        raise OptionError(f"tls.config.file {path}: {error}") from error
    pop_value = values.pop
    if _boolean(path, "tls.test.mode.enable", pop_value("tls.test.mode.enable", "false")):
        raise OptionError(f"{path}: tls.test.mode.enable=true is not supported: give a certificate of your own")
    mode = pop_value("tls.server.need.client.auth", "none").strip().lower()
    try:
        client_auth = ClientAuth(mode)
    except ValueError as error:
        raise OptionError(f"{path}: tls.server.need.client.auth={mode}: give none, optional or require") from error
    verifies = _boolean(path, "tls.server.authClient", pop_value("tls.server.authClient", "true"))
    if client_auth is not ClientAuth.NONE and not verifies:
        raise OptionError(f"{path}: tls.server.authClient=false is not supported: it lets any certificate in")
    file = TlsFile(
        path=path,
        cert_path=pop_value("tls.server.certPath", None),
        key_path=pop_value("tls.server.keyPath", None),
        key_password=pop_value("tls.server.keyPassword", None),
        client_auth=client_auth,
        trust_cert_path=pop_value("tls.server.trustCertPath", None),
        client=Tls(
            trust_cert_path=pop_value("tls.client.trustCertPath", None),
            cert_path=pop_value("tls.client.certPath", None),
            key_path=pop_value("tls.client.keyPath", None),
            key_password=pop_value("tls.client.keyPassword", None),
            auth_server=_boolean(path, "tls.client.authServer", pop_value("tls.client.authServer", "true")),
            server_name=pop_value("tls.client.serverName", None),
        ),
    )
    if values:
        raise OptionError(f"{path}: unknown key {min(values)!r}")
    return file


def _boolean(path: str, key: str, value: str) -> bool:
    try:
        return _BOOLEANS[value.strip().lower()]
    except KeyError as error:
        raise OptionError(f"{path}: {key}={value}: give true or false") from error


class ServerTls:
    """TLS certificates of a server, reloaded when their files change; ``mode`` is never DISABLED."""

    def __init__(self, mode: TlsMode, file: TlsFile) -> None:
        """Load the certificates; raises OptionError for a missing or unusable file."""
        self.mode = mode
        self._file = file
        if file.cert_path is None or file.key_path is None:
            raise OptionError(f"{file.path}: tls.server.mode={mode} needs tls.server.certPath and tls.server.keyPath")
        if file.client_auth is not ClientAuth.NONE and file.trust_cert_path is None:
            raise OptionError(
                f"{file.path}: tls.server.need.client.auth={file.client_auth} needs tls.server.trustCertPath"
            )
        self._state = self._fingerprints()
        self.context = self._load()

    def reload(self) -> bool:
        """Load the certificates again if a file has changed; return True after a load.

        Raises:
            OptionError: they cannot be used. The former ones remain, until the files change again.
        """
        state = self._fingerprints()
        if state == self._state:
            return False
        self._state = state
        self.context = self._load()
        return True

    def listening_context(self) -> ssl.SSLContext:
        """Make a context for a server that speaks TLS alone; each new connection gets the current certificate."""
        context = self._load()

        def use_current_certificates(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
            try:
                self.reload()
            except OptionError as error:
                log.error("the former certificates remain in use: %(why)s", {"why": str(error)})
            connection.context = self.context

        context.sni_callback = use_current_certificates  # also called for clients that send no name
        return context

    def _fingerprints(self) -> list[tuple[int, int, int] | None]:
        """Return modification time in ns, size and inode of each file; None for a missing file."""
        states: list[tuple[int, int, int] | None] = []
        for path in (self._file.cert_path, self._file.key_path, self._file.trust_cert_path):
            if path is not None:
                try:
                    status = Path(path).stat()
                except OSError:
                    states.append(None)
                else:
                    states.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return states

    def _load(self) -> ssl.SSLContext:
        file = self._file
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:  # never without a password: OpenSSL would ask for it on the terminal
            context.load_cert_chain(str(file.cert_path), file.key_path, file.key_password or "")
        except (OSError, ValueError) as error:
            raise _unusable(f"{file.path}: tls.server.certPath", file.cert_path, error) from error
        if file.client_auth is not ClientAuth.NONE:
            try:
                context.load_verify_locations(file.trust_cert_path)
            except OSError as error:
                raise _unusable(f"{file.path}: tls.server.trustCertPath", file.trust_cert_path, error) from error
            required = file.client_auth is ClientAuth.REQUIRE
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        return context


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS settings of a server, and of its own connections to other servers.

    ``for_own_clients`` is ``tls.enable``; as in Java, the own connections of an enforcing server always use TLS.
    """

    mode: str
    config_file: str
    for_own_clients: bool

    def server(self) -> ServerTls | None:
        """Load the server's TLS; None for a plain server. Raises OptionError."""
        mode = self._mode()
        if mode is TlsMode.DISABLED:
            return None
        if not self.config_file:
            raise OptionError(f"tls.server.mode={mode} needs tls.config.file, which names the certificate")
        return ServerTls(mode, read_tls_file(self.config_file))

    def client(self) -> Tls | None:
        """Return the TLS of the server's own connections; None for plain connections. Raises OptionError."""
        if not self.for_own_clients and self._mode() is not TlsMode.ENFORCING:
            return None
        return read_tls_file(self.config_file).client if self.config_file else Tls()

    def _mode(self) -> TlsMode:
        try:
            return TlsMode(self.mode.strip().lower())
        except ValueError as error:
            raise OptionError(f"tls.server.mode={self.mode}: give disabled, permissive or enforcing") from error
