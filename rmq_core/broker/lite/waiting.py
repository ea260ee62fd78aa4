"""Requests of clients that wait until a lite topic of theirs has messages. Source: ``PopLiteLongPollingService``."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from rmq_core.remoting.connection import Connection

_MOST_OF_CLIENT: Final = 1024  # ``popPollingSize``


@dataclass(eq=False, slots=True)
class Waiter:
    """A request that waits.

    Attributes:
        connection: of the client.
        deadline_ms: until when it is held.
        answer: answers it, or has it held again; gets whether its time is over.
        size: what it takes, B.
        is_done: it was answered.
    """

    connection: Connection
    deadline_ms: int
    answer: Callable[[bool], None]
    size: int
    is_done: bool = False


class Waiting:
    """Requests that wait, by client.

    Attributes:
        count: how many.
    """

    def __init__(self, most: int) -> None:
        """Hold so many at most."""
        self.count = 0
        self._most = most
        self._waiters: dict[str, deque[Waiter]] = {}
        self._of_connection: dict[Connection, dict[Waiter, str]] = {}
        self._deadlines: list[tuple[int, int, str, Waiter]] = []  # a heap; a number for those of one time
        self._number = 0

    def hold(self, client_id: str, waiter: Waiter) -> bool:
        """Hold a request, whose bytes are its connection's then; False if there are too many."""
        held = self._waiters.get(client_id)
        if self.count >= self._most or (held is not None and len(held) >= _MOST_OF_CLIENT):
            return False
        if held is None:
            held = self._waiters[client_id] = deque()
        waiter.connection.keep(waiter.size)
        held.append(waiter)
        self._of_connection.setdefault(waiter.connection, {})[waiter] = client_id
        self.count += 1
        self._number += 1
        heappush(self._deadlines, (waiter.deadline_ms, self._number, client_id, waiter))
        if len(self._deadlines) > 2 * self.count + _MOST_OF_CLIENT:  # of those that were answered in time
            self._deadlines = [one for one in self._deadlines if not one[3].is_done]
            heapify(self._deadlines)
        return True

    def has(self, client_id: str) -> bool:
        """Whether a request of a client waits."""
        return client_id in self._waiters

    def is_of(self, connection: Connection) -> bool:
        """Whether a request of a connection waits."""
        return connection in self._of_connection

    def wake(self, client_id: str) -> None:
        """Answer the oldest request of a client that is connected still."""
        held = self._waiters.get(client_id)
        while held:
            if self._answer(client_id, held[0], is_over=False):
                return

    def expire(self, now_ms: int, most: int) -> bool:
        """Answer requests whose time is over, so many at most; returns whether there are more."""
        for _ in range(most):
            if not self._deadlines or self._deadlines[0][0] > now_ms:
                return False
            _, _, client_id, waiter = heappop(self._deadlines)
            if not waiter.is_done:
                self._answer(client_id, waiter, is_over=True)
        return True

    def closed(self, connection: Connection) -> Iterator[None]:
        """Let go of the requests of a connection that is closed, one after the other."""
        while own := self._of_connection.get(connection):
            waiter, client_id = next(iter(own.items()))
            self._answer(client_id, waiter, is_over=True)
            yield

    def _answer(self, client_id: str, waiter: Waiter, *, is_over: bool) -> bool:
        held = self._waiters[client_id]
        held.remove(waiter)
        if not held:
            del self._waiters[client_id]
        own = self._of_connection[waiter.connection]
        del own[waiter]
        if not own:
            del self._of_connection[waiter.connection]
        self.count -= 1
        waiter.is_done = True
        waiter.connection.let_go(waiter.size)
        if waiter.connection.is_closing:
            return False
        waiter.answer(is_over)
        return True
