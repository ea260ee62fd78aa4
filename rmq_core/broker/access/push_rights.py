"""Rights at the moment at which a broker sends something by itself: pushes, and answers to requests that it has held.

A request is checked when it arrives. Between that and the push an administrator may have withdrawn the right, disabled
or deleted the user, or changed the password; each of these counts at once.
"""

from collections.abc import Callable, Iterable

from rmq_core.broker.access.guard import Guard
from rmq_core.broker.access.policies import Action, Need, topic_need
from rmq_core.broker.tables.logins import Login
from rmq_core.broker.tables.names import RETRY_PREFIX
from rmq_core.remoting.access.acl import ACCESS_KEY
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.header import RemotingCommand


class PushRights:
    """Rights of connected clients; where a broker knows no users, everybody has every right."""

    def __init__(self, guard: Guard | None) -> None:
        """Prepare.

        Args:
            guard: of the broker's requests; None where it knows no users.
        """
        self._guard = guard

    def login(self, request: RemotingCommand) -> Login | None:
        """The user of a request that has passed the guard; None if nobody had to sign it."""
        guard = self._guard
        if guard is None or not guard.is_signed(request.code):
            return None
        name = request.ext_fields[ACCESS_KEY]
        return Login(name, guard.password(name))

    def has_login(self, login: Login | None) -> bool:
        """Whether a user is still known, enabled and has the same password; without users, always."""
        guard = self._guard
        return guard is None or (login is not None and guard.is_valid(login.name, login.password))

    def may_receive(self, login: Login | None, address: str, needs: Iterable[Need]) -> bool:
        """Whether a user has all of some rights now.

        Args:
            login: the user who registered the client; None, where users are known, has no rights.
            address: ``host:port`` of the client.
            needs: all that is needed.
        """
        guard = self._guard
        if guard is None:
            return True
        return login is not None and self.has_login(login) and guard.refused_need(login.name, needs, address) is None

    def withdrawal_check(self, request: RemotingCommand, connection: Connection) -> Callable[[], None]:
        """Make the check of a request that is about to be held, to be called before its answer leaves.

        The check raises ResponseError if the request would be refused now.
        """
        guard = self._guard
        if guard is None or not guard.is_signed(request.code):
            return _pass
        name = request.ext_fields[ACCESS_KEY]
        password, needs, address = guard.password(name), guard.needs(request), connection.remote_address
        return lambda: guard.check_held(name, password, needs, address)


def publish_need(topic: str) -> Need:
    """The right to send to a topic: Pub, and for a retry topic Sub on its group."""
    return topic_need(topic, Action.SUB if topic.startswith(RETRY_PREFIX) else Action.PUB)


def _pass() -> None:
    return None
