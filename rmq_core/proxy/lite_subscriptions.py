"""What clients subscribe to of a topic's children: told to all brokers that have it, and ended with the client.

Brokers know a client by its id alone. Where users sign, it is ``user/id``, so that nobody ends or takes over another's.

Source: ``ClientActivity#syncLiteSubscription``, ``ClientProcessor``, ``LiteSubscriptionService``,
``GrpcClientSettingsManager#offlineClientLiteSubscription``, ``ProxyClientRemotingProcessor#notifyUnsubscribeLite``.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from rmq_core.broker.access.policies import Action, group_need, topic_need
from rmq_core.proxy.brokers import Brokers
from rmq_core.proxy.checks import check_lite_topics, group_name, topic_name
from rmq_core.proxy.errors import StatusError, ok
from rmq_core.proxy.lite_groups import check_bound, lite_quota
from rmq_core.proxy.rate import Rate
from rmq_core.proxy.sessions import Sessions
from rmq_core.proxy.wire import rpc, v2
from rmq_core.remoting.bodies import encode_body
from rmq_core.remoting.bodies.lite import LiteSubscription, LiteSubscriptions, OffsetOption
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.lite_requests import NotifyUnsubscribeLite
from rmq_formats.errors import RmqError

log = logging.getLogger("rmq.proxy")
_MOST_A_SECOND: Final = 5000  # ``maxSyncLiteSubscriptionRate``
_MORE_THAN_QUOTA: Final = 300  # names that a broker is told beyond it: a client may know late of some that are gone
_MOST_NAMES: Final = 100_000  # of a call, whatever the quota: the event loop looks at them at once
_TIMEOUT_S: Final = 2.0
_ADDS: Final = (v2.PARTIAL_ADD, v2.COMPLETE_ADD)
Begin = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


@dataclass(slots=True)
class _Subscriber:
    """A client of a lite group.

    Attributes:
        client_id: of its session.
        group: that it is in.
        topic: that it has children of.
        is_known: brokers may know of it.
        users: how many wait for its turn, or have it.
        turn: brokers are told of one change after the other.
    """

    client_id: str
    group: str = ""
    topic: str = ""
    is_known: bool = False
    users: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Subscriptions:
    """Handles subscriptions to lite topics."""

    def __init__(self, brokers: Brokers, sessions: Sessions, begin: Begin) -> None:
        """Use ``begin`` for work that must not end halfway when its call does."""
        self._brokers = brokers
        self._sessions = sessions
        self._begin = begin
        self._rate = Rate(_MOST_A_SECOND)
        self._subscribers: dict[str, _Subscriber] = {}
        brokers.on_unsubscribed = self._unsubscribed
        sessions.on_gone = self._gone

    async def close(self) -> None:
        """Tell of no client more that is gone: it goes on at another proxy."""
        self._sessions.on_gone = lambda _: None

    async def sync(self, asked: Any, client_id: str, _: str) -> Any:
        """SyncLiteSubscription."""
        entry = _entry_of(asked, client_id)
        config = await self._brokers.group(entry.group, entry.topic)
        check_bound(config, entry.group, entry.topic)
        quota = lite_quota(config)
        if len(entry.lite_topic_set) > max(0, quota + _MORE_THAN_QUOTA):
            raise StatusError(v2.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, f"lite subscription quota exceeded: {quota}")
        if asked.action == v2.PARTIAL_ADD and not self._rate.take():
            told = f"Too many syncLiteSubscription requests, topic={entry.topic}, group={entry.group}"
            raise StatusError(v2.TOO_MANY_REQUESTS, told)
        await asyncio.shield(self._begin(self._sync(entry, client_id, adds=asked.action in _ADDS)))
        return rpc.SyncLiteSubscriptionResponse(status=ok())

    async def _sync(self, entry: LiteSubscription, client_id: str, *, adds: bool) -> None:
        async with self._turn(client_id) as one:
            if adds:
                one.group, one.topic, one.is_known = entry.group, entry.topic, True
            elif entry.action == "COMPLETE_REMOVE":
                one.is_known = False
            await self._tell(entry)

    def _gone(self, client_id: str) -> None:
        if known_as(client_id) in self._subscribers:
            self._begin(self._end(client_id))

    async def _end(self, client_id: str) -> None:
        async with self._turn(client_id) as one:
            if one.is_known:
                one.is_known = False
                name = known_as(client_id)
                gone = LiteSubscription(action="COMPLETE_REMOVE", client_id=name, group=one.group, topic=one.topic)
                await self._tell(gone)

    @asynccontextmanager
    async def _turn(self, client_id: str) -> AsyncIterator[_Subscriber]:
        name = known_as(client_id)
        one = self._subscribers.setdefault(name, _Subscriber(client_id))
        one.users += 1
        try:
            async with one.turn:
                yield one
        finally:
            one.users -= 1
            if not one.users and not one.is_known:
                del self._subscribers[name]

    async def _tell(self, entry: LiteSubscription) -> None:
        """Tell all brokers of a topic that can be read. Raises StatusError, BrokerError, TransportError."""
        queues = (await self._brokers.route(entry.topic)).read_queues
        if not queues:
            raise StatusError(v2.FORBIDDEN, f"no readable queue of topic {entry.topic}")
        body = encode_body(LiteSubscriptions(subscription_set=[entry]))
        names = dict.fromkeys(queue.broker_name for queue in queues)
        told = await asyncio.gather(*(self._ask(entry.topic, name, body) for name in names), return_exceptions=True)
        for one in told:
            if isinstance(one, BaseException):
                raise one

    async def _ask(self, topic: str, broker: str, body: bytes) -> None:
        address = await self._brokers.address(topic, broker)
        await self._brokers.ask(address, RequestCode.LITE_SUBSCRIPTION_CTL, body=body, timeout_s=_TIMEOUT_S)

    async def _unsubscribed(self, command: RemotingCommand, _: Connection) -> None:
        """NOTIFY_UNSUBSCRIBE_LITE (200073): tell a client that it has a child no more."""
        try:
            told = read_fields(command, NotifyUnsubscribeLite)
        except RmqError as error:
            log.warning("a broker's notice of a lite topic cannot be read: %(error)s", {"error": error})
            return
        one = self._subscribers.get(told.client_id)
        if one is not None and one.group == told.consumer_group:
            session = self._sessions.get(one.client_id)
            needs = (group_need(one.group, Action.SUB), topic_need(one.topic, Action.SUB))
            if session is not None and await session.caller.may_receive(needs):
                notice = rpc.NotifyUnsubscribeLiteCommand(lite_topic=told.lite_topic)
                session.tell(rpc.TelemetryCommand(notify_unsubscribe_lite_command=notice))


def known_as(client_id: str) -> str:
    """The id that brokers know a session's client by: no user's name has a slash."""
    return client_id.replace("\n", "/", 1)


def _entry_of(asked: Any, client_id: str) -> LiteSubscription:
    """What a call asks for. Raises StatusError."""
    topic, group = topic_name(asked.topic), group_name(asked.group)
    if asked.action not in v2.LiteSubscriptionAction.values():
        raise StatusError(v2.BAD_REQUEST, "the action is not known")
    if len(asked.lite_topic_set) > _MOST_NAMES:
        raise StatusError(v2.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, f"there are more than {_MOST_NAMES} lite topics")
    names = list(dict.fromkeys(asked.lite_topic_set))
    if asked.action in _ADDS:  # the original looks at those of PARTIAL_ADD alone
        check_lite_topics(names)
    has_option = asked.action == v2.PARTIAL_ADD and asked.HasField("offset_option")
    return LiteSubscription(
        action=v2.LiteSubscriptionAction.Name(asked.action), client_id=known_as(client_id), group=group,
        lite_topic_set=names, offset_option=_option_of(asked.offset_option) if has_option else None, topic=topic,
        version=asked.version,
    )  # fmt: skip


def _option_of(option: Any) -> OffsetOption:
    kind = option.WhichOneof("offset_type")
    if kind is None:
        raise StatusError(v2.BAD_REQUEST, "the offset option says no offset")
    value = getattr(option, kind)
    if value < 0 or (kind == "policy" and value not in v2.OffsetOption.Policy.values()):
        raise StatusError(v2.BAD_REQUEST, f"the offset option {kind} cannot be {value}")
    return OffsetOption(type=kind.upper(), value=value)
