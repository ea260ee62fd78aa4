"""Ranges of a CommitLog: its bounds, splits, record boundaries, first and last message, and batches of a stream."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from rmq_formats.codecs.layout import MAX_FRAME_BYTES
from rmq_formats.codecs.record import StoredMessage, decode_record
from rmq_formats.codecs.record_frame import DamageCode, frame_shape
from rmq_formats.errors import FormatError, StoreNotFoundError
from rmq_formats.kernels.scan import CODE, POSITION, SIZE, SOUND
from rmq_formats.scan.splits import Split, split_frames, split_of, usual_split_bytes
from rmq_formats.storage.segments import OpenRange, Segment, Storage, read_range

# Bytes before an offset that are searched for the record that ends there: most records are small, some huge.
_SEARCHED_BYTES: Final = (1 << 16, 1 << 23, MAX_FRAME_BYTES + (1 << 16))
_SIZE = Struct(">i")

Range = tuple[int, int]
_EDGE_BYTES: Final = 16 << 20  # searched for the first or last record, which has little over 4 MiB at most by default


def log_bounds(storage: Storage, segments: Sequence[Segment]) -> Range:
    """Return the physical offsets of the log's first byte, and of the first byte after its data.

    A reader of a growing log reads up to this end, and nothing that is written later.
    """
    for segment in reversed(segments):
        with storage.open(segment.path) as file:
            data_end = segment.data_end(file)
        if data_end:
            return segments[0].start_offset, segment.start_offset + data_end
    return segments[0].start_offset, segments[0].start_offset


def segment_at(segments: Sequence[Segment], physical_offset: int) -> Segment | None:
    """Return the segment that contains a physical offset; None if no segment does. Segments are in order."""
    number = bisect_right(segments, physical_offset, key=lambda segment: segment.start_offset) - 1
    return segments[number] if number >= 0 and physical_offset < segments[number].end_offset else None


def range_splits(
    segments: Sequence[Segment], ranges: Sequence[Range], log_end: int, split_bytes: int, min_splits: int = 1
) -> list[Split]:
    """Cut ranges of the log, ascending and disjoint, into splits of the records that begin there, in log order."""
    pieces = []
    for begin, end in ranges:
        for segment in segments:
            # A split owns the records whose headers begin in it; a header stands before its record.
            own_end = min(segment.end_offset, log_end)
            piece_begin = max(begin - segment.head_bytes, segment.start_offset)
            piece_end = own_end if end >= own_end else end - segment.head_bytes
            if piece_begin < piece_end:
                pieces.append((segment, piece_begin - segment.start_offset, piece_end - segment.start_offset))
    total = sum(end - begin for _, begin, end in pieces)
    split_bytes = usual_split_bytes(total, split_bytes, min_splits)
    splits: list[Split] = []
    for segment, begin, end in pieces:
        data_end = min(segment.size_bytes, log_end - segment.start_offset)
        for start in range(begin, end, split_bytes):
            limit = min(start + split_bytes, end)
            # The last split of a file walks on to the BLANK record or the end of what is written.
            limit = segment.size_bytes if limit >= data_end else limit
            splits.append(split_of(segment, len(splits), start, limit, data_end))
    return splits


def walk_start(storage: Storage, segments: Sequence[Segment], physical_offset: int) -> int | None:
    """Find the physical offset of the first record, or of damage, for a read that begins at an offset.

    That is the offset itself, if a record ends there, or the end of the record around the offset. None at a file's
    begin, and within damage, which belongs to the reader of the range before.
    """
    for segment in segments:
        position = physical_offset - segment.start_offset
        if 0 < position < segment.size_bytes:
            try:
                with storage.open(segment.path) as file:
                    end = _frame_end(file, segment, position)
            except StoreNotFoundError:  # deleted since the listing: the reader of the segment reports that
                return None
            return segment.start_offset + end if end >= position else None
    return None


def _frame_end(file: OpenRange, segment: Segment, position: int) -> int:
    """Find the end of the last record that begins before a position of a file; 0 without such a record."""
    for searched_bytes in _SEARCHED_BYTES:
        end = 0
        begin = max(0, position - searched_bytes)
        split = split_of(segment, 0, begin, position - segment.head_bytes, segment.size_bytes)
        for batch in split_frames(file, split, verify_crc=False):
            if len(batch.frames):
                last = batch.frames[-1]
                end = batch.physical_offset - segment.start_offset + int(last[POSITION] + last[SIZE])
        if end or not begin:
            return end
    return 0


def record_size(file: OpenRange, position: int) -> int | None:
    """Read the record size at a position of a segment; None if the file ends there."""
    data = read_range(file, position, _SIZE.size)
    return int(_SIZE.unpack(data)[0]) if len(data) == _SIZE.size else None


def segment_timestamp_ms(file: OpenRange, segment: Segment) -> int | None:
    """Read the store timestamp of a segment's first record; None without a sound record."""
    head = segment.head_bytes
    size = record_size(file, head)
    if size is None or not 0 < size <= file.size_bytes:
        return None
    data = read_range(file, head, size)
    if isinstance(frame_shape(memoryview(data), 0, segment.start_offset + head), DamageCode):
        return None
    try:
        return decode_record(data, verify_crc=False).store_timestamp_ms
    except FormatError:
        return None


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """Maximum of log bytes and of records in one batch, selected or not; None is no limit."""

    max_bytes: int | None = None
    max_records: int | None = None


NO_LIMIT = BatchLimit()


def batch_end(storage: Storage, segments: Sequence[Segment], start: int, end: int, limit: BatchLimit) -> int:
    """Find the end of a batch from ``start`` on, at most ``end``, which is one past the last sound record."""
    if limit.max_bytes is not None:
        end = min(end, start + limit.max_bytes)
    if limit.max_records is None:
        return end
    remaining = limit.max_records
    for split in range_splits(segments, [(start, end)], end, end - start):
        with storage.open(split.path) as file:
            for batch in split_frames(file, split, verify_crc=False):
                if remaining <= len(batch.frames):
                    last = batch.frames[remaining - 1]
                    return batch.physical_offset + int(last[POSITION] + last[SIZE])
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


def edge_message(storage: Storage, segments: Sequence[Segment], *, last: bool) -> StoredMessage | None:
    """Decode the first or the last sound record of a log; None if no record is near that end of a file."""
    for segment in reversed(segments) if last else segments:
        with storage.open(segment.path) as file:
            data_end = segment.data_end(file)
            start, limit = (max(0, data_end - _EDGE_BYTES), data_end) if last else (0, _EDGE_BYTES)
            message = None
            for batch in split_frames(file, split_of(segment, 0, start, limit, data_end)):
                sound = batch.frames[batch.frames[:, CODE] == SOUND, POSITION]
                if len(sound):
                    message = decode_record(batch.data.data, int(sound[-1 if last else 0]), verify_crc=False)
                    if not last:
                        return message
            if message is not None:
                return message
    return None
