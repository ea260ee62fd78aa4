"""Queue locks of orderly consumers: which client alone may consume a queue. Source: ``RebalanceLockManager``."""

from collections.abc import Callable, Iterable
from typing import Final

from rmq_core.remoting.bodies import MessageQueue

LOCK_LIFE_MS: Final = 60_000  # a lock that its owner does not renew for so long is free
LOCK_BYTES: Final = 512  # what a lock takes, without its owner's client id
_MOST_BYTES: Final = 256 << 20  # of all locks: some 450,000


class QueueLocks:
    """Locks on queues, by which members of a group consume in order."""

    def __init__(self, steady_ms: Callable[[], int], most_bytes: int = _MOST_BYTES) -> None:
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
            added_bytes = _size(client_id) - (0 if owner is None else _size(owner[0]))
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
        self.held_bytes -= _size(owners.pop(queue)[0])
        if not owners:
            del self._owners[group]

    def is_any_locked(self, group: str) -> bool:
        oldest_ms = self._steady_ms() - LOCK_LIFE_MS
        return any(since_ms >= oldest_ms for _, since_ms in self._owners.get(group, {}).values())


def _size(client_id: str) -> int:
    return LOCK_BYTES + len(client_id)
