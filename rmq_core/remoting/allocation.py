"""Queue allocation that clients do for themselves, and a broker for the clients of POP.

Source: ``AllocateMessageQueueAveragely``, ``AllocateMessageQueueAveragelyByCircle``.
"""

from collections.abc import Callable, Sequence

from rmq_core.remoting.bodies import MessageQueue

Allocation = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""Takes a client's id, the sorted queues and the sorted ids of the group's clients; gives that client's queues,
none if it is not among them."""


def averagely(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Allocate contiguous blocks of queues; the first clients get a further queue each on a remainder."""
    if client_id not in client_ids:
        return []
    index, (size, more) = client_ids.index(client_id), divmod(len(queues), len(client_ids))
    begin = index * size + min(index, more)
    return list(queues[begin : begin + size + (index < more)])


def by_circle(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Allocate queues to clients in turn (round robin)."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])
