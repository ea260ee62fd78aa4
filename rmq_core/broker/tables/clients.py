"""Connected clients by group, registered by their heartbeats; their queue locks; and requests that wait for a reply.

The owner of a lock alone may consume the queue. A reply goes to the connection and the user that sent the request, as
the client id in the reply is not authenticated.

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

MAX_PRODUCER_GROUPS: Final = 10_000  # of a connection; a proxy has one for each topic of its clients' transactions
_MAX_NAME_CHARS: Final = 255
_MAX_REPLY_REQUESTS: Final = 65_536  # a client waits 3 s for a reply by default
_MAX_ID_CHARS: Final = 512
LOCK_LIFE_MS: Final = 60_000  # a lock is free if its owner has not renewed it for so long
LOCK_BYTES: Final = 512  # memory of a lock, without its owner's client id
_MAX_LOCK_BYTES: Final = 256 << 20  # for some 450,000 locks


@dataclass(frozen=True, slots=True)
class Login:
    """The user who has signed a request."""

    name: str
    password: str = field(repr=False)


@dataclass(eq=False, slots=True)
class ProxiedConnection:
    """Client that is connected to a proxy and not to this broker; stands for its connection."""

    proxy: Connection
    remote_address: str
    on_abort: Callable[[], None]

    @property
    def is_closing(self) -> bool:
        return self.proxy.is_closing

    @property
    def is_ready(self) -> bool:
        return self.proxy.is_ready

    def send_oneway(self, request: RemotingCommand) -> None:
        """Send a transaction check to the proxy, which forwards it to one of its clients; drop other requests."""
        if request.code == RequestCode.CHECK_TRANSACTION_STATE:
            self.proxy.send_oneway(request)

    def reserve_parked(self, size: int) -> None:
        self.proxy.reserve_parked(size)

    def release_parked(self, size: int) -> None:
        self.proxy.release_parked(size)

    async def invoke(self, request: RemotingCommand, _: float) -> RemotingCommand:
        """Raise ConnectionLostError, as a client of a proxy is not connected to the broker."""
        raise ConnectionLostError(self.remote_address, f"request {request.code} cannot be sent to a client of a proxy")

    def abort(self) -> None:
        self.on_abort()


Peer = Connection | ProxiedConnection


@dataclass(slots=True)
class Client:
    """Connected client, as a member of a group.

    The version is Java's ordinal; ``heartbeat_ms`` is by the steady clock; ``login`` is None without signatures.
    """

    connection: Peer
    client_id: str
    language: str | None
    version: int
    heartbeat_ms: int
    login: Login | None = None


@dataclass(slots=True)
class ConsumerGroup:
    """Consumer group with connected members, and its subscriptions; ``data`` comes from the last heartbeat."""

    name: str
    data: ConsumerData
    clients: dict[Peer, Client] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)

    @property
    def is_broadcasting(self) -> bool:
        return self.data.message_model == "BROADCASTING"

    def update_subscriptions(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Apply the subscriptions of a heartbeat; return whether topics were added or removed."""
        new_subscriptions = {subscription.topic: subscription for subscription in subscriptions}
        has_changed = new_subscriptions.keys() != self.subscriptions.keys()
        current = self.subscriptions
        self.subscriptions = {
            topic: data if topic not in current or data.sub_version > current[topic].sub_version else current[topic]
            for topic, data in new_subscriptions.items()
        }
        return has_changed


