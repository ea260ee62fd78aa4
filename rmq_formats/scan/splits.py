"""Cuts a CommitLog into splits, the unit of work of every job that reads a whole log."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rmq_formats.kernels import scan
from rmq_formats.scan.segment import FrameBatch, scan_segment
from rmq_formats.storage.range_reader import RangeReader
from rmq_formats.storage.segments import Segment, Storage

DEFAULT_SPLIT_BYTES: Final = 256 << 20  # bounds a task's memory: the tiniest records give 2.8 M units
MAX_SPLITS: Final = 1 << 20  # that a driver plans: a petabyte in splits of a GiB
_SETTLE_S: Final = 0.2  # seconds: a living broker has written more of its record by then
_TAIL_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Split:
    """A split of one segment: it owns the records that begin in ``[start, limit)`` of the file.

    Attributes:
        number: place in log order, from 0.
        file_offset: physical offset of the file's first byte.
        file_bytes: size of the file when it was planned.
        data_end: from here on the file is zero, or not to be read (the bound of a live store).
        head_bytes: in front of each record, see ``Segment``.
    """

    number: int
    path: str
    file_offset: int
    file_bytes: int
    start: int
    limit: int
    data_end: int
    head_bytes: int

    @property
    def size_bytes(self) -> int:
        """Size of the split in bytes."""
        return self.limit - self.start


def split_of(segment: Segment, number: int, start: int, limit: int, data_end: int) -> Split:
    """Make a split of a segment; see ``Split``."""
    return Split(
        number, segment.path, segment.start_offset, segment.size_bytes, start, limit, data_end, segment.head_bytes
    )


def split_frames(
    reader: RangeReader, split: Split, *, begin: int | None = None, verify_crc: bool = True
) -> Iterator[FrameBatch]:
    """Scan the frames of a split; ``begin`` is the file position of its first frame, or None to search it."""
    return scan_segment(
        reader,
        split.file_offset,
        split.file_bytes,
        start=split.start if begin is None else begin,
        limit=split.limit,
        data_end=split.data_end,
        verify_crc=verify_crc,
        search=begin is None,
        head_bytes=split.head_bytes,
    )


def plan_splits(
    storage: Storage,
    segments: list[Segment],
    split_bytes: int = DEFAULT_SPLIT_BYTES,
    min_splits: int = 1,
    ends: list[int] | None = None,
) -> list[Split]:
    """Plan the splits of all segments in log order; zeros at the end of a file are left out. Raises StoreError.

    If the log grows meanwhile, no split reaches beyond ``last_record_end``: a record being written is no
    damage. Otherwise bytes after the last sound record are a torn tail, and are scanned.

    Args:
        split_bytes: aimed size of a split; that of a log of many files is larger, see ``MAX_SPLITS``.
        min_splits: make splits smaller until there are about this many.
        ends: of the files' data, where they are known.
    """
    ends = _frozen_ends(storage, segments, _data_ends(storage, segments) if ends is None else ends)
    split_bytes = usual_split_bytes(sum(ends), split_bytes, min_splits)
    splits: list[Split] = []
    for segment, end in zip(segments, ends, strict=True):
        for start in range(0, max(end, 1), split_bytes):
            limit = min(start + split_bytes, end)
            # The last split of a file walks on to the BLANK record or the end of what is written.
            limit = segment.size_bytes if limit >= end else limit
            splits.append(split_of(segment, len(splits), start, limit, end))
    return splits


def usual_split_bytes(log_bytes: int, split_bytes: int, min_splits: int) -> int:
    """Return the size that splits of a log aim at: smaller for ``min_splits``, larger only above ``MAX_SPLITS``."""
    split_bytes = max(1, min(split_bytes, -(-log_bytes // max(1, min_splits))))
    while log_bytes > split_bytes * MAX_SPLITS:
        split_bytes *= 2
    return split_bytes


def data_end_of(storage: Storage, segment: Segment) -> int:
    """Find the end of a file's data: one past the last byte that is not zero. Raises StoreError."""
    with storage.open(segment.path) as file:
        return segment.data_end(file)


def _data_ends(storage: Storage, segments: list[Segment]) -> list[int]:
    return [data_end_of(storage, segment) for segment in segments]


def _frozen_ends(storage: Storage, segments: list[Segment], ends: list[int]) -> list[int]:
    """Return the end of each file's data; if the log grows, as it was at one moment."""
    if not storage.is_local or not segments:  # an object never grows
        return ends
    written_end = _written_end(segments, ends)
    bound = last_record_end(storage, segments)
    if written_end <= bound or torn_bytes(storage, segments, bound):
        return ends
    return [max(0, min(end, bound - segment.start_offset)) for segment, end in zip(segments, ends, strict=True)]


def torn_bytes(storage: Storage, segments: list[Segment], bound: int) -> int:
    """Count the bytes of a torn tail: bytes after the last sound record where no broker is writing.

    0 if the log ends at ``bound``, its ``last_record_end``, or moved within 0.2 s: then a broker is writing there.
    """
    end = _written_end(segments, _data_ends(storage, segments))
    if end <= bound:
        return 0
    if storage.is_local:
        time.sleep(_SETTLE_S)
        if _written_end(segments, _data_ends(storage, segments)) != end or last_record_end(storage, segments) != bound:
            return 0
    return end - bound


def _written_end(segments: list[Segment], ends: list[int]) -> int:
    """Find the physical offset one past the log's last byte that is not zero."""
    written = [segment.start_offset + end for segment, end in zip(segments, ends, strict=True) if end]
    return max(written, default=segments[0].start_offset)


def last_record_end(storage: Storage, segments: list[Segment]) -> int:
    """Find the physical offset one past the last sound record, where a job on a growing log stops reading.

    A broker may be writing its next record there; a part of a record is no damage, even if its header is whole
    and its body is not, and it must not be skipped for good: a later run begins from this bound.
    """
    for segment in reversed(segments):
        with storage.open(segment.path) as file:
            data_end = segment.data_end(file)
            start = data_end
            while start > 0:
                limit, start = start, max(0, start - _TAIL_BYTES)
                end = None
                for batch in scan_segment(
                    file,
                    segment.start_offset,
                    segment.size_bytes,
                    start=start,
                    limit=limit,
                    data_end=data_end,
                    head_bytes=segment.head_bytes,
                ):
                    if batch.blank_at is not None:
                        return segment.end_offset
                    sound = batch.frames[batch.frames[:, scan.CODE] == scan.SOUND]
                    if len(sound):
                        end = batch.physical_offset + int(sound[-1, scan.POSITION] + sound[-1, scan.SIZE])
                if end is not None:
                    return end
    return segments[0].start_offset
