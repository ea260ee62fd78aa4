"""Deliveries of a killed broker since its last timer checkpoint, which are not repeated.

The original delivers such messages twice.
"""

from rmq_core.broker.timer.records import DEQUEUE_MS, ROLL_TIMES
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.layout import PROPERTY_UNIQ_KEY
from rmq_formats.codecs.properties import parse_decimal
from rmq_formats.codecs.record import decode_record
from rmq_formats.codecs.timer import PROPERTY_OUT_MS
from rmq_formats.codecs.topics import TIMER_TOPIC
from rmq_formats.errors import FormatError

Key = tuple[str, str, str, str]  # topic, id from the producer, due time, number of rolls


class PastDeliveries:
    """Messages after a physical offset of the CommitLog that were delivered from the timer topic."""

    def __init__(self, store: MessageStore, begin: int) -> None:
        """Search the log for delivered messages, from a physical offset at which a record or nothing begins."""
        self._deliveries: dict[Key, list[int]] = {}  # times of delivery, ms
        begin = max(begin, store.min_physical_offset)
        if begin < store.max_physical_offset:
            from rmq_core.broker.timer.log_search import records_with  # noqa: PLC0415 # numba, see ``kernel_loading``

            for record in records_with(store, DEQUEUE_MS.encode(), begin):
                self._add(record)

    @property
    def is_empty(self) -> bool:
        return not self._deliveries

    def _add(self, record: memoryview) -> None:
        try:
            message = decode_record(record)
        except FormatError:
            return
        properties = message.properties
        if DEQUEUE_MS in properties:
            self._deliveries.setdefault(_key(message.topic, properties), []).append(
                parse_decimal(properties[DEQUEUE_MS], 0)
            )

    def remove(self, topic: str, properties: dict[str, str], *, rolls: bool) -> bool:
        """Remove one delivery of a message to a topic; return False without one."""
        key = _key(topic, properties, int(rolls))
        times = self._deliveries.get(key)
        if times is None:
            return False
        times.pop()
        if not times:
            del self._deliveries[key]
        return True

    def remove_until(self, now_ms: int) -> None:
        """Remove deliveries up to now, after all messages due by now were compared.

        Later deliveries are from before the clock was set back, and are due once more.
        """
        later = {key: [time for time in times if time > now_ms] for key, times in self._deliveries.items()}
        self._deliveries = {key: times for key, times in later.items() if times}


def _key(topic: str, properties: dict[str, str], more_rolls: int = 0) -> Key:
    rolled = str(parse_decimal(properties.get(ROLL_TIMES), 0) + more_rolls) if topic == TIMER_TOPIC else ""
    return topic, properties.get(PROPERTY_UNIQ_KEY, ""), properties.get(PROPERTY_OUT_MS, ""), rolled
