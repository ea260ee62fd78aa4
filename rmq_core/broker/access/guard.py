"""Guard of a broker's request handlers: authentication of the sender, authorization of the user.

Frequent refusals of a host are delayed, and too many close the connection. Permissions are checked on arrival, and
again before a push and before the response to a parked request: meanwhile an administrator may withdraw the
permission, disable or delete the user, or change the password.

Source: ``AuthenticationPipeline``, ``AuthorizationPipeline``; the refusals' words are the original's.
"""

import asyncio
import hmac
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from rmq_core.broker.access.accounts import ENABLED, Accounts
from rmq_core.broker.access.policies import Action, Permission, decide, refusal, topic_permission
from rmq_core.broker.access.required_permissions import RULES, Rule, lmq_send_rules, rules_by_physical_offset
from rmq_core.broker.config import BrokerConfig, whitelist
from rmq_core.broker.tables.clients import Client, Login
from rmq_core.broker.tables.names import RETRY_PREFIX
from rmq_core.remoting.access.acl import ACCESS_KEY, is_signed_with
from rmq_core.remoting.connection import Connection, Handler, HandlerResponse
from rmq_core.remoting.error_responses import not_supported
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.settings import address_host
from rmq_core.store.store import MessageStore

audit = logging.getLogger("rmq.broker.audit")
FREE_REFUSALS: Final = 50  # refusals of a host in a window; later ones are delayed
MAX_REFUSALS: Final = 1000  # refusals after which the connection is closed
REFUSAL_WAIT_S: Final = 0.5
_REFUSAL_WINDOW_MS: Final = 60_000
_MAX_REFUSED_HOSTS: Final = 10_000
_MAX_CACHED_DECISIONS: Final = 100_000


class RefusalCounter:
    """Refusals of each host in the current window."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._by_host: dict[str, tuple[int, int]] = {}  # count, and end of the window

    def count(self, host: str) -> int:
        """Count a refusal of a host; return the number in the window."""
        now_ms = self._clock_ms()
        count, end_ms = self._by_host.get(host, (0, 0))
        if now_ms >= end_ms:
            count, end_ms = 0, now_ms + _REFUSAL_WINDOW_MS
        if len(self._by_host) >= _MAX_REFUSED_HOSTS:
            self._by_host.clear()
        self._by_host[host] = count + 1, end_ms
        return count + 1


class Guard:
    """Checks of requests against users and policies; without authorization, a login is enough for each request."""

    def __init__(
        self, config: BrokerConfig, accounts: Accounts, store: MessageStore, steady_ms: Callable[[], int]
    ) -> None:
        self._accounts = accounts
        self._cluster = config.broker_cluster_name
        self._authorizes = config.authorization_enabled
        lmq_rules = lmq_send_rules() if store.config.lmq_enabled else {}
        self._rules: dict[int, Rule] = {**RULES, **rules_by_physical_offset(store.message), **lmq_rules}
        # Requests without login and policies, and all requests without policies.
        self._open_codes = whitelist(config.authentication_whitelist, "authenticationWhitelist")
        self._free = self._open_codes | whitelist(config.authorization_whitelist, "authorizationWhitelist")
        self._failures = RefusalCounter(steady_ms)
        self._decisions: dict[tuple[str, Permission, str], bool | None] = {}
        self._changes = 0  # version of the accounts in the decisions

    def guard(self, handler: Handler) -> Handler:
        return self.require_signature(self.require_permissions(handler))

    def require_signature(self, handler: Handler) -> Handler:
        """Wrap a handler: only signed requests reach the handler."""

        def handle(request: RemotingCommand, connection: Connection) -> HandlerResponse:
            if request.code not in self._open_codes:
                try:
                    self._authenticate(request, request.ext_fields.get(ACCESS_KEY, ""))
                except ResponseError as error:
                    return self._refuse_unauthenticated(request, connection, error)
            return handler(request, connection)

        return handle

    def require_permissions(self, handler: Handler) -> Handler:
        """Wrap a handler: only requests that the user's policies allow reach the handler; the guard decodes bodies."""
        if not self._authorizes:
            return handler

        def handle(request: RemotingCommand, connection: Connection) -> HandlerResponse:
            if request.code not in self._free:
                name = request.ext_fields[ACCESS_KEY]
                if not self._accounts.users[name].is_super:
                    self._authorize(name, request, connection)
            return handler(request, connection)

        return handle

    def _authenticate(self, request: RemotingCommand, name: str) -> None:
        if not name.strip():
            raise refusal("username cannot be null.")
        user = self._accounts.users.get(name)
        if user is None:
            raise refusal(f"User:{name[:100]} is not found.")
        if user.user_status != ENABLED:
            raise refusal(f"User:{name} is disabled.")
        if not is_signed_with(request, user.password):
            raise refusal("check signature failed.")

    def _authorize(self, name: str, request: RemotingCommand, connection: Connection) -> None:
        rule = self._rules.get(request.code)
        if rule is None:
            raise refusal(f"User:{name} has no permission for request type {request.code}: it is for super users.")
        error = self.first_refusal(name, rule(request, self._cluster), connection.remote_address)
        if error is not None:
            if self._failures.count(address_host(connection.remote_address)) <= FREE_REFUSALS:
                _log_refusal(request, connection, error)
            raise error

    def is_signed(self, code: int) -> bool:
        """Return whether requests of a code are signed by a user."""
        return code not in self._open_codes

    def password(self, name: str) -> str:
        user = self._accounts.users.get(name)
        return "" if user is None else user.password

    def is_valid(self, name: str, password: str) -> bool:
        """Return whether a user exists, is enabled, and has a password."""
        user = self._accounts.users.get(name)
        is_enabled = user is not None and user.user_status == ENABLED
        return is_enabled and hmac.compare_digest(self.password(name).encode(), password.encode())

    def first_refusal(self, name: str, permissions: Iterable[Permission], address: str) -> ResponseError | None:
        """Return the refusal of the first permission that a user lacks from an address; None with all permissions."""
        if not self._authorizes or self._accounts.users[name].is_super:
            return None
        host = address_host(address)
        for permission in permissions:
            is_allowed = self._decide(name, permission, host)
            if not is_allowed:
                reason = "no matched policies" if is_allowed is None else "the decision is deny"
                return refusal(f"User:{name} has no permission to access {permission} from {host}, {reason}.")
        return None

    def required_permissions(self, request: RemotingCommand) -> tuple[Permission, ...] | None:
        """Return all permissions that a request requires; None if only super users may send the request."""
        if request.code in self._free or not self._authorizes:
            return ()
        rule = self._rules.get(request.code)
        return None if rule is None else tuple(rule(request, self._cluster))

    def check_parked(self, name: str, password: str, permissions: tuple[Permission, ...] | None, address: str) -> None:
        """Refuse to answer a parked request whose user could not send the request now. Raises ResponseError."""
        if not self.is_valid(name, password):
            raise refusal(f"User:{name} is not found, is disabled or has another password.")
        if permissions is None and not self._accounts.users[name].is_super:
            raise refusal(f"User:{name} has no permission for this request: it is for super users.")
        error = self.first_refusal(name, permissions or (), address)
        if error is not None:
            raise error

    def _decide(self, name: str, permission: Permission, host: str) -> bool | None:
        if self._changes != self._accounts.version or len(self._decisions) > _MAX_CACHED_DECISIONS:
            self._decisions.clear()
            self._changes = self._accounts.version
        key = name, permission, host
        if key not in self._decisions:
            self._decisions[key] = decide(self._accounts.policies(name), permission, host)
        return self._decisions[key]

    def _refuse_unauthenticated(
        self, request: RemotingCommand, connection: Connection, error: ResponseError
    ) -> HandlerResponse:
        """Refuse a request that is not authenticated; delay the refusal for a host with many refusals."""
        count = self._failures.count(address_host(connection.remote_address))
        if count <= FREE_REFUSALS:
            _log_refusal(request, connection, error)
            raise error
        if count > MAX_REFUSALS:
            connection.close()
            return None
        return _refuse_later(error)


