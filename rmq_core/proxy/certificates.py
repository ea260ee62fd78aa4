"""What the proxy speaks TLS with: gRPC's credentials of the files that a TLS file names, loaded anew as they change."""

import logging
from pathlib import Path

import grpc

from rmq_core.remoting.access.server_tls import ClientAuth, ServerTls, TlsFile, TlsMode
from rmq_formats.errors import OptionError

log = logging.getLogger("rmq.proxy")


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

    def changed() -> grpc.ServerCertificateConfiguration | None:
        """Asked for at each connection; None keeps what there is."""
        try:
            return _read(file) if checked.reload() else None
        except (OptionError, OSError) as error:
            log.error("the proxy's certificate stays: %(why)s", {"why": str(error)})
            return None

    required = file.client_auth is ClientAuth.REQUIRE
    return grpc.dynamic_ssl_server_credentials(_read(file), changed, require_client_authentication=required)


def _read(file: TlsFile) -> grpc.ServerCertificateConfiguration:
    roots = None if file.client_auth is ClientAuth.NONE else Path(str(file.trust_cert_path)).read_bytes()
    chain = [(Path(str(file.key_path)).read_bytes(), Path(str(file.cert_path)).read_bytes())]
    return grpc.ssl_server_certificate_configuration(chain, root_certificates=roots)
