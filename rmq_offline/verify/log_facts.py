"""Facts of the CommitLog that the checks of its derived files share."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.layout import MAX_RECORD_BYTES
from rmq_formats.scan.queue_merge import LogBounds

Longs = NDArray[np.int64]
Mask = NDArray[np.bool_]


def are_in_ranges(begins: Longs, ends: Longs, offsets: Longs) -> Mask:
    """Return which offsets are in a range, bool[n]; the ranges ascend, and an end is one past the last offset."""
    if not len(begins):
        return np.zeros(len(offsets), dtype=bool)
    at = np.searchsorted(begins, offsets, side="right") - 1
    return (at >= 0) & (offsets < ends[at])


def split_runs(numbers: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Split ascending numbers into runs of consecutive ones."""
    return np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1) if len(numbers) else []


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Bounds and damage of the log, as it was when the verification began.

    Attributes:
        start: physical offset of the log's first byte; older records were deleted.
        end: one past the last byte checked: a broker may have written more since.
        lost_begins: where each unreadable range begins, ascending; ``lost_ends`` has the ends.
        largest_record_bytes: size of the largest sound record.
        is_cut: whether a recovery cut the log: units beyond its end may be those of the records after the cut.
        dispatched_end: physical offset from which the next start of a broker dispatches records; 0 after a kill.
    """

    start: int
    end: int
    lost_begins: Longs
    lost_ends: Longs
    largest_record_bytes: int = 0
    is_cut: bool = False
    dispatched_end: int = 0

    @property
    def bounds(self) -> LogBounds:
        """The facts that a merge of units and records needs."""
        return LogBounds(self.start, self.end, self.lost_ranges, self.largest_record_bytes)

    @property
    def lost_ranges(self) -> tuple[Longs, Longs]:
        """Begins and ends of the unreadable ranges."""
        return self.lost_begins, self.lost_ends

    def is_lost(self, physical_offsets: Longs) -> Mask:
        """Return which offsets are in an unreadable range."""
        return are_in_ranges(self.lost_begins, self.lost_ends, physical_offsets)

    def is_old(self, physical_offsets: Longs, sizes: Longs) -> Mask:
        """Return which offsets and sizes may be of records that were deleted with the log's older files."""
        limit = max(MAX_RECORD_BYTES, self.largest_record_bytes)
        in_bounds = (physical_offsets >= 0) & (sizes > 0) & (sizes <= limit)
        return in_bounds & (physical_offsets < self.start) & (physical_offsets + sizes <= self.start)
