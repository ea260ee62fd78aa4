"""Long polling of POP: requests that wait for messages until their deadline.

Of each group one pop is answered for each message that arrives. Messages of the group's retry topics of both
versions wake a pop; the original leaves those of version 1 until the end of the poll.

Source: ``PopLongPollingService``.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rmq_core.broker.tables.subscription_filter import Filter
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.pop import TopicKind, retry_topic
from rmq_core.store.results import Arrival

ANY_QUEUE: Final = -1
_MOST_OF_KEY: Final = 1024  # ``popPollingSize``

Key = tuple[str, str]  # topic, group


@dataclass(slots=True, eq=False)
class PopRequest:
    """Waiting request: a pop or a notification.

    Attributes:
        connection: of the consumer.
        queue_id: of the queue; ANY_QUEUE for all.
        filter: of the subscription.
        deadline_ms: end of the wait, by the steady clock.
        respond: responds or parks the request again; its argument is whether the deadline has passed.
        size: reserved memory, B.
        is_notification: the request pops no messages, so that the next request is woken as well.
    """

    connection: Connection
    queue_id: int
    filter: Filter
    deadline_ms: int
    respond: Callable[[bool], None]
    size: int
    is_notification: bool = False


class PopLongPolling:
    """Pops that wait for messages, by topic and group.

    Attributes:
        count: of waiting requests.
    """

    def __init__(self, most: int) -> None:
        self.count = 0
        self._max_count = most
        self._parked: dict[Key, deque[PopRequest]] = {}
        self._keys: dict[str, dict[Key, None]] = {}  # by topic or retry topic whose messages wake them

    def park(self, topic: str, group: str, pop: PopRequest) -> bool:
        """Park a request and charge its size to the connection; return False if too many are parked."""
        key = topic, group
        parked = self._parked.get(key)
        if self.count >= self._max_count or (parked is not None and len(parked) >= _MOST_OF_KEY):
            return False
        if parked is None:
            parked = self._parked[key] = deque()
            for name in _names(topic, group):
                self._keys.setdefault(name, {})[key] = None
        pop.connection.reserve_parked(pop.size)
        parked.append(pop)
        self.count += 1
        return True

    def count_of(self, topic: str, group: str, queue_id: int) -> int:
        """Return the number of requests that wait for a queue, or with ANY_QUEUE for any."""
        return sum(pop.queue_id == queue_id for pop in self._parked.get((topic, group), ()))

    def is_waiting(self) -> bool:
        """Return whether a request is parked."""
        return self.count > 0

    def arrived(self, arrivals: list[Arrival]) -> None:
        """Wake requests that newly readable messages may match, after the dispatch that reports the messages."""
        matching = [arrival for arrival in arrivals if arrival.topic in self._keys]
        if matching:
            asyncio.get_running_loop().call_soon(self._wake_all, matching)

    def _wake_all(self, arrivals: list[Arrival]) -> None:
        for topic, queue_id, _, tags_codes in arrivals:
            if tags_codes is None:  # of a topic that is not popped
                continue
            for key in list(self._keys.get(topic, ())):
                self._wake(key, queue_id if key[0] == topic else ANY_QUEUE, tags_codes)

    def _wake(self, key: Key, queue_id: int, tags_codes: list[int] | None) -> None:
        """Respond to as many pops of a group as there are matching messages; tags None: one message of unknown tags."""
        parked, woken, unserved_count = self._parked.get(key, deque()), [], 1 if tags_codes is None else len(tags_codes)
        for pop in parked:
            if unserved_count <= 0:
                break
            is_of_queue = ANY_QUEUE in (queue_id, pop.queue_id) or queue_id == pop.queue_id
            if is_of_queue and (tags_codes is None or pop.filter.may_match(tags_codes)):
                woken.append(pop)
                unserved_count -= not pop.is_notification
        self._respond(key, woken, is_over=False)

    def wake_soon(self, topic: str, group: str, queue_id: int) -> None:
        """Respond to one pop of a group and queue in the next turn of the event loop."""
        if (topic, group) in self._parked:
            asyncio.get_running_loop().call_soon(self._wake, (topic, group), queue_id, None)

    def expire(self, now_ms: int) -> None:
        """Respond to requests whose deadline has passed; to be called periodically."""
        for key, parked in list(self._parked.items()):
            expired = [pop for pop in parked if pop.deadline_ms <= now_ms or pop.connection.is_closing]
            if expired:
                self._respond(key, expired, is_over=True)

    def _respond(self, key: Key, woken: list[PopRequest], *, is_over: bool) -> None:
        if not woken:
            return
        woken_set = set(woken)
        remaining = deque(pop for pop in self._parked[key] if pop not in woken_set)
        if remaining:
            self._parked[key] = remaining
        else:
            del self._parked[key]
            for name in _names(*key):
                keys = self._keys[name]
                del keys[key]
                if not keys:
                    del self._keys[name]
        self.count -= len(woken)
        for pop in woken:
            pop.connection.release_parked(pop.size)
            if not pop.connection.is_closing:
                pop.respond(is_over)


def _names(topic: str, group: str) -> list[str]:
    return [retry_topic(group, topic, kind) for kind in TopicKind]
