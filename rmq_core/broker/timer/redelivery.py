"""Finds what a killed broker has delivered since its last timer checkpoint, so that it is not delivered again.

The original delivers such messages twice.
"""

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
        self._left: dict[Key, list[int]] = {}  # when each was delivered, ms
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
            self._left.setdefault(_key(message.topic, properties), []).append(number(properties[DEQUEUE_MS]))

    def take(self, topic: str, properties: dict[str, str], *, rolls: bool) -> bool:
        """Whether a message was delivered already; each delivery counts once.

        Args:
            topic: the topic that it is to be stored in.
            properties: that it waits with.
            rolls: whether it rolls: it is to wait on in the timer topic.
        """
        key = _key(topic, properties, int(rolls))
        times = self._left.get(key)
        if times is None:
            return False
        times.pop()
        if not times:
            del self._left[key]
        return True

    def forget(self, now_ms: int) -> None:
        """Pass over what was delivered by now, as all that is due by now has been looked at.

        What was delivered later than that, as the clock has been set back since, is due once more.
        """
        later = {key: [time for time in times if time > now_ms] for key, times in self._left.items()}
        self._left = {key: times for key, times in later.items() if times}


def _key(topic: str, properties: dict[str, str], more_rolls: int = 0) -> Key:
    rolled = str(number(properties.get(ROLL_TIMES)) + more_rolls) if topic == TIMER_TOPIC else ""
    return topic, properties.get(PROPERTY_UNIQ_KEY, ""), properties.get(PROPERTY_OUT_MS, ""), rolled
