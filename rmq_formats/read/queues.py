"""ConsumeQueues in files: the ends of their units, and the units in a range of the log."""

import bisect
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import paths
from rmq_formats.codecs.consumequeue import UNIT_DTYPE, Unit, is_unwritten, names_no_record
from rmq_formats.codecs.layout import UNIT_BYTES
from rmq_formats.errors import FormatError
from rmq_formats.read.query import MAX_LONG, MIN_LONG
from rmq_formats.read.queue_units import QueueUnit, read_arrays, records_within
from rmq_formats.storage.queue_files import QueueFiles
from rmq_formats.storage.segments import OpenRange, Segment, Storage, read_range

UNITS_AT_ONCE: Final = 1 << 18


class ConsumeQueue:
    """ConsumeQueue of one queue in files; see ``QueueUnits``."""

    directory = staticmethod(paths.consumequeue_dir)
    unit_bytes = UNIT_BYTES

    def __init__(self, storage: Storage, files: QueueFiles) -> None:
        self.files = files
        self._storage = storage

    def last_unit(self) -> QueueUnit | None:
        """Bisect for the last written unit: zeros follow the units."""
        for segment in reversed(self.files.segments):
            with self._storage.open(segment.path) as file:
                count = _partition(segment.size_bytes // UNIT_BYTES, file, lambda unit: not unit.is_written)
                if count:
                    return _queue_unit(segment, count - 1, _unit(file, count - 1))
        return None

    def max_offset(self, log_end: int | None = None) -> int:
        beyond = None if log_end is None else self.first_since(log_end)
        if beyond is not None:
            return beyond.queue_offset
        last = self.last_unit()
        return self.files.first_offset if last is None else last.end_offset

    def first_since(self, physical_offset: int) -> QueueUnit | None:
        """Bisect for the first unit of a record at a physical offset or later, without pre-blanks.

        Source: ``ConsumeQueue#correctMinOffset``.
        """
        for segment in self.files.segments:
            with self._storage.open(segment.path) as file:
                capacity = segment.size_bytes // UNIT_BYTES
                number = _partition(
                    capacity, file, lambda unit: not unit.is_written or _is_since(unit, physical_offset)
                )
                if number < capacity and not _unit(file, number).is_written:  # the end, or zeros among the units
                    capacity = _partition(capacity, file, lambda unit: not unit.is_written)
                    number = _partition(capacity, file, lambda unit: _is_since(unit, physical_offset))
                if number < capacity:
                    return _queue_unit(segment, number, _unit(file, number))
        return None

    def first_message(self, first_offset: int, end_offset: int) -> QueueUnit | None:
        for offset in range(first_offset, end_offset):
            unit = self.unit_at(offset)
            if unit is None:
                raise FormatError("no file contains this offset", offset * UNIT_BYTES)
            if not unit.names_no_record:
                return QueueUnit(offset, offset + 1, unit.physical_offset, unit.size)
        return None

    def unit_at(self, queue_offset: int) -> Unit | None:
        """Read the unit at a queue offset, written or not; None if no file reaches to the offset."""
        at = queue_offset * UNIT_BYTES
        segments = self.files.segments
        number = bisect.bisect_right(segments, at, key=lambda segment: segment.start_offset) - 1
        if number < 0 or at + UNIT_BYTES > segments[number].end_offset:
            return None
        with self._storage.open(segments[number].path) as file:
            return _unit(file, (at - segments[number].start_offset) // UNIT_BYTES)

    def named_records(self, begin: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        parts = []
        for first, units in self.units_in_log_range(begin, end):
            named = message_units(units)
            parts.append((units["physical_offset"][named].astype(np.int64), first + np.flatnonzero(named)))
        return records_within(parts, begin, end)

    def units_in_log_range(
        self, begin: int, end: int, first_offset: int = MIN_LONG, end_offset: int = MAX_LONG
    ) -> Iterator[tuple[int, NDArray[np.void]]]:
        """Read the units of records that begin in ``[begin, end)`` of the log, in pieces.

        Yields:
            Queue offset of a piece's first unit, and an array of UNIT_DTYPE. The caller has to leave out pre-blanks and
            units of other records in a queue that is out of order.
        """
        for segment in self.files.segments:
            base = segment.start_offset // UNIT_BYTES
            capacity = segment.size_bytes // UNIT_BYTES
            if base + capacity <= first_offset or base >= end_offset:
                continue
            with self._storage.open(segment.path) as file:
                written = _partition(capacity, file, lambda unit: not unit.is_written)
                if not written or _unit(file, written - 1).physical_offset < begin:
                    continue
                low = _partition(written, file, lambda unit: unit.physical_offset >= begin)
                high = _partition(written, file, lambda unit: unit.physical_offset >= end)
                low, high = max(low, first_offset - base), min(high, end_offset - base)
                yield from read_units(file, base, low, high)

    def names_any(self, begin: int, end: int) -> bool:
        """Return whether a unit names a record that begins in ``[begin, end)`` of the log.

        All units are read back to ``begin``: units that a recovery left behind are out of order.
        """
        for segment in reversed(self.files.segments):
            lowest = None
            with self._storage.open(segment.path) as file:
                for _, units in read_units(file, 0, 0, segment.size_bytes // UNIT_BYTES):
                    named = units["physical_offset"][message_units(units)]
                    if ((named >= begin) & (named < end)).any():
                        return True
                    lowest = int(named[0]) if lowest is None and len(named) else lowest
            if lowest is not None and lowest < begin:
                return False
        return False


def _queue_unit(segment: Segment, number: int, unit: Unit) -> QueueUnit:
    offset = segment.start_offset // UNIT_BYTES + number
    return QueueUnit(offset, offset + 1, unit.physical_offset, unit.size, names_no_record=unit.names_no_record)


def _is_since(unit: Unit, physical_offset: int) -> bool:
    return unit.is_written and not unit.names_no_record and unit.physical_offset >= physical_offset


def _unit(file: OpenRange, number: int) -> Unit:
    return Unit.decode(read_range(file, number * UNIT_BYTES, UNIT_BYTES).ljust(UNIT_BYTES, b"\0"))


def _partition(count: int, file: OpenRange, is_later: Callable[[Unit], bool]) -> int:
    """Bisect for the number of a file's first unit that satisfies the condition, as all later units do."""
    return bisect.bisect_left(range(count), True, key=lambda number: is_later(_unit(file, number)))


def read_units(file: OpenRange, base: int, low: int, high: int) -> Iterator[tuple[int, NDArray[np.void]]]:
    """Read units ``[low, high)`` of a file whose first unit has the queue offset ``base``, in pieces."""
    for first, units in read_arrays(file, UNIT_DTYPE, low, high, UNITS_AT_ONCE):
        yield base + first, units


def message_units(units: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return which units stand for a message, bool[n]: no zeros and no placeholders."""
    return ~(is_unwritten(units) | names_no_record(units))


def average_record_bytes(storage: Storage, queues: Sequence[QueueFiles], sample_units: int = 512) -> float:
    """Estimate the mean record size of some queues, from the first units of some of them; 0 if there are none."""
    sizes = [np.zeros(0, dtype=np.int64)]
    for queue in queues[:: max(1, len(queues) // 8)]:
        segment = queue.segments[-1]
        with storage.open(segment.path) as file:
            for _, units in read_units(file, 0, 0, min(sample_units, segment.size_bytes // UNIT_BYTES)):
                sizes.append(units["size"][message_units(units)].astype(np.int64))
    joined = np.concatenate(sizes)
    return float(joined.mean()) if len(joined) else 0.0
