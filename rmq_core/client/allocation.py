"""Queue allocation strategies: which queues of a topic each consumer of a group reads.

Each consumer of a group computes the allocation from the same sorted lists. So all consumers of a group, also those in
Java, must use the same strategy.

Source: ``org.apache.rocketmq.client.consumer.rebalance``, ``ConsistentHashRouter``.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from hashlib import md5

from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_core.remoting.bodies.pop import Allocation, averagely, by_circle
from rmq_formats.errors import OptionError

__all__ = [
    "Allocation", "ByConfig", "ByMachineRoom", "ConsistentHash", "MachineRoomNearby", "averagely", "by_circle",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """Allocation by consistent hashing: few queues move when a client joins or leaves."""

    virtual_nodes: int = 10

    def __post_init__(self) -> None:
        if self.virtual_nodes < 1:
            raise OptionError(f"virtual_nodes must be 1 or more, not {self.virtual_nodes}")

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        """Return the queues of a client."""
        if client_id not in client_ids:
            return []
        ring = {_hash(f"{client}-{number}"): client for client in client_ids for number in range(self.virtual_nodes)}
        places = sorted(ring)

        def owner(queue: MessageQueue) -> str:
            # ``MessageQueue#toString``: the text that Java hashes decides on the owner.
            java_text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
            return ring[places[bisect_left(places, _hash(java_text)) % len(places)]]

        return [queue for queue in queues if owner(queue) == client_id]


def _hash(text: str) -> int:
    """Return the first four bytes of the MD5 as a number."""
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4])


@dataclass(frozen=True, slots=True)
class ByConfig:
    """Allocation of a fixed list of queues, without regard to other clients."""

    queues: Sequence[MessageQueue]

    def __call__(self, *_: object) -> list[MessageQueue]:
        """Return the queues of a client."""
        return list(self.queues)


@dataclass(frozen=True, slots=True)
class ByMachineRoom:
    """Allocation of queues in some machine rooms only; the brokers' names are ``room@name``."""

    rooms: Set[str]

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        """Return the queues of a client: a block of neighbours, and for the first clients one queue of the rest."""
        if client_id not in client_ids:
            return []
        room_queues = [queue for queue in queues if self._has(queue.broker_name)]
        index, (size, more) = client_ids.index(client_id), divmod(len(room_queues), len(client_ids))
        rest_count = [room_queues[size * len(client_ids) + index]] if index < more else []
        return room_queues[size * index : size * (index + 1)] + rest_count

    def _has(self, broker_name: str) -> bool:
        parts = broker_name.rstrip("@").split("@")  # Java's split drops empty parts at the end
        return len(parts) == 2 and parts[0] in self.rooms


@dataclass(frozen=True, slots=True)
class MachineRoomNearby:
    """Allocation of a machine room's queues to consumers of the same room, or to all if the room has no consumer.

    ``inner`` allocates within a room.
    """

    inner: Allocation
    room_of_broker: Callable[[MessageQueue], str]
    room_of_client: Callable[[str], str]

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        """Return the queues of a client. Raises OptionError for a queue or a client without a room."""
        if client_id not in client_ids:
            return []
        queues_of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_of.setdefault(_room(self.room_of_broker(queue), queue), []).append(queue)
        clients_of: dict[str, list[str]] = {}
        for client in client_ids:
            clients_of.setdefault(_room(self.room_of_client(client), client), []).append(client)
        room = self.room_of_client(client_id)
        mine = queues_of.pop(room, [])
        allocated = self.inner(client_id, mine, clients_of[room]) if mine else []
        for other in sorted(queues_of.keys() - clients_of.keys()):
            allocated += self.inner(client_id, queues_of[other], client_ids)
        return allocated


def _room(room: str, of: object) -> str:
    if not room:
        raise OptionError(f"no machine room of {of}")
    return room
