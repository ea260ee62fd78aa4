"""Broker groups: a master (broker id 0) and its slaves, under one broker name.

Source: ``BrokerData``, ``RouteInfoManager#notifyMinBrokerIdChanged``.
"""

from dataclasses import dataclass, field

from msgspec import UNSET

from rmq_core.remoting.bodies.routes import BrokerData
from rmq_core.remoting.codes import MASTER_ID
from rmq_core.remoting.namesrv_requests import MinBrokerIdChange


@dataclass(frozen=True, slots=True)
class MinBrokerIdNotice:
    """Notice to brokers of the minimum broker id in their group (request code 905), which acts as a missing master.

    Attributes:
        recipients: addresses of the brokers to notify.
        change: fields of the request; ``offline_broker_addr`` is None if a broker has joined, ``ha_broker_addr`` if a
            broker has left.
    """

    recipients: tuple[str, ...]
    change: MinBrokerIdChange


@dataclass(slots=True)
class BrokerGroup:
    """Brokers of one broker name; with ``acting_master`` a slave may act as the missing master."""

    name: str
    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    acting_master: bool = False
    zone: str | None = None

    def join(self, broker_id: int, address: str, *, acting_master: bool | None, zone: str | None) -> bool:
        """Add a broker; return True if its id is the new minimum of a group that had brokers.

        An address has one id: a slave that became master loses its former id.
        """
        self.acting_master = bool(acting_master)
        self.zone = zone
        has_new_min_id = bool(self.addresses) and broker_id < min(self.addresses)
        self.addresses = {
            other_id: other for other_id, other in self.addresses.items() if other != address or other_id == broker_id
        } | {broker_id: address}
        return has_new_min_id

    def leave(self, broker_id: int, address: str) -> bool:
        """Remove a broker; return True if the broker had the minimum id."""
        had_min_id = self.addresses.get(broker_id) == address and broker_id == min(self.addresses)
        self.addresses = {other_id: other for other_id, other in self.addresses.items() if other != address}
        return had_min_id

    @property
    def has_master(self) -> bool:
        """Return True if the master is registered."""
        return MASTER_ID in self.addresses

    def is_prime_slave(self, broker_id: int) -> bool:
        """Return True if a slave has the minimum id, so that it acts as master."""
        return broker_id != MASTER_ID and broker_id == min(self.addresses)

    def notice(self, *, offline_broker_addr: str | None = None, ha_broker_addr: str | None = None) -> MinBrokerIdNotice:
        """Build the notice of a changed minimum id, to all brokers or to all but the new broker."""
        min_id = min(self.addresses)
        to_all = offline_broker_addr is not None or len(self.addresses) == 1
        recipients = tuple(address for broker_id, address in self.addresses.items() if to_all or broker_id != min_id)
        change = MinBrokerIdChange(
            min_broker_id=min_id,
            min_broker_addr=self.addresses[min_id],
            offline_broker_addr=offline_broker_addr,
            ha_broker_addr=ha_broker_addr,
        )
        return MinBrokerIdNotice(recipients, change)

    def data(self, *, stands_in: bool = False) -> BrokerData:
        """Build the broker data of a route; ``stands_in`` shows the acting master as the master."""
        addresses = dict(self.addresses)
        if stands_in and addresses and not self.has_master and self.acting_master:
            addresses = {MASTER_ID: addresses.pop(min(addresses)), **addresses}
        return BrokerData(
            broker_addrs=addresses,
            broker_name=self.name,
            cluster=self.cluster,
            enable_acting_master=self.acting_master,
            zone_name=UNSET if self.zone is None else self.zone,
        )
