"""Settings that all servers have: what their clients may take."""

from dataclasses import dataclass

from rmq_core.remoting.frames import MAX_FRAME_BYTES
from rmq_core.remoting.server import ServerLimits
from rmq_core.remoting.settings import setting

_DEFAULTS = ServerLimits()


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of a server that its own add to. The first two are Java's.

    Attributes:
        server_channel_max_idle_time_seconds: idle connections end after that, s.
        write_buffer_high_water_mark: a client that does not read is not read from above that, bytes.
        max_frame_bytes: a larger frame ends its connection.
        max_connections: more are refused.
        max_held_bytes: of unfinished frames, all connections together.
    """

    server_channel_max_idle_time_seconds: int = setting(120, low=1)
    write_buffer_high_water_mark: int = setting(_DEFAULTS.write_high_water_bytes)
    max_frame_bytes: int = setting(_DEFAULTS.max_frame_bytes, low=1024, high=MAX_FRAME_BYTES)
    max_connections: int = setting(_DEFAULTS.max_connections, low=1)
    max_held_bytes: int = setting(_DEFAULTS.max_held_bytes, low=1024)

    @property
    def limits(self) -> ServerLimits:
        """What clients may take."""
        return ServerLimits(
            max_frame_bytes=self.max_frame_bytes,
            max_connections=self.max_connections,
            max_held_bytes=self.max_held_bytes,
            idle_timeout_s=self.server_channel_max_idle_time_seconds,
            write_high_water_bytes=self.write_buffer_high_water_mark or _DEFAULTS.write_high_water_bytes,
        )
