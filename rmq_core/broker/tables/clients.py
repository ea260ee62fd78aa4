"""Connected clients by group, as their heartbeats register them, their queue locks, and requests that wait for a reply.

A lock says which client alone may consume a queue. Replies go to the user and the connection that sent a request: a
reply names its requester by a client id, which anybody may say of himself.

Source: ``ConsumerManager``, ``ConsumerGroupInfo``, ``ProducerManager``, ``RebalanceLockManager``.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final
from weakref import ReferenceType, ref

from rmq_core.remoting.bodies.clients import ConsumerData, SubscriptionData
from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.errors import ConnectionLostError, ResponseError
from rmq_core.remoting.header import RemotingCommand
from rmq_formats.codecs.layout import PROPERTY_CORRELATION_ID, PROPERTY_REPLY_TO_CLIENT
from rmq_formats.codecs.properties import decode_properties

MOST_PRODUCER_GROUPS: Final = 10_000  # of a connection: a proxy's are all topics of its clients' transactions
_MOST_NAME_CHARS: Final = 255
_MOST_REPLY_REQUESTS: Final = 65_536  # a client waits 3 s for a reply by default
_MOST_ID_CHARS: Final = 512
LOCK_LIFE_MS: Final = 60_000  # a lock that its owner does not renew for so long is free
LOCK_BYTES: Final = 512  # what a lock takes, without its owner's client id
_MOST_LOCK_BYTES: Final = 256 << 20  # of all locks: some 450,000


@dataclass(frozen=True, slots=True)
class Login:
    """The user who has signed a request."""

    name: str
    password: str = field(repr=False)


@dataclass(eq=False, slots=True)
class Proxied:
    """Connection of a client that has its own connection to a proxy only."""

    proxy: Connection
    remote_address: str
    on_abort: Callable[[], None]

    @property
    def is_closing(self) -> bool:
        """True if the proxy is disconnected."""
        return self.proxy.is_closing

    @property
    def is_ready(self) -> bool:
        """True if the proxy reads."""
        return self.proxy.is_ready

    def send_oneway(self, request: RemotingCommand) -> None:
        """Send a check of a transaction, which the proxy forwards to a client of its choice; drop others."""
        if request.code == RequestCode.CHECK_TRANSACTION_STATE:
            self.proxy.send_oneway(request)

    def reserve_parked(self, size: int) -> None:
        """Count the bytes of the client's long polls with those of the proxy."""
        self.proxy.reserve_parked(size)

    def release_parked(self, size: int) -> None:
        """Subtract the bytes of an answered long poll."""
        self.proxy.release_parked(size)

    async def invoke(self, request: RemotingCommand, _: float) -> RemotingCommand:
        """Raise ConnectionLostError: a client of a proxy has no connection here."""
        raise ConnectionLostError(self.remote_address, f"a client behind a proxy is not asked ({request.code})")

    def abort(self) -> None:
        self.on_abort()


Peer = Connection | Proxied


@dataclass(slots=True)
class Client:
    """Connected client, as a member of a group.

    Attributes:
        client_id: the id that it has given itself.
        version: its RocketMQ version, an ordinal.
        heartbeat_ms: time of the last heartbeat, by the steady clock.
        login: user of the heartbeat; None without signatures.
    """

    connection: Peer
    client_id: str
    language: str | None
    version: int
    heartbeat_ms: int
    login: Login | None = None


