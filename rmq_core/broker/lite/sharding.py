"""Sharding of lite topics: the broker of a child, by the same rule as in producers.

Source: ``LiteShardingImpl``, Guava's ``Hashing#consistentHash``, ``MQClientInstance#topicRouteData2TopicPublishInfo``.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names
from rmq_core.remoting.bodies.routes import TopicRouteData
from rmq_core.remoting.codes import MASTER_ID
from rmq_formats.codecs.hashing import consistent_hash, java_string_hash

_ROUTE_MS: Final = 20_000
_MOST_ROUTES: Final = 1000

Route = Callable[[str], Awaitable[TopicRouteData | None]]


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
        if len(self._brokers) >= _MOST_ROUTES:
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
