"""Credentials for gRPC's TLS, from the files in a TLS file; reloaded when the files change."""

import logging
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import grpc

from rmq_core.remoting.access.tls import ClientAuth, ServerTls, TlsFile, TlsMode
from rmq_formats.errors import OptionError

log = logging.getLogger("rmq.proxy")
_VALID_DAYS: Final = 3650


def certificates(file: TlsFile) -> grpc.ServerCredentials:
    """Load the server's certificate.

    Raises:
        OptionError: one is missing or cannot be used, or asks for what gRPC does not have; naming the file.
    """
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
    """Make a certificate for this run, in memory, as the original does; None where ``cryptography`` is not installed.

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
        .not_valid_after(now + timedelta(days=_VALID_DAYS))
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
