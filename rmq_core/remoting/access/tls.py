"""TLS of a client's connections: Java's settings, but the server's certificate and name are checked by default.

Source: ``TlsSystemConfig``, ``TlsHelper#buildSslContext``.
"""

import ssl
from dataclasses import dataclass, field

from rmq_formats.errors import OptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS settings of a client.

    Attributes:
        trust_cert_path: PEM of the authorities, or of the servers' own certificates; None is the system's.
        cert_path: PEM of the client's certificate and what signed it, for servers that want one.
        key_path: PEM of its private key; None if it is in ``cert_path``.
        key_password: of that key.
        auth_server: whether a server has to prove by its certificate who it is. Without, anybody between can read
            and change everything.
        server_name: the name that all servers' certificates have; None is the host that is connected to.
    """

    trust_cert_path: str | None = None
    cert_path: str | None = None
    key_path: str | None = None
    key_password: str | None = field(default=None, repr=False)
    auth_server: bool = True
    server_name: str | None = None

    def context(self) -> ssl.SSLContext:
        """Load the certificates.

        Raises:
            OptionError: a file that cannot be read, or is no PEM; naming it.
        """
        if self.key_path is not None and self.cert_path is None:
            raise OptionError(f"tls.client.keyPath {self.key_path}: give tls.client.certPath, too")
        if self.server_name is not None and (not self.server_name.isascii() or self.server_name.startswith(".")):
            raise OptionError(f"tls.client.serverName {self.server_name}: not a host's name")
        try:
            context = ssl.create_default_context(cafile=self.trust_cert_path)
        except OSError as error:
            raise _unusable("trustCertPath", self.trust_cert_path, error) from error
        if not self.auth_server:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert_path is not None:
            try:  # never without a password: OpenSSL would ask for it on the terminal
                context.load_cert_chain(self.cert_path, self.key_path, self.key_password or "")
            except (OSError, ValueError) as error:
                raise _unusable("certPath", self.cert_path, error) from error
        return context


def _unusable(setting: str, path: str | None, error: Exception) -> OptionError:
    is_system = isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.strerror
    reason = error.strerror if isinstance(error, OSError) and is_system else "no certificate, or key of it, in PEM"
    return OptionError(f"tls.client.{setting} {path}: {reason}")


def handshake_failure(error: Exception) -> str:
    """Describe why no TLS connection was made to a server that accepts connections."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {(error.reason or str(error)).replace('_', ' ').lower()}"
    return "the server ended the TLS handshake: it may speak no TLS, or want a client's certificate"
