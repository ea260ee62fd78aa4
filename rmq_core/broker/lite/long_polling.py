"""Long polling of clients of lite topics. Source: ``PopLiteLongPollingService``."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from rmq_core.remoting.connection import Connection

_MOST_OF_CLIENT: Final = 1024  # ``popPollingSize``


@dataclass(eq=False, slots=True)
class ParkedRequest:
    """Parked request.

    Attributes:
        connection: of the client.
        deadline_ms: end of the wait, by the steady clock.
        respond: responds or parks the request again; its argument is whether the deadline has passed.
        size: reserved memory, B.
        is_done: the request is no longer parked.
    """

    connection: Connection
    deadline_ms: int
    respond: Callable[[bool], None]
    size: int
    is_done: bool = False


class LiteLongPolling:
    """Parked requests, by client.

    Attributes:
        count: of parked requests.
    """

    def __init__(self, most: int) -> None:
        """Park ``most`` requests at most."""
        self.count = 0
        self._most = most
        self._waiters: dict[str, deque[ParkedRequest]] = {}
        self._of_connection: dict[Connection, dict[ParkedRequest, str]] = {}
        self._deadlines: list[tuple[int, int, str, ParkedRequest]] = []  # a heap; the number separates equal times
        self._number = 0

    def park(self, client_id: str, waiter: ParkedRequest) -> bool:
        """Park a request and charge its size to the connection; return False if too many are parked."""
        parked = self._waiters.get(client_id)
        if self.count >= self._most or (parked is not None and len(parked) >= _MOST_OF_CLIENT):
            return False
        if parked is None:
            parked = self._waiters[client_id] = deque()
        waiter.connection.reserve_parked(waiter.size)
        parked.append(waiter)
        self._of_connection.setdefault(waiter.connection, {})[waiter] = client_id
        self.count += 1
        self._number += 1
        heappush(self._deadlines, (waiter.deadline_ms, self._number, client_id, waiter))
        if len(self._deadlines) > 2 * self.count + _MOST_OF_CLIENT:  # of finished requests
            self._deadlines = [entry for entry in self._deadlines if not entry[3].is_done]
            heapify(self._deadlines)
        return True

    def has(self, client_id: str) -> bool:
        """Return whether a request of a client is parked."""
        return client_id in self._waiters

    def is_of(self, connection: Connection) -> bool:
        """Return whether a request of a connection is parked."""
        return connection in self._of_connection

    def wake(self, client_id: str) -> None:
        """Respond to the oldest request of a client with an open connection."""
        parked = self._waiters.get(client_id)
        while parked:
            if self._respond(client_id, parked[0], is_over=False):
                return

    def expire(self, now_ms: int, most: int) -> bool:
        """Respond to at most ``most`` expired requests; return whether there are more."""
        for _ in range(most):
            if not self._deadlines or self._deadlines[0][0] > now_ms:
                return False
            _, _, client_id, waiter = heappop(self._deadlines)
            if not waiter.is_done:
                self._respond(client_id, waiter, is_over=True)
        return True

    def closed(self, connection: Connection) -> Iterator[None]:
        """Remove the requests of a closed connection one by one."""
        while waiters := self._of_connection.get(connection):
            waiter, client_id = next(iter(waiters.items()))
            self._respond(client_id, waiter, is_over=True)
            yield

    def _respond(self, client_id: str, waiter: ParkedRequest, *, is_over: bool) -> bool:
        parked = self._waiters[client_id]
        parked.remove(waiter)
        if not parked:
            del self._waiters[client_id]
        waiters = self._of_connection[waiter.connection]
        del waiters[waiter]
        if not waiters:
            del self._of_connection[waiter.connection]
        self.count -= 1
        waiter.is_done = True
        waiter.connection.release_parked(waiter.size)
        if waiter.connection.is_closing:
            return False
        waiter.respond(is_over)
        return True
