"""Reads records at known places of the log, a window full at a time.

Neighbours are read together with the bytes between them where that is cheaper than another request.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.kernels import columns_select as kernel
from rmq_formats.kernels.scan import FRAME_COLUMNS
from rmq_formats.layout import MAX_FRAME_BYTES
from rmq_formats.scan import WINDOW_BYTES, FrameBatch
from rmq_formats.segment import OpenRange, Segment, Storage, opened

LOCAL_GAP_BYTES: Final = 16 << 10  # reading so much more costs about as much as one more call
REMOTE_GAP_BYTES: Final = 1 << 20  # and on an object store, as one more request


@dataclass(frozen=True, slots=True)
class Points:
    """Places of records, int64[n] each, ascending by physical offset, none twice."""

    physical_offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, physical_offsets: NDArray[np.int64], sizes: NDArray[np.int64]) -> "Points":
        """Sort them; what no record can be is left out."""
        possible = (physical_offsets >= 0) & (sizes > 0) & (sizes <= MAX_FRAME_BYTES)
        ordered, first = np.unique(physical_offsets[possible], return_index=True)
        return cls(ordered, sizes[possible][first])

    def within(self, begin: int, end: int) -> "Points":
        """Those that lie, whole, between two physical offsets."""
        first = int(np.searchsorted(self.physical_offsets, begin))
        last = int(np.searchsorted(self.physical_offsets, end))
        offsets, sizes = self.physical_offsets[first:last], self.sizes[first:last]
        whole = offsets + sizes <= end
        return Points(offsets[whole], sizes[whole])


def read_points(
    storage: Storage,
    segments: Sequence[Segment],
    points: Points,
    *,
    verify_crc: bool = True,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[tuple[Segment, FrameBatch]]:
    """Read records by their places.

    Args:
        storage: where the segments are.
        segments: of the log.
        points: the places; one at which no sound record of that size stands gives nothing.
        verify_crc: check the sums.
        window_bytes: memory for records that are read at once; a larger one gets its own.

    Yields:
        Batches in log order with the segment that they are of. Their windows are not one stretch of the log:
        only the records themselves say where they stand.
    """
    gap_bytes = LOCAL_GAP_BYTES if storage.is_local else REMOTE_GAP_BYTES
    window = np.empty(window_bytes, dtype=np.uint8)
    for segment in segments:
        own = points.within(segment.start_offset, segment.end_offset)
        if not len(own.sizes):
            continue
        with opened(storage, segment.path) as file:
            for first, end in _window_fulls(own, gap_bytes, window_bytes):
                positions, byte_count = _lay_out(own, first, end, gap_bytes)
                if byte_count > len(window):
                    window = np.empty(byte_count, dtype=np.uint8)
                table = np.stack([positions, own.physical_offsets[first:end], own.sizes[first:end]], axis=1)
                _read(file, segment, table, window)
                frames = np.empty((end - first, FRAME_COLUMNS), dtype=np.int64)
                count = kernel.check_points(
                    window, byte_count, table, segment.start_offset, segment.size_bytes, verify_crc, frames
                )
                begin_offset, end_offset = int(table[0, 1]), int(table[-1, 1] + table[-1, 2])
                yield segment, FrameBatch(window, begin_offset, frames[:count], (), None, begin_offset, end_offset)


def _window_fulls(points: Points, gap_bytes: int, window_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut points into groups of which a window holds each, with the gaps that are read along."""
    ends = _ends_in_window(points, gap_bytes)
    first = 0
    while first < len(ends):
        before = ends[first] - points.sizes[first]
        end = max(first + 1, int(np.searchsorted(ends, before + window_bytes, side="right")))
        yield first, end
        first = end


def _ends_in_window(points: Points, gap_bytes: int) -> NDArray[np.int64]:
    """Where each record ends if all are read behind each other, small gaps included."""
    gaps = np.zeros(len(points.sizes), dtype=np.int64)
    gaps[1:] = points.physical_offsets[1:] - (points.physical_offsets[:-1] + points.sizes[:-1])
    # Records that overlap are no sound log's; each is then read on its own.
    gaps[(gaps < 0) | (gaps > gap_bytes)] = 0
    return np.cumsum(points.sizes + gaps)


def _lay_out(points: Points, first: int, end: int, gap_bytes: int) -> tuple[NDArray[np.int64], int]:
    """Positions in the window of a group's records, and how many bytes they take."""
    group = Points(points.physical_offsets[first:end], points.sizes[first:end])
    ends = _ends_in_window(group, gap_bytes)
    return ends - group.sizes, int(ends[-1])


def _read(file: OpenRange, segment: Segment, table: NDArray[np.int64], window: NDArray[np.uint8]) -> None:
    """One request for each run of records that are as far apart in the window as in the log."""
    distance = table[:, kernel.POINT_PHYSICAL_OFFSET] - table[:, kernel.POINT_POSITION]
    starts = np.flatnonzero(np.diff(distance, prepend=distance[0] - 1))
    stops = np.append(starts[1:], len(table)) - 1
    view = memoryview(window.data)
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        begin = int(table[start, kernel.POINT_POSITION])
        end = int(table[stop, kernel.POINT_POSITION] + table[stop, kernel.POINT_SIZE])
        got = file.read_into(int(table[start, kernel.POINT_PHYSICAL_OFFSET]) - segment.start_offset, view[begin:end])
        window[begin + got : end] = 0  # a file that has shrunk: nothing sound stands in zeros
