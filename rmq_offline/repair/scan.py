"""Scans a CommitLog for every range at which a reader would stop, and chooses the replacing bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.consumequeue import delay_levels_ms
from rmq_formats.codecs.layout import BLANK_BYTES, DEFAULT_DELAY_LEVELS
from rmq_formats.codecs.record_frame import DamageCode
from rmq_formats.kernels import scan as scan_kernel
from rmq_formats.kernels import verify as verify_kernel
from rmq_formats.scan.dispatch import Dispatcher
from rmq_formats.scan.segment import FrameBatch, log_frames, scan_segment
from rmq_formats.storage.range_reader import RangeReader
from rmq_formats.storage.segments import OpenRange, Segment, Storage
from rmq_formats.storage.store_files import StoreFiles
from rmq_offline.repair.filler import MIN_BYTES, Fill, LogRange
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.commitlog import topic_fault
from rmq_offline.verify.findings import Kind


@dataclass(frozen=True, slots=True)
class LogScan:
    """Result of a repair's scan, in log order.

    Attributes:
        log_ranges: ranges to overwrite.
        unfillable: ranges too small for a filler, or at the end of their file without room for a BLANK.
    """

    log_ranges: list[LogRange]
    unfillable: list[LogRange]


@dataclass(frozen=True, slots=True)
class _Bad:
    """Bad range as scanned, in physical offsets, and the time of the record before; -1 without one."""

    begin: int
    end: int
    kind: Kind
    detail: str
    before_ms: int
    is_torn: bool = False


@dataclass(slots=True)
class _FileScan:
    """State of the scan of one file.

    Attributes:
        end: physical offset up to which the file was read.
        blank_at: physical offset of the end mark.
        latest_ms: store timestamp of the last sound record, also of earlier files; -1 without one.
        first_ms: store timestamp of the file's first sound record; -1 without one.
    """

    latest_ms: int
    end: int
    bad: list[_Bad] = field(default_factory=list)
    blank_at: int | None = None
    first_ms: int = -1


def dispatch_segment(storage: Storage, segment: Segment) -> Dispatcher:
    """Dispatch the records of a log's file, to learn their queues and the topics with inner batches."""
    dispatcher = Dispatcher(delay_levels_ms(DEFAULT_DELAY_LEVELS), segment.size_bytes)
    for _, batch in log_frames(storage, [segment]):
        dispatcher.dispatch(batch)
    return dispatcher


class PaddedFile:
    """Reader of a file as if the size were right: zeros after a truncated file's end, no surplus of a long file."""

    def __init__(self, file: OpenRange, size_bytes: int) -> None:
        self._file = file
        self._size_bytes = size_bytes

    def read_into(self, offset: int, target: memoryview) -> int:
        """Read into ``target`` from an offset of the padded file."""
        count = max(0, min(len(target), self._size_bytes - offset))
        got = self._file.read_into(offset, target[:count])
        target[got:count] = bytes(count - got)
        return count


def scan_log(store: StoreFiles, segments: Sequence[Segment], file_bytes: int) -> LogScan:
    """Scan the log, and choose a fill for each range that ends a reader's walk. Raises StoreError.

    No two segments may overlap once each has ``file_bytes``. A file of 0 bytes may be missing.
    """
    log_scan = LogScan([], [])
    ends = [_data_end(store.storage, segment, file_bytes) for segment in segments]
    last = max((number for number, end in enumerate(ends) if end), default=-1)
    first_ms = latest_ms = -1
    for number, segment in enumerate(segments[: last + 1]):
        scan = _FileScan(latest_ms, segment.start_offset)
        if ends[number]:
            with store.storage.open(segment.path) as file:
                _scan_file(scan, PaddedFile(file, file_bytes), segment, file_bytes, ends[number])
        latest_ms = scan.latest_ms
        first_ms = scan.first_ms if first_ms < 0 else first_ms
        for log_range in _file_ranges(scan, segment, file_bytes, ends[number], is_last=number == last):
            placed = replace(log_range, path=segment.path[len(store.root) + 1 :])
            (log_scan.log_ranges if placed.fill is not Fill.NONE else log_scan.unfillable).append(placed)
    # A range at the log's begin, without a record before it, gets the time of the first record after it.
    timed = [
        replace(item, store_timestamp_ms=max(first_ms, 0)) if item.store_timestamp_ms < 0 else item
        for item in log_scan.log_ranges
    ]
    return LogScan(timed, log_scan.unfillable)


def _data_end(storage: Storage, segment: Segment, file_bytes: int) -> int:
    if not segment.size_bytes:
        return 0
    with storage.open(segment.path) as file:
        return min(segment.data_end(file), file_bytes)


def _scan_file(state: _FileScan, reader: RangeReader, segment: Segment, file_bytes: int, data_end: int) -> None:
    cut_at = segment.end_offset if segment.size_bytes < file_bytes else None
    for batch in scan_segment(reader, segment.start_offset, file_bytes, data_end=data_end):
        _check_frames(state, batch, cut_at)
        if batch.blank_at is not None:
            state.blank_at = batch.blank_at
        if len(batch.frames) or batch.blank_at is not None:
            state.end = batch.next_physical_offset


