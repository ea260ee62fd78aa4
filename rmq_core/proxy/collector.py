"""Address of clients' metrics, which the proxy announces in their settings; the proxy itself accepts no metrics.

Source: ``GrpcClientSettingsManager#mergeMetric``, ``MetricCollectorMode``.
"""

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from typing import Any, Final

from rmq_core.proxy.wire import v2
from rmq_formats.errors import OptionError


class Mode(StrEnum):
    """The original's ``metricCollectorMode``."""

    OFF = "off"
    ON = "on"
    PROXY = "proxy"


@dataclass(frozen=True, slots=True)
class Collector:
    """Metric endpoint that the proxy announces to clients: none, a collector's address, or the proxy's."""

    mode: Mode = Mode.OFF
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, mode: str, address: str) -> "Collector":
        """Parse settings.

        Args:
            mode: ``metricCollectorMode``, in upper or lower case.
            address: ``metricCollectorAddress``, ``host:port``; for the mode ``on`` alone.

        Raises:
            OptionError: there is no such mode, or the address cannot be one.
        """
        if mode.lower() not in list(Mode):
            raise OptionError(f"metricCollectorMode {mode!r} is none of {', '.join(Mode)}")
        parsed = Mode(mode.lower())
        if parsed is not Mode.ON:
            return cls(parsed)
        host, _, port = address.rpartition(":")
        if not (host and port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 1 << 16):
            raise OptionError(f"metricCollectorMode=on needs metricCollectorAddress, a HOST:PORT, not {address!r}")
        return cls(parsed, host.strip("[]"), int(port))

    def metric(self, settings: Any) -> Any:
        """Return the member ``metric`` of a client's settings: whether to measure, and where to send metrics."""
        if self.mode is Mode.ON:
            address = v2.Address(host=self.host, port=self.port)
            return v2.Metric(on=True, endpoints=v2.Endpoints(scheme=_scheme(self.host), addresses=[address]))
        if self.mode is Mode.PROXY:
            return v2.Metric(on=True, endpoints=settings.access_point)
        return v2.Metric(on=False)


NO_COLLECTOR: Final = Collector()


def _scheme(host: str) -> int:
    """Return the scheme of an address; the original calls all addresses IPv4."""
    try:
        version = ip_address(host).version
    except ValueError:
        return int(v2.DOMAIN_NAME)
    return int(v2.IPv4 if version == 4 else v2.IPv6)
