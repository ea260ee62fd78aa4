"""Queue locks of orderly consumers: which client alone may consume a queue.

Source: ``RebalanceLockManager``.
"""

from collections.abc import Callable, Iterable
from typing import Final

from rmq_core.remoting.bodies import MessageQueue

LOCK_LIFE_MS: Final = 60_000  # a lock that its owner does not renew for so long is free


class QueueLocks:
    """Locks on queues, which members of a group take to consume in order."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._owners: dict[str, dict[MessageQueue, tuple[str, int]]] = {}

    def lock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> list[MessageQueue]:
        """Lock or renew the queues that are free or the client's own; returns those."""
        now_ms = self._clock_ms()
        owners = self._owners.setdefault(group, {})
        locked = []
        for queue in queues:
            owner, since_ms = owners.get(queue, (client_id, now_ms))
            if owner == client_id or now_ms - since_ms > LOCK_LIFE_MS:
                owners[queue] = client_id, now_ms
                locked.append(queue)
        return locked

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Unlock the queues that are the client's own."""
        owners = self._owners.get(group, {})
        for queue in queues:
            if owners.get(queue, ("", 0))[0] == client_id:
                del owners[queue]

    def is_any_locked(self, group: str) -> bool:
        """Whether any client of the group holds a lock."""
        oldest_ms = self._clock_ms() - LOCK_LIFE_MS
        return any(since_ms >= oldest_ms for _, since_ms in self._owners.get(group, {}).values())
