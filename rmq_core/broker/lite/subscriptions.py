"""Changes of subscriptions to lite topics: eviction in exclusive groups, resets of offsets, events.

Source: ``LiteSubscriptionRegistryImpl``.
"""

import logging
from collections.abc import Iterator
from typing import Final

from rmq_core.broker.access.policies import Action, group_permission, topic_permission
from rmq_core.broker.lite.dispatcher import LiteEventDispatcher
from rmq_core.broker.lite.groups import LiteGroups
from rmq_core.broker.lite.registry import LiteClient, LiteSubscriptionRegistry, QuotaError, wildcard_name
from rmq_core.broker.pop.order import ConsumerOrderInfo
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.clients import Login
from rmq_core.broker.tables.consumer_offsets import NONE
from rmq_core.remoting.bodies.lite import OffsetOption
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.fields import write_fields
from rmq_core.remoting.header import request
from rmq_core.remoting.lite_requests import NotifyUnsubscribeLite
from rmq_formats.codecs.topics import lite_parts

log = logging.getLogger("rmq.broker.lite")
_QUEUE_ID: Final = 0
_FROM_FIRST: Final = OffsetOption(type="POLICY", value=1)
_FROM_NEXT: Final = 2  # of the type POLICY


class Subscriptions:
    """Changes of the registry. Long changes are iterators, for use in time slices."""

    def __init__(
        self,
        state: BrokerState,
        registry: LiteSubscriptionRegistry,
        groups: LiteGroups,
        orders: ConsumerOrderInfo,
        dispatcher: LiteEventDispatcher,
    ) -> None:
        self._state = state
        self._registry = registry
        self._groups = groups
        self._orders = orders
        self._dispatcher = dispatcher

    def register(
        self, client_id: str, group: str, parent: str, connection: Connection, login: Login | None = None
    ) -> Iterator[None]:
        """Register a client; another group or topic makes a new client."""
        client = self._registry.clients.get(client_id)
        if client is not None and (client.group, client.parent) != (group, parent):
            yield from self.unregister(client_id)
            client = None
        quota = self._state.config.max_lite_subscription_count
        if client is None and len(self._registry.clients) >= quota:
            raise QuotaError(f"lite subscription quota exceeded {quota}")
        self._registry.register(client_id, group, parent, connection, self._state.steady_ms(), login)

    def _check_room(self, client: LiteClient, queues: list[str]) -> None:
        quota = self._state.config.max_lite_subscription_count
        if self._registry.count + sum(queue not in client.queues for queue in queues) > quota:
            raise QuotaError(f"lite subscription quota exceeded {quota}")

    def add(self, client_id: str, queues: list[str], option: OffsetOption | None) -> Iterator[None]:
        """Subscribe a client to more light queues. Raises QuotaError before any change."""
        client = self._registry.clients[client_id]
        self._check_room(client, queues)
        is_exclusive = self._groups.is_exclusive(client.group)
        for queue in queues:
            if self._registry.clients.get(client_id) is not client:
                return  # unregistered meanwhile
            client.evicted.discard(queue)
            if is_exclusive:
                self._evict(queue, client)
            if option is not None:
                self._reset(queue, client.group, option)
            if self._registry.add(client, queue):
                self._dispatcher.on_subscribed(client, queue)
            yield

    def replace(self, client_id: str, queues: list[str]) -> Iterator[None]:
        """Replace the light queues of a client, which repeats its subscriptions from time to time.

        Evictions by another client of an exclusive group remain, and the client is notified again.

        Raises:
            QuotaError: too many subscriptions; nothing has changed.
        """
        client = self._registry.clients[client_id]
        if self._groups.is_wildcard(client.group):
            queues = [wildcard_name(client.parent, client.group)]
        if not self._groups.is_exclusive(client.group):
            client.evicted.clear()
        target_queues = dict.fromkeys(queues)
        for queue in client.evicted & target_queues.keys():
            self._notify_unsubscribe(client, queue)
            del target_queues[queue]
            yield
        self._check_room(client, list(target_queues))
        client.evicted.intersection_update(queues)
        for queue in [queue for queue in client.queues if queue not in target_queues]:
            self._remove(client, queue)
            yield
        for queue in target_queues:
            if self._registry.clients.get(client_id) is not client:
                return
            if self._registry.add(client, queue):
                self._dispatcher.on_subscribed(client, queue)
            yield

    def remove(self, client_id: str, group: str, parent: str, queues: list[str]) -> Iterator[None]:
        """Unsubscribe a client of a group from light queues."""
        client = self._client_of(client_id, group, parent)
        if client is None:
            return
        for queue in queues:
            if self._remove(client, queue) and self._groups.resets_on_unsubscribe(client.group):
                self._reset(queue, client.group, _FROM_FIRST)
            yield

    def unregister_of_group(self, client_id: str, group: str, parent: str) -> Iterator[None]:
        """Unregister a client, if it belongs to the group of the request's permission."""
        if self._client_of(client_id, group, parent) is not None:
            yield from self.unregister(client_id)

    def unregister(self, client_id: str) -> Iterator[None]:
        """Unregister a client, and assign its events to other clients."""
        client = self._registry.clients.get(client_id)
        if client is None:
            return
        log.info(
            "%(client)s of %(group)s subscribes to no lite topics of %(topic)s any more",
            {"client": client_id, "group": client.group, "topic": client.parent},
        )
        events, client.events = client.events, {}
        yield from self._registry.unregister(client)
        for queue in events:
            self._dispatcher.notify_group(queue, client.group)
            yield

    def remove_queue(self, queue: str) -> None:
        """Unsubscribe all clients from a deleted light queue."""
        for clients in self._registry.groups_of(queue):
            for client in list(clients):
                self._registry.remove(client, queue)

    def closed(self, connection: Connection) -> Iterator[None]:
        """Assign the events of a closed connection's clients to other clients, until the next subscription."""
        for client in self._registry.closed(connection):
            self._dispatcher.reassign_events(client)
            yield

    def expire(self) -> Iterator[None]:
        """Unregister clients without a recent subscription; clients subscribe twice a minute."""
        before_ms = self._state.steady_ms() - self._state.config.lite_subscription_check_timeout_ms
        for client in list(self._registry.clients.values()):
            if client.subscribed_ms < before_ms:
                yield from self.unregister(client.client_id)
            yield

    # --- parts ----------------------------------------------------------------------------
    def _client_of(self, client_id: str, group: str, parent: str) -> LiteClient | None:
        client = self._registry.clients.get(client_id)
        return client if client is not None and (client.group, client.parent) == (group, parent) else None

    def _remove(self, client: LiteClient, queue: str) -> bool:
        """Unsubscribe a client from a light queue, and reassign its event; return False without a subscription."""
        had_event = queue in client.events
        is_removed = self._registry.remove(client, queue)
        if is_removed and had_event:
            self._dispatcher.notify_group(queue, client.group)
        return is_removed

    def _evict(self, queue: str, new_owner: LiteClient) -> None:
        """Unsubscribe the other clients of an exclusive group from a light queue."""
        for client in [member for member in self._registry.members(queue, new_owner.group) if member is not new_owner]:
            client.evicted.add(queue)
            self._remove(client, queue)
            self._notify_unsubscribe(client, queue)
            if self._groups.resets_on_eviction(new_owner.group):
                self._reset(queue, new_owner.group, _FROM_FIRST)

    def _notify_unsubscribe(self, client: LiteClient, queue: str) -> None:
        parts = lite_parts(queue)
        if client.connection is None or client.connection.is_closing or parts is None:
            return
        permissions = (group_permission(client.group, Action.SUB), topic_permission(client.parent, Action.SUB))
        if not self._state.rights.may_receive(client.login, client.connection.remote_address, permissions):
            return
        fields = NotifyUnsubscribeLite(lite_topic=parts[1], consumer_group=client.group, client_id=client.client_id)
        client.connection.send_oneway(request(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, write_fields(fields)))

    def _reset(self, queue: str, group: str, option: OffsetOption) -> None:
        """Reset the group's offset in an existing light queue; like the original, ignore times."""
        state = self._state
        high = state.store.max_offset(queue, _QUEUE_ID)
        current = state.offsets.get(queue, group, _QUEUE_ID)
        target = current
        if option.type == "POLICY" and option.value == _FROM_FIRST.value:
            target = 0
        elif option.type == "POLICY" and option.value == _FROM_NEXT:
            target = high
        elif option.type == "OFFSET":
            target = max(0, option.value)
        elif option.type == "TAIL_N" and current != NONE:
            target = max(0, current - option.value)
        if high and target != current:
            state.offsets.reset(queue, group, _QUEUE_ID, target)
            self._orders.remove(queue, group, _QUEUE_ID)
            self._dispatcher.notify_group(queue, group)  # wakes the other subscribers
