"""Deliveries of a killed broker since its last timer checkpoint, which are not repeated.

The original delivers such messages twice. A kernel walks the records of the log, and a search for bytes selects those
to decode.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from rmq_core.broker.timer.records import DEQUEUE_MS, ROLL_TIMES
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.layout import PROPERTY_UNIQ_KEY
from rmq_formats.codecs.properties import parse_decimal
from rmq_formats.codecs.record import decode_record
from rmq_formats.codecs.timer import PROPERTY_OUT_MS
from rmq_formats.codecs.topics import TIMER_TOPIC
from rmq_formats.errors import FormatError
from rmq_formats.kernels.scan import POSITION, SIZE
from rmq_formats.scan.segment import FrameBatch, scan_segment

Key = tuple[str, str, str, str]  # topic, id from the producer, due time, number of rolls
_MARK: Final = DEQUEUE_MS.encode()


class PastDeliveries:
    """Messages after a physical offset of the CommitLog that were delivered from the timer topic."""

    def __init__(self, store: MessageStore, begin: int) -> None:
        """Search the log for delivered messages, from a physical offset at which a record or nothing begins."""
        self._deliveries: dict[Key, list[int]] = {}  # times of delivery, ms
        begin = max(begin, store.min_physical_offset)
        if begin < store.max_physical_offset:
            from rmq_core.broker.timer.redelivery import records_with  # noqa: PLC0415 # numba, see ``kernel_loading``

            for record in records_with(store, _MARK, begin):
                self._note(record)

    @property
    def is_empty(self) -> bool:
        """True if no delivered message is left."""
        return not self._deliveries

    def _note(self, record: memoryview) -> None:
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


def records_with(store: MessageStore, mark: bytes, begin: int) -> Iterator[memoryview]:
    """Yield the records that contain certain bytes, in log order, each valid until the next; CRCs are not verified.

    A record begins at the physical offset ``begin``, or the log ends there.
    """
    end, file_bytes = store.max_physical_offset, store.config.commitlog_file_bytes
    while begin < end:
        start = begin - begin % file_bytes
        if store.read_log_range(begin, 1) is not None:  # a file may be missing
            for batch in scan_segment(
                _FileReader(store, start), start, file_bytes, start=begin - start, data_end=end - start, search=False,
                verify_crc=False,
            ):  # fmt: skip
                yield from _select_marked(batch, mark)
        begin = start + file_bytes


class _FileReader:
    """Reader of one CommitLog file of an open store; unwritten bytes are zeros."""

    def __init__(self, store: MessageStore, start: int) -> None:
        self._store = store
        self._start = start

    def read_into(self, offset: int, target: memoryview) -> int:
        """Fill ``target`` from the file's byte ``offset`` on."""
        data = self._store.read_log_range(self._start + offset, len(target)) or b""
        target[: len(data)] = data
        target[len(data) :] = bytes(len(target) - len(data))
        return len(target)


def _select_marked(batch: FrameBatch, mark: bytes) -> Iterator[memoryview]:
    positions, sizes = batch.frames[:, POSITION], batch.frames[:, SIZE]
    if not len(positions):
        return
    first = int(positions[0])
    text = batch.data[first : int(positions[-1] + sizes[-1])].tobytes()
    index = text.find(mark)
    while index >= 0:
        row = int(np.searchsorted(positions, first + index, side="right")) - 1
        position, end = int(positions[row]), int(positions[row] + sizes[row])
        if first + index + len(mark) <= end:  # else the match crosses the end of the record
            yield batch.data[position:end].data
            index = end - first - 1
        index = text.find(mark, index + 1)
