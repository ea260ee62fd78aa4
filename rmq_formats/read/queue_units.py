"""Ports over the layouts of queues: the units of one queue, in files, batch queues or a database; such a database."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.rocksdb_queue import UNIT_VALUE_DTYPE, QueueBound
from rmq_formats.storage.segments import OpenRange, read_range


@dataclass(frozen=True, slots=True)
class QueueUnit:
    """Unit of a queue, with the queue offsets of its messages and the place of its record in the log."""

    queue_offset: int  # of the first message
    end_offset: int  # one past the last message
    physical_offset: int
    size: int  # of the record, in bytes
    store_timestamp_ms: int | None = None  # of the record; None in a layout whose units have no time
    names_no_record: bool = False


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


class QueueDatabase(ABC):
    """A ConsumeQueue in a database, open for reading. ``QUEUE_DATABASES`` lists the implementations.

    Each method raises FormatError for damage.

    Attributes:
        path: directory of the database.
    """

    path: str

    @abstractmethod
    def queues(self, only_topic: str | None = None) -> Iterator[tuple[str, int]]:
        """List the queues that have units, of one topic or of all: by length of the topic, topic and queue id."""

    @abstractmethod
    def all_queues(self) -> set[tuple[str, int]]:
        """List the queues that have units or a bound, with queues of which all has expired."""

    @abstractmethod
    def units(
        self, topic: str, queue_id: int, first_offset: int = 0, end_offset: int | None = None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.void]]]:
        """Read units ``[first_offset, end_offset)`` of a queue in pieces.

        Returns: offsets, int64[n], and units, UNIT_VALUE_DTYPE[n].
        """

    def all_units(self, topic: str, queue_id: int) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        """Read the queue offsets, int64[n], ascending, and the units of a whole queue; see ``units``."""
        parts = list(self.units(topic, queue_id))
        offsets = np.concatenate([np.empty(0, dtype=np.int64), *(part for part, _ in parts)])
        units = np.concatenate([np.empty(0, dtype=UNIT_VALUE_DTYPE), *(part for _, part in parts)])
        return offsets, units.astype(UNIT_VALUE_DTYPE)  # numpy joins into the machine's own byte order

    @abstractmethod
    def first_offset(self, topic: str, queue_id: int, since: int = 0) -> int | None:
        """Return the queue offset of a queue's first unit from an offset on; None without any."""

    @abstractmethod
    def last_offset(self, topic: str, queue_id: int) -> int | None:
        """Return the queue offset of a queue's last unit; None without any."""

    @abstractmethod
    def bound(self, topic: str, queue_id: int) -> QueueBound | None:
        """Return the stored bound at a queue's end; None without one."""

    @abstractmethod
    def checkpoint(self) -> int:
        """Return the physical offset after the last dispatched record; 0 where the database has none."""

    def unknown_pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """List keys and values beside the units that a rebuild carries over as they are."""
        return iter(())
