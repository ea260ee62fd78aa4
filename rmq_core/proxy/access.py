"""Authentication and authorization of calls, by the brokers' users and policies, which the proxy queries itself.

The user is the name in the signature's ``Credential``. Java's proxy takes ``x-mq-authorization-ak``, which is not
signed. The protocol signs only the date: a date more than a day off is refused, where Java's proxy accepts any. (A day,
because the official Python client writes its local time.)

Each call requires the permissions of a broker's request code, on the topics and groups that the call names. A change
of an invisible time requires a permission on the topic, too; in Java only on the group.

Source: ``AuthenticationPipeline``, ``AuthorizationPipeline``, ``DefaultAuthenticationContextBuilder``,
``DefaultAuthorizationContextBuilder#build(Metadata, GeneratedMessageV3)``.
"""

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

from rmq_core.broker.access.accounts import ENABLED, SUPER
from rmq_core.broker.access.guard import FREE_REFUSALS, REFUSAL_WAIT_S, RefusalCounter
from rmq_core.broker.access.policies import Action, Entry, Permission, decide, parse_entry, topic_permission
from rmq_core.broker.access.required_permissions import GROUP, RULES, TOPIC, Names
from rmq_core.broker.tables.clients import Login
from rmq_core.client.admin.broker_queries import UserRequests
from rmq_core.proxy.brokers import Brokers
from rmq_core.proxy.checks import group_name, topic_name
from rmq_core.proxy.port_forwarder import FORWARDED_CLIENTS
from rmq_core.proxy.wire import StatusError, v2
from rmq_core.remoting.bodies.configs import AclInfo
from rmq_core.remoting.clock import now_ms, steady_ms
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.errors import RemotingError, ResponseError, TransportError
from rmq_formats.errors import FormatError

log = logging.getLogger("rmq.proxy")
audit = logging.getLogger("rmq.proxy.audit")
_CACHED_S: Final = 5.0
_PUSH_MAX_AGE_S: Final = 1.0
_MAX_CACHED_ACCOUNTS: Final = 10_000
_MAX_SKEW_S: Final = 25 * 3600
_MAX_HEADER_CHARS: Final = 1024
_CODE = RequestCode


@dataclass(frozen=True, slots=True)
class _Account:
    """User of a broker; ``password`` is None if the broker does not send passwords to the proxy."""

    password: str | None
    is_enabled: bool
    is_super: bool
    policies: tuple[tuple[Entry, ...], ...]

    def __repr__(self) -> str:
        return f"<account, super: {self.is_super}>"


