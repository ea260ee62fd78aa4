"""Subscriptions of clients to lite topics (code 200071). Source: ``LiteSubscriptionCtlProcessor``."""

import asyncio
from collections.abc import Iterator
from typing import Final

from rmq_core.broker.lite.groups import LiteGroups
from rmq_core.broker.lite.registry import QuotaError
from rmq_core.broker.lite.sharding import LiteSharding
from rmq_core.broker.lite.subscriptions import Subscriptions
from rmq_core.broker.processors.lite_names import parse_lite_queue
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.attributes import MAX_LONG
from rmq_core.broker.tables.clients import Login
from rmq_core.broker.tables.topics import is_lite
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.pop import LiteSubscription, LiteSubscriptions
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler, HandlerAnswer
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.header import RemotingCommand
from rmq_formats.errors import DecodeError

_ADDS: Final = ("PARTIAL_ADD", "COMPLETE_ADD")
_ACTIONS: Final = (*_ADDS, "PARTIAL_REMOVE", "COMPLETE_REMOVE")
_OPTIONS: Final = ("POLICY", "OFFSET", "TAIL_N", "TIMESTAMP")
_MOST_CLIENT_CHARS: Final = 255
_SHOWN_CHARS: Final = 60


class LiteSubscriptionCtlProcessor:
    """Handler of LITE_SUBSCRIPTION_CTL."""

    def __init__(
        self, state: BrokerState, groups: LiteGroups, subscriptions: Subscriptions, sharding: LiteSharding
    ) -> None:
        self._state = state
        self._groups = groups
        self._subscriptions = subscriptions
        self._sharding = sharding
        self._order_lock = asyncio.Lock()  # changes apply in the order of their arrival

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.LITE_SUBSCRIPTION_CTL: self.control}

    def control(self, request: RemotingCommand, connection: Connection) -> HandlerAnswer:
        """Apply changes of subscriptions (LITE_SUBSCRIPTION_CTL, 200071), after a check of all of them."""
        if not request.body:
            raise ResponseError(ResponseCode.ILLEGAL_OPERATION, "Request body is null.")
        try:
            changes = decode_body(request.body, LiteSubscriptions, is_request=True).subscription_set
        except DecodeError as error:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        if not changes:
            raise ResponseError(ResponseCode.ILLEGAL_OPERATION, "LiteSubscriptionCtlRequestBody is empty.")
        for change in changes:
            self._check(change)
        most = self._state.config.max_lite_subscription_count
        if sum(len(change.lite_topic_set) for change in changes) > most:
            problem = f"lite subscription quota exceeded {most}"
            raise ResponseError(ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, problem)
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
                try:
                    async for _ in self._state.slices.each(self._apply(change, names, connection, login)):
                        pass
                except QuotaError as error:
                    raise ResponseError(ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, str(error)) from error
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
        if len(change.client_id) > _MOST_CLIENT_CHARS:
            problem = f"clientId has more than {_MOST_CLIENT_CHARS} characters"
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
