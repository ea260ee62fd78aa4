"""Long polling: pulls that wait for messages until their deadline.

Source: ``PullRequestHoldService``, ``NotifyMessageArrivingListener``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rmq_core.broker.tables.subscription_filter import Filter
from rmq_core.remoting.connection import Connection
from rmq_core.store.results import Arrival


@dataclass(slots=True, eq=False)
class PullRequest:
    """Pull request that waits for messages.

    Attributes:
        connection: of the consumer.
        filter: of the subscription.
        next_offset: the queue's maximum offset must be above this one.
        deadline_ms: end of the wait, by the steady clock.
        respond: sends the response with the current messages.
        size: reserved memory, B.
    """

    connection: Connection
    filter: Filter
    next_offset: int
    deadline_ms: int
    respond: Callable[[], None]
    size: int


class PullLongPolling:
    """Pull requests that wait for messages, by queue.

    Attributes:
        count: of waiting pulls.
    """

    def __init__(self) -> None:
        self.count = 0
        self._queues: dict[tuple[str, int], list[PullRequest]] = {}

    def park(self, topic: str, queue_id: int, pull: PullRequest) -> None:
        """Park a pull, and charge its size to the connection."""
        pull.connection.reserve_parked(pull.size)
        self._queues.setdefault((topic, queue_id), []).append(pull)
        self.count += 1

    def is_waiting(self) -> bool:
        """Return whether a pull is parked."""
        return self.count > 0

    def arrived(self, arrivals: list[Arrival]) -> None:
        """Respond to pulls that newly readable messages may match."""
        for topic, queue_id, max_offset, tags_codes in arrivals:
            parked = self._queues.get((topic, queue_id))
            if parked is None:
                continue
            remaining = [
                pull for pull in parked if pull.next_offset >= max_offset or not pull.filter.may_match(tags_codes)
            ]
            if len(remaining) < len(parked):
                self._retain(topic, queue_id, parked, remaining)

    def expire(self, now_ms: int) -> None:
        """Respond to pulls whose deadline has passed; to be called periodically."""
        for (topic, queue_id), parked in list(self._queues.items()):
            remaining = [pull for pull in parked if pull.deadline_ms > now_ms and not pull.connection.is_closing]
            if len(remaining) < len(parked):
                self._retain(topic, queue_id, parked, remaining)

    def wake(self, topic: str, queue_id: int) -> None:
        """Respond to all pulls of a queue."""
        self._retain(topic, queue_id, self._queues.get((topic, queue_id), []), [])

    def _retain(self, topic: str, queue_id: int, parked: list[PullRequest], remaining: list[PullRequest]) -> None:
        """Retain the ``remaining`` pulls, and respond to the others."""
        self.count -= len(parked) - len(remaining)
        if remaining:
            self._queues[topic, queue_id] = remaining
        else:
            self._queues.pop((topic, queue_id), None)
        staying = set(remaining)
        for pull in parked:
            if pull not in staying:
                pull.connection.release_parked(pull.size)
                pull.respond()