class CallGuard:
    """Authentication and authorization of calls by the users and policies of the brokers."""

    def __init__(self, brokers: Brokers, *, authorizes: bool) -> None:
        """Create the checks, by the users of ``brokers``, at which the proxy must be a super user.

        Without ``authorizes`` any valid login may make all calls.
        """
        self._brokers = brokers
        self._authorizes = authorizes
        self._failures = RefusalCounter(steady_ms)
        self._users = UserRequests(brokers.cluster)
        self._accounts: dict[str, tuple[float, _Account]] = {}

    async def login(self, metadata: Mapping[str, str], host: str) -> Login:
        """Authenticate the user who has signed a call. Raises StatusError."""
        try:
            name, signature = _credential(metadata.get("authorization", ""))
            date = metadata.get("x-mq-date-time", "")
            account = await self._account(name)
            if not account.is_enabled:
                raise _unauthorized(f"User:{name} is disabled.")
            if account.password is None or not _is_signed(account.password, date, signature):
                raise _unauthorized("check signature failed.")
            _check_date(date)
        except StatusError as error:
            if error.code == v2.UNAUTHORIZED:
                await self._log_refusal(host, error)
            raise
        return Login(name, account.password)

    async def check(
        self, login: Login, permissions: Iterable[Permission] | None, host: str, *, max_age_s: float = _CACHED_S
    ) -> None:
        """Check that a user is still enabled, with the same password, and has all permissions. Raises StatusError.

        ``permissions`` is None for a call that only super users may make. The broker's data of the user are at most
        ``max_age_s`` old.
        """
        name = login.name
        account = await self._account(name, max_age_s)
        if not account.is_enabled or account.password != login.password:
            raise _unauthorized(f"User:{name} is disabled or has another password.")
        if account.is_super or not self._authorizes:
            return
        if permissions is None:
            raise _unauthorized(f"User:{name} has no permission for this call: it is for super users.")
        for permission in permissions:
            is_allowed = decide(account.policies, permission, host)
            if not is_allowed:
                reason = "no matched policies" if is_allowed is None else "the decision is deny"
                error = _unauthorized(f"User:{name} has no permission to access {permission} from {host}, {reason}.")
                await self._log_refusal(host, error)
                raise error

    async def _log_refusal(self, host: str, error: StatusError) -> None:
        """Write a refusal to the audit log; after many refusals of a host, delay the response instead."""
        if self._failures.count(host) > FREE_REFUSALS:
            await asyncio.sleep(REFUSAL_WAIT_S)
        else:
            audit.warning("refused a call of %(client)s: %(why)s", {"client": host, "why": error.text})

    async def _account(self, name: str, max_age_s: float = _CACHED_S) -> _Account:
        cached_s, cached = self._accounts.get(name, (0.0, None))
        now = time.monotonic()
        if cached is not None and now < cached_s + max_age_s:
            return cached
        try:
            account = await self._query_account(name)
        except RemotingError as error:
            audit.error("no broker responds to a query for a user: %(why)s", {"why": str(error)})
            raise StatusError(v2.INTERNAL_SERVER_ERROR, "the user cannot be looked up: no broker responds") from error
        if len(self._accounts) >= _MAX_CACHED_ACCOUNTS:
            self._accounts.clear()
        self._accounts[name] = now, account
        return account

    async def _query_account(self, name: str) -> _Account:
        *addresses, last = await self._brokers.auth_brokers()
        for address in addresses:
            try:
                return await self._query_broker(address, name)
            except TransportError as error:
                why = {"broker": address, "why": str(error)}
                log.warning("%(broker)s does not respond to a query for a user: %(why)s", why)
        return await self._query_broker(last, name)

    async def _query_broker(self, address: str, name: str) -> _Account:
        info = await self._users.get(address, name)
        if info is None:
            raise _unauthorized(f"User:{name[:100]} is not found.")
        password = info.password if isinstance(info.password, str) else None
        if password is None:
            audit.error(
                "%(broker)s sends no passwords to this proxy: give the proxy a super user's credentials",
                {"broker": address},
            )
        acl = await self._users.get_acl(address, f"User:{name}")
        return _Account(
            password=password,
            is_enabled=info.user_status == ENABLED,
            is_super=info.user_type == SUPER,
            policies=() if acl is None else _entries(acl),
        )


@dataclass(frozen=True, slots=True)
class Caller:
    """User of a call or a stream; without authentication, a caller with all permissions."""

    access: CallGuard | None = None
    login: Login | None = None
    host: str = ""

    async def check(self, permissions: Iterable[Permission] | None) -> None:
        """Check that the user has all permissions; None requires a super user. Raises StatusError."""
        if self.access is not None and self.login is not None:
            await self.access.check(self.login, permissions, self.host)

    async def check_push(self, permissions: Iterable[Permission] | None) -> None:
        """Check the same with recent data of the user, before a delayed response is sent. Raises StatusError."""
        if self.access is not None and self.login is not None:
            await self.access.check(self.login, permissions, self.host, max_age_s=_PUSH_MAX_AGE_S)

    async def may_receive(self, permissions: Iterable[Permission]) -> bool:
        """Return True if the user has all permissions now."""
        try:
            await self.check_push(permissions)
        except StatusError:
            return False
        return True


def _entries(acl: AclInfo) -> tuple[tuple[Entry, ...], ...]:
    """Parse a subject's policy entries: those of Custom policies, then of Default ones. Raises StatusError."""
    try:
        return tuple(
            tuple(
                parse_entry(entry) for policy in acl.policies for entry in policy.entries if policy.policy_type == kind
            )
            for kind in ("Custom", "Default")
        )
    except (FormatError, ResponseError) as error:  # an unreadable policy must not allow anything
        raise _unauthorized(f"a policy of {acl.subject} cannot be read: {error}") from error


def _credential(text: str) -> tuple[str, str]:
    """Parse user and signature of ``MQv2-HMAC-SHA1 Credential=user, …, Signature=hex``. Raises StatusError."""
    if len(text) > _MAX_HEADER_CHARS:
        raise _unauthorized("the authorization header is too long.")
    _, _, parameters = text.partition(" ")
    parts = dict(part.strip().partition("=")[::2] for part in parameters.split(","))
    name = parts.get("Credential", "").partition("/")[0]
    if not name.strip():
        raise _unauthorized("username cannot be null.")
    return name, parts.get("Signature", "")


def _is_signed(password: str, date: str, signature: str) -> bool:
    expected = hmac.new(password.encode(), date.encode(), hashlib.sha1).hexdigest()
    return hmac.compare_digest(expected.encode(), signature.lower().encode())


