"""Access to a cluster, credentials and TLS, from options, environment variables and a file.

Settings have the names of ``SessionCredentials`` and ``TlsSystemConfig`` (``tls.client.serverName`` is ours). An
option goes before a variable, and a variable before the file. The file is TOML, flat YAML as the original's
``tools.yml``, or Java properties. No error shows a value that may be secret.

Source: ``AclUtils#getAclRPCHook``, ``SessionCredentials``.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final

from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.access.tls import Tls
from rmq_formats.codecs.java_properties import parse_properties
from rmq_formats.errors import FormatError, OptionError

_MAX_FILE_BYTES: Final = 1 << 16  # settings are a few lines; a larger file is no settings file
_POSITION: Final = re.compile(r"\(at [^()]*\)$")  # position at the end of a tomllib error
_GROUP_AND_OTHERS: Final = 0o077
_OTHERS_OF_ROOT: Final = 0o037  # as in libpq: a file of root may be readable for its group, as Kubernetes secrets are
CREDENTIALS_FILE: Final = "credentialsFile"
SECRET_KEY_FILE: Final = "secretKeyFile"
_TLS: Final = "tls.client."
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
_IN_FILES: Final = tuple(name for name in VARIABLES if name not in (CREDENTIALS_FILE, SECRET_KEY_FILE))
ACCESS_SETTINGS: Final = (CREDENTIALS_FILE, SECRET_KEY_FILE, *_IN_FILES)
_BOOLEANS: Final = {"true": True, "false": False}


def read_credentials_file(path: Path, names: tuple[str, ...]) -> dict[str, str]:
    """Read a file of settings in the format of the name's suffix: TOML, YAML, or properties for any other.

    In the file ``names`` may begin with a capital, as in the original's ``key`` file. Settings without a value are not
    returned.

    Raises:
        OptionError: the file cannot be read, other users may read it, or it has other settings; the text names the line
            and does not show it.
    """
    text = read_secret(path)
    try:
        if path.suffix == ".toml":
            entries = _flatten(tomllib.loads(text))
        elif path.suffix in {".yml", ".yaml"}:
            entries = _flat_yaml(text)
        else:
            entries = parse_properties(text)
    except (FormatError, ValueError) as error:
        where = _error_position(error)
        kind = {".toml": "TOML", ".yml": "YAML", ".yaml": "YAML"}.get(path.suffix, "properties")
        raise OptionError(f"{path}: no flat {kind} of access settings{where}") from None
    settings = {}
    spellings = {name.lower(): name for name in names}
    for name, value in entries.items():
        setting = name[:1].lower() + name[1:]
        if setting not in names:  # in a file with a secret alone, the name is that secret, so it is not shown
            spelling = f"; {name} is spelt {spellings[name.lower()]}" if name.lower() in spellings else ""
            raise OptionError(f"{path}: has something else than {', '.join(names)}{spelling}")
        settings[setting] = value.strip()
    return {name: value for name, value in settings.items() if value}


def _error_position(error: Exception) -> str:
    """Format the position of a parse error, without the text at that position."""
    if isinstance(error, tomllib.TOMLDecodeError):
        position = _POSITION.search(str(error))
        return f" {position[0]}" if position else ""
    return f" ({error})" if isinstance(error, ValueError) else ""


def read_secret(path: Path) -> str:
    """Read a small file that only its owner may read; raises OptionError."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise OptionError(f"{path}: {error.strerror}") from None
    mode = status.st_mode
    if S_ISREG(mode) and mode & (
        _GROUP_AND_OTHERS if status.st_uid else _OTHERS_OF_ROOT
    ):  # a pipe, as of <(…), has no such mode
        raise OptionError(
            f"{path}: other users may read or change the file (mode {mode & 0o777:04o}). Run chmod 600 on it."
        )
    if len(data) > _MAX_FILE_BYTES:
        raise OptionError(f"{path}: more than {_MAX_FILE_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise OptionError(f"{path}: not UTF-8") from None


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Join the names of nested tables by dots: ``tls.client.certPath`` is nested in TOML."""
    entries: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            entries |= _flatten(value, f"{prefix}{name}.")
        elif isinstance(value, str | bool):
            entries[prefix + name] = value if isinstance(value, str) else str(value).lower()
        else:
            raise ValueError("a value is no text")  # a TOML value of another type
    return entries


def _flat_yaml(text: str) -> dict[str, str]:
    """Parse ``name: value`` lines with comments and simple quotes. Raises ValueError for other YAML."""
    entries: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        content = line.strip()
        if not content or content.startswith(("#", "---")):
            continue
        name, colon, rest = content.partition(":")
        value = rest.strip()
        if not colon or line[0].isspace() or (rest and not rest[0].isspace()):
            raise ValueError(f"line {number}")
        if value[:1] in {"'", '"'}:
            value, _, behind = value[1:].partition(value[0])
            if (behind.strip() and not behind.lstrip().startswith("#")) or "\\" in value:
                raise ValueError(f"line {number}: simple quotes only")
        elif value[:1] and value[0] in "[{&*!|>%@`":
            raise ValueError(f"line {number}: put the value in quotes")
        else:
            value = value.split(" #")[0].rstrip()
        entries[name.strip()] = value
    return entries


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials to sign requests, and TLS settings; None for no signatures, or for plain connections."""

    credentials: Credentials | None = None
    tls: Tls | None = None


def gather_settings(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Gather settings from options, environment variables and files.

    ``options`` has some of ``ACCESS_SETTINGS``; an empty variable counts as missing. Settings that name files are not
    returned.

    Raises OptionError for a bad file, as ``read_credentials_file``, and for an empty value.
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
    """Build the access from gathered settings. Raises OptionError for an invalid value, or half a pair of keys."""
    access_key, secret_key, token = (settings.get(name) for name in _IN_FILES[:3])
    credentials = None
    if access_key and secret_key:
        credentials = Credentials(access_key, secret_key, token or None)
    elif access_key or secret_key or token:
        missing = "accessKey" if not access_key else "secretKey"
        present = "accessKey" if access_key else "secretKey" if secret_key else "securityToken"
        raise OptionError(f"{present} requires {missing}: without both, requests cannot be signed")
    return Access(credentials, _tls_of(settings))


def access_from(options: Mapping[str, str | None]) -> Access:
    """Build the access from a command's options, None for absent ones, and the environment. Raises OptionError."""
    present = {name: value for name, value in options.items() if value is not None}
    return access_of(gather_settings(present, os.environ))


def _tls_of(settings: Mapping[str, str]) -> Tls | None:
    tls_settings = {name.removeprefix(_TLS): value for name, value in settings.items() if name.startswith(_TLS)}
    if not _boolean("useTLS", settings.get("useTLS", "false")):
        if tls_settings:
            raise OptionError(f"{_TLS}{min(tls_settings)} requires useTLS=true: without it connections would be plain")
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