class Consumers:
    """Consumer groups with members; ``on_members_change`` gets a group whose members or topics have changed."""

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self._group_names: dict[Peer, dict[str, None]] = {}  # groups of each connection
        self.on_members_change: Callable[[ConsumerGroup], None] = lambda _: None

    def register(self, client: Client, data: ConsumerData) -> bool:
        """Register a client by its heartbeat; return whether the group's members or topics have changed."""
        group = self.groups.get(data.group_name)
        if group is None:
            group = self.groups[data.group_name] = ConsumerGroup(data.group_name, data)
        group.data = data
        is_new = client.connection not in group.clients
        self.join(group, client)
        has_changed = group.update_subscriptions(data.subscription_data_set) or is_new
        if has_changed:
            self.on_members_change(group)
        return has_changed

    def join(self, group: ConsumerGroup, client: Client) -> None:
        group.clients[client.connection] = client
        self._group_names.setdefault(client.connection, {})[group.name] = None

    def unregister(self, group_name: str, connection: Peer) -> None:
        group = self.groups.get(group_name)
        if group is None or group.clients.pop(connection, None) is None:
            return
        group_names = self._group_names[connection]
        del group_names[group_name]
        if not group_names:
            del self._group_names[connection]
        if not group.clients:
            del self.groups[group_name]
        self.on_members_change(group)

    def names_of(self, connection: Peer) -> list[str]:
        return list(self._group_names.get(connection, ()))

    def groups_of(self, topic: str) -> list[str]:
        return [name for name, group in self.groups.items() if topic in group.subscriptions]

    def members(self, group_name: str) -> list[Client]:
        group = self.groups.get(group_name)
        return [] if group is None else list(group.clients.values())

    def clients(self, group_name: str, client_id: str) -> list[Client]:
        """List the members of a group with a client id, which is not authenticated."""
        return [client for client in self.members(group_name) if client.client_id == client_id]

    def subscription(self, group_name: str, topic: str) -> SubscriptionData | None:
        """Return the subscription of a group with members to a topic; None without one."""
        group = self.groups.get(group_name)
        return None if group is None else group.subscriptions.get(topic)


