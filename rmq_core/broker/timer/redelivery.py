"""Finds what a killed broker has delivered since its last timer checkpoint, so that it is not delivered again.

The original delivers such messages twice.
"""

from collections import Counter
from typing import Final

from rmq_core.broker.timer.records import DEQUEUE_MS, ROLL_TIMES, number
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.layout import PROPERTY_UNIQ_KEY
from rmq_formats.codecs.record import decode_record
from rmq_formats.codecs.timer import PROPERTY_OUT_MS
from rmq_formats.codecs.topics import TIMER_TOPIC
from rmq_formats.errors import FormatError

Key = tuple[str, str, str, str]  # topic, the producer's id, when it was due, how often it has rolled
_MARK: Final = DEQUEUE_MS.encode()


class Delivered:
    """Messages behind a physical offset of the CommitLog that were delivered from the timer topic."""

    def __init__(self, store: MessageStore, begin: int) -> None:
        """Find them in the log.

        Args:
            store: where they are.
            begin: physical offset at which a record begins, or the log's end.
        """
        self._left: Counter[Key] = Counter()
        begin = max(begin, store.min_physical_offset)
        if begin < store.max_physical_offset:
            from rmq_core.broker.timer.log_search import records_with  # noqa: PLC0415 # numba, see ``kernel_loading``

            for record in records_with(store, _MARK, begin):
                self._note(record)

    @property
    def is_empty(self) -> bool:
        """Whether no such message is left."""
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
        """Whether a message was delivered already; each delivery counts once.

        Args:
            topic: the topic that it is to be stored in.
            properties: that it waits with.
            rolls: whether it rolls: it is to wait on in the timer topic.
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
