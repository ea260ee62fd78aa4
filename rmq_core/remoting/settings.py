"""Settings of a server: their loading, those of all servers, and handlers that enforce limits.

Flags override the environment, which overrides the file, which overrides the defaults. A field has its own name and a
name in Java, such as ``listen_port`` and ``listenPort``. Files are Java properties, or TOML with the suffix ``.toml``;
both may use either name.
"""

import os
import re
from collections.abc import Container, Mapping
from dataclasses import Field, dataclass, field, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, TypeVar

from rmq_core.remoting.access.tls import TlsSettings
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.connection import Connection, Handler, HandlerResponse
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.frames import MAX_FRAME_BYTES
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.server import ServerLimits
from rmq_formats.errors import OptionError
from rmq_formats.storage.settings_file import read_settings_file


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


_T = TypeVar("_T", bound=_Dataclass)
_BOOLEANS: Final = {"true": True, "false": False}
_PATH_SUFFIXES: Final = ("_path", "_file")  # of fields with paths, which may begin with ~
_MAX_INT: Final = (1 << 63) - 1
_DEFAULTS = ServerLimits()


def setting(
    default: Any,
    *,
    java: str | None = None,
    low: int = 0,
    high: int = _MAX_INT,
    mutable: bool = False,
    is_secret: bool = False,
) -> Any:
    """Declare a field of a settings dataclass.

    ``java`` is the name in Java, if it is not the field's name in camelCase. A request may change a ``mutable`` setting
    while the server runs.
    """
    metadata = {"java": java, "low": low, "high": high, "mutable": mutable, "is_secret": is_secret}
    return field(default=default, repr=not is_secret, metadata=metadata)


def java_name(option: Field[Any]) -> str:
    """Return a field's name in Java."""
    name = option.metadata.get("java")
    return str(name) if name else re.sub(r"_(\w)", lambda letter: letter[1].upper(), option.name)


def load_settings(
    kind: type[_T],
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    prefix: str = "RMQ_",
    flags: Mapping[str, object] | None = None,
    ignored: Container[str] = (),
    fixed_values: Mapping[str, str] = {},
) -> tuple[_T, list[str]]:
    """Load settings from all sources; return them and the ignored keys of the file.

    Args:
        environ: environment variables; a field's variable is ``prefix`` with its name in capitals.
        flags: values by field name; None for an absent flag.
        ignored: Java's keys that have no effect here.
        fixed_values: Java's keys of missing features, with the values that turn them off, separated by ``|``.

    Raises OptionError with the name of the source.
    """
    by_name = _by_name(kind)
    values: dict[str, object] = {}
    ignored_keys: list[str] = []
    for key, value in (read_settings_file(file) if file else {}).items():
        if key in by_name:
            values[by_name[key].name] = _convert(by_name[key], value, f"{file}: {key}")
        elif key in fixed_values:
            check_fixed_value(key, _text(value), fixed_values[key], f"{file}: ")
        elif key in ignored:
            ignored_keys.append(key)
        else:
            raise OptionError(f"{file}: unknown key {key!r}")
    for name, text in (environ or {}).items():
        if not name.startswith(prefix):
            continue
        option = by_name.get(name.removeprefix(prefix).lower())
        if option is None:
            raise OptionError(f"environment: unknown variable {name}")
        values[option.name] = _convert(option, text, f"environment: {name}")
    for name, flag in (flags or {}).items():
        if flag is not None:
            values[name] = _convert(by_name[name], flag, name)
    return kind(**values), ignored_keys


def check_fixed_value(key: str, value: str, fixed_values: str, where: str = "") -> None:
    """Refuse a value that turns on a missing feature. Raises OptionError."""
    allowed = fixed_values.split("|")
    if value.strip().lower() not in (text.lower() for text in allowed):
        only = f"the only value is {allowed[0]}" if allowed[0] else "it has to be empty"
        raise OptionError(f"{where}{key}={value.strip()} is not supported: {only}")


def _by_name(kind: type[_Dataclass]) -> dict[str, Field[Any]]:
    names = {option.name: option for option in fields(kind)}
    return names | {java_name(option): option for option in fields(kind)}


