"""Long polling of POP: pops that are held until messages arrive or their time is over.

Of each group one pop is answered for each message that arrives. Messages of the group's retry topic wake it too, of
either version; the original has those of version 1 wait for the poll's end.

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
class HeldPop:
    """A pop, or a notification, that waits.

    Attributes:
        connection: of the consumer.
        queue_id: of the queue that it is for; ANY_QUEUE for all.
        filter: of its subscription.
        deadline_ms: until when it is held.
        answer: answers it, or has it held again; gets whether its time is over.
        size: what it takes, B.
        asks_only: whether it takes no messages: then others are woken as well.
    """

    connection: Connection
    queue_id: int
    filter: Filter
    deadline_ms: int
    answer: Callable[[bool], None]
    size: int
    asks_only: bool = False


class HeldPops:
    """Pops that wait for messages, by topic and group.

    Attributes:
        count: how many.
    """

    def __init__(self, most: int) -> None:
        """Hold so many at most."""
        self.count = 0
        self._most = most
        self._held: dict[Key, deque[HeldPop]] = {}
        self._keys: dict[str, dict[Key, None]] = {}  # what waits for messages of a topic, or of a retry topic

    def hold(self, topic: str, group: str, pop: HeldPop) -> bool:
        """Hold a pop, whose bytes are its connection's then; False if there are too many."""
        key = topic, group
        held = self._held.get(key)
        if self.count >= self._most or (held is not None and len(held) >= _MOST_OF_KEY):
            return False
        if held is None:
            held = self._held[key] = deque()
            for name in _names(topic, group):
                self._keys.setdefault(name, {})[key] = None
        pop.connection.keep(pop.size)
        held.append(pop)
        self.count += 1
        return True

    def count_of(self, topic: str, group: str, queue_id: int) -> int:
        """Number of pops that wait for a queue, or with ANY_QUEUE for any."""
        return sum(pop.queue_id == queue_id for pop in self._held.get((topic, group), ()))

    def is_waiting(self) -> bool:
        """Whether any is held."""
        return self.count > 0

    def arrived(self, arrivals: list[Arrival]) -> None:
        """Answer pops that newly readable messages may match, when the dispatch that tells of them is over."""
        found = [arrival for arrival in arrivals if arrival.topic in self._keys]
        if found:
            asyncio.get_running_loop().call_soon(self._take_in, found)

    def _take_in(self, arrivals: list[Arrival]) -> None:
        for topic, queue_id, _, tags_codes in arrivals:
            if tags_codes is None:  # of a topic that is not popped
                continue
            for key in list(self._keys.get(topic, ())):
                self._wake(key, queue_id if key[0] == topic else ANY_QUEUE, tags_codes)

    def _wake(self, key: Key, queue_id: int, tags_codes: list[int] | None) -> None:
        """Answer as many pops of a group as there are messages that it may want; None is one of unknown tags."""
        held, chosen, left = self._held.get(key, deque()), [], 1 if tags_codes is None else len(tags_codes)
        for pop in held:
            if left <= 0:
                break
            is_of_queue = ANY_QUEUE in (queue_id, pop.queue_id) or queue_id == pop.queue_id
            if is_of_queue and (tags_codes is None or pop.filter.may_match(tags_codes)):
                chosen.append(pop)
                left -= not pop.asks_only
        self._answer(key, chosen, is_over=False)

    def wake_soon(self, topic: str, group: str, queue_id: int) -> None:
        """Answer one pop of a group that is for a queue, by and by: there is something for it."""
        if (topic, group) in self._held:
            asyncio.get_running_loop().call_soon(self._wake, (topic, group), queue_id, None)

    def expire(self, now_ms: int) -> None:
        """Answer the pops whose time is over; to be called periodically."""
        for key, held in list(self._held.items()):
            over = [pop for pop in held if pop.deadline_ms <= now_ms or pop.connection.is_closing]
            if over:
                self._answer(key, over, is_over=True)

    def _answer(self, key: Key, chosen: list[HeldPop], *, is_over: bool) -> None:
        if not chosen:
            return
        leaving = set(chosen)
        kept = deque(pop for pop in self._held[key] if pop not in leaving)
        if kept:
            self._held[key] = kept
        else:
            del self._held[key]
            for name in _names(*key):
                keys = self._keys[name]
                del keys[key]
                if not keys:
                    del self._keys[name]
        self.count -= len(chosen)
        for pop in chosen:
            pop.connection.let_go(pop.size)
            if not pop.connection.is_closing:
                pop.answer(is_over)


def _names(topic: str, group: str) -> list[str]:
    return [retry_topic(group, topic, kind) for kind in TopicKind]
