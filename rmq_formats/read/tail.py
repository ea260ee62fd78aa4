"""Follows a growing CommitLog: bounds of a stream's next batch, and ranges whose files were deleted."""

from collections.abc import Sequence
from dataclasses import dataclass

from rmq_formats.kernels import scan
from rmq_formats.read.ranges import Range, range_splits
from rmq_formats.scan.splits import split_frames
from rmq_formats.storage.segments import Segment, Storage, opened


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """Maximum of log bytes and of records in one batch; None is no limit.

    Attributes:
        max_records: records of the log, whether a query selects them or not.
    """

    max_bytes: int | None = None
    max_records: int | None = None


NO_LIMIT = BatchLimit()


def batch_end(storage: Storage, segments: Sequence[Segment], start: int, end: int, limit: BatchLimit) -> int:
    """Find the end of a batch that begins at ``start``, at most ``end``: it has the records that begin between.

    Args:
        start: physical offset; the batch before ended there.
        end: physical offset one past the last sound record.
    """
    if limit.max_bytes is not None:
        end = min(end, start + limit.max_bytes)
    if limit.max_records is None:
        return end
    remaining = limit.max_records
    for split in range_splits(segments, [(start, end)], end, end - start):
        with opened(storage, split.path) as file:
            for batch in split_frames(file, split, verify_crc=False):
                if remaining <= len(batch.frames):
                    last = batch.frames[remaining - 1]
                    return batch.physical_offset + int(last[scan.POSITION] + last[scan.SIZE])
                remaining -= len(batch.frames)
    return end


def missing_ranges(segments: Sequence[Segment], start: int, end: int) -> list[Range]:
    """Find the ranges of ``[start, end)`` that no segment has: their files were deleted."""
    missing = []
    at = start
    for segment in segments:
        if at < min(segment.start_offset, end):
            missing.append((at, min(segment.start_offset, end)))
        at = max(at, segment.end_offset)
    if at < end:
        missing.append((at, end))
    return missing
