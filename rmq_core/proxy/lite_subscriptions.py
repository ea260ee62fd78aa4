"""Subscriptions of clients to lite topics, reported to all brokers of the parent topic, and ended with the client.

Brokers know a client by its id alone. Where users sign, it is ``user/id``, so that nobody ends or takes over another's.

Source: ``ClientActivity#syncLiteSubscription``, ``ClientProcessor``, ``LiteSubscriptionService``,
``GrpcClientSettingsManager#offlineClientLiteSubscription``, ``ProxyClientRemotingProcessor#notifyUnsubscribeLite``.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from rmq_core.broker.access.policies import Action, group_permission, topic_permission
from rmq_core.proxy.brokers import Brokers
from rmq_core.proxy.checks import check_bound_topic, check_lite_topics, group_name, lite_quota, topic_name
from rmq_core.proxy.sessions import Sessions
from rmq_core.proxy.wire import StatusError, ok, rpc, v2
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.bodies.pop import LiteSubscription, LiteSubscriptions, OffsetOption
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop import NotifyUnsubscribeLite
from rmq_formats.errors import RmqError

log = logging.getLogger("rmq.proxy")
_MAX_PER_SECOND: Final = 5000  # ``maxSyncLiteSubscriptionRate``
_QUOTA_SLACK: Final = 300  # further names in a request: a client may learn late that some lite topics are gone
_MAX_NAMES: Final = 100_000  # of a call, whatever the quota: the event loop checks them in one step
_TIMEOUT_S: Final = 2.0
_ADDS: Final = (v2.PARTIAL_ADD, v2.COMPLETE_ADD)
StartTask = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class RateLimiter:
    """Limiter of the rate of calls, which allows the unused calls of up to one second at once."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._permits = per_second
        self._refilled_s = time.monotonic()

    def try_acquire(self) -> bool:
        """Count a call; return False if the call exceeds the rate."""
        now_s = time.monotonic()
        self._permits = min(self._per_second, self._permits + (now_s - self._refilled_s) * self._per_second)
        self._refilled_s = now_s
        if self._permits < 1:
            return False
        self._permits -= 1
        return True


