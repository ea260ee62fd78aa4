"""Access to a cluster, credentials and TLS, from options, environment variables and a file.

Settings have the names of ``SessionCredentials`` and ``TlsSystemConfig`` (``tls.client.serverName`` is ours). An
option goes before a variable, and a variable before the file. No error shows a value that may be secret.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final

from rmq_core.remoting.acl import Credentials
from rmq_core.remoting.java_properties import parse_properties
from rmq_core.remoting.tls import Tls
from rmq_formats.errors import FormatError, OptionError

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
_MAX_FILE_BYTES: Final = 1 << 16  # a few lines; a larger one is another file
_OTHERS: Final = 0o077
_OTHERS_OF_ROOTS: Final = 0o037  # as libpq has it: a file of root's may be for a group, as those of Kubernetes are


@dataclass(frozen=True, slots=True)
class Access:
    """How a client proves who it is, and who its servers are.

    Attributes:
        credentials: to sign requests with; None signs none.
        tls: to speak TLS with; None is plain.
    """

    credentials: Credentials | None = None
    tls: Tls | None = None


def gather_settings(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Gather settings from all their places, files read.

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
    found = {} if file is None else read_credentials_file(Path(file))
    for place, given in (("environment", variables), ("options", options)):
        own = {name: value for name, value in given.items() if name in _IN_FILES}
        key_file = given.get(SECRET_KEY_FILE)
        if key_file is not None:
            if "secretKey" in own:
                raise OptionError(f"{place}: secretKey and secretKeyFile exclude each other")
            own["secretKey"] = _secret_text(Path(key_file)).rstrip("\r\n")
        found |= own
    for name, value in found.items():
        if not value:
            raise OptionError(f"{name} is empty")
        if not value.isascii() and value != value.encode("utf-8", "replace").decode():
            raise OptionError(f"{name} is not UTF-8")
    return found


def access_of(settings: Mapping[str, str]) -> Access:
    """Build the access from gathered settings.

    Raises:
        OptionError: settings that say nothing without another one, or a bad value.
    """
    access_key, secret_key, token = (settings.get(name) for name in _IN_FILES[:3])
    credentials = None
    if access_key and secret_key:
        credentials = Credentials(access_key, secret_key, token or None)
    elif access_key or secret_key or token:
        missing = "accessKey" if not access_key else "secretKey"
        given = "accessKey" if access_key else "secretKey" if secret_key else "securityToken"
        raise OptionError(f"{given} is given, and no {missing}: requests cannot be signed")
    return Access(credentials, _tls_of(settings))


def access_from(options: Mapping[str, str | None]) -> Access:
    """Build the access from a command's options, and from the process's environment.

    Args:
        options: some of ``ACCESS_SETTINGS``, by name; None is as if it were not there.

    Raises:
        OptionError: as ``gather_settings`` and ``access_of``.
    """
    given = {name: value for name, value in options.items() if value is not None}
    return access_of(gather_settings(given, os.environ))


def _tls_of(settings: Mapping[str, str]) -> Tls | None:
    given = {name.removeprefix(_TLS): value for name, value in settings.items() if name.startswith(_TLS)}
    if not _boolean("useTLS", settings.get("useTLS", "false")):
        if given:
            raise OptionError(f"{_TLS}{min(given)} is given, and useTLS is not true: connections would be plain")
        return None
    return Tls(
        trust_cert_path=given.get("trustCertPath"),
        cert_path=given.get("certPath"),
        key_path=given.get("keyPath"),
        key_password=given.get("keyPassword"),
        auth_server=_boolean(f"{_TLS}authServer", given.get("authServer", "true")),
        server_name=given.get("serverName"),
    )


def _boolean(name: str, text: str) -> bool:
    value = _BOOLEANS.get(text.strip().lower())
    if value is None:
        raise OptionError(f"{name} cannot be {text!r}: expected true or false")
    return value


def read_credentials_file(path: Path) -> dict[str, str]:
    """Read a file of settings: TOML, flat YAML as the original's ``tools.yml``, by the name's end, or properties.

    Names may begin with a capital, as in the original's ``key`` file; a setting without a value is not there.

    Raises:
        OptionError: it cannot be read, others may read it, or it has something else; the line is named, not shown.
    """
    text = _secret_text(path)
    try:
        if path.suffix == ".toml":
            found = _flattened(tomllib.loads(text))
        elif path.suffix in {".yml", ".yaml"}:
            found = _flat_yaml(text)
        else:
            found = parse_properties(text)
    except (FormatError, tomllib.TOMLDecodeError, ValueError) as error:
        where = "" if isinstance(error, FormatError) else f" ({error})"
        kind = {".toml": "TOML", ".yml": "YAML", ".yaml": "YAML"}.get(path.suffix, "properties")
        raise OptionError(f"{path}: no flat {kind} of access settings{where}") from None
    settings = {}
    for name, value in found.items():
        own = name[:1].lower() + name[1:]
        if own not in _IN_FILES:
            raise OptionError(f"{path}: unknown setting {name[:64]!r}; there are {', '.join(_IN_FILES)}")
        settings[own] = value.strip()
    return {name: value for name, value in settings.items() if value}


def _secret_text(path: Path) -> str:
    """Read a small file that only its owner may read; raises OptionError."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise OptionError(f"{path}: {error.strerror}") from None
    mode = status.st_mode
    if S_ISREG(mode) and mode & (_OTHERS if status.st_uid else _OTHERS_OF_ROOTS):  # not a pipe, as of <(…)
        raise OptionError(f"{path}: others may read or change it (mode {mode & 0o777:04o}): chmod 600")
    if len(data) > _MAX_FILE_BYTES:
        raise OptionError(f"{path}: more than {_MAX_FILE_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise OptionError(f"{path}: not UTF-8") from None


def _flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Join the names of nested tables by dots, as ``tls.client.certPath`` is one in TOML."""
    found: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            found |= _flattened(value, f"{prefix}{name}.")
        elif isinstance(value, str | bool):
            found[prefix + name] = value if isinstance(value, str) else str(value).lower()
        else:
            raise ValueError(f"{prefix}{name} is no text")  # of the file, not of a caller
    return found


def _flat_yaml(text: str) -> dict[str, str]:
    """Parse ``name: value`` lines with comments and simple quotes; any more of YAML is a ValueError."""
    found: dict[str, str] = {}
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
        found[name.strip()] = value
    return found
