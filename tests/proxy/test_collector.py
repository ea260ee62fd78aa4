"""Where clients are told to send their metrics."""

import pytest

from rmq_core.proxy.sessions import Collector, merge_settings
from rmq_core.proxy.wire import v2
from rmq_formats.errors import OptionError

HERE = v2.Endpoints(scheme=v2.IPv4, addresses=[v2.Address(host="10.0.0.1", port=8081)])


@pytest.mark.parametrize(
    ("mode", "address", "wanted"),
    [
        ("off", "", v2.Metric(on=False)),
        (
            "ON",
            "10.0.0.2:4317",
            v2.Metric(
                on=True, endpoints=v2.Endpoints(scheme=v2.IPv4, addresses=[v2.Address(host="10.0.0.2", port=4317)])
            ),
        ),
        (
            "on",
            "[::1]:4317",
            v2.Metric(on=True, endpoints=v2.Endpoints(scheme=v2.IPv6, addresses=[v2.Address(host="::1", port=4317)])),
        ),
        (
            "on",
            "otel:4317",
            v2.Metric(
                on=True, endpoints=v2.Endpoints(scheme=v2.DOMAIN_NAME, addresses=[v2.Address(host="otel", port=4317)])
            ),
        ),
        ("proxy", "", v2.Metric(on=True, endpoints=HERE)),
    ],
)
def test_clients_are_told_where_metrics_go(mode: str, address: str, wanted: object) -> None:
    settings = v2.Settings(access_point=HERE, publishing=v2.Publishing(), metric=v2.Metric(on=True))
    assert merge_settings(settings, None, Collector.parse(mode, address)).metric == wanted


@pytest.mark.parametrize(
    ("mode", "address"), [("maybe", ""), ("on", ""), ("on", "host"), ("on", "host:0"), ("on", "host:x"), ("on", ":1")]
)
def test_what_cannot_be_is_refused(mode: str, address: str) -> None:
    with pytest.raises(OptionError):
        Collector.parse(mode, address)
