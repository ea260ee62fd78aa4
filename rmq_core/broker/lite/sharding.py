"""Which broker of a cluster has the messages of a lite topic: producers and brokers find the same.

Source: ``LiteShardingImpl``, Guava's ``Hashing#consistentHash``, ``MQClientInstance#topicRouteData2TopicPublishInfo``.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names
from rmq_core.remoting.bodies import TopicRouteData
from rmq_core.remoting.codes import MASTER_ID
from rmq_formats.codecs.hashing import consistent_hash, java_string_hash

_ROUTE_MS: Final = 20_000
_MOST_ROUTES: Final = 1000

Route = Callable[[str], Awaitable[TopicRouteData | None]]


class Sharding:
    """Knows the queues of parents at all brokers."""

    def __init__(self, state: BrokerState, route: Route) -> None:
        """Prepare; ``route`` asks the name servers for a topic's route."""
        self._state = state
        self._route = route
        self._known: dict[str, tuple[int, Sequence[str]]] = {}  # until when it counts; a broker for each write queue

    async def brokers_of(self, parent: str) -> Sequence[str]:
        """The broker of each write queue of a topic, in the order of producers; empty where no name server knows it."""
        now_ms = self._state.steady_ms()
        until_ms, brokers = self._known.get(parent, (0, ()))
        if now_ms < until_ms:
            return brokers
        route = await self._route(parent)
        brokers = () if route is None else _writable(route)
        if len(self._known) >= _MOST_ROUTES:
            self._known.clear()
        self._known[parent] = now_ms + _ROUTE_MS, brokers
        return brokers

    def is_here(self, child: str, brokers: Sequence[str]) -> bool:
        """Whether this broker is to have a child's messages, where its parent has queues at these."""
        if not brokers:
            return True
        return brokers[consistent_hash(java_string_hash(child), len(brokers))] == self._state.config.broker_name


def _writable(route: TopicRouteData) -> list[str]:
    with_master = {one.broker_name for one in route.broker_datas if MASTER_ID in one.broker_addrs}
    return [
        data.broker_name
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        if data.perm & names.PERM_WRITE and data.broker_name in with_master
        for _ in range(data.write_queue_nums)
    ]