@dataclass(slots=True)
class ConsumerGroup:
    """Consumer group with connected members, and its subscriptions; ``data`` is of the last heartbeat."""

    name: str
    data: ConsumerData
    clients: dict[Peer, Client] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)

    @property
    def is_broadcasting(self) -> bool:
        """True for a broadcasting group, whose members each get all messages."""
        return self.data.message_model == "BROADCASTING"

    def update_subscriptions(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Apply the subscriptions of a heartbeat; return whether topics were added or removed."""
        sent = {subscription.topic: subscription for subscription in subscriptions}
        changed = sent.keys() != self.subscriptions.keys()
        current = self.subscriptions
        self.subscriptions = {
            topic: data if topic not in current or data.sub_version > current[topic].sub_version else current[topic]
            for topic, data in sent.items()
        }
        return changed


class Consumers:
    """Consumer groups with members; ``on_members_change`` gets a group whose members or topics have changed."""

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self._names: dict[Peer, dict[str, None]] = {}  # of the groups that a connection is a member in
        self.on_members_change: Callable[[ConsumerGroup], None] = lambda _: None

    def register(self, client: Client, data: ConsumerData) -> bool:
        """Register a client by its heartbeat; returns whether the group's members or topics have changed."""
        group = self.groups.get(data.group_name)
        if group is None:
            group = self.groups[data.group_name] = ConsumerGroup(data.group_name, data)
        group.data = data
        is_new = client.connection not in group.clients
        self.join(group, client)
        changed = group.update_subscriptions(data.subscription_data_set) or is_new
        if changed:
            self.on_members_change(group)
        return changed

    def join(self, group: ConsumerGroup, client: Client) -> None:
        """Add a client to a group, or renew it there."""
        group.clients[client.connection] = client
        self._names.setdefault(client.connection, {})[group.name] = None

    def unregister(self, group_name: str, connection: Peer) -> None:
        group = self.groups.get(group_name)
        if group is None or group.clients.pop(connection, None) is None:
            return
        named = self._names[connection]
        del named[group_name]
        if not named:
            del self._names[connection]
        if not group.clients:
            del self.groups[group_name]
        self.on_members_change(group)

    def names_of(self, connection: Peer) -> list[str]:
        """Return the groups that a connection is a member in."""
        return list(self._names.get(connection, ()))

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that subscribe to a topic."""
        return [name for name, group in self.groups.items() if topic in group.subscriptions]

    def clients(self, group_name: str, client_id: str) -> list[Client]:
        """List the members of a group with a client id, which is not authenticated."""
        group = self.groups.get(group_name)
        members = () if group is None else group.clients.values()
        return [client for client in members if client.client_id == client_id]


class Producers:
    """The producer groups with connected members."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[Peer, Client]] = {}
        self._names: dict[Peer, dict[str, None]] = {}  # of the groups that a connection is a member in
        self._ids: dict[str, dict[Peer, dict[str, Client]]] = {}  # by client id, connection and group

    def register(self, group: str, client: Client) -> None:
        """Register a client, and charge the connection. Raises ResponseError for a long name or too many groups."""
        peer = client.connection
        names = self._names.get(peer, {})
        if group not in names:
            if len(group) > _MOST_NAME_CHARS:
                what = f"a producer group has more than {_MOST_NAME_CHARS} characters"
                raise ResponseError(ResponseCode.INVALID_PARAMETER, what)
            if len(names) >= MOST_PRODUCER_GROUPS:
                what = f"the connection has {MOST_PRODUCER_GROUPS} producer groups already"
                raise ResponseError(ResponseCode.SYSTEM_BUSY, what)
            self._names.setdefault(peer, {})[group] = None
            peer.reserve_parked(_member_bytes(group))
        members = self.groups.setdefault(group, {})
        if peer in members:
            self._remove_id(members[peer], group)
        members[peer] = client
        self._ids.setdefault(client.client_id, {}).setdefault(peer, {})[group] = client

    def unregister(self, group: str, connection: Peer) -> None:
        names = self._names.get(connection, {})
        if group not in names:
            return
        del names[group]
        connection.release_parked(_member_bytes(group))
        members = self.groups[group]
        self._remove_id(members.pop(connection), group)
        if not members:
            del self.groups[group]
        if not names:
            del self._names[connection]

    def names_of(self, connection: Peer) -> list[str]:
        """Return the groups that a connection is a member in."""
        return list(self._names.get(connection, ()))

    def clients(self, client_id: str) -> list[Client]:
        """List the members of all groups with a client id, which is not authenticated."""
        return [next(iter(groups.values())) for groups in self._ids.get(client_id, {}).values()]

    def _remove_id(self, client: Client, group: str) -> None:
        peers = self._ids[client.client_id]
        groups = peers[client.connection]
        del groups[group]
        if not groups:
            del peers[client.connection]
        if not peers:
            del self._ids[client.client_id]


def _member_bytes(group: str) -> int:
    """Return the memory of a member of a group, B."""
    return 512 + len(group)


def silent(groups: Iterable[dict[Peer, Client]], before_ms: int) -> list[Peer]:
    """Return the connections of clients whose last heartbeat is older than a time."""
    late = (client.connection for members in groups for client in members.values() if client.heartbeat_ms < before_ms)
    return list(dict.fromkeys(late))


@dataclass(frozen=True, slots=True)
class ReplyRequest:
    """A request that waits for a reply; ``login`` is None where nobody had to sign."""

    login: Login | None
    topic: str
    connection: ReferenceType[Connection]


class ReplyRequests:
    """The newest requests that wait for a reply, by client id and correlation id."""

    def __init__(self, most: int = _MOST_REPLY_REQUESTS) -> None:
        """Retain so many at most."""
        self._most = most
        self._requests: dict[tuple[str, str], ReplyRequest] = {}

    def add(self, properties: str, topic: str, login: Login | None, connection: Connection) -> None:
        """Add a message if it requests a reply. The first of an id counts, so that nobody replaces the requester."""
        decoded = decode_properties(properties.encode("utf-8", "replace"))
        key = decoded.get(PROPERTY_REPLY_TO_CLIENT, ""), decoded.get(PROPERTY_CORRELATION_ID, "")
        if not all(key) or len(key[0]) + len(key[1]) > _MOST_ID_CHARS or key in self._requests:
            return
        if len(self._requests) >= self._most:
            del self._requests[next(iter(self._requests))]
        self._requests[key] = ReplyRequest(login, topic, ref(connection))

    def get(self, client_id: str, correlation_id: str) -> ReplyRequest | None:
        """Return the request that a reply names; None if another broker received the request, or long ago."""
        return self._requests.get((client_id, correlation_id))


class QueueLocks:
    """Locks on queues, by which members of a group consume in order."""

    def __init__(self, steady_ms: Callable[[], int], most_bytes: int = _MOST_LOCK_BYTES) -> None:
        """Begin without locks.

        Args:
            most_bytes: of all locks together; above it no queue is locked that is not locked yet. The original has
                no such limit, and never forgets a lock, so that strangers can fill its memory.
        """
        self.held_bytes = 0
        self._steady_ms = steady_ms
        self._most_bytes = most_bytes
        self._owners: dict[str, dict[MessageQueue, tuple[str, int]]] = {}

    def lock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> list[MessageQueue]:
        """Lock or renew the queues that are free or the client's own; returns those."""
        now_ms = self._steady_ms()
        owners = self._owners.get(group, {})
        locked = []
        for queue in queues:
            owner = owners.get(queue)
            if owner is not None and owner[0] != client_id and now_ms - owner[1] <= LOCK_LIFE_MS:
                continue
            added_bytes = _lock_bytes(client_id) - (0 if owner is None else _lock_bytes(owner[0]))
            if added_bytes > 0 and self.held_bytes + added_bytes > self._most_bytes:
                continue
            self.held_bytes += added_bytes
            owners[queue] = client_id, now_ms
            locked.append(queue)
        if owners:
            self._owners[group] = owners
        return locked

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Unlock the queues that are the client's own."""
        owners = self._owners.get(group, {})
        for queue in queues:
            if owners.get(queue, ("", 0))[0] == client_id:
                self._drop(group, owners, queue)

    def drop_expired(self) -> None:
        """Remove expired locks; to be called periodically."""
        oldest_ms = self._steady_ms() - LOCK_LIFE_MS
        for group, owners in list(self._owners.items()):
            for queue in [queue for queue, (_, since_ms) in owners.items() if since_ms < oldest_ms]:
                self._drop(group, owners, queue)

    def _drop(self, group: str, owners: dict[MessageQueue, tuple[str, int]], queue: MessageQueue) -> None:
        self.held_bytes -= _lock_bytes(owners.pop(queue)[0])
        if not owners:
            del self._owners[group]

    def is_any_locked(self, group: str) -> bool:
        oldest_ms = self._steady_ms() - LOCK_LIFE_MS
        return any(since_ms >= oldest_ms for _, since_ms in self._owners.get(group, {}).values())


def _lock_bytes(client_id: str) -> int:
    return LOCK_BYTES + len(client_id)
