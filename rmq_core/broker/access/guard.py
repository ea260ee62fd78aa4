"""Stands before a broker's request handlers: asks who sends a request, and whether that user may.

Source: ``AuthenticationPipeline``, ``AuthorizationPipeline``; the refusals' words are the original's.
"""

import asyncio
import hmac
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from rmq_core.broker.access import failures
from rmq_core.broker.access.accounts import ENABLED, Accounts
from rmq_core.broker.access.failures import Failures
from rmq_core.broker.access.needs import RULES, Rule, rules_by_place, rules_of_light_queues
from rmq_core.broker.access.policies import Need, decision, refusal
from rmq_core.broker.access_settings import whitelist
from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.access.acl import ACCESS_KEY, is_signed_with
from rmq_core.remoting.connection import Connection, Handler, HandlerAnswer
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.unsupported import not_supported
from rmq_formats.codecs.record import StoredMessage

audit = logging.getLogger("rmq.broker.audit")
_MOST_DECISIONS: Final = 100_000


class Guard:
    """Checks requests against users and policies."""

    def __init__(
        self,
        accounts: Accounts,
        cluster: str,
        steady_ms: Callable[[], int],
        *,
        authorizes: bool,
        more_rules: Mapping[int, Rule] | None = None,
        open_codes: frozenset[int] = frozenset(),
        codes_for_all_users: frozenset[int] = frozenset(),
    ) -> None:
        """Prepare a guard.

        Args:
            accounts: users and policies.
            cluster: name of the broker's cluster.
            steady_ms: a clock that nobody sets.
            authorizes: whether policies are asked, or a login is enough.
            more_rules: in place of those of ``RULES``.
            open_codes: requests that need no login, nor policies.
            codes_for_all_users: requests that need a login, and no policies.
        """
        self._accounts = accounts
        self._cluster = cluster
        self._authorizes = authorizes
        self._rules = RULES | dict(more_rules or {})
        self._open_codes = open_codes
        self._free = open_codes | codes_for_all_users
        self._failures = Failures(steady_ms)
        self._decisions: dict[tuple[str, Need, str], bool | None] = {}
        self._changes = 0  # of the accounts, that the decisions know of

    def before(self, handler: Handler) -> Handler:
        """Put the guard before a handler."""
        return self.signed(self.allowed(handler))

    def signed(self, handler: Handler) -> Handler:
        """Have a handler get what a user has signed."""

        def handle(request: RemotingCommand, connection: Connection) -> HandlerAnswer:
            if request.code not in self._open_codes:
                try:
                    self._authenticate(request, request.ext_fields.get(ACCESS_KEY, ""))
                except ResponseError as error:
                    return self._unknown_sender(request, connection, error)
            return handler(request, connection)

        return handle

    def allowed(self, handler: Handler) -> Handler:
        """Have a handler get what the user may ask who has signed it; it looks into bodies."""
        if not self._authorizes:
            return handler

        def handle(request: RemotingCommand, connection: Connection) -> HandlerAnswer:
            if request.code not in self._free:
                name = request.ext_fields[ACCESS_KEY]
                if not self._accounts.users[name].is_super:
                    self._authorize(name, request, connection)
            return handler(request, connection)

        return handle

    def _authenticate(self, request: RemotingCommand, name: str) -> None:
        """Refuse a request that is not signed by the user who it names. Raises ResponseError."""
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
        """Ask a user's policies for all that a request needs. Raises ResponseError."""
        rule = self._rules.get(request.code)
        if rule is None:
            raise refusal(f"User:{name} has no permission for request type {request.code}: it is for super users.")
        error = self.refused_need(name, rule(request, self._cluster), connection.remote_address)
        if error is not None:
            if self._failures.count(_host(connection.remote_address)) <= failures.FREE:
                _tell(request, connection, error)
            raise error

    def is_signed(self, code: int) -> bool:
        """Whether requests of a code are signed by a user."""
        return code not in self._open_codes

    def password(self, name: str) -> str:
        """The password of a user; empty if there is no such user."""
        user = self._accounts.users.get(name)
        return "" if user is None else user.password

    def is_valid(self, name: str, password: str) -> bool:
        """Whether a user is there, enabled, and has a password."""
        user = self._accounts.users.get(name)
        is_enabled = user is not None and user.user_status == ENABLED
        return is_enabled and hmac.compare_digest(self.password(name).encode(), password.encode())

    def refused_need(self, name: str, needs: Iterable[Need], address: str) -> ResponseError | None:
        """The refusal of the first need that a user's policies do not allow from an address; None if they allow all."""
        if not self._authorizes or self._accounts.users[name].is_super:
            return None
        host = _host(address)
        for need in needs:
            is_allowed = self._decide(name, need, host)
            if not is_allowed:
                why = "no matched policies" if is_allowed is None else "the decision is deny"
                return refusal(f"User:{name} has no permission to access {need} from {host}, {why}.")
        return None

    def needs(self, request: RemotingCommand) -> tuple[Need, ...] | None:
        """All that a request needs; None if it is for super users."""
        if request.code in self._free or not self._authorizes:
            return ()
        rule = self._rules.get(request.code)
        return None if rule is None else tuple(rule(request, self._cluster))

    def check_held(self, name: str, password: str, needs: tuple[Need, ...] | None, address: str) -> None:
        """Refuse to answer a held request whose user could not send it now. Raises ResponseError."""
        if not self.is_valid(name, password):
            raise refusal(f"User:{name} is not found, is disabled or has another password.")
        if needs is None and not self._accounts.users[name].is_super:
            raise refusal(f"User:{name} has no permission for this request: it is for super users.")
        error = self.refused_need(name, needs or (), address)
        if error is not None:
            raise error

    def _decide(self, name: str, need: Need, host: str) -> bool | None:
        if self._changes != self._accounts.version or len(self._decisions) > _MOST_DECISIONS:
            self._decisions.clear()
            self._changes = self._accounts.version
        key = name, need, host
        if key not in self._decisions:
            self._decisions[key] = decision(self._accounts.policies(name), need, host)
        return self._decisions[key]

    def _unknown_sender(self, request: RemotingCommand, connection: Connection, error: ResponseError) -> HandlerAnswer:
        """Refuse a request whose sender is not who it says: after a while, if its host has tried often."""
        count = self._failures.count(_host(connection.remote_address))
        if count <= failures.FREE:
            _tell(request, connection, error)
            raise error
        if count > failures.PATIENCE:
            connection.close()
            return None
        return _later(error)


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _tell(request: RemotingCommand, connection: Connection, error: ResponseError) -> None:
    audit.warning(
        "refused request %(code)d of %(client)s: %(remark)s",
        {"code": request.code, "client": connection.remote_address, "remark": error.remark},
    )


