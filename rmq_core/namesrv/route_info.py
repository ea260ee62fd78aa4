"""The name server's state: registered brokers and the routes of their topics, without clock or network.

Source: ``RouteInfoManager``, ``ZoneRouteRPCHook``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from rmq_core.namesrv.broker_groups import BrokerGroup, MinBrokerIdNotice
from rmq_core.remoting.bodies.configs import DataVersion, TopicQueueMapping
from rmq_core.remoting.bodies.routes import (
    BrokerMemberGroup,
    ClusterInfo,
    QueueData,
    RegisterBrokerBody,
    TopicList,
    TopicRouteData,
)
from rmq_core.remoting.codes import MASTER_ID
from rmq_core.remoting.namesrv_requests import BrokerId, RegisterBroker

DEFAULT_EXPIRY_MS: Final = 120_000
PERM_READ, PERM_WRITE = 4, 2
UNIT_FLAG, UNIT_SUB_FLAG = 1, 2
_GROUP_TOPIC_PREFIX: Final = (
    "rmq_sys_SYNC_BROKER_MEMBER_"  # topics through which the brokers of a group find each other
)
ZONE_NAME: Final = "__ZONE_NAME"  # field names of requests
ZONE_MODE: Final = "__ZONE_MODE"


@dataclass(slots=True)
class BrokerLiveInfo:
    """Last registration of a broker process, with its heartbeat."""

    broker: BrokerId
    updated_ms: int
    expiry_ms: int
    data_version: DataVersion
    connections: dict[object, None]  # open ones that registered the broker, in order
    ha_server_addr: str


@dataclass(frozen=True, slots=True)
class RegisterBrokerResult:
    """Result of a broker's registration.

    Attributes:
        ha_server_addr: replication address of a slave's master; None for a master, or if the group has none.
        master_addr: address of a slave's master; None likewise.
        notice: notice for the group if the broker has the new minimum id; else None.
    """

    ha_server_addr: str | None = None
    master_addr: str | None = None
    notice: MinBrokerIdNotice | None = None


@dataclass(frozen=True, slots=True)
class RouteOptions:
    """Settings of ``NamesrvConfig`` that routes depend on."""

    support_acting_master: bool = False
    delete_topic_with_broker_registration: bool = False


@dataclass(slots=True)
class RouteInfo:
    """Registered brokers and topic routes; each method leaves them consistent. Times, ms since 1970, are arguments."""

    options: RouteOptions = field(default_factory=RouteOptions)
    _topics: dict[str, dict[str, QueueData]] = field(default_factory=dict)  # by topic and broker name
    _groups: dict[str, BrokerGroup] = field(default_factory=dict)  # by broker name
    _clusters: dict[str, dict[str, None]] = field(default_factory=dict)  # broker names in order
    _live_brokers: dict[tuple[str, str], BrokerLiveInfo] = field(default_factory=dict)  # by cluster and address
    _filter_servers: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    _mappings: dict[str, dict[str, TopicQueueMapping]] = field(default_factory=dict)  # static topics

    # Brokers.

    def register(
        self, broker: RegisterBroker, body: RegisterBrokerBody, *, zone: str | None, connection: object, now_ms: int
    ) -> RegisterBrokerResult | None:
        """Register a broker; brokers repeat their registration every 30 s.

        Args:
            body: all topics of the broker, or the changed ones.
            connection: of the request; after the last one has ended, the broker is unregistered.

        Returns:
            None if the registration is refused: a first registration with exactly one topic. Such a request reports
            a changed topic, and the name server does not know the others.
        """
        name, cluster, address, broker_id = (
            broker.broker_name, broker.cluster_name, broker.broker_addr, broker.broker_id,
        )  # fmt: skip
        topics = body.topic_config_serialize_wrapper
        group = self._groups.get(name)
        current_address = None if group is None else group.addresses.get(broker_id)
        if current_address is not None and current_address != address:
            current_version = self.data_version(cluster, current_address)
            if current_version is not None and current_version.state_version > topics.data_version.state_version:
                self._live_brokers.pop((cluster, address), None)
                return RegisterBrokerResult()
        if current_address is None and len(topics.topic_config_table) == 1:
            return None
        if group is None:
            group = self._groups[name] = BrokerGroup(name, cluster)
        self._clusters.setdefault(cluster, {})[name] = None
        has_new_min_id = group.join(broker_id, address, acting_master=broker.enable_acting_master, zone=zone)
        is_prime_slave = broker.enable_acting_master is not None and group.is_prime_slave(broker_id)
        if broker_id == MASTER_ID or is_prime_slave:
            self._register_topics(
                broker, body, is_first=current_address is None, read_only=is_prime_slave and group.acting_master
            )
        expiry_ms = DEFAULT_EXPIRY_MS if broker.heartbeat_timeout_millis is None else broker.heartbeat_timeout_millis
        previous = self._live_brokers.get((cluster, address))
        connections = {} if previous is None else previous.connections
        connections.pop(connection, None)
        connections[connection] = None
        self._live_brokers[cluster, address] = BrokerLiveInfo(
            BrokerId(broker_name=name, broker_addr=address, cluster_name=cluster, broker_id=broker_id),
            now_ms,
            expiry_ms,
            topics.data_version,
            connections,
            broker.ha_server_addr,
        )
        if body.filter_server_list:
            self._filter_servers[cluster, address] = body.filter_server_list
        else:
            self._filter_servers.pop((cluster, address), None)
        notice = group.notice(ha_broker_addr=broker.ha_server_addr) if has_new_min_id else None
        master_address = group.addresses.get(MASTER_ID)
        live_master = None if master_address is None else self._live_brokers.get((cluster, master_address))
        if broker_id == MASTER_ID or live_master is None:
            return RegisterBrokerResult(notice=notice)
        return RegisterBrokerResult(live_master.ha_server_addr, master_address, notice)

    def _register_topics(
        self, broker: RegisterBroker, body: RegisterBrokerBody, *, is_first: bool, read_only: bool
    ) -> None:
        """Register the topics of a master, or of the slave that acts as master."""
        name, topics = broker.broker_name, body.topic_config_serialize_wrapper
        mappings = topics.topic_queue_mapping_info_map
        if self.options.delete_topic_with_broker_registration and not mappings:
            for topic in [topic for topic in self._topics if topic not in topics.topic_config_table]:
                self._remove_queues(topic, [name])
        changed = is_first or self.is_changed(broker.cluster_name, broker.broker_addr, topics.data_version)
        for key, config in topics.topic_config_table.items():
            topic = config.topic_name or key
            if changed or name not in self._topics.get(topic, {}):
                self._topics.setdefault(topic, {})[name] = QueueData(
                    broker_name=name,
                    perm=config.perm & ~PERM_WRITE if read_only else config.perm,
                    read_queue_nums=config.read_queue_nums,
                    topic_sys_flag=config.topic_sys_flag,
                    write_queue_nums=config.write_queue_nums,
                )
        if changed:
            for topic, mapping in mappings.items():
                self._mappings.setdefault(topic, {})[mapping.bname or name] = mapping

    def unregister(self, brokers: Iterable[BrokerId]) -> list[MinBrokerIdNotice]:
        """Unregister brokers, and topics without brokers; return the notices to send to their groups."""
        notices = []
        deleted_names, remaining_names = set(), set()
        for broker in brokers:
            name = broker.broker_name
            self._live_brokers.pop((broker.cluster_name, broker.broker_addr), None)
            self._filter_servers.pop((broker.cluster_name, broker.broker_addr), None)
            group = self._groups.get(name)
            if group is None:
                continue
            had_min_id = group.leave(broker.broker_id, broker.broker_addr)
            if group.addresses:
                remaining_names.add(name)
                if had_min_id and group.acting_master:
                    notices.append(group.notice(offline_broker_addr=broker.broker_addr))
                continue
            del self._groups[name]
            deleted_names.add(name)
            names = self._clusters.get(broker.cluster_name, {})
            names.pop(name, None)
            if not names:
                self._clusters.pop(broker.cluster_name, None)
        for topic in list(self._topics) if deleted_names else ():
            self._remove_queues(topic, deleted_names)
        for name in remaining_names - deleted_names:
            if self._groups[name].acting_master and not self._groups[name].has_master:
                self.set_write_perm(name, writable=False)
        return notices

    def disconnect(self, connection: object) -> list[BrokerId]:
        """Remove an ended connection; return the brokers that had no other one."""
        registered = [live for live in self._live_brokers.values() if connection in live.connections]
        for live in registered:
            del live.connections[connection]
        return [live.broker for live in registered if not live.connections]

    def may_unregister(self, connection: object, address: str) -> bool:
        """Return True if no other connection has registered the broker of an address.

        A broker that has connected again can unregister after its former connection has ended. Another client cannot
        unregister a connected broker.
        """
        registered = [live for live in self._live_brokers.values() if live.broker.broker_addr == address]
        return all(live.connections.keys() <= {connection} for live in registered)

    def expired_brokers(self, now_ms: int) -> list[tuple[BrokerId, list[object]]]:
        """List the brokers whose heartbeats have expired, with their connections."""
        return [
            (live.broker, list(live.connections))
            for live in self._live_brokers.values()
            if live.updated_ms + live.expiry_ms < now_ms
        ]

    def touch(self, cluster: str, address: str, now_ms: int) -> None:
        """Record the time of a broker's heartbeat."""
        live = self._live_brokers.get((cluster, address))
        if live is not None:
            live.updated_ms = now_ms

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """Return the data version of a broker's last registration; None for an unknown broker."""
        live = self._live_brokers.get((cluster, address))
        return None if live is None else live.data_version

    def is_changed(self, cluster: str, address: str, version: DataVersion) -> bool:
        """Return True if a data version differs from that of the broker's last registration."""
        return self.data_version(cluster, address) != version

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers by name, and broker names by cluster."""
        return ClusterInfo(
            broker_addr_table={name: group.data() for name, group in self._groups.items()},
            cluster_addr_table={cluster: list(names) for cluster, names in self._clusters.items()},
        )

    def member_group(self, cluster: str, name: str) -> BrokerMemberGroup:
        """Return the master and slaves of a broker name."""
        group = self._groups.get(name)
        return BrokerMemberGroup(broker_addrs=dict(group.addresses) if group else {}, broker_name=name, cluster=cluster)

    def set_write_perm(self, name: str, writable: bool) -> int:
        """Allow or forbid writes to a broker's topics until its next registration; return the number of topics."""
        tables = [queues for queues in self._topics.values() if name in queues]
        for queues in tables:
            perm = PERM_READ | PERM_WRITE if writable else queues[name].perm & ~PERM_WRITE
            queues[name] = msgspec.structs.replace(queues[name], perm=perm)
        return len(tables)

    # Topics.

    def register_topic(self, topic: str, queues: list[QueueData]) -> None:
        """Register a topic's queues, unless a broker of the queues is not registered."""
        if queues and all(queue.broker_name in self._groups for queue in queues):
            self._topics.setdefault(topic, {}).update({queue.broker_name: queue for queue in queues})

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic, or its queues in a cluster."""
        if cluster:
            self._remove_queues(topic, self._clusters.get(cluster, {}))
        else:
            self._topics.pop(topic, None)

    def _remove_queues(self, topic: str, names: Iterable[str]) -> None:
        queues = self._topics.get(topic, {})
        for name in names:
            queues.pop(name, None)
        if not queues:
            self._topics.pop(topic, None)

    def route(self, topic: str) -> TopicRouteData | None:
        """Build the route of a topic; None without a registered broker."""
        queues = self._topics.get(topic, {})
        groups = [self._groups[name] for name in queues if name in self._groups]
        if not groups:
            return None
        stands_in = self.options.support_acting_master and not topic.startswith(_GROUP_TOPIC_PREFIX)
        filter_servers = {
            address: servers
            for group in groups
            for address in group.addresses.values()
            if (servers := self._filter_servers.get((group.cluster, address)))
        }
        return TopicRouteData(
            broker_datas=[
                group.data(stands_in=stands_in and not queues[group.name].perm & PERM_WRITE) for group in groups
            ],
            filter_server_table=filter_servers,
            queue_datas=list(queues.values()),
            topic_queue_mapping_by_broker=self._mappings.get(topic, msgspec.UNSET),
        )

    def topics(self) -> TopicList:
        """List all topics."""
        return TopicList(topic_list=list(self._topics))

    def topics_of_cluster(self, cluster: str) -> TopicList:
        """List the topics of a cluster's brokers."""
        names = self._clusters.get(cluster, {})
        return TopicList(topic_list=[topic for topic, queues in self._topics.items() if queues.keys() & names.keys()])

    def system_topics(self) -> TopicList:
        """Return the names of clusters and brokers, which are system topics, and the address of one broker."""
        names = [name for cluster, brokers in self._clusters.items() for name in (cluster, *brokers)]
        for group in self._groups.values():
            return TopicList(broker_addr=next(iter(group.addresses.values())), topic_list=names)
        return TopicList(topic_list=names)

    def topics_by_flag(self, with_flags: int, without_flags: int = 0) -> TopicList:
        """Return the topics with and without unit flags, by the flags of each topic's first broker."""
        flags = {topic: next(iter(queues.values())).topic_sys_flag for topic, queues in self._topics.items()}
        mask = with_flags | without_flags
        return TopicList(topic_list=[topic for topic, flag in flags.items() if flag & mask == with_flags])


def requested_zone(fields: Mapping[str, str]) -> str | None:
    """Return the requested zone from the fields of a request; None without one."""
    zone = fields.get(ZONE_NAME, "")
    return zone if zone.strip() and fields.get(ZONE_MODE, "").lower() == "true" else None


def filter_by_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """Reduce a route to the brokers of a zone, and to brokers without a master."""
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
