"""Lite topics as a whole: their handlers, and what runs periodically."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from rmq_core.broker.lite.acks import LiteAcks
from rmq_core.broker.lite.admin import LiteAdmin
from rmq_core.broker.lite.control import LiteControl
from rmq_core.broker.lite.dispatcher import Dispatcher
from rmq_core.broker.lite.groups import LiteGroups
from rmq_core.broker.lite.lifecycle import Lifecycle
from rmq_core.broker.lite.looks import LiteLooks
from rmq_core.broker.lite.pops import LitePops
from rmq_core.broker.lite.registry import Registry
from rmq_core.broker.lite.sharding import Route, Sharding
from rmq_core.broker.lite.subscriptions import Subscriptions
from rmq_core.broker.lite.take import LiteTaker
from rmq_core.broker.lite.tasks import Tasks
from rmq_core.broker.lite.waiting import Waiting
from rmq_core.broker.pop.order import ConsumerOrderInfo
from rmq_core.broker.state import BrokerState
from rmq_core.remoting.connection import Connection, Handler

_AT_ONCE: Final = 16  # requests that are answered, and queues that are looked at, in a turn: some 0.5 ms
_TURN_S: Final = 0.5
_MORE_S: Final = 0.002


class Lite:
    """Lite topics at a broker."""

    def __init__(self, state: BrokerState) -> None:
        """Begin without subscriptions: clients tell them again."""
        self._state = state
        self._tasks = Tasks()
        self._registry = Registry()
        self._groups = LiteGroups(state)
        self._orders = ConsumerOrderInfo(None, state.store, state.clock_ms, state.steady_ms)
        self._pops, self._looks = Waiting(state.config.max_held_pulls), Waiting(state.config.max_held_pulls)
        self._dispatcher = Dispatcher(state, self._registry, self._groups, self._orders, self._tasks, self._wake)
        self._subscriptions = Subscriptions(state, self._registry, self._groups, self._orders, self._dispatcher)
        self._lifecycle = Lifecycle(state, self._groups, self._orders, self._subscriptions)
        state.store.on_dispatched(self._dispatcher.arrived, self._registry.is_waiting)

    def _wake(self, client_id: str) -> None:
        self._pops.wake(client_id)
        self._looks.wake(client_id)

    def handlers(self, others: Mapping[int, Handler], route: Route) -> dict[int, Handler]:
        """Handlers by request code.

        Args:
            others: those of a broker without lite topics; requests that name none are theirs.
            route: asks the name servers for a topic's route.
        """
        state, sharding = self._state, Sharding(self._state, route)
        taker = LiteTaker(state, self._orders)
        admin = LiteAdmin(
            state, self._registry, self._groups, self._orders, self._dispatcher, self._lifecycle, sharding
        )
        return {
            **others,
            **LiteControl(state, self._groups, self._subscriptions, sharding).handlers(),
            **LitePops(state, self._registry, self._groups, self._dispatcher, taker, self._pops).handlers(),
            **LiteAcks(state, self._groups, self._orders, self._dispatcher).handlers(others),
            **LiteLooks(state, self._registry, self._looks).handlers(others),
            **self._lifecycle.handlers(others),
            **admin.handlers(),
        }

    def clocks(self) -> list[tuple[str, float, Callable[[], object], float | None]]:
        """What is to be called periodically: name, seconds, function, and seconds while it says that there is more."""
        config = self._state.config
        return [
            ("held pops of lite topics", _TURN_S, self._expire, _MORE_S),
            ("events of lite topics", config.lite_event_check_interval_ms / 1000, self._dispatcher.scan, None),
            ("subscriptions of lite topics", config.lite_subscription_check_interval_ms / 1000, self._check, None),
            ("expiry of lite topics", config.lite_ttl_check_interval_ms / 1000, self._clean, None),
        ]

    def _expire(self) -> bool:
        """Answer pops whose time is over, and tell of lite topics whose messages are visible again."""
        now_ms = self._state.steady_ms()
        free_queues = self._orders.free_queues(now_ms, _AT_ONCE)
        for queue, group, _ in free_queues:
            self._dispatcher.tell(queue, group)
        has_more = [waiting.expire(now_ms, _AT_ONCE) for waiting in (self._pops, self._looks)]
        return len(free_queues) == _AT_ONCE or any(has_more)

    def _check(self) -> None:
        self._tasks.start("subscriptions", self._gone(self._subscriptions.expire()))
        self._tasks.start("orders", self._gone(self._forget_groups()))

    def _forget_groups(self) -> Iterator[None]:
        """Forget what is under way for groups that are deleted."""
        for queue, group in self._orders.topic_groups():
            if group not in self._state.groups.table:
                self._orders.remove(queue, group, 0)
            yield

    def _clean(self) -> None:
        if not self._state.config.is_slave:  # its master tells it
            self._tasks.start("expiry", self._lifecycle.expire())

    def disconnected(self, connection: Connection) -> None:
        """Note that a connection is closed."""
        if self._registry.is_of(connection):
            self._tasks.start(connection, self._gone(self._subscriptions.closed(connection)))
        for waiting in (self._pops, self._looks):
            if waiting.is_of(connection):
                self._tasks.start((waiting, connection), self._gone(waiting.closed(connection)))

    async def _gone(self, work: Iterable[None]) -> None:
        async for _ in self._state.slices.each(work):
            pass

    def close(self) -> None:
        """Stop what runs."""
        self._tasks.close()
