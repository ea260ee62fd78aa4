"""ConsumeQueues on disk: the ends of their units, and the units in a range of the log."""

import bisect
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.consumequeue import UNIT_DTYPE, Unit, is_pre_blank, is_unwritten
from rmq_formats.codecs.layout import UNIT_BYTES
from rmq_formats.storage.queue_files import QueueFiles
from rmq_formats.storage.segments import OpenRange, Storage, opened, read_range

UNITS_AT_ONCE: Final = 1 << 18


def last_unit(storage: Storage, queue: QueueFiles) -> tuple[int, Unit] | None:
    """Find the queue offset one past the last written unit, and that unit; None for an empty queue.

    A binary search: units are written one behind the other, zeros follow.
    """
    for segment in reversed(queue.segments):
        with opened(storage, segment.path) as file:
            count = _partition(segment.size_bytes // UNIT_BYTES, file, lambda unit: not unit.is_written)
            if count:
                return segment.start_offset // UNIT_BYTES + count, _unit(file, count - 1)
    return None


def first_unit(storage: Storage, queue: QueueFiles) -> Unit | None:
    """Read the first unit of a queue that stands for a message; None without one."""
    offset = first_offset_since(storage, queue, 0)
    if offset is None:
        return None
    segment = queue.segments[bisect.bisect_right(queue.segments, offset * UNIT_BYTES, key=lambda s: s.start_offset) - 1]
    with opened(storage, segment.path) as file:
        return _unit(file, offset - segment.start_offset // UNIT_BYTES)


def first_offset_since(storage: Storage, queue: QueueFiles, physical_offset: int) -> int | None:
    """Find the queue offset of the first unit whose record begins at a physical offset or later; None without one.

    Pre-blanks are passed over: they stand for messages that are not there. Source: ``ConsumeQueue#correctMinOffset``.
    """
    for segment in queue.segments:
        with opened(storage, segment.path) as file:
            capacity = segment.size_bytes // UNIT_BYTES
            number = _partition(capacity, file, lambda unit: not unit.is_written or _is_since(unit, physical_offset))
            if number < capacity and _unit(file, number).is_written:
                return segment.start_offset // UNIT_BYTES + number
    return None


def _is_since(unit: Unit, physical_offset: int) -> bool:
    return not unit.is_pre_blank and unit.physical_offset >= physical_offset


def _unit(file: OpenRange, number: int) -> Unit:
    return Unit.decode(read_range(file, number * UNIT_BYTES, UNIT_BYTES).ljust(UNIT_BYTES, b"\0"))


def _partition(count: int, file: OpenRange, is_later: Callable[[Unit], bool]) -> int:
    """Bisect for the number of a file's first unit that satisfies the condition, as all later units do."""
    return bisect.bisect_left(range(count), True, key=lambda number: is_later(_unit(file, number)))


def units_in_log_range(
    storage: Storage, queue: QueueFiles, begin: int, end: int, first_offset: int, end_offset: int
) -> Iterator[tuple[int, NDArray[np.void]]]:
    """Read the units of records that begin in ``[begin, end)`` of the log, in pieces.

    Args:
        storage: where the files are.
        queue: its files.
        begin: physical offset.
        end: physical offset, exclusive.
        first_offset: smallest queue offset that is wanted.
        end_offset: one past the largest.

    Yields:
        Queue offset of the first unit of a piece, and an array of UNIT_DTYPE. Pre-blanks, and units of other
        places in a queue that is out of order, are for the caller to leave out.
    """
    for segment in queue.segments:
        base = segment.start_offset // UNIT_BYTES
        capacity = segment.size_bytes // UNIT_BYTES
        if base + capacity <= first_offset or base >= end_offset:
            continue
        with opened(storage, segment.path) as file:
            written = _partition(capacity, file, lambda unit: not unit.is_written)
            if not written or _unit(file, written - 1).physical_offset < begin:
                continue
            low = _partition(written, file, lambda unit: unit.physical_offset >= begin)
            high = _partition(written, file, lambda unit: unit.physical_offset >= end)
            low, high = max(low, first_offset - base), min(high, end_offset - base)
            yield from read_units(file, base, low, high)


def read_units(file: OpenRange, base: int, low: int, high: int) -> Iterator[tuple[int, NDArray[np.void]]]:
    """Read units ``[low, high)`` of a file whose first place has the queue offset ``base``, in pieces."""
    for first in range(low, high, UNITS_AT_ONCE):
        data = read_range(file, first * UNIT_BYTES, min(UNITS_AT_ONCE, high - first) * UNIT_BYTES)
        yield base + first, np.frombuffer(data, dtype=UNIT_DTYPE, count=len(data) // UNIT_BYTES)


def message_units(units: NDArray[np.void]) -> NDArray[np.bool_]:
    """Which units stand for a message: not zeros, not pre-blanks."""
    return ~(is_unwritten(units) | is_pre_blank(units))


def average_record_bytes(storage: Storage, queues: Sequence[QueueFiles], sample_units: int = 512) -> float:
    """Estimate the mean record size of some queues, from the first units of some of them; 0 if there are none."""
    sizes: list[NDArray[np.int64]] = []
    for queue in queues[:: max(1, len(queues) // 8)]:
        segment = queue.segments[-1]
        with opened(storage, segment.path) as file:
            for _, units in read_units(file, 0, 0, min(sample_units, segment.size_bytes // UNIT_BYTES)):
                sizes.append(units["size"][message_units(units)].astype(np.int64))
    joined = np.concatenate(sizes) if sizes else np.zeros(0, dtype=np.int64)
    return float(joined.mean()) if len(joined) else 0.0
