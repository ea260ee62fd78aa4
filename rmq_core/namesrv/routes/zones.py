"""Zone-aware routes: only the brokers of a client's zone.

Source: ``ZoneRouteRPCHook``.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from rmq_core.remoting.bodies import TopicRouteData
from rmq_core.remoting.codes import MASTER_ID

ZONE_NAME: Final = "__ZONE_NAME"  # fields of a request
ZONE_MODE: Final = "__ZONE_MODE"


def wanted_zone(fields: Mapping[str, str]) -> str | None:
    """Return the zone that a request for a route wants, if any."""
    zone = fields.get(ZONE_NAME, "")
    return zone if zone.strip() and fields.get(ZONE_MODE, "").lower() == "true" else None


def filter_by_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """Filter a route to the brokers of a zone, and to all brokers without a master."""
    brokers = [
        broker
        for broker in route.broker_datas
        if MASTER_ID not in broker.broker_addrs or (broker.zone_name or "").lower() == zone.lower()
    ]
    removed = {broker.broker_name: broker for broker in route.broker_datas if broker not in brokers}
    addresses = {address for broker in removed.values() for address in broker.broker_addrs.values()}
    return msgspec.structs.replace(
        route,
        broker_datas=brokers,
        queue_datas=[queue for queue in route.queue_datas if queue.broker_name not in removed],
        filter_server_table={
            address: servers for address, servers in route.filter_server_table.items() if address not in addresses
        },
    )
