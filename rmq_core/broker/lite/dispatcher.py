"""Dispatch of events to clients of lite topics: an event is the name of a light queue that may have messages.

Each message is an event of one random client of a group. The number of a client's events is limited; after more
events, the client's next poll rescans all its children.

Source: ``LiteEventDispatcher``, which rescans every ten seconds only.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable
from dataclasses import dataclass, field
from random import randrange
from typing import Final

from rmq_core.broker.lite.metadata import LiteGroups
from rmq_core.broker.lite.registry import LiteClient, LiteSubscriptionRegistry
from rmq_core.broker.pop.order import ConsumerOrderInfo
from rmq_core.broker.slices import SLICE_S
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.table_file import log
from rmq_core.remoting.loop import work_clock
from rmq_core.store.commitlog.lmq_offsets import LMQ_QUEUE_ID
from rmq_core.store.results import Arrival
from rmq_formats.codecs.topics import LITE_PREFIX, lite_queue

_MAX_TRIED_CLIENTS: Final = 64  # clients of a group tried, while their events are at the limit
_LOW_WATER: Final = 5  # a client that missed events rescans below this part of the limit
_INACTIVE_MS: Final = 10_000  # without a poll, of a client with events
_LONG_INACTIVE_MS: Final = 35_000  # of a client without events: a poll takes 30 s
_AVOID_MS: Final = 10_000


class BackgroundTasks:
    """Running background tasks."""

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[None]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._running

    def start(self, key: Hashable, work: Coroutine[None, None, None]) -> None:
        """Start a task unless its key runs; exceptions are logged."""
        if key in self._running:
            work.close()
            return
        task = self._running[key] = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: self._on_task_end(key, done))

    def _on_task_end(self, key: Hashable, task: "asyncio.Task[None]") -> None:
        del self._running[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("work on lite topics failed: %(error)s", {"error": error}, exc_info=error)

    def close(self) -> None:
        for task in self._running.values():
            task.cancel()


@dataclass(eq=False)
class LiteEventDispatcher:
    """Assignment of events to clients."""

    _state: BrokerState
    _registry: LiteSubscriptionRegistry
    _groups: LiteGroups
    _orders: ConsumerOrderInfo
    _tasks: BackgroundTasks
    _wake: Callable[[str], None]
    _woken: dict[str, None] = field(init=False, default_factory=dict)
    # Wildcard groups with unassigned events.
    _lagging_groups: dict[str, None] = field(init=False, default_factory=dict)

    def on_arrivals(self, arrivals: list[Arrival]) -> None:
        """Assign events of newly readable messages, after the dispatch that reports the messages."""
        queues = [arrival.topic for arrival in arrivals if arrival.topic.startswith(LITE_PREFIX)]
        if queues:
            asyncio.get_running_loop().call_soon(self._assign_events, iter(queues))

    def _assign_events(self, queues: Iterable[str]) -> None:
        loop = asyncio.get_running_loop()
        now = work_clock(loop)
        end = now() + SLICE_S
        for queue in queues:
            for clients in self._registry.groups_of(queue):
                self._assign_event(queue, clients, None)
            if now() > end:
                loop.call_soon(self._assign_events, queues)
                return

    def notify_group(self, queue: str, group: str, avoid: LiteClient | None = None) -> None:
        """Assign an event to one client of a group of a light queue, if possible not to ``avoid``."""
        if self._groups.is_wildcard(group):
            clients = self._registry.wildcard_clients(self._groups.parent_of(group) or "", group)
        else:
            clients = self._registry.members(queue, group)
        self._assign_event(queue, clients, avoid)

    def _assign_event(self, queue: str, clients: list[LiteClient], avoid: LiteClient | None) -> None:
        count, now_ms, fallbacks = len(clients), self._state.steady_ms(), list[LiteClient]()
        if not count:
            return
        group, start = clients[0].group, randrange(count)
        max_events = self._groups.max_events(group)
        for number in range(min(count, _MAX_TRIED_CLIENTS)):
            client = clients[(start + number) % count]
            is_inactive = client.connection is None or client.avoid_until_ms > now_ms
            if client is avoid or is_inactive or queue in client.evicted:
                fallbacks.append(client)
            elif self._enqueue_event(client, queue, max_events):
                return
        for client in fallbacks:
            if queue not in client.evicted and self._enqueue_event(client, queue, max_events):
                return
        if self._groups.is_wildcard(group):
            self._lagging_groups[group] = None

    def _enqueue_event(self, client: LiteClient, queue: str, max_events: int) -> bool:
        if queue not in client.events:
            if len(client.events) >= max_events:
                client.has_missed_events = True
                return False
            client.events[queue] = None
        self.wake_soon(client.client_id)
        return True

    def wake_soon(self, client_id: str) -> None:
        """Wake a waiting request of a client in the next turn of the event loop."""
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._wake_all)
        self._woken[client_id] = None

    def _wake_all(self) -> None:
        loop = asyncio.get_running_loop()
        now = work_clock(loop)
        end = now() + SLICE_S
        woken, self._woken = self._woken, {}
        for client_id in list(woken):
            del woken[client_id]
            self._wake(client_id)
            if woken and now() > end:
                if not self._woken:
                    loop.call_soon(self._wake_all)
                self._woken = woken | self._woken
                return

    # --- missed events ---------------------------------------------------------------------
    def on_poll(self, client: LiteClient) -> None:
        """Record a client's poll, and rescan for missed events if the client has room."""
        client.polled_ms = self._state.steady_ms()
        client.avoid_until_ms = 0
        if len(client.events) * _LOW_WATER > self._groups.max_events(client.group):
            return
        if client.group in self._lagging_groups:
            self.rescan_group(client.group)
        elif client.has_missed_events:
            self.rescan(client)

    def rescan(self, client: LiteClient) -> None:
        """Start a search for messages in all light queues of a client."""
        if client not in self._tasks:
            client.has_missed_events = False
            self._tasks.start(client, self._rescan(client))

    async def _rescan(self, client: LiteClient) -> None:
        max_events = self._groups.max_events(client.group)
        async for queue in self._state.slices.each(list(client.queues)):
            has_messages = queue in client.queues and self._has_messages(queue, client.group)
            if has_messages and not self._enqueue_event(client, queue, max_events):
                return

    def rescan_group(self, group: str) -> None:
        """Start a search for messages in all light queues of a group's clients."""
        if not self._groups.is_wildcard(group):
            self._lagging_groups.pop(group, None)  # no longer a wildcard group
            for client in [client for client in self._registry.clients.values() if client.group == group]:
                self.rescan(client)
        elif (task_key := ("children", group)) not in self._tasks:
            self._lagging_groups.pop(group, None)
            self._tasks.start(task_key, self._rescan_children(group))

    async def _rescan_children(self, group: str) -> None:
        parent = self._groups.parent_of(group) or ""
        prefix = lite_queue(parent, "")
        async for queue in self._state.slices.each(list(self._state.store.appender.lmq_names)):
            if queue.startswith(prefix) and self._has_messages(queue, group):
                self._assign_event(queue, self._registry.wildcard_clients(parent, group), None)
                if group in self._lagging_groups:
                    return

    def _has_messages(self, queue: str, group: str) -> bool:
        state = self._state
        high = state.store.max_offset(queue, LMQ_QUEUE_ID)
        if high <= max(0, state.offsets.get(queue, group, LMQ_QUEUE_ID)):
            return False
        return not self._orders.is_blocked(queue, group, LMQ_QUEUE_ID, None, state.clock_ms())

    def on_subscribed(self, client: LiteClient, queue: str) -> None:
        """Assign existing messages to a new subscriber."""
        if self._groups.is_wildcard(client.group):
            self.rescan_group(client.group)
        elif self._has_messages(queue, client.group):
            self.notify_group(queue, client.group)

    # --- inactive clients -----------------------------------------------------------------
    def reassign_events(self, client: LiteClient) -> None:
        """Assign the events of a client to other clients of the group, or to the same without others."""
        events, client.events = client.events, {}
        client.avoid_until_ms = self._state.steady_ms() + _AVOID_MS
        for queue in events:
            self.notify_group(queue, client.group, client)

    def scan(self) -> None:
        """Reassign events of clients that do not poll, and rescan for missed events; to be called periodically."""
        self._tasks.start(self._scan, self._scan())

    async def _scan(self) -> None:
        async for client in self._state.slices.each(list(self._registry.clients.values())):
            idle_ms = self._state.steady_ms() - client.polled_ms
            if client.events and idle_ms > _INACTIVE_MS and client.avoid_until_ms <= self._state.steady_ms():
                self.reassign_events(client)
            if client.has_missed_events and idle_ms <= _LONG_INACTIVE_MS:
                self.rescan(client)
        for group in list(self._lagging_groups):
            self.rescan_group(group)
