"""What happens when clients subscribe: exclusive children change hands, offsets are reset, clients are told.

Source: ``LiteSubscriptionRegistryImpl``.
"""

import logging
from collections.abc import Iterator
from typing import Final

from rmq_core.broker.access.policies import Action, group_need, topic_need
from rmq_core.broker.lite.dispatcher import Dispatcher
from rmq_core.broker.lite.groups import LiteGroups
from rmq_core.broker.lite.registry import LiteClient, QuotaError, Registry, wildcard_name
from rmq_core.broker.pop.order import ConsumerOrderInfo
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.consumer_offsets import NONE
from rmq_core.broker.tables.logins import Login
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
    """Changes the registry. What may take long is an iterator, to be gone through in slices."""

    def __init__(
        self,
        state: BrokerState,
        registry: Registry,
        groups: LiteGroups,
        orders: ConsumerOrderInfo,
        dispatcher: Dispatcher,
    ) -> None:
        self._state = state
        self._registry = registry
        self._groups = groups
        self._orders = orders
        self._dispatcher = dispatcher

    def enter(
        self, client_id: str, group: str, parent: str, connection: Connection, login: Login | None = None
    ) -> Iterator[None]:
        """Note a client; one that is known with another group or topic is a new one."""
        known = self._registry.clients.get(client_id)
        if known is not None and (known.group, known.parent) != (group, parent):
            yield from self.leave(client_id)
            known = None
        most = self._state.config.max_lite_subscription_count
        if known is None and len(self._registry.clients) >= most:
            raise QuotaError(f"lite subscription quota exceeded {most}")
        self._registry.enter(client_id, group, parent, connection, self._state.steady_ms(), login)

    def _check_room(self, client: LiteClient, queues: list[str]) -> None:
        most = self._state.config.max_lite_subscription_count
        if self._registry.count + sum(queue not in client.queues for queue in queues) > most:
            raise QuotaError(f"lite subscription quota exceeded {most}")

    def add(self, client_id: str, queues: list[str], option: OffsetOption | None) -> Iterator[None]:
        """Subscribe a client to more light queues.

        Raises:
            QuotaError: there are too many subscriptions; nothing has changed.
        """
        client = self._registry.clients[client_id]
        self._check_room(client, queues)
        is_exclusive = self._groups.is_exclusive(client.group)
        for queue in queues:
            if self._registry.clients.get(client_id) is not client:
                return  # it has left meanwhile
            client.evicted.discard(queue)
            if is_exclusive:
                self._evict(queue, client)
            if option is not None:
                self._reset(queue, client.group, option)
            if self._registry.add(client, queue):
                self._dispatcher.subscribed(client, queue)
            yield

    def replace(self, client_id: str, queues: list[str]) -> Iterator[None]:
        """Have a client subscribe to these light queues and no others, as it tells from time to time.

        What another client of an exclusive group has taken from it stays with that: it has not been told, and is now.

        Raises:
            QuotaError: there are too many subscriptions; nothing has changed.
        """
        client = self._registry.clients[client_id]
        if self._groups.is_wildcard(client.group):
            queues = [wildcard_name(client.parent, client.group)]
        if not self._groups.is_exclusive(client.group):
            client.evicted.clear()
        wanted = dict.fromkeys(queues)
        for queue in client.evicted & wanted.keys():
            self._tell_evicted(client, queue)
            del wanted[queue]
            yield
        self._check_room(client, list(wanted))
        client.evicted.intersection_update(queues)
        for queue in [queue for queue in client.queues if queue not in wanted]:
            self._remove(client, queue)
            yield
        for queue in wanted:
            if self._registry.clients.get(client_id) is not client:
                return
            if self._registry.add(client, queue):
                self._dispatcher.subscribed(client, queue)
            yield

    def remove(self, client_id: str, group: str, parent: str, queues: list[str]) -> Iterator[None]:
        """Unsubscribe a client, if it is this group's, from some light queues."""
        client = self._client_of(client_id, group, parent)
        if client is None:
            return
        for queue in queues:
            if self._remove(client, queue) and self._groups.resets_when_left(client.group):
                self._reset(queue, client.group, _FROM_FIRST)
            yield

    def end(self, client_id: str, group: str, parent: str) -> Iterator[None]:
        """Forget a client, if it is this group's: rights were asked for that group alone."""
        if self._client_of(client_id, group, parent) is not None:
            yield from self.leave(client_id)

    def leave(self, client_id: str) -> Iterator[None]:
        """Forget a client; others get what it was told of."""
        client = self._registry.clients.get(client_id)
        if client is None:
            return
        log.info(
            "%(client)s of %(group)s subscribes to no lite topics of %(topic)s any more",
            {"client": client_id, "group": client.group, "topic": client.parent},
        )
        events, client.events = client.events, {}
        yield from self._registry.leave(client)
        for queue in events:
            self._dispatcher.tell(queue, client.group)
            yield

    def forget(self, queue: str) -> None:
        """Unsubscribe all clients from a light queue, which is deleted."""
        for clients in self._registry.groups_of(queue):
            for client in list(clients):
                self._registry.remove(client, queue)

    def closed(self, connection: Connection) -> Iterator[None]:
        """Give what clients of a connection that is closed were told of to others, until they subscribe again."""
        for client in self._registry.closed(connection):
            self._dispatcher.take_back(client)
            yield

    def expire(self) -> Iterator[None]:
        """Forget clients that have not subscribed for long; they do so twice a minute."""
        before_ms = self._state.steady_ms() - self._state.config.lite_subscription_check_timeout_ms
        for client in list(self._registry.clients.values()):
            if client.heard_ms < before_ms:
                yield from self.leave(client.client_id)
            yield

    # --- parts ----------------------------------------------------------------------------
    def _client_of(self, client_id: str, group: str, parent: str) -> LiteClient | None:
        client = self._registry.clients.get(client_id)
        return client if client is not None and (client.group, client.parent) == (group, parent) else None

    def _remove(self, client: LiteClient, queue: str) -> bool:
        """Unsubscribe a client from a light queue, whose event another one gets; False if it did not subscribe."""
        was_told = queue in client.events
        is_removed = self._registry.remove(client, queue)
        if is_removed and was_told:
            self._dispatcher.tell(queue, client.group)
        return is_removed

    def _evict(self, queue: str, taker: LiteClient) -> None:
        """Unsubscribe the other clients of an exclusive group from a light queue."""
        for client in [one for one in self._registry.members(queue, taker.group) if one is not taker]:
            client.evicted.add(queue)
            self._remove(client, queue)
            self._tell_evicted(client, queue)
            if self._groups.resets_when_taken(taker.group):
                self._reset(queue, taker.group, _FROM_FIRST)

    def _tell_evicted(self, client: LiteClient, queue: str) -> None:
        parts = lite_parts(queue)
        if client.connection is None or client.connection.is_closing or parts is None:
            return
        needs = (group_need(client.group, Action.SUB), topic_need(client.parent, Action.SUB))
        if not self._state.rights.may_receive(client.login, client.connection.remote_address, needs):
            return
        fields = NotifyUnsubscribeLite(lite_topic=parts[1], consumer_group=client.group, client_id=client.client_id)
        client.connection.send_oneway(request(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, write_fields(fields)))

    def _reset(self, queue: str, group: str, option: OffsetOption) -> None:
        """Set the group's offset in a light queue that is there; a time counts for nothing, as in the original."""
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
            self._dispatcher.tell(queue, group)  # those who subscribe already have no other reason to ask
