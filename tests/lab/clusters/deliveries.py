"""What producers have sent, what brokers have acknowledged of it, and what groups were given."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rmq_core.client import ReceivedMessage
from rmq_core.store.config import StoreConfig
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.layout import PROPERTY_DELAY
from rmq_formats.codecs.record import decode_record
from tests.store.small_stores import log_records

SHARED, ORDERED, PULLED, TIMED = "Shared", "Ordered", "Pulled", "Timed"
GROUPS: Mapping[str, tuple[str, ...]] = {
    SHARED: ("of_Shared",), ORDERED: ("of_Ordered",), PULLED: ("of_Pulled", "by_hand"), TIMED: ("of_Timed",),
}  # fmt: skip
"""The groups of each topic; ``TIMED`` has messages with a delay or a time of delivery."""


@dataclass(slots=True)
class _Sent:
    """A message that was sent.

    Attributes:
        topic: its topic.
        is_due: whether it may be given now.
        offset: the physical offset with which it was acknowledged; None before.
        given: groups that have had it.
    """

    topic: str
    is_due: Callable[[], bool]
    offset: int | None = None
    given: set[str] = field(default_factory=set)


class Deliveries:
    """All messages of the groups' topics.

    Attributes:
        wrong: what consumers were given that nobody has sent, or before its time.
    """

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self._sent: dict[bytes, _Sent] = {}
        self._turns: dict[tuple[int, int], int] = {}  # when each queue id and offset of what is in order came first

    def sent(self, topic: str, body: bytes, is_due: Callable[[], bool] = lambda: True) -> None:
        """A message is about to be sent; it may be given when it is due."""
        self._sent[body] = _Sent(topic, is_due)

    def acknowledged(self, body: bytes, offset: int) -> None:
        """A broker has said that it has a message, at a physical offset."""
        self._sent[body].offset = offset

    def gave(self, group: str, message: ReceivedMessage) -> None:
        """A group was given a message."""
        sent = self._sent.get(message.body)
        if sent is None:
            self.wrong.append(f"nobody has sent {message.body!r}")
            return
        if not sent.is_due():
            self.wrong.append(f"{message.body!r} is given before its time")
        sent.given.add(group)
        if message.queue.topic == ORDERED:
            self._turns.setdefault((message.queue_id, message.queue_offset), len(self._turns))

    def not_given(self, store: MessageStore, since: int) -> list[tuple[str, str, int]]:
        """Group, topic and physical offset of acknowledged messages that are still there, and were never given.

        Args:
            store: the master's.
            since: physical offset before which messages were deleted as too old; a kill may have brought them back.
        """
        owed = {
            body: [group for group in GROUPS[sent.topic] if group not in sent.given]
            for body, sent in self._sent.items()
            if sent.offset is not None
        }
        there = {body: offset for offset, body in _bodies(store)}
        found = []
        for body, groups in owed.items():
            sent = self._sent[body]
            # One that waits for its time is not in a queue of its topic yet: it is owed as it was acknowledged.
            offset = sent.offset if sent.topic == TIMED else there.get(body)
            if offset is not None and offset >= since:
                found += [(group, sent.topic, offset) for group in groups]
        return found

    @property
    def not_in_order(self) -> list[tuple[int, int]]:
        """Places in queues that are consumed in order which were given for the first time behind later ones."""
        last: dict[int, int] = {}
        found = []
        for (queue_id, offset), turn in sorted(self._turns.items()):
            if turn < last.get(queue_id, -1):
                found.append((queue_id, offset))
            last[queue_id] = max(turn, last.get(queue_id, -1))
        return found


def delivered_twice(config: StoreConfig, *, levels: bool) -> list[bytes]:
    """Messages with a time of delivery that were delivered more than once, as a log has them.

    Args:
        config: of the store, which is shut down.
        levels: those with a delay level too: a broker that was killed delivers again what it had delivered last.
    """
    times: Counter[bytes] = Counter()
    for _, record in log_records(config):
        message = decode_record(record, 0)
        if message.topic == TIMED and (levels or PROPERTY_DELAY not in message.properties):
            times[message.body] += 1
    return [body for body, count in times.items() if count > 1]


def _bodies(store: MessageStore) -> list[tuple[int, bytes]]:
    """Physical offsets and bodies of the messages of the groups' topics."""
    found = []
    for topic in GROUPS:
        for queue_id in store.topics().get(topic, ()):
            for offset in range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)):
                for stored in store.get(topic, queue_id, offset, 1).slices:
                    record = decode_record(bytes(stored), 0, verify_crc=False)
                    found.append((record.recorded_physical_offset, record.body))
    return found