def _convert(option: Field[Any], value: object, where: str) -> object:
    """Convert a value to the field's type; only text is converted, any other value must have the type."""
    expected_type: type[Any] = type(option.default)
    if isinstance(value, str) and expected_type is not str:
        text = value.strip()
        try:
            value = _BOOLEANS[text.lower()] if expected_type is bool else expected_type(text)
        except (ValueError, KeyError):
            raise OptionError(f"{where}: {text!r} is not of type {expected_type.__name__}") from None
    if expected_type is str and isinstance(value, str):
        text = value.strip()
        return os.path.expanduser(text) if option.name.endswith(_PATH_SUFFIXES) else text  # noqa: PTH111 # "" stays
    if expected_type is float and type(value) is int:
        value = float(value)
    if type(value) is not expected_type:
        raise OptionError(f"{where}: {value!r} is not of type {expected_type.__name__}")
    if isinstance(value, int | float) and not option.metadata["low"] <= value <= option.metadata["high"]:
        raise OptionError(f"{where}: {value} is not between {option.metadata['low']} and {option.metadata['high']}")
    return value


def as_properties(settings: _Dataclass) -> dict[str, str]:
    """Return all settings by their names in Java, as text; ``***`` for secret ones."""
    properties = {}
    for option in fields(settings):
        value = getattr(settings, option.name)
        is_hidden = option.metadata.get("is_secret") and value
        properties[java_name(option)] = "***" if is_hidden else _text(value)
    return properties


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def changed_settings(settings: _T, changes: Mapping[str, str], fixed_values: Mapping[str, str]) -> dict[str, object]:
    """Return the new values by field of a change over the wire; only fields declared mutable may be changed.

    A setting in ``config_black_list`` may not be changed. A key of ``fixed_values`` (see ``load_settings``) may only be
    set to its fixed value. Raises OptionError.
    """
    by_name = _by_name(type(settings))
    black_list = {name.strip() for name in getattr(settings, "config_black_list", "").split(";")}
    values: dict[str, object] = {}
    for key, text in changes.items():
        if key in black_list or (key in by_name and java_name(by_name[key]) in black_list):
            raise OptionError(f"{key} is in configBlackList")
        if key in fixed_values:
            check_fixed_value(key, text, fixed_values[key])
            continue
        if key not in by_name or not by_name[key].metadata["mutable"]:
            raise OptionError(f"{key} cannot be changed while it runs")
        values[by_name[key].name] = _convert(by_name[key], text, key)
    return values


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of all servers. The first two and those of TLS are Java's; see ``ServerLimits`` for the other limits.

    Attributes:
        server_channel_max_idle_time_seconds: idle time after which a connection is closed, s.
        write_buffer_high_water_mark: requests of a client wait while it has not read so many bytes of responses.
        max_body_bytes: maximum body of a request without messages or a list: 800 properties of a config file.
        max_list_bytes: maximum body of a request with a list of subscriptions, queues or topics: some 4,000 of them.
        max_list_objects: maximum number of JSON objects in such a body; an object of three bytes takes 150 of memory.
        config_black_list: settings that requests cannot change, separated by semicolons.
        remote_admin_enable: accept unsigned requests that change the server from other machines. Java's servers
            always do.
        tls_server_mode: accepted connections: ``disabled`` for plain ones, ``permissive`` for both on one port,
            ``enforcing`` for TLS.
        tls_config_file: Java properties file that names the certificates; see ``read_tls_file``.
        tls_enable: use TLS for the server's own connections to other servers; an enforcing server always does.
    """

    server_channel_max_idle_time_seconds: int = setting(120, low=1)
    write_buffer_high_water_mark: int = setting(_DEFAULTS.write_high_water_bytes)
    max_frame_bytes: int = setting(_DEFAULTS.max_frame_bytes, low=1024, high=MAX_FRAME_BYTES)
    max_header_bytes: int = setting(_DEFAULTS.max_header_bytes, low=1024, high=MAX_FRAME_BYTES)
    max_body_bytes: int = setting(64 << 10, low=1024)
    max_list_bytes: int = setting(1 << 20, low=1024)
    max_list_objects: int = setting(8192, low=1)
    max_connections: int = setting(_DEFAULTS.max_connections, low=1)
    max_waiting_bytes: int = setting(_DEFAULTS.max_waiting_bytes, low=1024)
    max_held_bytes: int = setting(_DEFAULTS.max_held_bytes, low=1024)

    remote_admin_enable: bool = setting(False)
    config_black_list: str = setting("")

    tls_server_mode: str = setting("disabled", java="tls.server.mode")
    tls_config_file: str = setting("", java="tls.config.file")
    tls_enable: bool = setting(False, java="tls.enable")

    @property
    def tls(self) -> TlsSettings:
        """Return the settings of TLS."""
        return TlsSettings(self.tls_server_mode, self.tls_config_file, self.tls_enable)

    @property
    def limits(self) -> ServerLimits:
        """Return the limits for clients."""
        return ServerLimits(
            max_frame_bytes=self.max_frame_bytes,
            max_header_bytes=self.max_header_bytes,
            max_connections=self.max_connections,
            max_held_bytes=self.max_held_bytes,
            max_waiting_bytes=self.max_waiting_bytes,
            idle_timeout_s=self.server_channel_max_idle_time_seconds,
            write_high_water_bytes=self.write_buffer_high_water_mark or _DEFAULTS.write_high_water_bytes,
        )

    def limit_bodies(
        self, handlers: Mapping[int, Handler], *, with_lists: Container[int], with_messages: Container[int] = ()
    ) -> dict[int, Handler]:
        """Wrap handlers to refuse too large bodies; the store limits bodies with messages itself."""
        return {
            code: handler if code in with_messages else self._limit_body(handler, has_list=code in with_lists)
            for code, handler in handlers.items()
        }

    def _limit_body(self, handler: Handler, *, has_list: bool) -> Handler:
        max_bytes, setting_name = (
            (self.max_list_bytes, "maxListBytes") if has_list else (self.max_body_bytes, "maxBodyBytes")
        )

        def handle(request: RemotingCommand, connection: Connection) -> HandlerResponse:
            size = len(request.body)
            if size > max_bytes:
                raise _refusal("B", size, max_bytes, setting_name)
            objects = bytes(request.body).count(b"{") if has_list else 0
            if objects > self.max_list_objects:
                raise _refusal("objects", objects, self.max_list_objects, "maxListObjects")
            return handler(request, connection)

        return handle


def _refusal(unit: str, actual: int, limit: int, setting_name: str) -> ResponseError:
    remark = f"a body of {actual} {unit}, which is more than {setting_name}={limit}"
    return ResponseError(ResponseCode.INVALID_PARAMETER, remark)


def local_only(handlers: Mapping[int, Handler], codes: Container[int]) -> dict[int, Handler]:
    """Wrap the handlers of some codes to refuse (NO_PERMISSION) requests from other machines.

    For requests that change a server to which clients do not sign requests. Java's servers accept them from everywhere.
    """
    return {code: _refuse_remote(handler) if code in codes else handler for code, handler in handlers.items()}


def _refuse_remote(handler: Handler) -> Handler:
    def handle(request: RemotingCommand, connection: Connection) -> HandlerResponse:
        if not is_local(connection):
            raise ResponseError(
                ResponseCode.NO_PERMISSION,
                f"request {request.code} changes this server and is unsigned: accepted only from the server's own "
                f"machine, not from {connection.remote_address}. Set remoteAdminEnable=true, or "
                "authenticationEnabled=true on a broker",
            )
        return handler(request, connection)

    return handle


def is_local(connection: Connection) -> bool:
    """Return True if the peer is on this machine: at a loopback address, or at the connection's local address."""
    remote, local = address_host(connection.remote_address), address_host(connection.local_address)
    if remote == local:
        return True
    try:
        address = ip_address(remote)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def address_host(address: str) -> str:
    """Return the host of ``host:port``, without brackets."""
    return address.rpartition(":")[0].strip("[]")
