"""Subscriptions of clients to lite topics (code 200071). Source: ``LiteSubscriptionCtlProcessor``."""

import asyncio
from collections.abc import Iterator
from typing import Final

from rmq_core.broker.lite.groups import LiteGroups
from rmq_core.broker.lite.registry import QuotaError
from rmq_core.broker.lite.sharding import Sharding
from rmq_core.broker.lite.subscriptions import Subscriptions
from rmq_core.broker.processors.lite_names import asked_lite_queue
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.attributes import MAX_LONG
from rmq_core.broker.tables.logins import Login
from rmq_core.broker.tables.topics import is_lite
from rmq_core.remoting.bodies import decode_body
from rmq_core.remoting.bodies.lite import LiteSubscription, LiteSubscriptions
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


class LiteControl:
    """Handles LITE_SUBSCRIPTION_CTL."""

    def __init__(
        self, state: BrokerState, groups: LiteGroups, subscriptions: Subscriptions, sharding: Sharding
    ) -> None:
        self._state = state
        self._groups = groups
        self._subscriptions = subscriptions
        self._sharding = sharding
        self._turn = asyncio.Lock()  # what clients ask for is done in the order in which it comes

    def handlers(self) -> dict[int, Handler]:
        """Handlers by request code."""
        return {RequestCode.LITE_SUBSCRIPTION_CTL: self.control}

    def control(self, request: RemotingCommand, connection: Connection) -> HandlerAnswer:
        """LITE_SUBSCRIPTION_CTL (200071): changes what clients subscribe to; all is checked before anything is."""
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
            what = f"lite subscription quota exceeded {most}"
            raise ResponseError(ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, what)
        return self._control(request, connection, changes)

    async def _control(
        self, request: RemotingCommand, connection: Connection, changes: list[LiteSubscription]
    ) -> RemotingCommand:
        login = self._state.rights.login(request)
        async with self._turn:
            queues = [await self._queues(change) for change in changes]
            for change, names in zip(changes, queues, strict=True):
                if connection.is_closing and change.action in _ADDS:
                    break  # it would not be told of what another client takes from it
                try:
                    async for _ in self._state.slices.each(self._apply(change, names, connection, login)):
                        pass
                except QuotaError as error:
                    raise ResponseError(ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, str(error)) from error
        return request.response()

    async def _queues(self, change: LiteSubscription) -> list[str]:
        """The light queues of a change; to subscribe to, those that are this broker's. Raises ResponseError."""
        is_add = change.action in _ADDS
        brokers = await self._sharding.brokers_of(change.topic) if is_add else ()
        queues: list[str] = []
        async for child in self._state.slices.each(change.lite_topic_set):
            queue = asked_lite_queue(change.topic, child)
            if not is_add or self._sharding.is_here(child, brokers) or self._state.store.max_offset(queue, 0) > 0:
                queues.append(queue)
        return queues

    def _apply(
        self, change: LiteSubscription, queues: list[str], connection: Connection, login: Login | None
    ) -> Iterator[None]:
        client_id, subscriptions = change.client_id, self._subscriptions
        if change.action == "COMPLETE_REMOVE":
            yield from subscriptions.end(client_id, change.group, change.topic)
        elif change.action == "PARTIAL_REMOVE":
            yield from subscriptions.remove(client_id, change.group, change.topic, queues)
        else:
            yield from subscriptions.enter(client_id, change.group, change.topic, connection, login)
            if change.action == "COMPLETE_ADD":
                yield from subscriptions.replace(client_id, queues)
            else:
                yield from subscriptions.add(client_id, queues, change.offset_option)

    def _check(self, change: LiteSubscription) -> None:
        """Refuse a change that cannot be made. Raises ResponseError. The original passes over one without names."""
        if change.action not in _ACTIONS:
            what = f"action {change.action[:_SHOWN_CHARS]!r} is none of {', '.join(_ACTIONS)}"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, what)
        if not all(name.strip() for name in (change.client_id, change.group, change.topic)):
            raise ResponseError(ResponseCode.ILLEGAL_OPERATION, "clientId, group and topic must be there")
        if len(change.client_id) > _MOST_CLIENT_CHARS:
            what = f"clientId has more than {_MOST_CLIENT_CHARS} characters"
            raise ResponseError(ResponseCode.INVALID_PARAMETER, what)
        option = change.offset_option
        if option is not None and option.type not in _OPTIONS:
            what = f"offsetOption {option.type[:_SHOWN_CHARS]!r} is none of {', '.join(_OPTIONS)}"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, what)
        if option is not None and abs(option.value) > MAX_LONG:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, "offsetOption has a value of more than 64 bits")
        if change.action not in _ADDS:
            return
        group = self._state.groups.get(change.group)
        if group is None or not group.consume_enable:
            raise ResponseError(ResponseCode.ILLEGAL_OPERATION, "Consumer group is not allowed to consume.")
        if self._groups.parent(change.group) != change.topic:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, f"subscription bind topic not match, {change.group}")
        topic = self._state.topics.get(change.topic)
        if topic is None:
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"topic [{change.topic}] not exist")
        if not is_lite(topic):
            raise ResponseError(ResponseCode.INVALID_PARAMETER, f"the topic [{change.topic}] message type not match")
        if change.action == "PARTIAL_ADD" and self._groups.is_wildcard(change.group):
            what = "subscribe lite operation is not supported for this group"
            raise ResponseError(ResponseCode.ILLEGAL_OPERATION, what)
