"""What a broker that was killed had delivered since its last checkpoint: it is not delivered again.

The original delivers such messages twice.
"""

from collections import Counter
from typing import Final

from rmq_core.broker.timers_records import DEQUEUE_MS, ROLL_TIMES, number
from rmq_core.store.store import MessageStore
from rmq_formats.errors import FormatError
from rmq_formats.layout import PROPERTY_UNIQ_KEY
from rmq_formats.message import decode_record
from rmq_formats.timer import PROPERTY_OUT_MS
from rmq_formats.topics import TIMER_TOPIC

Key = tuple[str, str, str, str]  # topic, the producer's id, when it was due, how often it has rolled
_MARK: Final = DEQUEUE_MS.encode()


class Delivered:
    """Messages that stand behind a place in the CommitLog and came from the timer topic."""

    def __init__(self, store: MessageStore, begin: int) -> None:
        """Look for them.

        Args:
            store: where they are.
            begin: physical offset at which a record begins, or the log's end.
        """
        self._left: Counter[Key] = Counter()
        begin = max(begin, store.min_physical_offset)
        if begin < store.max_physical_offset:
            from rmq_core.broker.timers_scan import records_with  # noqa: PLC0415 # numba: a new store has no log to read

            for record in records_with(store, _MARK, begin):
                self._note(record)

    @property
    def is_empty(self) -> bool:
        """Whether none is left."""
        return not self._left

    def _note(self, record: memoryview) -> None:
        try:
            message = decode_record(record)
        except FormatError:
            return
        properties = message.properties
        if DEQUEUE_MS in properties:
            self._left[_key(message.topic, properties)] += 1

    def take(self, topic: str, properties: dict[str, str], *, rolls: bool) -> bool:
        """Whether a message was delivered already; it counts once.

        Args:
            topic: where it is to be stored.
            properties: that it waits with.
            rolls: whether it is to wait on.
        """
        key = _key(topic, properties, int(rolls))
        if not self._left[key]:
            return False
        self._left[key] -= 1
        if not self._left[key]:
            del self._left[key]
        return True


def _key(topic: str, properties: dict[str, str], more_rolls: int = 0) -> Key:
    rolled = str(number(properties.get(ROLL_TIMES)) + more_rolls) if topic == TIMER_TOPIC else ""
    return topic, properties.get(PROPERTY_UNIQ_KEY, ""), properties.get(PROPERTY_OUT_MS, ""), rolled
