"""Reads records at listed physical offsets, as many at a time as fit into a window.

Neighbours are read with the bytes between them if that costs less than another request.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.layout import MAX_FRAME_BYTES
from rmq_formats.kernels.columns import select as kernel
from rmq_formats.kernels.scan import FRAME_COLUMNS
from rmq_formats.scan.segment import WINDOW_BYTES, FrameBatch
from rmq_formats.storage.segments import OpenRange, Segment, Storage

LOCAL_GAP_BYTES: Final = 16 << 10  # a gap of so many bytes costs about as much as one more read
REMOTE_GAP_BYTES: Final = 1 << 20  # likewise, as one more request to an object store


@dataclass(frozen=True, slots=True)
class Points:
    """Physical offsets, ascending and distinct, and sizes of records, int64[n] each."""

    physical_offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, physical_offsets: NDArray[np.int64], sizes: NDArray[np.int64]) -> "Points":
        """Sort and deduplicate offsets; impossible offsets and sizes are left out."""
        possible = (physical_offsets >= 0) & (sizes > 0) & (sizes <= MAX_FRAME_BYTES)
        ordered, first = np.unique(physical_offsets[possible], return_index=True)
        return cls(ordered, sizes[possible][first])

    def within(self, begin: int, end: int) -> "Points":
        """Return the records that are whole between two physical offsets."""
        first = int(np.searchsorted(self.physical_offsets, begin))
        last = int(np.searchsorted(self.physical_offsets, end))
        offsets, sizes = self.physical_offsets[first:last], self.sizes[first:last]
        whole = offsets + sizes <= end
        return Points(offsets[whole], sizes[whole])


def read_points(
    storage: Storage, segments: Sequence[Segment], points: Points, *, verify_crc: bool = True
) -> Iterator[FrameBatch]:
    """Read the records at some points; points without a sound record of that size are skipped.

    Yields:
        Batches in log order. Their windows have gaps: only the records themselves tell their physical offsets.
    """
    gap_bytes = LOCAL_GAP_BYTES if storage.is_local else REMOTE_GAP_BYTES
    window = np.empty(WINDOW_BYTES, dtype=np.uint8)  # a larger record gets its own
    for segment in segments:
        segment_points = points.within(segment.start_offset, segment.end_offset)
        if not len(segment_points.sizes):
            continue
        with storage.open(segment.path) as file:
            for first, end in _window_fulls(segment_points, gap_bytes):
                positions, byte_count = _lay_out(segment_points, first, end, gap_bytes)
                if byte_count > len(window):
                    window = np.empty(byte_count, dtype=np.uint8)
                table = np.stack(
                    [positions, segment_points.physical_offsets[first:end], segment_points.sizes[first:end]], axis=1
                )
                _read(file, segment, table, window)
                frames = np.empty((end - first, FRAME_COLUMNS), dtype=np.int64)
                count = kernel.check_points(
                    window, byte_count, table, segment.start_offset, segment.size_bytes, verify_crc, frames
                )
                begin_offset, end_offset = int(table[0, 1]), int(table[-1, 1] + table[-1, 2])
                yield FrameBatch(window, begin_offset, frames[:count], (), None, begin_offset, end_offset)


def _window_fulls(points: Points, gap_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut points into groups that fit into a window together with the gaps that are read."""
    ends = _ends_in_window(points, gap_bytes)
    first = 0
    while first < len(ends):
        begin = ends[first] - points.sizes[first]
        end = max(first + 1, int(np.searchsorted(ends, begin + WINDOW_BYTES, side="right")))
        yield first, end
        first = end


def _ends_in_window(points: Points, gap_bytes: int) -> NDArray[np.int64]:
    """Return the end of each record in a window that has all records and the small gaps between them."""
    gaps = np.zeros(len(points.sizes), dtype=np.int64)
    gaps[1:] = points.physical_offsets[1:] - (points.physical_offsets[:-1] + points.sizes[:-1])
    # Overlapping records occur only in a damaged log; each is then read on its own.
    gaps[(gaps < 0) | (gaps > gap_bytes)] = 0
    return np.cumsum(points.sizes + gaps)


def _lay_out(points: Points, first: int, end: int, gap_bytes: int) -> tuple[NDArray[np.int64], int]:
    """Compute the positions of a group's records in the window, and the window's size in bytes."""
    group = Points(points.physical_offsets[first:end], points.sizes[first:end])
    ends = _ends_in_window(group, gap_bytes)
    return ends - group.sizes, int(ends[-1])


def _read(file: OpenRange, segment: Segment, table: NDArray[np.int64], window: NDArray[np.uint8]) -> None:
    """Read with one request for each run of records that are as far apart in the window as in the log."""
    distance = table[:, kernel.POINT_PHYSICAL_OFFSET] - table[:, kernel.POINT_POSITION]
    starts = np.flatnonzero(np.diff(distance, prepend=distance[0] - 1))
    stops = np.append(starts[1:], len(table)) - 1
    view = memoryview(window.data)
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        begin = int(table[start, kernel.POINT_POSITION])
        end = int(table[stop, kernel.POINT_POSITION] + table[stop, kernel.POINT_SIZE])
        got = file.read_into(int(table[start, kernel.POINT_PHYSICAL_OFFSET]) - segment.start_offset, view[begin:end])
        window[begin + got : end] = 0  # the file was truncated meanwhile: zeros are no sound record