class GuardedTable(dict[int, Handler]):
    """A table of handlers that has one for every code, so that a stranger does not learn which codes there are."""

    def __init__(self, handlers: Mapping[int, Handler], guard: Guard) -> None:
        super().__init__(handlers)
        self._unknown = guard.before(_not_supported)

    def get(self, code: int, default: object = None) -> Handler:  # noqa: ARG002
        """Give the handler of a code, or what answers that there is none."""
        return super().get(code, self._unknown)


def guard_of(
    config: BrokerConfig, accounts: Accounts | None, steady_ms: Callable[[], int],
    message_at: Callable[[int], StoredMessage | None], *, has_light_queues: bool,
) -> Guard | None:  # fmt: skip
    """Make what stands before a broker's handlers, if there are users; ``message_at`` is as in ``rules_by_place``."""
    if accounts is None:
        return None
    light = rules_of_light_queues() if has_light_queues else {}
    return Guard(
        accounts, config.broker_cluster_name, steady_ms,
        authorizes=config.authorization_enabled, more_rules=rules_by_place(message_at) | light,
        open_codes=whitelist(config.authentication_whitelist, "authenticationWhitelist"),
        codes_for_all_users=whitelist(config.authorization_whitelist, "authorizationWhitelist"),
    )  # fmt: skip


def guarded(guard: Guard | None, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """Put a guard before handlers, if there is one."""
    return dict(handlers) if guard is None else {code: guard.before(handler) for code, handler in handlers.items()}


async def _later(error: ResponseError) -> RemotingCommand | None:
    await asyncio.sleep(failures.WAIT_S)
    raise error


def _not_supported(request: RemotingCommand, _: Connection) -> RemotingCommand:
    return not_supported(request)
