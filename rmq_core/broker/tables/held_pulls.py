"""Long polling: pulls that are held until messages arrive or their time is over.

Source: ``PullRequestHoldService``, ``NotifyMessageArrivingListener``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rmq_core.broker.tables.subscription_filter import Filter
from rmq_core.remoting.connection import Connection
from rmq_core.store.results import Arrival


@dataclass(slots=True, eq=False)
class HeldPull:
    """A long-polling pull request that waits for messages.

    Attributes:
        connection: of the consumer.
        filter: of its subscription.
        next_offset: the queue's maximum offset has to be above it.
        deadline_ms: until when it is held.
        answer: answers it with what the store has then.
        size: what it takes, B.
    """

    connection: Connection
    filter: Filter
    next_offset: int
    deadline_ms: int
    answer: Callable[[], None]
    size: int


class HeldPulls:
    """Long-polling pull requests that wait for messages, by queue.

    Attributes:
        count: how many.
    """

    def __init__(self) -> None:
        self.count = 0
        self._queues: dict[tuple[str, int], list[HeldPull]] = {}

    def hold(self, topic: str, queue_id: int, pull: HeldPull) -> None:
        """Hold a pull; its bytes are its connection's."""
        pull.connection.reserve_parked(pull.size)
        self._queues.setdefault((topic, queue_id), []).append(pull)
        self.count += 1

    def is_waiting(self) -> bool:
        """Whether any is held."""
        return self.count > 0

    def arrived(self, arrivals: list[Arrival]) -> None:
        """Answer the held pulls that newly readable messages may match."""
        for topic, queue_id, max_offset, tags_codes in arrivals:
            held = self._queues.get((topic, queue_id))
            if held is None:
                continue
            kept = [pull for pull in held if pull.next_offset >= max_offset or not pull.filter.may_match(tags_codes)]
            if len(kept) < len(held):
                self._keep(topic, queue_id, held, kept)

    def expire(self, now_ms: int) -> None:
        """Answer the held pulls whose time is over; to be called periodically."""
        for (topic, queue_id), held in list(self._queues.items()):
            kept = [pull for pull in held if pull.deadline_ms > now_ms and not pull.connection.is_closing]
            if len(kept) < len(held):
                self._keep(topic, queue_id, held, kept)

    def wake(self, topic: str, queue_id: int) -> None:
        """Answer all held pulls of a queue."""
        self._keep(topic, queue_id, self._queues.get((topic, queue_id), []), [])

    def _keep(self, topic: str, queue_id: int, held: list[HeldPull], kept: list[HeldPull]) -> None:
        """Hold the ``kept`` pulls on, and answer the others."""
        self.count -= len(held) - len(kept)
        if kept:
            self._queues[topic, queue_id] = kept
        else:
            self._queues.pop((topic, queue_id), None)
        staying = set(kept)
        for pull in held:
            if pull not in staying:
                pull.connection.release_parked(pull.size)
                pull.answer()