def _check_frames(state: _FileScan, batch: FrameBatch, cut_at: int | None) -> None:
    frames = batch.frames
    times, odd = np.empty(len(frames), dtype=np.int64), np.empty(len(frames), dtype=np.int64)
    summary = np.empty(verify_kernel.SUMMARY_COLUMNS, dtype=np.int64)
    verify_kernel.check_records(batch.data, batch.physical_offset, frames, times, odd, summary)
    begins = frames[:, scan_kernel.POSITION] + batch.physical_offset
    bad = {}
    for damage in batch.damages:
        begin, kind = damage.physical_offset, finding_kinds.DAMAGE[damage.code]
        bad[begin] = _Bad(begin, begin + damage.size, kind, damage.code.text, -1, is_torn=True)
    suspects = (frames[:, scan_kernel.CODE] != scan_kernel.SOUND) | (
        odd & (verify_kernel.ODD_TOPIC | verify_kernel.ODD_PROPERTIES) != 0
    )
    if cut_at is not None:
        suspects |= begins + frames[:, scan_kernel.SIZE] > cut_at
    is_bad = np.zeros(len(frames), dtype=bool)
    for row in np.flatnonzero(suspects).tolist():
        fault = _fault(batch, row, int(odd[row]), cut_at)
        if fault is not None:
            is_bad[row] = True
            begin = int(begins[row])
            bad[begin] = _Bad(begin, begin + int(frames[row, scan_kernel.SIZE]), *fault)
    good_begins, good_times = begins[~is_bad], times[~is_bad]
    for begin in sorted(bad):
        at = int(np.searchsorted(good_begins, begin)) - 1
        state.bad.append(replace(bad[begin], before_ms=int(good_times[at]) if at >= 0 else state.latest_ms))
    if len(good_times):
        state.first_ms = int(good_times[0]) if state.first_ms < 0 else state.first_ms
        state.latest_ms = int(good_times[-1])


def _fault(batch: FrameBatch, row: int, odd: int, cut_at: int | None) -> tuple[Kind, str, int, bool] | None:
    """Return the fault for which a record must be replaced; None for a record that may stay."""
    frame: NDArray[np.int64] = batch.frames[row]
    end = batch.physical_offset + int(frame[scan_kernel.POSITION] + frame[scan_kernel.SIZE])
    if cut_at is not None and end > cut_at:
        return finding_kinds.SEGMENT_SIZE, "the file is cut within this record", -1, True
    code = int(frame[scan_kernel.CODE])
    if code != scan_kernel.SOUND:
        return finding_kinds.DAMAGE[DamageCode(code)], DamageCode(code).text, -1, False
    at, size = int(frame[scan_kernel.TOPIC_AT]), int(frame[scan_kernel.TOPIC_BYTES])
    fault = topic_fault(batch.data[at : at + size].tobytes()) if odd & verify_kernel.ODD_TOPIC else None
    if fault is not None:
        return finding_kinds.LOG_TOPIC, fault, -1, False
    at, size = int(frame[scan_kernel.PROPERTIES_AT]), int(frame[scan_kernel.PROPERTIES_BYTES])
    # An entry without a separator may be what a client sent, and its message is whole: only what can be no
    # text at all is damage for certain.
    if odd & verify_kernel.ODD_PROPERTIES and not _is_text(batch.data[at : at + size].tobytes()):
        return finding_kinds.LOG_PROPERTIES, "properties are not UTF-8", -1, False
    return None


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _file_ranges(
    scan: _FileScan, segment: Segment, file_bytes: int, data_end: int, *, is_last: bool
) -> Iterator[LogRange]:
    """Yield the ranges of one file; a range that no fill fits has ``Fill.NONE``."""
    file_end = segment.start_offset + file_bytes
    begin_of_zeros = segment.start_offset + data_end

    def build_range(begin: int, end: int, bad: _Bad, fill: Fill) -> LogRange:
        existing_bytes = max(0, min(end, begin_of_zeros, segment.end_offset) - begin)
        if end - begin < {Fill.FILLER: MIN_BYTES, Fill.END: BLANK_BYTES}.get(fill, 0):
            fill = Fill.NONE
        start, code = segment.start_offset, bad.kind.code
        return LogRange("", start, begin, end - begin, existing_bytes, code, bad.detail, fill, bad.before_ms)

    bad = _merge_short_ranges(scan.bad)
    tail = bad.pop() if bad and bad[-1].is_torn and bad[-1].end >= scan.end and scan.blank_at is None else None
    for item in bad:
        yield build_range(item.begin, item.end, item, Fill.FILLER)
    if tail is not None and is_last:
        torn = replace(tail, kind=finding_kinds.LOG_TAIL) if tail.kind is not finding_kinds.SEGMENT_SIZE else tail
        yield build_range(tail.begin, begin_of_zeros, torn, Fill.ZEROS)
    elif tail is not None:
        yield build_range(tail.begin, file_end, tail, Fill.END)
    elif scan.blank_at is None and not is_last:
        kind, detail = finding_kinds.LOG_NO_BLANK, "no end mark after the file's last record"
        if not data_end:
            kind, detail = finding_kinds.SEGMENT_HOLE, "nothing but zeros, and files with records after it"
        yield build_range(scan.end, file_end, _Bad(scan.end, file_end, kind, detail, scan.latest_ms), Fill.END)
    elif scan.blank_at is not None and begin_of_zeros > scan.blank_at + BLANK_BYTES:
        begin = scan.blank_at + BLANK_BYTES
        detail = "bytes that are not zero after the file's end mark"
        behind = _Bad(begin, begin_of_zeros, finding_kinds.LOG_AFTER_BLANK, detail, scan.latest_ms)
        yield build_range(begin, begin_of_zeros, behind, Fill.ZEROS)


def _merge_short_ranges(bad: Sequence[_Bad]) -> list[_Bad]:
    """Merge adjacent ranges of which one alone has no room for a filler."""
    joined: list[_Bad] = []
    for item in bad:
        before = joined[-1] if joined else None
        is_short = any(part.end - part.begin < MIN_BYTES for part in (before, item) if part is not None)
        if before is not None and before.end == item.begin and is_short:
            joined[-1] = replace(before, end=item.end, is_torn=item.is_torn)
        else:
            joined.append(item)
    return joined
