"""Subscriptions of clients to lite topics, in memory: clients repeat their subscriptions every half minute.

Source: ``LiteSubscriptionRegistryImpl``, ``ExclusiveEvictionTombstones``.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from rmq_core.broker.tables.clients import Login
from rmq_core.remoting.connection import Connection
from rmq_formats.codecs.topics import lite_parts


@dataclass(eq=False, slots=True)
class LiteClient:
    """Client with subscriptions to lite topics.

    Attributes:
        connection: of the last subscription, from the client or its proxy; None after its end.
        login: user of the subscription; None without signatures.
        subscribed_ms: time of the last subscription, by the steady clock, as the other times.
        queues: light queues of the children; of a wildcard group ``parent@group``.
        evicted: light queues that another client has taken over, also before the notification of this client.
        events: light queues that may have messages, the oldest first.
        polled_ms: time of the last request for messages, by the steady clock.
        has_missed_events: there were more events than the limit.
        avoid_until_ms: end of the time in which other clients are preferred, since this client did not poll.
    """

    client_id: str
    group: str
    parent: str
    connection: Connection | None
    subscribed_ms: int
    polled_ms: int
    queues: dict[str, None] = field(default_factory=dict)
    evicted: set[str] = field(default_factory=set)
    events: dict[str, None] = field(default_factory=dict)
    has_missed_events: bool = False
    avoid_until_ms: int = 0
    login: Login | None = None


def wildcard_name(parent: str, group: str) -> str:
    """Return the name for all children of a topic, among the queues of a wildcard group's clients."""
    return f"{parent}@{group}"


class LiteSubscriptionRegistry:
    """Table of subscriptions; ``count`` is that of all clients."""

    def __init__(self) -> None:
        self.clients: dict[str, LiteClient] = {}
        self.count = 0
        self._members: dict[str, dict[str, list[LiteClient]]] = {}  # by light queue and group
        self._wildcards: dict[str, dict[str, None]] = {}  # groups, by parent
        self._of_connection: dict[Connection, dict[LiteClient, None]] = {}

    def register(
        self, client_id: str, group: str, parent: str, connection: Connection, now_ms: int, login: Login | None = None
    ) -> LiteClient:
        """Register a client. A client of another group or topic must be unregistered before."""
        client = self.clients.get(client_id)
        if client is None:
            client = self.clients[client_id] = LiteClient(client_id, group, parent, None, now_ms, now_ms)
        client.subscribed_ms, client.login = now_ms, login
        if client.connection is not connection:
            self._disconnect(client)
            client.connection = connection
            self._of_connection.setdefault(connection, {})[client] = None
        return client

    def add(self, client: LiteClient, queue: str) -> bool:
        """Subscribe a client to a light queue; return False if the client is subscribed already."""
        if queue in client.queues:
            return False
        client.queues[queue] = None
        self.count += 1
        self._members.setdefault(queue, {}).setdefault(client.group, []).append(client)
        if queue == wildcard_name(client.parent, client.group):
            self._wildcards.setdefault(client.parent, {})[client.group] = None
        return True

    def remove(self, client: LiteClient, queue: str) -> bool:
        """Unsubscribe a client from a light queue; return False without a subscription."""
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

    def unregister(self, client: LiteClient) -> Iterator[None]:
        """Unregister a client at once, then remove its subscriptions one by one."""
        if self.clients.get(client.client_id) is client:
            del self.clients[client.client_id]
        self._disconnect(client)
        while client.queues:
            self.remove(client, next(reversed(client.queues)))
            yield

    def _disconnect(self, client: LiteClient) -> None:
        if client.connection is not None:
            clients = self._of_connection[client.connection]
            del clients[client]
            if not clients:
                del self._of_connection[client.connection]
            client.connection = None

    def disconnect(self, connection: Connection) -> Iterator[LiteClient]:
        """Disconnect and yield the clients of a closed connection one by one."""
        while clients := self._of_connection.get(connection):
            client = next(iter(clients))
            self._disconnect(client)
            yield client

    def groups_of(self, queue: str) -> list[list[LiteClient]]:
        """List the clients that may get messages of a light queue, by group."""
        groups = list(self._members.get(queue, {}).values())
        if self._wildcards and (parts := lite_parts(queue)):
            groups += [self.wildcard_clients(parts[0], group) for group in self._wildcards.get(parts[0], ())]
        return groups

    def members(self, queue: str, group: str) -> list[LiteClient]:
        return self._members.get(queue, {}).get(group, [])

    def wildcard_clients(self, parent: str, group: str) -> list[LiteClient]:
        return self.members(wildcard_name(parent, group), group)

    def is_of(self, connection: Connection) -> bool:
        """Return whether a client has subscribed by a connection."""
        return connection in self._of_connection

    def is_waiting(self) -> bool:
        """Return whether there is a subscription."""
        return bool(self._members)
