"""Permissions at the time of a push, and of the response to a parked request.

A request is checked on arrival. Before the push an administrator may withdraw the permission, disable or delete the
user, or change the password; each change takes effect at once.
"""

from collections.abc import Callable, Iterable

from rmq_core.broker.access.guard import Guard
from rmq_core.broker.access.policies import Action, Permission, topic_permission
from rmq_core.broker.tables.clients import Login
from rmq_core.broker.tables.names import RETRY_PREFIX
from rmq_core.remoting.access.acl import ACCESS_KEY
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.header import RemotingCommand


class PushRights:
    """Permissions of connected clients; without users, each client has every permission."""

    def __init__(self, guard: Guard | None) -> None:
        """Use the guard of the broker's requests; None without users."""
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
        """Return whether a user has all permissions now.

        Args:
            login: user who registered the client; None has no permissions, unless there are no users.
            address: ``host:port`` of the client.
        """
        guard = self._guard
        if guard is None:
            return True
        return (
            login is not None
            and self.has_login(login)
            and guard.first_refusal(login.name, permissions, address) is None
        )

    def withdrawal_check(self, request: RemotingCommand, connection: Connection) -> Callable[[], None]:
        """Return the check of a request to be parked, for a call before its response is sent.

        The check raises ResponseError if the request would be refused now.
        """
        guard = self._guard
        if guard is None or not guard.is_signed(request.code):
            return _pass
        name = request.ext_fields[ACCESS_KEY]
        password, permissions, address = (
            guard.password(name),
            guard.required_permissions(request),
            connection.remote_address,
        )
        return lambda: guard.check_parked(name, password, permissions, address)


def publish_permission(topic: str) -> Permission:
    """Return the permission to send to a topic: Pub, and for a retry topic Sub on its group."""
    return topic_permission(topic, Action.SUB if topic.startswith(RETRY_PREFIX) else Action.PUB)


def _pass() -> None:
    return None
