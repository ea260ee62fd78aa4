"""Which clients subscribe to which lite topics: in memory, for clients tell it again every half minute.

Source: ``LiteSubscriptionRegistryImpl``, ``ExclusiveEvictionTombstones``.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from rmq_core.broker.tables.logins import Login
from rmq_core.remoting.connection import Connection
from rmq_formats.codecs.topics import lite_parts


class QuotaError(Exception):
    """There are too many subscriptions."""


@dataclass(eq=False, slots=True)
class LiteClient:
    """A client that subscribes to lite topics.

    Attributes:
        client_id: its id.
        group: its consumer group.
        parent: the topic of the children.
        connection: where it subscribed, its own or that of its proxy; None once that is closed.
        login: the user who subscribed it; None where nobody had to sign.
        heard_ms: when it subscribed last, by the steady clock, as the other times.
        seen_ms: when it asked for messages last.
        queues: light queues of the children; of a wildcard group ``parent@group``.
        evicted: those that another client has taken: it gets no messages of them, even if it has not been told.
        events: light queues that may have messages for it, the oldest first.
        is_behind: there were more of them than it may have.
        avoid_until_ms: until when others are told of messages rather than this client, which did not ask in time.
    """

    client_id: str
    group: str
    parent: str
    connection: Connection | None
    heard_ms: int
    seen_ms: int
    queues: dict[str, None] = field(default_factory=dict)
    evicted: set[str] = field(default_factory=set)
    events: dict[str, None] = field(default_factory=dict)
    is_behind: bool = False
    avoid_until_ms: int = 0
    login: Login | None = None


def wildcard_name(parent: str, group: str) -> str:
    """What stands for all children of a topic, among the queues of a wildcard group's clients."""
    return f"{parent}@{group}"


class Registry:
    """The subscriptions.

    Attributes:
        clients: by id.
        count: subscriptions of all clients.
    """

    def __init__(self) -> None:
        self.clients: dict[str, LiteClient] = {}
        self.count = 0
        self._members: dict[str, dict[str, list[LiteClient]]] = {}  # by light queue and group
        self._wildcards: dict[str, dict[str, None]] = {}  # groups, by parent
        self._of_connection: dict[Connection, dict[LiteClient, None]] = {}

    def enter(
        self, client_id: str, group: str, parent: str, connection: Connection, now_ms: int, login: Login | None = None
    ) -> LiteClient:
        """A client, made if it is new; to be left first where it is known with another group or topic."""
        client = self.clients.get(client_id)
        if client is None:
            client = self.clients[client_id] = LiteClient(client_id, group, parent, None, now_ms, now_ms)
        client.heard_ms, client.login = now_ms, login
        if client.connection is not connection:
            self._disconnect(client)
            client.connection = connection
            self._of_connection.setdefault(connection, {})[client] = None
        return client

    def add(self, client: LiteClient, queue: str) -> bool:
        """Subscribe a client to a light queue; False if it does already."""
        if queue in client.queues:
            return False
        client.queues[queue] = None
        self.count += 1
        self._members.setdefault(queue, {}).setdefault(client.group, []).append(client)
        if queue == wildcard_name(client.parent, client.group):
            self._wildcards.setdefault(client.parent, {})[client.group] = None
        return True

    def remove(self, client: LiteClient, queue: str) -> bool:
        """Unsubscribe a client from a light queue; False if it did not subscribe."""
        if queue not in client.queues:
            return False
        del client.queues[queue]
        client.events.pop(queue, None)
        self.count -= 1
        groups = self._members[queue]
        groups[client.group].remove(client)
        if not groups[client.group]:
            del groups[client.group]
            if queue == wildcard_name(client.parent, client.group):
                self._wildcards[client.parent].pop(client.group, None)
        if not groups:
            del self._members[queue]
        return True

    def leave(self, client: LiteClient) -> Iterator[None]:
        """Forget a client, one of its subscriptions after the other; at once it is no client any more."""
        if self.clients.get(client.client_id) is client:
            del self.clients[client.client_id]
        self._disconnect(client)
        while client.queues:
            self.remove(client, next(reversed(client.queues)))
            yield

    def _disconnect(self, client: LiteClient) -> None:
        if client.connection is not None:
            others = self._of_connection[client.connection]
            del others[client]
            if not others:
                del self._of_connection[client.connection]
            client.connection = None

    def closed(self, connection: Connection) -> Iterator[LiteClient]:
        """The clients of a connection that is closed, one after the other; they have none any more."""
        while others := self._of_connection.get(connection):
            client = next(iter(others))
            self._disconnect(client)
            yield client

    def groups_of(self, queue: str) -> list[list[LiteClient]]:
        """The clients that may be told of messages in a light queue, by group."""
        found = list(self._members.get(queue, {}).values())
        if self._wildcards and (parts := lite_parts(queue)):
            found += [self.wildcard_clients(parts[0], group) for group in self._wildcards.get(parts[0], ())]
        return found

    def members(self, queue: str, group: str) -> list[LiteClient]:
        """The clients of one group that subscribe to a light queue."""
        return self._members.get(queue, {}).get(group, [])

    def wildcard_clients(self, parent: str, group: str) -> list[LiteClient]:
        """The clients of a wildcard group."""
        return self.members(wildcard_name(parent, group), group)

    def is_of(self, connection: Connection) -> bool:
        """Whether a client has subscribed by a connection."""
        return connection in self._of_connection

    def is_waiting(self) -> bool:
        """Whether anybody subscribes."""
        return bool(self._members)