@dataclass(slots=True)
class _Subscriber:
    """A client of a lite group.

    Attributes:
        is_registered: brokers may have a subscription of the client.
        users: number of calls that wait for the lock, or have the lock.
    """

    client_id: str
    group: str = ""
    topic: str = ""
    is_registered: bool = False
    users: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class LiteSubscriptionActivity:
    """Handler of SyncLiteSubscription."""

    def __init__(self, brokers: Brokers, sessions: Sessions, start_task: StartTask) -> None:
        """Create the handler; ``start_task`` starts work that must not end halfway when its call ends."""
        self._brokers = brokers
        self._sessions = sessions
        self._start_task = start_task
        self._rate = RateLimiter(_MAX_PER_SECOND)
        self._subscribers: dict[str, _Subscriber] = {}
        brokers.handlers[RequestCode.NOTIFY_UNSUBSCRIBE_LITE] = self._on_unsubscribed
        sessions.on_end = self._on_session_end

    async def close(self) -> None:
        """Report no more ended clients: clients continue at another proxy."""
        self._sessions.on_end = lambda _: None

    async def sync(self, request: Any, client_id: str, _: str) -> Any:
        """SyncLiteSubscription."""
        entry = _parse_subscription(request, client_id)
        config = await self._brokers.group(entry.group, entry.topic)
        check_bound_topic(config, entry.group, entry.topic)
        quota = lite_quota(config)
        if len(entry.lite_topic_set) > max(0, quota + _QUOTA_SLACK):
            raise StatusError(v2.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, f"lite subscription quota exceeded: {quota}")
        if request.action == v2.PARTIAL_ADD and not self._rate.try_acquire():
            reason = f"Too many syncLiteSubscription requests, topic={entry.topic}, group={entry.group}"
            raise StatusError(v2.TOO_MANY_REQUESTS, reason)
        await asyncio.shield(self._start_task(self._sync(entry, client_id, adds=request.action in _ADDS)))
        return rpc.SyncLiteSubscriptionResponse(status=ok())

    async def _sync(self, entry: LiteSubscription, client_id: str, *, adds: bool) -> None:
        async with self._locked_subscriber(client_id) as subscriber:
            if adds:
                subscriber.group, subscriber.topic, subscriber.is_registered = entry.group, entry.topic, True
            elif entry.action == "COMPLETE_REMOVE":
                subscriber.is_registered = False
            await self._send_to_brokers(entry)

    def _on_session_end(self, client_id: str) -> None:
        if broker_client_id(client_id) in self._subscribers:
            self._start_task(self._end(client_id))

    async def _end(self, client_id: str) -> None:
        async with self._locked_subscriber(client_id) as subscriber:
            if subscriber.is_registered:
                subscriber.is_registered = False
                name, group, topic = broker_client_id(client_id), subscriber.group, subscriber.topic
                removal = LiteSubscription(action="COMPLETE_REMOVE", client_id=name, group=group, topic=topic)
                await self._send_to_brokers(removal)

    @asynccontextmanager
    async def _locked_subscriber(self, client_id: str) -> AsyncIterator[_Subscriber]:
        name = broker_client_id(client_id)
        subscriber = self._subscribers.setdefault(name, _Subscriber(client_id))
        subscriber.users += 1
        try:
            async with subscriber.lock:
                yield subscriber
        finally:
            subscriber.users -= 1
            if not subscriber.users and not subscriber.is_registered:
                del self._subscribers[name]

    async def _send_to_brokers(self, entry: LiteSubscription) -> None:
        """Send a subscription to the brokers of a topic. Raises StatusError, BrokerError, TransportError."""
        queues = (await self._brokers.route(entry.topic)).read_queues
        if not queues:
            raise StatusError(v2.FORBIDDEN, f"no readable queue of topic {entry.topic}")
        body = encode_body(LiteSubscriptions(subscription_set=[entry]))
        names = dict.fromkeys(queue.broker_name for queue in queues)
        sends = (self._send_to_broker(entry.topic, name, body) for name in names)
        for outcome in await asyncio.gather(*sends, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _send_to_broker(self, topic: str, broker: str, body: bytes) -> None:
        address = await self._brokers.address(topic, broker)
        await self._brokers.request(address, RequestCode.LITE_SUBSCRIPTION_CTL, body=body, timeout_s=_TIMEOUT_S)

    async def _on_unsubscribed(self, command: RemotingCommand, _: Connection) -> None:
        """NOTIFY_UNSUBSCRIBE_LITE (200073): notify a client that the broker removed its subscription of a child."""
        try:
            fields = read_fields(command, NotifyUnsubscribeLite)
        except RmqError as error:
            log.warning("a broker's notice of a lite topic cannot be read: %(error)s", {"error": error})
            return
        subscriber = self._subscribers.get(fields.client_id)
        if subscriber is not None and subscriber.group == fields.consumer_group:
            session = self._sessions.get(subscriber.client_id)
            permissions = (
                group_permission(subscriber.group, Action.SUB),
                topic_permission(subscriber.topic, Action.SUB),
            )
            if session is not None and await session.caller.may_receive(permissions):
                notice = rpc.NotifyUnsubscribeLiteCommand(lite_topic=fields.lite_topic)
                session.send_command(rpc.TelemetryCommand(notify_unsubscribe_lite_command=notice))


def broker_client_id(client_id: str) -> str:
    """Return the id of a session's client at brokers: no user name contains a slash."""
    return client_id.replace("\n", "/", 1)


def _parse_subscription(request: Any, client_id: str) -> LiteSubscription:
    topic, group = topic_name(request.topic), group_name(request.group)
    if request.action not in v2.LiteSubscriptionAction.values():
        raise StatusError(v2.BAD_REQUEST, "the action is not known")
    if len(request.lite_topic_set) > _MAX_NAMES:
        raise StatusError(v2.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, f"there are more than {_MAX_NAMES} lite topics")
    names = list(dict.fromkeys(request.lite_topic_set))
    if request.action in _ADDS:  # the original looks at those of PARTIAL_ADD alone
        check_lite_topics(names)
    has_option = request.action == v2.PARTIAL_ADD and request.HasField("offset_option")
    return LiteSubscription(
        action=v2.LiteSubscriptionAction.Name(request.action),
        client_id=broker_client_id(client_id),
        group=group,
        lite_topic_set=names,
        topic=topic,
        version=request.version,
        offset_option=_parse_offset_option(request.offset_option) if has_option else None,
    )


def _parse_offset_option(option: Any) -> OffsetOption:
    kind = option.WhichOneof("offset_type")
    if kind is None:
        raise StatusError(v2.BAD_REQUEST, "the offset option has no offset")
    value = getattr(option, kind)
    if value < 0 or (kind == "policy" and value not in v2.OffsetOption.Policy.values()):
        raise StatusError(v2.BAD_REQUEST, f"the offset option {kind} cannot be {value}")
    return OffsetOption(type=kind.upper(), value=value)
