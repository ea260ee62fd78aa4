"""Settings that all servers share: the limits for their clients."""

from collections.abc import Container, Mapping
from dataclasses import dataclass

from rmq_core.remoting.access.server_tls import TlsSettings
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.connection import Connection, Handler, HandlerAnswer
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.frames import MAX_FRAME_BYTES
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.server import ServerLimits
from rmq_core.remoting.settings import setting

_DEFAULTS = ServerLimits()


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Base of a server's settings. The first two and those of TLS are Java's.

    Attributes:
        server_channel_max_idle_time_seconds: idle connections end after that, s.
        write_buffer_high_water_mark: above that many unread bytes of answers, no requests of a client are read.
        max_frame_bytes: a larger frame ends its connection.
        max_header_bytes: likewise a larger header.
        max_body_bytes: of a request that brings neither messages nor a list: 800 properties of a config file.
        max_list_bytes: of a request with a list, as of subscriptions, queues or topics: some 4,000 of them.
        max_list_objects: JSON objects in such a body; the shortest ones have three bytes, and take fifty times as much
            memory.
        max_connections: more are refused.
        max_waiting_bytes: no more requests of a client are read while those whose answers are awaited take more.
        max_held_bytes: of unfinished frames, requests that wait, long polls and answers that are not yet sent, all
            connections together: above it, the connection that holds the most is closed.
        config_black_list: settings that are not changed over the wire, separated by semicolons.
        remote_admin_enable: whether requests that change the server are taken from other machines, too, where nobody
            has to sign them. A setting of ours: the original takes them from everywhere.
        tls_server_mode: which connections are accepted: ``disabled``, plain ones; ``permissive``, both on one port;
            ``enforcing``, those with TLS.
        tls_config_file: a Java properties file that names the certificates, see ``read_tls_file``.
        tls_enable: whether the server's own connections to others speak TLS; an enforcing server's do anyway.
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
        """Wrap handlers to refuse bodies over their limits.

        Args:
            handlers: by request code.
            with_lists: codes of requests that bring lists.
            with_messages: codes of requests that bring messages: the store has a limit for these.
        """
        return {
            code: handler if code in with_messages else self._limit_body(handler, has_list=code in with_lists)
            for code, handler in handlers.items()
        }

    def _limit_body(self, handler: Handler, *, has_list: bool) -> Handler:
        most_bytes, setting_name = (
            (self.max_list_bytes, "maxListBytes") if has_list else (self.max_body_bytes, "maxBodyBytes")
        )

        def handle(request: RemotingCommand, connection: Connection) -> HandlerAnswer:
            size = len(request.body)
            if size > most_bytes:
                raise _refusal("B", size, most_bytes, setting_name)
            objects = bytes(request.body).count(b"{") if has_list else 0
            if objects > self.max_list_objects:
                raise _refusal("objects", objects, self.max_list_objects, "maxListObjects")
            return handler(request, connection)

        return handle


def _refusal(unit: str, actual: int, most: int, setting_name: str) -> ResponseError:
    remark = f"a body of {actual} {unit}, which is more than {setting_name}={most}"
    return ResponseError(ResponseCode.INVALID_PARAMETER, remark)