class Producers:
    """The producer groups with connected members."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[Peer, Client]] = {}
        self._group_names: dict[Peer, dict[str, None]] = {}  # groups of each connection
        self._clients_by_id: dict[str, dict[Peer, dict[str, Client]]] = {}  # by client id, connection and group

    def register(self, group: str, client: Client) -> None:
        """Register a client, and charge the connection. Raises ResponseError for a long name or too many groups."""
        peer = client.connection
        names = self._group_names.get(peer, {})
        if group not in names:
            if len(group) > _MAX_NAME_CHARS:
                problem = f"a producer group has more than {_MAX_NAME_CHARS} characters"
                raise ResponseError(ResponseCode.INVALID_PARAMETER, problem)
            if len(names) >= MAX_PRODUCER_GROUPS:
                problem = f"the connection has {MAX_PRODUCER_GROUPS} producer groups already"
                raise ResponseError(ResponseCode.SYSTEM_BUSY, problem)
            self._group_names.setdefault(peer, {})[group] = None
            peer.reserve_parked(_member_bytes(group))
        members = self.groups.setdefault(group, {})
        if peer in members:
            self._remove_id(members[peer], group)
        members[peer] = client
        self._clients_by_id.setdefault(client.client_id, {}).setdefault(peer, {})[group] = client

    def unregister(self, group: str, connection: Peer) -> None:
        names = self._group_names.get(connection, {})
        if group not in names:
            return
        del names[group]
        connection.release_parked(_member_bytes(group))
        members = self.groups[group]
        self._remove_id(members.pop(connection), group)
        if not members:
            del self.groups[group]
        if not names:
            del self._group_names[connection]

    def names_of(self, connection: Peer) -> list[str]:
        return list(self._group_names.get(connection, ()))

    def clients(self, client_id: str) -> list[Client]:
        """List the members of all groups with a client id, which is not authenticated."""
        return [next(iter(groups.values())) for groups in self._clients_by_id.get(client_id, {}).values()]

    def _remove_id(self, client: Client, group: str) -> None:
        peers = self._clients_by_id[client.client_id]
        groups = peers[client.connection]
        del groups[group]
        if not groups:
            del peers[client.connection]
        if not peers:
            del self._clients_by_id[client.client_id]


def _member_bytes(group: str) -> int:
    return 512 + len(group)


def find_silent_connections(groups: Iterable[dict[Peer, Client]], before_ms: int) -> list[Peer]:
    """Return the connections of clients whose last heartbeat is older than a time."""
    late = (client.connection for members in groups for client in members.values() if client.heartbeat_ms < before_ms)
    return list(dict.fromkeys(late))


@dataclass(frozen=True, slots=True)
class ReplyRequest:
    """A request that waits for a reply; ``login`` is None without signatures."""

    login: Login | None
    topic: str
    connection: ReferenceType[Connection]


class ReplyRequests:
    """The newest requests that wait for a reply, by client id and correlation id."""

    def __init__(self, max_count: int = _MAX_REPLY_REQUESTS) -> None:
        self._max_count = max_count
        self._requests: dict[tuple[str, str], ReplyRequest] = {}

    def add(self, properties: str, topic: str, login: Login | None, connection: Connection) -> None:
        """Add a message if it requests a reply; a later message with the same ids does not replace the requester."""
        decoded = decode_properties(properties.encode("utf-8", "replace"))
        key = decoded.get(PROPERTY_REPLY_TO_CLIENT, ""), decoded.get(PROPERTY_CORRELATION_ID, "")
        if not all(key) or len(key[0]) + len(key[1]) > _MAX_ID_CHARS or key in self._requests:
            return
        if len(self._requests) >= self._max_count:
            del self._requests[next(iter(self._requests))]
        self._requests[key] = ReplyRequest(login, topic, ref(connection))

    def get(self, client_id: str, correlation_id: str) -> ReplyRequest | None:
        """Return the request of a reply; None if the request is too old, or was sent to another broker."""
        return self._requests.get((client_id, correlation_id))


class QueueLocks:
    """Locks on queues, for groups that consume in order."""

    def __init__(self, steady_ms: Callable[[], int], max_bytes: int = _MAX_LOCK_BYTES) -> None:
        """Limit the memory of all locks, above which no further queue is locked.

        The original never removes a lock, so that any client can fill its memory.
        """
        self.held_bytes = 0
        self._steady_ms = steady_ms
        self._max_bytes = max_bytes
        self._owners: dict[str, dict[MessageQueue, tuple[str, int]]] = {}

    def lock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> list[MessageQueue]:
        """Lock the free queues, renew the client's own locks, and return the queues of both."""
        now_ms = self._steady_ms()
        owners = self._owners.get(group, {})
        locked_queues = []
        for queue in queues:
            owner = owners.get(queue)
            if owner is not None and owner[0] != client_id and now_ms - owner[1] <= LOCK_LIFE_MS:
                continue
            added_bytes = _lock_bytes(client_id) - (0 if owner is None else _lock_bytes(owner[0]))
            if added_bytes > 0 and self.held_bytes + added_bytes > self._max_bytes:
                continue
            self.held_bytes += added_bytes
            owners[queue] = client_id, now_ms
            locked_queues.append(queue)
        if owners:
            self._owners[group] = owners
        return locked_queues

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Unlock those of the queues that the client has locked."""
        owners = self._owners.get(group, {})
        for queue in queues:
            if owners.get(queue, ("", 0))[0] == client_id:
                self._remove_lock(group, owners, queue)

    def remove_expired(self) -> None:
        """Remove expired locks; to be called periodically."""
        oldest_ms = self._steady_ms() - LOCK_LIFE_MS
        for group, owners in list(self._owners.items()):
            for queue in [queue for queue, (_, since_ms) in owners.items() if since_ms < oldest_ms]:
                self._remove_lock(group, owners, queue)

    def _remove_lock(self, group: str, owners: dict[MessageQueue, tuple[str, int]], queue: MessageQueue) -> None:
        self.held_bytes -= _lock_bytes(owners.pop(queue)[0])
        if not owners:
            del self._owners[group]

    def is_any_locked(self, group: str) -> bool:
        oldest_ms = self._steady_ms() - LOCK_LIFE_MS
        return any(since_ms >= oldest_ms for _, since_ms in self._owners.get(group, {}).values())


def _lock_bytes(client_id: str) -> int:
    return LOCK_BYTES + len(client_id)
