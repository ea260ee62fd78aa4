"""Long polling: requests that wait for messages until their deadline.

Pulls, pops, notifications and pops of lite topics are parked. A parked request is handled again when messages arrive
and after its deadline, and then gets a response or is parked again. Its memory counts for its connection, and its
permissions are checked again before the response.

Source: ``PullRequestHoldService``, ``PopLongPollingService``, ``PopLiteLongPollingService``.
"""

import asyncio
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.subscription_filter import EVERYTHING, Filter
from rmq_core.remoting.connection import WAITING_BYTES, Connection
from rmq_core.remoting.error_responses import failure
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop import TopicKind, retry_topic
from rmq_core.store.results import Arrival

ANY_QUEUE: Final = -1
MAX_REQUESTS_PER_KEY: Final = 1024  # ``popPollingSize``
_MAX_FINISHED: Final = 1024  # finished requests in the heap of deadlines, in addition to as many as are parked

_A = TypeVar("_A")
_B = TypeVar("_B")
_K = TypeVar("_K")


@dataclass(slots=True, eq=False)
class ParkedRequest(Generic[_K]):
    """Request that may wait for messages.

    Attributes:
        request: the client's request; while parked without fields and body, which are views of the receive buffer.
        deadline_ms: end of the wait, by the steady clock.
        handle: responds, or returns None if it parks the request again; its arguments are the parked request and
            whether the deadline has passed.
        queue_id: queue of the awaited messages; ANY_QUEUE for all queues.
        next_offset: the request waits until the queue's max offset is above this one.
        is_notification: the request pops no messages, so that the next request is woken as well.
        check: raises ResponseError if the client's permissions were withdrawn; set when the request is parked.
        number: number of the current parking; 0 while not parked.
    """

    key: _K
    request: RemotingCommand
    connection: Connection
    deadline_ms: int
    handle: "Callable[[ParkedRequest[_K], bool], RemotingCommand | None]"
    expression: str | None = None
    filter: Filter = EVERYTHING
    queue_id: int = ANY_QUEUE
    next_offset: int = -1
    is_notification: bool = False
    check: Callable[[], None] | None = None
    number: int = 0

    @property
    def size(self) -> int:
        """Reserved memory, B."""
        return WAITING_BYTES + len(self.expression or "") + self.filter.own_bytes


class ParkedRequests(Generic[_K]):
    """Parked requests by key, the oldest of a key first."""

    def __init__(self, state: BrokerState, max_of_key: int = sys.maxsize) -> None:
        self.count = 0
        self._state = state
        self._max_of_key = max_of_key
        self._by_key: dict[_K, dict[ParkedRequest[_K], None]] = {}
        self._by_connection: dict[Connection, dict[ParkedRequest[_K], None]] = {}
        # A heap of deadline, number of the parking, request.
        self._deadlines: list[tuple[int, int, ParkedRequest[_K]]] = []
        self._last_number = 0

    def is_waiting(self) -> bool:
        return self.count > 0

    def requests_of(self, key: _K) -> Collection[ParkedRequest[_K]]:
        return self._by_key.get(key, ())

    def park(self, parked: ParkedRequest[_K]) -> bool:
        """Park a request and charge its size to the connection; return False if too many are parked."""
        if self.count >= self._state.config.max_held_pulls or len(self.requests_of(parked.key)) >= self._max_of_key:
            return False
        request, connection = parked.request, parked.connection
        if parked.check is None:
            parked.check = self._state.rights.withdrawal_check(request, connection)
        request.fields, request.body = {}, b""
        connection.reserve_parked(parked.size)
        self._by_key.setdefault(parked.key, {})[parked] = None
        self._by_connection.setdefault(connection, {})[parked] = None
        self.count += 1
        self._last_number += 1
        parked.number = self._last_number
        heappush(self._deadlines, (parked.deadline_ms, parked.number, parked))
        if len(self._deadlines) > 2 * self.count + _MAX_FINISHED:
            self._deadlines = [entry for entry in self._deadlines if entry[2].number == entry[1]]
            heapify(self._deadlines)
        return True

    def remove(self, parked: ParkedRequest[_K]) -> None:
        _remove_member(self._by_key, parked.key, parked)
        _remove_member(self._by_connection, parked.connection, parked)
        self.count -= 1
        parked.number = 0
        parked.connection.release_parked(parked.size)

    def respond(self, parked: ParkedRequest[_K], *, is_over: bool = False) -> bool:
        """Handle a request again; return False for one that is no longer parked or whose connection is closed."""
        if not parked.number:
            return False
        self.remove(parked)
        if parked.connection.is_closing:
            return False
        try:
            if parked.check is not None:
                parked.check()
            response = parked.handle(parked, is_over)
        except ResponseError as error:
            response = failure(parked.request, error)
        if response is not None:
            parked.connection.send(response)
        return True

    def wake(self, key: _K) -> None:
        """Respond to the oldest request of a key with an open connection."""
        while (requests := self._by_key.get(key)) and not self.respond(next(iter(requests))):
            pass

    def wake_all(self, key: _K) -> None:
        for parked in list(self.requests_of(key)):
            self.respond(parked)

    def expire(self, now_ms: int, max_count: int = sys.maxsize) -> bool:
        """Respond to at most ``max_count`` expired requests; return whether there are more."""
        for _ in range(max_count):
            if not self._deadlines or self._deadlines[0][0] > now_ms:
                return False
            _, number, parked = heappop(self._deadlines)
            if parked.number == number:
                self.respond(parked, is_over=True)
        return True

    def remove_connection(self, connection: Connection) -> None:
        """Remove the requests of a closed connection, in time slices."""
        if connection in self._by_connection:
            self._state.slices.collect(self._remove_all(connection))

    def _remove_all(self, connection: Connection) -> Iterator[None]:
        while requests := self._by_connection.get(connection):
            self.remove(next(iter(requests)))
            yield


