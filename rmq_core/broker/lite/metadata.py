"""Attributes of groups and topics about lite topics, and the broker of each child, by the same rule as in producers.

Source: ``LiteMetadataUtil``, ``LiteShardingImpl``, Guava's ``Hashing#consistentHash``,
``MQClientInstance#topicRouteData2TopicPublishInfo``.
"""

from collections.abc import Sequence
from typing import Final

from rmq_core.broker.pop.assignment import Route
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import attributes, names
from rmq_core.broker.tables.topics import is_lite
from rmq_core.remoting.bodies.pop import LITE_PARENT
from rmq_core.remoting.bodies.routes import TopicRouteData
from rmq_core.remoting.codes import MASTER_ID
from rmq_formats.codecs.hashing import consistent_hash, java_string_hash
from rmq_formats.codecs.properties import parse_decimal

_MAX_EVENTS: Final = 100_000  # of a client: capacity of the original's queue
_ROUTE_MS: Final = 20_000
_MAX_ROUTES: Final = 1000


class LiteGroups:
    """Reader of the current attributes of groups and topics."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def _attribute(self, group: str, name: str) -> str | None:
        config = self._state.groups.table.get(group)
        return None if config is None else config.attributes.get(name)

    def parent_of(self, group: str) -> str | None:
        """Return the topic that a group is bound to; None for a group without lite topics."""
        return self._attribute(group, LITE_PARENT)

    def is_exclusive(self, group: str) -> bool:
        """Return whether a child has only one client of the group: the last subscriber."""
        return self._attribute(group, attributes.LITE_MODEL) == attributes.LITE_EXCLUSIVE

    def is_wildcard(self, group: str) -> bool:
        """Return whether each client of the group gets messages of all children."""
        return self._attribute(group, attributes.LITE_WILDCARD) is not None

    def resets_on_eviction(self, group: str) -> bool:
        """Return whether a client that evicts another from a child begins at the child's first message."""
        return (self._attribute(group, attributes.LITE_RESET_ON_EVICTION) or "").lower() == "true"

    def resets_on_unsubscribe(self, group: str) -> bool:
        """Return whether the group restarts at a child's first message after a client has unsubscribed."""
        return (self._attribute(group, attributes.LITE_RESET_ON_UNSUBSCRIBE) or "").lower() == "true"

    def max_events(self, group: str) -> int:
        most = parse_decimal(self._attribute(group, attributes.LITE_MAX_EVENTS), 0, 19)
        return min(most or self._state.config.max_client_event_count, _MAX_EVENTS)

    def by_parent(self) -> dict[str, list[str]]:
        groups_by_parent: dict[str, list[str]] = {}
        for name, group in self._state.groups.table.items():
            parent = group.attributes.get(LITE_PARENT)
            if parent is not None:
                groups_by_parent.setdefault(parent, []).append(name)
        return groups_by_parent

    def ttl_minutes(self) -> dict[str, int]:
        """Map parents to the idle minutes after which a child is deleted; -1 for never."""
        table = self._state.topics.table
        return {name: self.ttl_minutes_of(name) for name, topic in table.items() if is_lite(topic)}

    def ttl_minutes_of(self, parent_of: str) -> int:
        """Return the idle minutes after which a child of a parent is deleted; -1 for never."""
        return parse_decimal(self._state.topics.table[parent_of].attributes.get(attributes.LITE_EXPIRATION), -1)


class LiteSharding:
    """Cache of the brokers of parents."""

    def __init__(self, state: BrokerState, route: Route) -> None:
        """Begin with an empty cache; ``route`` fetches a topic's route from the name servers."""
        self._state = state
        self._route = route
        self._brokers: dict[str, tuple[int, Sequence[str]]] = {}  # expiry time; a broker for each write queue

    async def brokers_of(self, parent: str) -> Sequence[str]:
        """Return the broker of each write queue of a topic, in the order of producers; empty without a route."""
        now_ms = self._state.steady_ms()
        until_ms, brokers = self._brokers.get(parent, (0, ()))
        if now_ms < until_ms:
            return brokers
        route = await self._route(parent)
        brokers = () if route is None else _list_writable_queues(route)
        if len(self._brokers) >= _MAX_ROUTES:
            self._brokers.clear()
        self._brokers[parent] = now_ms + _ROUTE_MS, brokers
        return brokers

    def is_here(self, child: str, brokers: Sequence[str]) -> bool:
        """Return whether a child belongs to this broker, by the brokers of its parent's write queues."""
        if not brokers:
            return True
        return brokers[consistent_hash(java_string_hash(child), len(brokers))] == self._state.config.broker_name


def _list_writable_queues(route: TopicRouteData) -> list[str]:
    with_master = {broker.broker_name for broker in route.broker_datas if MASTER_ID in broker.broker_addrs}
    return [
        data.broker_name
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        if data.perm & names.PERM_WRITE and data.broker_name in with_master
        for _ in range(data.write_queue_nums)
    ]
