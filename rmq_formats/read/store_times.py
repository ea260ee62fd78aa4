"""Least and largest store time of the segments of a log, by which a reader may skip segments.

Store times do not ascend along a log: a broker's clock is set back, or runs 40 years ahead for an hour. The time of a
segment's first record bounds nothing. So the record heads of each segment are walked once, and the process caches the
result for as long as the file is the same.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from rmq_formats.arrow.rows import FrameRows
from rmq_formats.errors import RmqError
from rmq_formats.read.query import MAX_LONG, MIN_LONG
from rmq_formats.scan.splits import split_frames, split_of
from rmq_formats.storage.segments import OpenRange, Segment, Storage

_MAX_CACHED: Final = 1 << 16  # segments

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SegmentTimes:
    """Least and largest store time of a segment's records; ``ascends`` if no record is older than the record before."""

    least_ms: int = MAX_LONG
    largest_ms: int = MIN_LONG
    ascends: bool = True

    def overlaps(self, first_ms: int, end_ms: int) -> bool:
        """Return whether the segment may have records of ``[first_ms, end_ms)``."""
        return self.least_ms < end_ms and self.largest_ms >= first_ms


_cache: dict[tuple[str, int, int, int], SegmentTimes] = {}


def times_of(storage: Storage, segments: Sequence[Segment]) -> list[SegmentTimes | None]:
    """Find the store times of segments; None for an unreadable file, and for an object, whose fetch costs the most."""
    if not storage.is_local:
        return [None] * len(segments)
    with ThreadPoolExecutor(min(len(segments), len(os.sched_getaffinity(0))) or 1) as pool:
        return list(pool.map(lambda segment: _times(storage, segment), segments))


def time_ranges(storage: Storage, segments: Sequence[Segment], first_ms: int, end_ms: int) -> list[Range]:
    """Find the ranges of segments that may have records of a time range: ascending and disjoint, ends exclusive."""
    ranges: list[Range] = []
    for segment, times in zip(segments, times_of(storage, segments), strict=True):
        if times is not None and not times.overlaps(first_ms, end_ms):
            continue
        if ranges and ranges[-1][1] == segment.start_offset:
            ranges[-1] = ranges[-1][0], segment.end_offset
        else:
            ranges.append((segment.start_offset, segment.end_offset))
    return ranges


def ascends(storage: Storage, segments: Sequence[Segment]) -> bool:
    """Return whether store times certainly ascend along a log, so that a search may bisect by time."""
    latest_ms = MIN_LONG
    for times in times_of(storage, segments):
        if times is None or not times.ascends or times.least_ms < latest_ms:
            return False
        latest_ms = max(latest_ms, times.largest_ms)
    return True


def _times(storage: Storage, segment: Segment) -> SegmentTimes | None:
    try:
        with storage.open(segment.path) as file:
            data_end = segment.data_end(file)
            key = segment.path, segment.version, segment.size_bytes, data_end
            times = _cache.get(key)
            if times is None:
                times = _walk(file, segment, data_end)
                if len(_cache) < _MAX_CACHED:
                    _cache[key] = times
            return times
    except (RmqError, OSError):
        return None


def _walk(file: OpenRange, segment: Segment, data_end: int) -> SegmentTimes:
    least_ms, largest_ms, before_ms, is_ascending = MAX_LONG, MIN_LONG, MIN_LONG, True
    for batch in split_frames(file, split_of(segment, 0, 0, data_end, data_end), verify_crc=False):
        if not len(batch.frames):
            continue
        times_ms = FrameRows(batch.data, batch.frames).store_timestamps_ms
        least_ms, largest_ms = min(least_ms, int(times_ms.min())), max(largest_ms, int(times_ms.max()))
        is_ascending = is_ascending and before_ms <= times_ms[0] and not (times_ms[1:] < times_ms[:-1]).any()
        before_ms = int(times_ms[-1])
    return SegmentTimes(least_ms, largest_ms, bool(is_ascending))
