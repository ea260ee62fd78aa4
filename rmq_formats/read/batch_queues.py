"""BatchConsumeQueues in files: their units in order, and look-ups of single units by bisection."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import paths
from rmq_formats.codecs.batch_consumequeue import BATCH_UNIT_DTYPE, used_count
from rmq_formats.codecs.layout import BATCH_UNIT_BYTES
from rmq_formats.read.query import MAX_LONG
from rmq_formats.read.queue_units import QueueUnit, read_arrays, records_within
from rmq_formats.storage.queue_files import QueueFiles
from rmq_formats.storage.segments import OpenRange, Segment, Storage, read_range

_UNITS_AT_ONCE: Final = 1 << 17
_Condition = Callable[[np.void], bool]


def read_batch_units(file: OpenRange, low: int, high: int) -> Iterator[tuple[int, NDArray[np.void]]]:
    """Read units ``[low, high)`` of a file up to the queue's end: number of the first and array of BATCH_UNIT_DTYPE."""
    for first, units in read_arrays(file, BATCH_UNIT_DTYPE, low, high, _UNITS_AT_ONCE):
        used = used_count(units)
        if used:
            yield first, units[:used]
        if used < min(_UNITS_AT_ONCE, high - first):
            return


class BatchQueue:
    """BatchConsumeQueue, whose units have several messages each; see ``QueueUnits``."""

    directory = staticmethod(paths.batch_consumequeue_dir)
    unit_bytes = BATCH_UNIT_BYTES

    def __init__(self, storage: Storage, files: QueueFiles) -> None:
        self.files = files
        self._storage = storage

    def last_unit(self) -> QueueUnit | None:
        return self._last(_is_end)

    def max_offset(self, log_end: int | None = None) -> int:
        limit = MAX_LONG if log_end is None else log_end
        last = self._last(lambda unit: _is_end(unit) or unit["physical_offset"] >= limit)
        return 0 if last is None else last.end_offset

    def first_since(self, physical_offset: int) -> QueueUnit | None:
        return self._first(lambda unit: unit["physical_offset"] >= physical_offset)

    def first_message(self, first_offset: int, end_offset: int) -> QueueUnit | None:
        unit = self._first(lambda unit: int(unit["base_offset"]) + int(unit["batch_size"]) > first_offset)
        return None if unit is None or unit.queue_offset >= end_offset else unit

    def named_records(self, begin: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        parts = []
        for segment in self.files.segments:
            with self._storage.open(segment.path) as file:
                for _, units in read_batch_units(file, 0, segment.size_bytes // BATCH_UNIT_BYTES):
                    parts.append((units["physical_offset"].astype(np.int64), units["base_offset"].astype(np.int64)))
        return records_within(parts, begin, end)

    def names_any(self, begin: int, end: int) -> bool:
        """Return whether a unit names a record that begins in ``[begin, end)`` of the log."""
        first = self.first_since(begin)
        return first is not None and first.physical_offset < end

    def _last(self, is_later: _Condition) -> QueueUnit | None:
        """Bisect for the last unit before those that satisfy the condition."""
        for segment in reversed(self.files.segments):
            with self._storage.open(segment.path) as file:
                unit_count = _partition(file, segment, is_later)
                if unit_count:
                    return _queue_unit(_unit(file, unit_count - 1))
        return None

    def _first(self, is_later: _Condition) -> QueueUnit | None:
        """Bisect for the first unit that satisfies the condition."""
        for segment in self.files.segments:
            with self._storage.open(segment.path) as file:
                number = _partition(file, segment, lambda unit: _is_end(unit) or is_later(unit))
                if number < segment.size_bytes // BATCH_UNIT_BYTES and not _is_end(unit := _unit(file, number)):
                    return _queue_unit(unit)
        return None


def _queue_unit(unit: np.void) -> QueueUnit:
    begin, count = int(unit["base_offset"]), int(unit["batch_size"])
    return QueueUnit(
        begin, begin + count, int(unit["physical_offset"]), int(unit["size"]), int(unit["store_timestamp"])
    )


def _is_end(unit: np.void) -> bool:
    return not used_count(unit.reshape(1))


def _unit(file: OpenRange, number: int) -> np.void:
    data = read_range(file, number * BATCH_UNIT_BYTES, BATCH_UNIT_BYTES).ljust(BATCH_UNIT_BYTES, b"\0")
    unit: np.void = np.frombuffer(data, dtype=BATCH_UNIT_DTYPE)[0]
    return unit


def _partition(file: OpenRange, segment: Segment, is_later: _Condition) -> int:
    """Bisect for the number of a file's first unit that satisfies a condition, as all later units do."""
    count = segment.size_bytes // BATCH_UNIT_BYTES
    return bisect_left(range(count), True, key=lambda number: is_later(_unit(file, number)))
