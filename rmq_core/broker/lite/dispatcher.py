"""Tells clients of messages in their lite topics: an event is the name of a light queue that may have some.

Each message is told to one client of a group, at random. A client has so many events at most; one that has had too
many looks at all its children when it has taken them.

Source: ``LiteEventDispatcher``, which looks then every ten seconds only.
"""

import asyncio
from collections.abc import Callable, Iterable
from random import randrange
from typing import Final

from rmq_core.broker.lite.groups import LiteGroups
from rmq_core.broker.lite.registry import LiteClient, Registry
from rmq_core.broker.lite.tasks import Tasks
from rmq_core.broker.pop.order import ConsumerOrderInfo
from rmq_core.broker.slices import SLICE_S
from rmq_core.broker.state import BrokerState
from rmq_core.remoting.loop import work_clock
from rmq_core.store.results import Arrival
from rmq_formats.codecs.topics import LITE_PREFIX, lite_queue

_QUEUE_ID: Final = 0
_MOST_TRIED: Final = 64  # clients of a group that a message is offered to, where they have too many events
_LOW_WATER: Final = 5  # a client that was told of too much looks again when it has this part of its events
_INACTIVE_MS: Final = 10_000  # a client with events that has not asked for so long may be gone
_LONG_INACTIVE_MS: Final = 35_000  # one without: a poll takes 30 s
_AVOID_MS: Final = 10_000


