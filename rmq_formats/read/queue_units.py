"""Port over the layouts of queues: the units of one queue, in files, batch queues or RocksDB."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rmq_formats.storage.segments import OpenRange, read_range


@dataclass(frozen=True, slots=True)
class QueueUnit:
    """Unit of a queue, with the queue offsets of its messages and the place of its record in the log."""

    queue_offset: int  # of the first message
    end_offset: int  # one past the last message
    physical_offset: int
    size: int  # of the record, in bytes
    store_timestamp_ms: int | None = None  # of the record; None in a layout whose units have no time
    is_placeholder: bool = False


def read_arrays(
    file: OpenRange, dtype: np.dtype[np.void], low: int, high: int, most: int
) -> Iterator[tuple[int, NDArray[np.void]]]:
    """Read elements ``[low, high)`` of a file, at most ``most`` at once, as number of the first and an array."""
    for first in range(low, high, most):
        data = read_range(file, first * dtype.itemsize, min(most, high - first) * dtype.itemsize)
        yield first, np.frombuffer(data, dtype=dtype, count=len(data) // dtype.itemsize)


class QueueUnits(Protocol):
    """The units of one queue. Its implementations are listed in ``queue_choice``."""

    def first_since(self, physical_offset: int) -> QueueUnit | None:
        """Find the first unit whose record begins at a physical offset or later; None without such a unit."""

    def last_unit(self) -> QueueUnit | None:
        """Find the last written unit; None for an empty queue."""

    def max_offset(self, log_end: int | None = None) -> int:
        """Return the queue offset one past the last message whose record begins before ``log_end``, if given."""

    def first_message(self, first_offset: int, end_offset: int) -> QueueUnit | None:
        """Find the first unit of a message within ``[first_offset, end_offset)``; None without such a unit.

        Raises FormatError: no file reaches to the unit, or a database is damaged.
        """

    def named_records(self, begin: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the physical offsets of the records in ``[begin, end)`` that units name, and their queue offsets."""


def records_within(
    parts: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], begin: int, end: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Join physical and queue offsets of records, and select those of records in ``[begin, end)`` of the log."""
    no_longs = np.zeros(0, dtype=np.int64)
    records, places = (np.concatenate([no_longs, *(part[number] for part in parts)]) for number in range(2))
    inside = (records >= begin) & (records < end)
    return records[inside], places[inside]
