"""Lite topics of a broker: handlers and periodic work."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from rmq_core.broker.lite.acks import LiteAckProcessor
from rmq_core.broker.lite.admin import LiteManagerProcessor
from rmq_core.broker.lite.dispatcher import BackgroundTasks, LiteEventDispatcher
from rmq_core.broker.lite.lifecycle import LiteLifecycleManager
from rmq_core.broker.lite.metadata import LiteGroups, LiteSharding
from rmq_core.broker.lite.pop_message import LiteNotificationProcessor, PopLiteMessageProcessor
from rmq_core.broker.lite.registry import LiteSubscriptionRegistry
from rmq_core.broker.lite.subscriptions import LiteSubscriptionCtlProcessor, Subscriptions
from rmq_core.broker.parked_requests import MAX_REQUESTS_PER_KEY, ParkedRequests
from rmq_core.broker.pop.assignment import Route
from rmq_core.broker.pop.order import ConsumerOrderInfo
from rmq_core.broker.state import BrokerState
from rmq_core.remoting.connection import Connection, Handler

_AT_ONCE: Final = 16  # responses, and queues checked, in a turn: some 0.5 ms
_TURN_S: Final = 0.5
_MORE_S: Final = 0.002


class LiteService:
    """Lite topics of a broker."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._tasks = BackgroundTasks()
        self._registry = LiteSubscriptionRegistry()
        self._groups = LiteGroups(state)
        self._orders = ConsumerOrderInfo(None, state.store, state.clock_ms)
        self._pops = ParkedRequests[str](state, MAX_REQUESTS_PER_KEY)
        self._notifications = ParkedRequests[str](state, MAX_REQUESTS_PER_KEY)
        self._dispatcher = LiteEventDispatcher(
            state, self._registry, self._groups, self._orders, self._tasks, self._wake
        )
        self._subscriptions = Subscriptions(state, self._registry, self._groups, self._orders, self._dispatcher)
        self._lifecycle = LiteLifecycleManager(state, self._groups, self._orders, self._subscriptions)
        state.store.on_dispatched(self._dispatcher.on_arrivals, self._registry.is_waiting)

    def _wake(self, client_id: str) -> None:
        self._pops.wake(client_id)
        self._notifications.wake(client_id)

    def handlers(self, base_handlers: Mapping[int, Handler], route: Route) -> dict[int, Handler]:
        """Return the handlers; requests without a lite topic go to ``base_handlers``."""
        state, sharding = self._state, LiteSharding(self._state, route)
        admin = LiteManagerProcessor(
            state, self._registry, self._groups, self._orders, self._dispatcher, self._lifecycle, sharding
        )
        return {
            **base_handlers,
            **LiteSubscriptionCtlProcessor(state, self._groups, self._subscriptions, sharding).handlers(),
            **PopLiteMessageProcessor(
                state, self._registry, self._groups, self._orders, self._dispatcher, self._pops
            ).handlers(),
            **LiteAckProcessor(state, self._groups, self._orders, self._dispatcher).handlers(base_handlers),
            **LiteNotificationProcessor(state, self._registry, self._notifications).handlers(base_handlers),
            **self._lifecycle.handlers(base_handlers),
            **admin.handlers(),
        }

    def periodic_calls(self) -> list[tuple[str, float, Callable[[], object], float | None]]:
        """List periodic work: name, seconds, function, and seconds while the function reports more work."""
        config = self._state.config
        return [
            ("expiry of parked pops of lite topics", _TURN_S, self._expire, _MORE_S),
            ("scan of lite topics for events", config.lite_event_check_interval_ms / 1000, self._dispatcher.scan, None),
            ("expiry of lite subscriptions", config.lite_subscription_check_interval_ms / 1000, self._check, None),
            ("expiry of lite topics", config.lite_ttl_check_interval_ms / 1000, self._clean, None),
        ]

    def _expire(self) -> bool:
        """Respond to expired pops, and assign events of lite topics whose messages are visible again."""
        now_ms = self._state.steady_ms()
        free_queues = self._orders.free_queues(now_ms, _AT_ONCE)
        for queue, group, _ in free_queues:
            self._dispatcher.notify_group(queue, group)
        has_more = [polls.expire(now_ms, _AT_ONCE) for polls in (self._pops, self._notifications)]
        return len(free_queues) == _AT_ONCE or any(has_more)

    def _check(self) -> None:
        self._tasks.start("subscriptions", self._exhaust(self._subscriptions.expire()))
        self._tasks.start("orders", self._exhaust(self._remove_deleted_groups()))

    def _remove_deleted_groups(self) -> Iterator[None]:
        for queue, group in self._orders.topic_groups():
            if group not in self._state.groups.table:
                self._orders.remove(queue, group, 0)
            yield

    def _clean(self) -> None:
        if not self._state.config.is_slave:  # a slave follows its master
            self._tasks.start("expiry", self._lifecycle.expire())

    def remove_connection(self, connection: Connection) -> None:
        if self._registry.is_of(connection):
            self._tasks.start(connection, self._exhaust(self._subscriptions.on_disconnect(connection)))
        for waiting in (self._pops, self._notifications):
            waiting.remove_connection(connection)

    async def _exhaust(self, work: Iterable[None]) -> None:
        async for _ in self._state.slices.each(work):
            pass

    def close(self) -> None:
        self._tasks.close()
