"""Subscriptions of clients to lite topics (code 200071): eviction in exclusive groups, resets of offsets, events.

Source: ``LiteSubscriptionCtlProcessor``, ``LiteSubscriptionRegistryImpl``.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from rmq_core.broker.access.policies import Action, group_permission, topic_permission
from rmq_core.broker.lite.dispatcher import LiteEventDispatcher
from rmq_core.broker.lite.metadata import LiteGroups, LiteSharding
from rmq_core.broker.lite.registry import LiteClient, LiteSubscriptionRegistry, wildcard_name
from rmq_core.broker.pop.order import ConsumerOrderInfo
from rmq_core.broker.processors.lite_names import parse_lite_queue
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.attributes import MAX_LONG
from rmq_core.broker.tables.clients import Login
from rmq_core.broker.tables.consumer_offsets import NONE
from rmq_core.broker.tables.topics import is_lite
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.pop import LiteSubscription, LiteSubscriptions, OffsetOption
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler, HandlerResponse
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import write_fields
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.remoting.pop import NotifyUnsubscribeLite
from rmq_core.store.commitlog.lmq_offsets import LMQ_QUEUE_ID
from rmq_formats.codecs.topics import lite_parts

log = logging.getLogger("rmq.broker.lite")
_FROM_FIRST: Final = OffsetOption(type="POLICY", value=1)
_FROM_NEXT: Final = 2  # of the type POLICY
_ADDS: Final = ("PARTIAL_ADD", "COMPLETE_ADD")
_ACTIONS: Final = (*_ADDS, "PARTIAL_REMOVE", "COMPLETE_REMOVE")
_OPTIONS: Final = ("POLICY", "OFFSET", "TAIL_N", "TIMESTAMP")
_MAX_CLIENT_CHARS: Final = 255
_SHOWN_CHARS: Final = 60


@dataclass(eq=False)
class Subscriptions:
    """Changes of the registry. Long changes are iterators, for use in time slices."""

    _state: BrokerState
    _registry: LiteSubscriptionRegistry
    _groups: LiteGroups
    _orders: ConsumerOrderInfo
    _dispatcher: LiteEventDispatcher

    def register(
        self, client_id: str, group: str, parent: str, connection: Connection, login: Login | None = None
    ) -> Iterator[None]:
        """Register a client; another group or topic makes a new client."""
        client = self._registry.clients.get(client_id)
        if client is not None and (client.group, client.parent) != (group, parent):
            yield from self.unregister(client_id)
            client = None
        if client is None:
            self.check_quota(len(self._registry.clients) + 1)
        self._registry.register(client_id, group, parent, connection, self._state.steady_ms(), login)

    def check_quota(self, count: int) -> None:
        """Refuse more subscriptions, or clients with subscriptions, than the settings allow. Raises ResponseError."""
        quota = self._state.config.max_lite_subscription_count
        if count > quota:
            problem = f"lite subscription quota exceeded {quota}"
            raise ResponseError(ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, problem)

    def _check_room(self, client: LiteClient, queues: Collection[str]) -> None:
        self.check_quota(self._registry.count + sum(queue not in client.queues for queue in queues))

    def add(self, client_id: str, queues: list[str], option: OffsetOption | None) -> Iterator[None]:
        """Subscribe a client to more light queues. Raises ResponseError before any change."""
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
        """Replace the light queues of a client, which repeats its subscriptions. Raises as ``add``.

        Evictions by another client of an exclusive group remain, and the client is notified again.
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
        self._check_room(client, target_queues)
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
        for clients in self._registry.groups_of(queue):
            for client in list(clients):
                self._registry.remove(client, queue)

    def on_disconnect(self, connection: Connection) -> Iterator[None]:
        """Assign the events of a closed connection's clients to other clients, until the next subscription."""
        for client in self._registry.disconnect(connection):
            self._dispatcher.reassign_events(client)
            yield

    def expire(self) -> Iterator[None]:
        """Unregister clients without a recent subscription; clients subscribe twice a minute."""
        before_ms = self._state.steady_ms() - self._state.config.lite_subscription_check_timeout_ms
        for client in list(self._registry.clients.values()):
            if client.subscribed_ms < before_ms:
                yield from self.unregister(client.client_id)
            yield

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
        high = state.store.max_offset(queue, LMQ_QUEUE_ID)
        current = state.offsets.get(queue, group, LMQ_QUEUE_ID)
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
            state.offsets.reset(queue, group, LMQ_QUEUE_ID, target)
            self._orders.remove(queue, group, LMQ_QUEUE_ID)
            self._dispatcher.notify_group(queue, group)  # wakes the other subscribers