def _remove_member(sets: dict[_A, dict[_B, None]], key: _A, member: _B) -> None:
    """Remove a member of a key's set, and the set if it is empty then."""
    members = sets[key]
    del members[member]
    if not members:
        del sets[key]


class PullLongPolling(ParkedRequests[tuple[str, int]]):
    """Pull requests that wait for messages, by topic and queue."""

    def on_arrivals(self, arrivals: list[Arrival]) -> None:
        """Respond to pulls that newly readable messages may match."""
        for topic, queue_id, max_offset, tags_codes in arrivals:
            if pulls := self._by_key.get((topic, queue_id)):
                for pull in list(pulls):
                    if pull.next_offset < max_offset and pull.filter.may_match(tags_codes):
                        self.respond(pull)


TopicGroup = tuple[str, str]


class PopLongPolling(ParkedRequests[TopicGroup]):
    """Pops that wait for messages, by topic and group.

    Each arriving message gets one pop of each group a response. Messages of the group's retry topics of both versions
    wake a pop; in the original those of version 1 wait until the end of the poll.
    """

    def __init__(self, state: BrokerState) -> None:
        super().__init__(state, MAX_REQUESTS_PER_KEY)
        # Keys by topic or retry topic whose messages wake their pops.
        self._keys: dict[str, dict[TopicGroup, None]] = {}

    def park(self, parked: ParkedRequest[TopicGroup]) -> bool:
        is_first = parked.key not in self._by_key
        is_parked = super().park(parked)
        if is_parked and is_first:
            for name in _list_awaited_topics(*parked.key):
                self._keys.setdefault(name, {})[parked.key] = None
        return is_parked

    def remove(self, parked: ParkedRequest[TopicGroup]) -> None:
        super().remove(parked)
        if parked.key not in self._by_key:
            for name in _list_awaited_topics(*parked.key):
                _remove_member(self._keys, name, parked.key)

    def on_arrivals(self, arrivals: list[Arrival]) -> None:
        """Wake requests that newly readable messages may match, after the dispatch that reports the messages."""
        awaited_arrivals = [arrival for arrival in arrivals if arrival.topic in self._keys]
        if awaited_arrivals:
            asyncio.get_running_loop().call_soon(self._wake_matching, awaited_arrivals)

    def wake_soon(self, topic: str, group: str, queue_id: int) -> None:
        """Respond to one pop of a group and queue in the next turn of the event loop."""
        if (topic, group) in self._by_key:
            asyncio.get_running_loop().call_soon(self._wake, (topic, group), queue_id, None)

    def _wake_matching(self, arrivals: list[Arrival]) -> None:
        for topic, queue_id, _, tags_codes in arrivals:
            if tags_codes is None:  # a topic with batch queues, which cannot be popped
                continue
            for key in list(self._keys.get(topic, ())):
                self._wake(key, queue_id if key[0] == topic else ANY_QUEUE, tags_codes)

    def _wake(self, key: TopicGroup, queue_id: int, tags_codes: list[int] | None) -> None:
        """Respond to as many pops of a group as there are matching messages; tags None: one message of unknown tags."""
        unserved_count = 1 if tags_codes is None else len(tags_codes)
        for pop in list(self.requests_of(key)):
            if unserved_count <= 0:
                return
            is_of_queue = ANY_QUEUE in (queue_id, pop.queue_id) or queue_id == pop.queue_id
            if is_of_queue and pop.filter.may_match(tags_codes) and self.respond(pop):
                unserved_count -= not pop.is_notification


def _list_awaited_topics(topic: str, group: str) -> list[str]:
    return [retry_topic(group, topic, kind) for kind in TopicKind]
