"""Reads BatchConsumeQueues: their units in order, the end of a queue, and the unit with a queue offset."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.layout import BATCH_UNIT_BYTES
from rmq_formats.codecs.variants.batch_consumequeue import BATCH_UNIT_DTYPE, used_count
from rmq_formats.storage.queue_files import QueueFiles
from rmq_formats.storage.segments import OpenRange, Segment, Storage, opened, read_range

_UNITS_AT_ONCE: Final = 1 << 17


def read_batch_units(file: OpenRange, low: int, high: int) -> Iterator[tuple[int, NDArray[np.void]]]:
    """Read units ``[low, high)`` of a file in pieces, up to the first that ends the queue.

    Yields:
        The number of a piece's first unit in the file, and an array of BATCH_UNIT_DTYPE.
    """
    for first in range(low, high, _UNITS_AT_ONCE):
        data = read_range(file, first * BATCH_UNIT_BYTES, min(_UNITS_AT_ONCE, high - first) * BATCH_UNIT_BYTES)
        units = np.frombuffer(data, dtype=BATCH_UNIT_DTYPE, count=len(data) // BATCH_UNIT_BYTES)
        used = used_count(units)
        if used:
            yield first, units[:used]
        if used < min(_UNITS_AT_ONCE, high - first):
            return


class BatchQueue:
    """A BatchConsumeQueue's units by their place in the queue.

    Attributes:
        files: of the queue.
    """

    def __init__(self, storage: Storage, files: QueueFiles) -> None:
        self.files = files
        self._storage = storage

    def last_unit(self, log_end: int | None = None) -> np.void | None:
        """Return the last unit, BATCH_UNIT_DTYPE; None for an empty queue.

        Args:
            log_end: physical offset one past the log's data; units that lead there or beyond do not count.
        """
        is_behind = _is_end if log_end is None else lambda unit: _is_end(unit) or _leads_to(unit, log_end)
        for segment in reversed(self.files.segments):
            with opened(self._storage, segment.path) as file:
                unit_count = _partition(file, segment, is_behind)
                if unit_count:
                    return _unit(file, unit_count - 1)
        return None

    def first_since(self, physical_offset: int) -> np.void | None:
        """Return the first unit whose record begins at a physical offset or later; None without one."""
        return self._first(lambda unit: _leads_to(unit, physical_offset))

    def holding(self, queue_offset: int) -> np.void | None:
        """Return the first unit whose messages reach beyond a queue offset; None without such a unit."""
        return self._first(lambda unit: int(unit["base_offset"]) + int(unit["batch_size"]) > queue_offset)

    def _first(self, is_later: Callable[[np.void], bool]) -> np.void | None:
        for segment in self.files.segments:
            with opened(self._storage, segment.path) as file:
                number = _partition(file, segment, lambda unit: _is_end(unit) or is_later(unit))
                if number < segment.size_bytes // BATCH_UNIT_BYTES and not _is_end(unit := _unit(file, number)):
                    return unit
        return None


def _is_end(unit: np.void) -> bool:
    return not used_count(unit.reshape(1))


def _leads_to(unit: np.void, physical_offset: int) -> bool:
    return bool(unit["physical_offset"] >= physical_offset)


def _unit(file: OpenRange, number: int) -> np.void:
    data = read_range(file, number * BATCH_UNIT_BYTES, BATCH_UNIT_BYTES).ljust(BATCH_UNIT_BYTES, b"\0")
    unit: np.void = np.frombuffer(data, dtype=BATCH_UNIT_DTYPE)[0]
    return unit


def _partition(file: OpenRange, segment: Segment, is_later: Callable[[np.void], bool]) -> int:
    """Bisect for the number of a file's first unit that satisfies the condition, as all later units do."""
    count = segment.size_bytes // BATCH_UNIT_BYTES
    return bisect_left(range(count), True, key=lambda number: is_later(_unit(file, number)))