@dataclass(eq=False)
class LiteSubscriptionCtlProcessor:
    """Handler of LITE_SUBSCRIPTION_CTL."""

    _state: BrokerState
    _groups: LiteGroups
    _subscriptions: Subscriptions
    _sharding: LiteSharding
    # Changes apply in the order of their arrival.
    _order_lock: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.LITE_SUBSCRIPTION_CTL: self.control}

    def control(self, request: RemotingCommand, connection: Connection) -> HandlerResponse:
        """Apply changes of subscriptions (LITE_SUBSCRIPTION_CTL, 200071), after a check of all of them."""
        if not request.body:
            raise ResponseError(ResponseCode.ILLEGAL_OPERATION, "Request body is null.")
        changes = decode_body(request.body, LiteSubscriptions, is_request=True).subscription_set
        if not changes:
            raise ResponseError(ResponseCode.ILLEGAL_OPERATION, "LiteSubscriptionCtlRequestBody is empty.")
        for change in changes:
            self._check(change)
        self._subscriptions.check_quota(sum(len(change.lite_topic_set) for change in changes))
        return self._control(request, connection, changes)

    async def _control(
        self, request: RemotingCommand, connection: Connection, changes: list[LiteSubscription]
    ) -> RemotingCommand:
        login = self._state.rights.login(request)
        async with self._order_lock:
            queues = [await self._list_queues(change) for change in changes]
            for change, names in zip(changes, queues, strict=True):
                if connection.is_closing and change.action in _ADDS:
                    break  # an eviction could not reach the client
                async for _ in self._state.slices.each(self._apply(change, names, connection, login)):
                    pass
        return request.response()

    async def _list_queues(self, change: LiteSubscription) -> list[str]:
        """List the light queues of a change; for subscriptions, only this broker's. Raises ResponseError."""
        is_add = change.action in _ADDS
        brokers = await self._sharding.brokers_of(change.topic) if is_add else ()
        queues: list[str] = []
        async for child in self._state.slices.each(change.lite_topic_set):
            queue = parse_lite_queue(change.topic, child)
            if not is_add or self._sharding.is_here(child, brokers) or self._state.store.max_offset(queue, 0) > 0:
                queues.append(queue)
        return queues

    def _apply(
        self, change: LiteSubscription, queues: list[str], connection: Connection, login: Login | None
    ) -> Iterator[None]:
        client_id, subscriptions = change.client_id, self._subscriptions
        if change.action == "COMPLETE_REMOVE":
            yield from subscriptions.unregister_of_group(client_id, change.group, change.topic)
        elif change.action == "PARTIAL_REMOVE":
            yield from subscriptions.remove(client_id, change.group, change.topic, queues)
        else:
            yield from subscriptions.register(client_id, change.group, change.topic, connection, login)
            if change.action == "COMPLETE_ADD":
                yield from subscriptions.replace(client_id, queues)
            else:
                yield from subscriptions.add(client_id, queues, change.offset_option)

    def _check(self, change: LiteSubscription) -> None:
        """Refuse an invalid change. Raises ResponseError. The original ignores a change without names."""
        if change.action not in _ACTIONS:
            problem = f"action {change.action[:_SHOWN_CHARS]!r} is none of {', '.join(_ACTIONS)}"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, problem)
        if not all(name.strip() for name in (change.client_id, change.group, change.topic)):
            raise ResponseError(ResponseCode.ILLEGAL_OPERATION, "clientId, group and topic must be there")
        if len(change.client_id) > _MAX_CLIENT_CHARS:
            problem = f"clientId has more than {_MAX_CLIENT_CHARS} characters"
            raise ResponseError(ResponseCode.INVALID_PARAMETER, problem)
        option = change.offset_option
        if option is not None and option.type not in _OPTIONS:
            problem = f"offsetOption {option.type[:_SHOWN_CHARS]!r} is none of {', '.join(_OPTIONS)}"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, problem)
        if option is not None and abs(option.value) > MAX_LONG:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, "offsetOption has a value of more than 64 bits")
        if change.action not in _ADDS:
            return
        group = self._state.groups.get(change.group)
        if group is None or not group.consume_enable:
            raise ResponseError(ResponseCode.ILLEGAL_OPERATION, "Consumer group is not allowed to consume.")
        if self._groups.parent_of(change.group) != change.topic:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, f"subscription bind topic not match, {change.group}")
        topic = self._state.topics.get(change.topic)
        if topic is None:
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"topic [{change.topic}] not exist")
        if not is_lite(topic):
            raise ResponseError(ResponseCode.INVALID_PARAMETER, f"the topic [{change.topic}] message type not match")
        if change.action == "PARTIAL_ADD" and self._groups.is_wildcard(change.group):
            problem = "subscribe lite operation is not supported for this group"
            raise ResponseError(ResponseCode.ILLEGAL_OPERATION, problem)