def _check_date(text: str) -> None:
    try:
        date = datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise _unauthorized("x-mq-date-time is no date.") from None
    if abs(date.timestamp() - now_ms() / 1000) > _MAX_SKEW_S:
        raise _unauthorized("x-mq-date-time is more than a day away from this proxy's clock.")


def _unauthorized(text: str) -> StatusError:
    return StatusError(v2.UNAUTHORIZED, text)


def host_of(context: Any) -> str:
    """Return the client's address without the port, from gRPC's ``ipv4:127.0.0.1:1234`` or ``ipv6:%5B::1%5D:1234``."""
    return address_of(context).rpartition(":")[0].strip("[]")


def address_of(context: Any) -> str:
    """Return the client's address, ``host:port``."""
    address = unquote(str(context.peer()).partition(":")[2])
    return FORWARDED_CLIENTS.get(address, address)


def metadata_of(context: Any) -> dict[str, str]:
    """Return the text entries of a call's metadata."""
    return {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}


def _names(request: Any, members: Iterable[str]) -> Names:
    """Yield the groups and topics in members of a request. Raises StatusError."""
    for member in members:
        if member == "group":
            yield GROUP, group_name(request.group)
        elif member == "optional group":
            if request.group.name:
                yield GROUP, group_name(request.group)
        elif member == "topic":
            yield TOPIC, topic_name(request.topic)
        elif member == "queue":
            yield TOPIC, topic_name(request.message_queue.topic)
        else:
            for topic in dict.fromkeys(topic_name(message.topic) for message in request.messages):
                yield TOPIC, topic


_QUERY_ROUTE: Final = "QueryRoute"  # a call of producers and consumers without a request code of brokers
CALLS: Final[dict[str, tuple[RequestCode, tuple[str, ...]]]] = {
    "Heartbeat": (_CODE.HEART_BEAT, ("optional group",)),
    "SendMessage": (_CODE.SEND_MESSAGE_V2, ("messages",)),
    "QueryAssignment": (_CODE.QUERY_ASSIGNMENT, ("group", "topic")),
    "ReceiveMessage": (_CODE.POP_MESSAGE, ("group", "queue")),
    "AckMessage": (_CODE.ACK_MESSAGE, ("group", "topic")),
    "ForwardMessageToDeadLetterQueue": (_CODE.CONSUMER_SEND_MSG_BACK, ("group", "topic")),
    "PullMessage": (_CODE.PULL_MESSAGE, ("group", "queue")),
    "UpdateOffset": (_CODE.UPDATE_CONSUMER_OFFSET, ("group", "queue")),
    "GetOffset": (_CODE.QUERY_CONSUMER_OFFSET, ("group", "queue")),
    "QueryOffset": (_CODE.SEARCH_OFFSET_BY_TIMESTAMP, ("queue",)),
    "EndTransaction": (_CODE.END_TRANSACTION, ("topic",)),
    "NotifyClientTermination": (_CODE.UNREGISTER_CLIENT, ("optional group",)),
    "ChangeInvisibleDuration": (_CODE.CHANGE_MESSAGE_INVISIBLETIME, ("group", "topic")),
    "RecallMessage": (_CODE.RECALL_MESSAGE, ("topic",)),
    "SyncLiteSubscription": (_CODE.LITE_SUBSCRIPTION_CTL, ("group", "topic")),
}
"""By call: the request code with the same permissions, and the members of the request that name groups and topics."""


def required_permissions(name: str, request: Any) -> tuple[Permission, ...] | None:
    """Return the required permissions of a call; None if only super users may call. Raises StatusError."""
    if name == _QUERY_ROUTE:
        return (topic_permission(topic_name(request.topic), Action.PUB, Action.SUB),)
    if name not in CALLS:
        return None
    code, members = CALLS[name]
    return tuple(RULES[code].permissions_on(_names(request, members)))


def settings_permissions(settings: Any) -> Iterable[Permission]:
    """Yield the required permissions of a client's settings. Raises StatusError."""
    if settings.HasField("publishing"):
        topics = ((TOPIC, topic_name(topic)) for topic in settings.publishing.topics)
        yield from RULES[_CODE.SEND_MESSAGE_V2].permissions_on(topics)
    if settings.HasField("subscription"):
        pull = RULES[_CODE.PULL_MESSAGE]
        yield from pull.permissions_on(_names(settings.subscription, ("group",)))
        for subscription in settings.subscription.subscriptions:
            yield from pull.permissions_on(_names(subscription, ("topic",)))