class Dispatcher:
    """Gives events to clients, and wakes those that wait for some."""

    def __init__(
        self, state: BrokerState, registry: Registry, groups: LiteGroups, orders: ConsumerOrderInfo,
        tasks: Tasks, wake: Callable[[str], None],
    ) -> None:  # fmt: skip
        """Prepare; ``wake`` answers requests of a client that wait."""
        self._state = state
        self._registry = registry
        self._groups = groups
        self._orders = orders
        self._wake = wake
        self._woken: dict[str, None] = {}
        self._behind_groups: dict[str, None] = {}  # wildcard groups that a message could not be given to
        self._tasks = tasks

    def arrived(self, arrivals: list[Arrival]) -> None:
        """Give events for newly readable messages, when the dispatch that tells of them is over."""
        found = [one.topic for one in arrivals if one.topic.startswith(LITE_PREFIX)]
        if found:
            asyncio.get_running_loop().call_soon(self._take_in, iter(found))

    def _take_in(self, queues: Iterable[str]) -> None:
        loop = asyncio.get_running_loop()
        now = work_clock(loop)
        end = now() + SLICE_S
        for queue in queues:
            for clients in self._registry.groups_of(queue):
                self._give(queue, clients, None)
            if now() > end:
                loop.call_soon(self._take_in, queues)
                return

    def tell(self, queue: str, group: str, avoid: LiteClient | None = None) -> None:
        """Tell one client of a group of a light queue, another than one to avoid if there is one."""
        if self._groups.is_wildcard(group):
            clients = self._registry.wildcard_clients(self._groups.parent(group) or "", group)
        else:
            clients = self._registry.members(queue, group)
        self._give(queue, clients, avoid)

    def _give(self, queue: str, clients: list[LiteClient], avoid: LiteClient | None) -> None:
        """Give an event to one of the clients of a group."""
        count, now_ms, others = len(clients), self._state.steady_ms(), list[LiteClient]()
        if not count:
            return
        group, start = clients[0].group, randrange(count)
        most = self._groups.most_events(group)
        for number in range(min(count, _MOST_TRIED)):
            client = clients[(start + number) % count]
            if (
                client is avoid
                or client.connection is None
                or client.avoid_until_ms > now_ms
                or queue in client.evicted
            ):
                others.append(client)
            elif self._offer(client, queue, most):
                return
        for client in others:
            if queue not in client.evicted and self._offer(client, queue, most):
                return
        if self._groups.is_wildcard(group):
            self._behind_groups[group] = None

    def _offer(self, client: LiteClient, queue: str, most: int) -> bool:
        if queue not in client.events:
            if len(client.events) >= most:
                client.is_behind = True
                return False
            client.events[queue] = None
        self.wake_soon(client.client_id)
        return True

    def wake_soon(self, client_id: str) -> None:
        """Answer a request of a client that waits, by and by."""
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

    # --- what was missed ------------------------------------------------------------------
    def record_pop(self, client: LiteClient) -> None:
        """Note that a client has asked for messages: one that was told of too much may have room again."""
        client.seen_ms = self._state.steady_ms()
        client.avoid_until_ms = 0
        if len(client.events) * _LOW_WATER > self._groups.most_events(client.group):
            return
        if client.group in self._behind_groups:
            self.look_at_group(client.group)
        elif client.is_behind:
            self.look_at(client)

    def look_at(self, client: LiteClient) -> None:
        """Look for messages in all light queues that a client subscribes to."""
        if client not in self._tasks:
            client.is_behind = False
            self._tasks.start(client, self._look_at(client))

    async def _look_at(self, client: LiteClient) -> None:
        most = self._groups.most_events(client.group)
        async for queue in self._state.slices.each(list(client.queues)):
            is_wanted = queue in client.queues and self._has_messages(queue, client.group)
            if is_wanted and not self._offer(client, queue, most):
                return

    def look_at_group(self, group: str) -> None:
        """Look for messages in all that a group's clients subscribe to: of a wildcard group all children."""
        if not self._groups.is_wildcard(group):
            self._behind_groups.pop(group, None)  # it is a wildcard group no more
            for client in [one for one in self._registry.clients.values() if one.group == group]:
                self.look_at(client)
        elif (look := ("children", group)) not in self._tasks:
            self._behind_groups.pop(group, None)
            self._tasks.start(look, self._look_at_children(group))

    async def _look_at_children(self, group: str) -> None:
        parent = self._groups.parent(group) or ""
        prefix = lite_queue(parent, "")
        async for queue in self._state.slices.each(list(self._state.store.appender.light_queues)):
            if queue.startswith(prefix) and self._has_messages(queue, group):
                self._give(queue, self._registry.wildcard_clients(parent, group), None)
                if group in self._behind_groups:
                    return

    def _has_messages(self, queue: str, group: str) -> bool:
        state = self._state
        high = state.store.max_offset(queue, _QUEUE_ID)
        if high <= max(0, state.offsets.get(queue, group, _QUEUE_ID)):
            return False
        return not self._orders.is_blocked(queue, group, _QUEUE_ID, None, state.clock_ms())

    def subscribed(self, client: LiteClient, queue: str) -> None:
        """Tell a client that has just subscribed of what is there already."""
        if self._groups.is_wildcard(client.group):
            self.look_at_group(client.group)
        elif self._has_messages(queue, client.group):
            self.tell(queue, client.group)

    # --- clients that are gone --------------------------------------------------------------
    def take_back(self, client: LiteClient) -> None:
        """Give the events of a client to others of its group, or to itself if there are none."""
        events, client.events = client.events, {}
        client.avoid_until_ms = self._state.steady_ms() + _AVOID_MS
        for queue in events:
            self.tell(queue, client.group, client)

    def scan(self) -> None:
        """Take back what clients do not ask for, and look for what was missed; to be called periodically."""
        self._tasks.start(self._scan, self._scan())

    async def _scan(self) -> None:
        async for client in self._state.slices.each(list(self._registry.clients.values())):
            idle_ms = self._state.steady_ms() - client.seen_ms
            if client.events and idle_ms > _INACTIVE_MS and client.avoid_until_ms <= self._state.steady_ms():
                self.take_back(client)
            if client.is_behind and idle_ms <= _LONG_INACTIVE_MS:
                self.look_at(client)
        for group in list(self._behind_groups):
            self.look_at_group(group)
