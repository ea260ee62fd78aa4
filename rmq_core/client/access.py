"""Access to a cluster, credentials and TLS, from options, environment variables and a file.

Settings have the names of ``SessionCredentials`` and ``TlsSystemConfig`` (``tls.client.serverName`` is ours). An
option goes before a variable, and a variable before the file. No error shows a value that may be secret.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmq_core.client.credentials_file import read_credentials_file, read_secret
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.access.tls import Tls
from rmq_formats.errors import OptionError

CREDENTIALS_FILE: Final = "credentialsFile"
SECRET_KEY_FILE: Final = "secretKeyFile"
_TLS: Final = "tls.client."
_IN_FILES: Final = (
    "accessKey", "secretKey", "securityToken", "useTLS", f"{_TLS}trustCertPath", f"{_TLS}certPath", f"{_TLS}keyPath",
    f"{_TLS}keyPassword", f"{_TLS}authServer", f"{_TLS}serverName",
)  # fmt: skip
ACCESS_SETTINGS: Final = (CREDENTIALS_FILE, SECRET_KEY_FILE, *_IN_FILES)
VARIABLES: Final[Mapping[str, str]] = {
    CREDENTIALS_FILE: "RMQ_CREDENTIALS_FILE",
    "accessKey": "RMQ_ACCESS_KEY",
    "secretKey": "RMQ_SECRET_KEY",
    SECRET_KEY_FILE: "RMQ_SECRET_KEY_FILE",
    "securityToken": "RMQ_SECURITY_TOKEN",
    "useTLS": "RMQ_USE_TLS",
    f"{_TLS}trustCertPath": "RMQ_TLS_TRUST_CERT_PATH",
    f"{_TLS}certPath": "RMQ_TLS_CERT_PATH",
    f"{_TLS}keyPath": "RMQ_TLS_KEY_PATH",
    f"{_TLS}keyPassword": "RMQ_TLS_KEY_PASSWORD",
    f"{_TLS}authServer": "RMQ_TLS_AUTH_SERVER",
    f"{_TLS}serverName": "RMQ_TLS_SERVER_NAME",
}
_BOOLEANS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials to sign requests with, and TLS settings; None signs nothing, or is plain."""

    credentials: Credentials | None = None
    tls: Tls | None = None


def gather_settings(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Gather settings from options, environment variables and files.

    Args:
        options: some of ``ACCESS_SETTINGS``, by name.
        environ: the process's environment, with ``VARIABLES``; an empty one is as if it were not there.

    Returns:
        Settings by name, without those that name files.

    Raises:
        OptionError: a file that cannot be read, that others may read, or that has other settings; an empty value.
    """
    variables = {name: environ[variable] for name, variable in VARIABLES.items() if environ.get(variable)}
    file = options.get(CREDENTIALS_FILE) or variables.get(CREDENTIALS_FILE)
    settings = {} if file is None else read_credentials_file(Path(file), _IN_FILES)
    for place, source in (("environment", variables), ("options", options)):
        source_settings = {name: value for name, value in source.items() if name in _IN_FILES}
        key_file = source.get(SECRET_KEY_FILE)
        if key_file is not None:
            if "secretKey" in source_settings:
                raise OptionError(f"{place}: secretKey and secretKeyFile exclude each other")
            source_settings["secretKey"] = read_secret(Path(key_file)).rstrip("\r\n")
        settings |= source_settings
    for name, value in settings.items():
        if not value:
            raise OptionError(f"{name} is empty")
        if not value.isascii() and value != value.encode("utf-8", "replace").decode():
            raise OptionError(f"{name} is not UTF-8")
    return settings


def access_of(settings: Mapping[str, str]) -> Access:
    """Build the access from gathered settings. Raises OptionError for a bad value, or one without its counterpart."""
    access_key, secret_key, token = (settings.get(name) for name in _IN_FILES[:3])
    credentials = None
    if access_key and secret_key:
        credentials = Credentials(access_key, secret_key, token or None)
    elif access_key or secret_key or token:
        missing = "accessKey" if not access_key else "secretKey"
        present = "accessKey" if access_key else "secretKey" if secret_key else "securityToken"
        raise OptionError(f"{present} is given, and no {missing}: requests cannot be signed")
    return Access(credentials, _tls_of(settings))


def access_from(options: Mapping[str, str | None]) -> Access:
    """Build the access from a command's options, and from the process's environment. Raises OptionError.

    Args:
        options: some of ``ACCESS_SETTINGS``, by name; None is as if it were not there.
    """
    present = {name: value for name, value in options.items() if value is not None}
    return access_of(gather_settings(present, os.environ))


def _tls_of(settings: Mapping[str, str]) -> Tls | None:
    tls_settings = {name.removeprefix(_TLS): value for name, value in settings.items() if name.startswith(_TLS)}
    if not _boolean("useTLS", settings.get("useTLS", "false")):
        if tls_settings:
            raise OptionError(f"{_TLS}{min(tls_settings)} is given, and useTLS is not true: connections would be plain")
        return None
    return Tls(
        trust_cert_path=tls_settings.get("trustCertPath"),
        cert_path=tls_settings.get("certPath"),
        key_path=tls_settings.get("keyPath"),
        key_password=tls_settings.get("keyPassword"),
        auth_server=_boolean(f"{_TLS}authServer", tls_settings.get("authServer", "true")),
        server_name=tls_settings.get("serverName"),
    )


def _boolean(name: str, text: str) -> bool:
    value = _BOOLEANS.get(text.strip().lower())
    if value is None:
        raise OptionError(f"{name} cannot be {text!r}: expected true or false")
    return value
