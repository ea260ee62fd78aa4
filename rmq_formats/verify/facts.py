"""Facts of the CommitLog that the checks of its derived files share."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.layout import MAX_RECORD_BYTES

Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Bounds and damage of the log, as it was when the verification began.

    Attributes:
        start: physical offset of the log's first byte; older records were deleted.
        end: one past the last byte checked: a broker may have written more since.
        lost_begins: int64[n], where each stretch that cannot be read begins, ascending.
        lost_ends: int64[n], one past its end.
        largest_record_bytes: of its sound records.
    """

    start: int
    end: int
    lost_begins: Longs
    lost_ends: Longs
    largest_record_bytes: int = 0

    def is_lost(self, physical_offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of these offsets stand in a stretch that cannot be read."""
        at = np.searchsorted(self.lost_begins, physical_offsets, side="right") - 1
        if not len(self.lost_begins):
            return np.zeros(len(physical_offsets), dtype=bool)
        return (at >= 0) & (physical_offsets < self.lost_ends[at])

    def is_old(self, physical_offsets: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of these may be records that were deleted with the log's older files."""
        limit = max(MAX_RECORD_BYTES, self.largest_record_bytes)
        in_bounds = (physical_offsets >= 0) & (sizes > 0) & (sizes <= limit)
        return in_bounds & (physical_offsets < self.start) & (physical_offsets + sizes <= self.start)
