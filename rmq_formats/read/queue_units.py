"""Port over the layouts of queues: the units of one queue, in files, batch queues or RocksDB."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class QueueUnit:
    """A unit and its place in its queue.

    Attributes:
        queue_offset: of its first message.
        end_offset: one past its last message.
        physical_offset: of its record.
        size: of its record, in bytes.
        store_timestamp_ms: of its record; None in a layout whose units have none.
        is_placeholder: whether it stands for no message.
    """

    queue_offset: int
    end_offset: int
    physical_offset: int
    size: int
    store_timestamp_ms: int | None = None
    is_placeholder: bool = False


class QueueUnits(Protocol):
    """The units of one queue. Its implementations are listed in ``queue_choice``."""

    def first_since(self, physical_offset: int) -> QueueUnit | None:
        """Find the first unit whose record begins at a physical offset or later; None without one.

        At the begin of the log it has the queue's smallest offset.
        """
        ...

    def last_unit(self) -> QueueUnit | None:
        """Find the last written unit; None for an empty queue."""
        ...

    def max_offset(self, log_end: int | None = None) -> int:
        """Return the queue offset one past the last message.

        Args:
            log_end: physical offset one past the log's data; units that lead there or beyond do not count.
        """
        ...

    def first_message(self, first_offset: int, end_offset: int) -> QueueUnit | None:
        """Find the first unit of a message within ``[first_offset, end_offset)``; None without one.

        Raises:
            FormatError: no file has the unit's place, or a database is damaged.
        """
        ...

    def named_records(self, begin: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the physical offsets of the records in ``[begin, end)`` that units name, and their queue offsets."""
        ...


def records_within(
    parts: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], begin: int, end: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Join physical and queue offsets of records, and select those of records in ``[begin, end)`` of the log."""
    no_longs = np.zeros(0, dtype=np.int64)
    records, places = (np.concatenate([no_longs, *(part[number] for part in parts)]) for number in range(2))
    inside = (records >= begin) & (records < end)
    return records[inside], places[inside]