def _log_refusal(request: RemotingCommand, connection: Connection, error: ResponseError) -> None:
    audit.warning(
        "refused request %(code)d of %(client)s: %(remark)s",
        {"code": request.code, "client": connection.remote_address, "remark": error.remark},
    )


class GuardedTable(dict[int, Handler]):
    """Table of handlers with a handler for every code, so that refusals do not reveal which codes exist."""

    def __init__(self, handlers: Mapping[int, Handler], guard: Guard) -> None:
        super().__init__(handlers)
        self._unknown = guard.guard(lambda request, _: not_supported(request))

    def get(self, code: int, default: object = None) -> Handler:  # noqa: ARG002
        return super().get(code, self._unknown)


def guard_all(guard: Guard | None, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """Put a guard before handlers, if there is one."""
    if guard is None:
        return dict(handlers)
    return {code: guard.guard(handler) for code, handler in handlers.items()}


async def _refuse_later(error: ResponseError) -> RemotingCommand | None:
    await asyncio.sleep(REFUSAL_WAIT_S)
    raise error


class PushRights:
    """Permissions of connected clients; without users, each client has every permission."""

    def __init__(self, guard: Guard | None) -> None:
        self._guard = guard

    def login(self, request: RemotingCommand) -> Login | None:
        """Return the user of a request that has passed the guard; None for an unsigned request."""
        guard = self._guard
        if guard is None or not guard.is_signed(request.code):
            return None
        name = request.ext_fields[ACCESS_KEY]
        return Login(name, guard.password(name))

    def has_login(self, login: Login | None) -> bool:
        """Return whether a user still exists, is enabled and has the same password; always True without users."""
        guard = self._guard
        return guard is None or (login is not None and guard.is_valid(login.name, login.password))

    def may_receive(self, login: Login | None, address: str, permissions: Iterable[Permission]) -> bool:
        """Return whether a client's user has all permissions now; None has none, unless there are no users."""
        guard = self._guard
        if guard is None:
            return True
        if login is None or not self.has_login(login):
            return False
        return guard.first_refusal(login.name, permissions, address) is None

    def first_permitted(self, clients: Iterable[Client], permissions: Collection[Permission]) -> Client | None:
        """Return the first client whose user has all permissions now; None without such a client."""
        for client in clients:
            if self.may_receive(client.login, client.connection.remote_address, permissions):
                return client
        return None

    def withdrawal_check(self, request: RemotingCommand, connection: Connection) -> Callable[[], None]:
        """Return the check of a parked request before its response; it raises ResponseError for withdrawn rights."""
        guard = self._guard
        if guard is None or not guard.is_signed(request.code):
            return lambda: None
        name = request.ext_fields[ACCESS_KEY]
        password, permissions = guard.password(name), guard.required_permissions(request)
        address = connection.remote_address
        return lambda: guard.check_parked(name, password, permissions, address)


def publish_permission(topic: str) -> Permission:
    """Return the permission to send to a topic: Pub, and for a retry topic Sub on its group."""
    return topic_permission(topic, Action.SUB if topic.startswith(RETRY_PREFIX) else Action.PUB)
