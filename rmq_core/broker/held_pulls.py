"""Pulls that wait for messages.

Source: ``PullRequestHoldService``, ``NotifyMessageArrivingListener``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rmq_core.broker.filters import Filter
from rmq_core.remoting.connection import Connection
from rmq_core.store.values import Arrival


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull that waits.

    Attributes:
        connection: of who waits.
        filter: what it wants.
        next_offset: what it waits for: the queue's maximum offset is above it.
        deadline_ms: until when it waits.
        answer: gives it its answer, whatever that is then.
    """

    connection: Connection
    filter: Filter
    next_offset: int
    deadline_ms: int
    answer: Callable[[], None]


class HeldPulls:
    """Those that wait, by queue.

    Attributes:
        count: how many.
    """

    def __init__(self) -> None:
        self.count = 0
        self._queues: dict[tuple[str, int], list[HeldPull]] = {}

    def hold(self, topic: str, queue_id: int, pull: HeldPull) -> None:
        """Have a pull wait."""
        self._queues.setdefault((topic, queue_id), []).append(pull)
        self.count += 1

    def arrived(self, arrivals: list[Arrival]) -> None:
        """Answer those that waited for messages that are readable now."""
        for topic, queue_id, max_offset, tags_codes in arrivals:
            held = self._queues.get((topic, queue_id))
            if held is None:
                continue
            kept = [pull for pull in held if pull.next_offset >= max_offset or not pull.filter.may_match(tags_codes)]
            if len(kept) < len(held):
                self._keep(topic, queue_id, held, kept)

    def expire(self, now_ms: int) -> None:
        """Answer those that have waited for as long as they wanted to; call it now and then."""
        for (topic, queue_id), held in list(self._queues.items()):
            kept = [pull for pull in held if pull.deadline_ms > now_ms and not pull.connection.is_closing]
            if len(kept) < len(held):
                self._keep(topic, queue_id, held, kept)

    def wake(self, topic: str, queue_id: int) -> None:
        """Answer all that wait for a queue."""
        self._keep(topic, queue_id, self._queues.get((topic, queue_id), []), [])

    def _keep(self, topic: str, queue_id: int, held: list[HeldPull], kept: list[HeldPull]) -> None:
        """Answer all but those that are kept."""
        self.count -= len(held) - len(kept)
        if kept:
            self._queues[topic, queue_id] = kept
        else:
            self._queues.pop((topic, queue_id), None)
        staying = set(kept)
        for pull in held:
            if pull not in staying:
                pull.answer()
