"""Finds the end of a log in whose files records of an earlier recovery follow.

A broker that recovers cuts its log in memory only. The bytes after the cut stay in the file, until new records
overwrite them. Such leftovers may be sound records that name their own physical offsets, so the log alone does not tell
them from messages behind damage. The queues do: a broker dispatches in log order, so that its last unit names the
log's last record, and no unit names a leftover.

Example: a log was cut at 5690 and written anew up to 6920, where half an old record is left, and whole ones after it.
The last unit of all queues names the record that ends at 6920; the walk from there breaks at once; the records after
the break are older than the last one before it, and other records have their queue offsets. So the log ends at 6920.

A queue, too, is cut in memory only, so that its last units may name leftovers. Example: a log was cut at 67027 and
written anew up to 68927. Behind half an old record, whole ones begin at 69037, and units that were never overwritten
name them. The clock steps back from the record that ends at 68927 to that at 69037, and no unit names a record between
them, as a unit would name a record that was damaged there. So the log ends at 68927.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from rmq_formats.codecs import paths
from rmq_formats.codecs.consumequeue import Unit
from rmq_formats.codecs.index_tags import read_message
from rmq_formats.codecs.layout import BLANK_BYTES, LOST_UNIT_SIZE, RECORD_VERSIONS, UNIT_BYTES
from rmq_formats.codecs.record import StoredMessage, decode_record
from rmq_formats.codecs.record_layout import RECORD_FIXED_BYTES_V1, SIZE_AND_MAGIC
from rmq_formats.errors import FormatError, StoreError
from rmq_formats.kernels.scan import CODE, POSITION, SIZE, SOUND
from rmq_formats.read.dirty import read_checkpoint
from rmq_formats.read.queue_choice import file_queues, open_queue
from rmq_formats.read.queues import ConsumeQueue, message_units, read_units
from rmq_formats.read.rocksdb_queues import opened_queues
from rmq_formats.scan.segment import FrameBatch, scan_segment
from rmq_formats.storage.segments import Segment, Storage, read_range
from rmq_formats.storage.store_files import StoreFiles

_TAIL_BYTES: Final = 1 << 18  # of the log's end, in which a record is looked for that a queue names
_COMPARED_RECORDS: Final = 16  # records at the log's end, and behind a break, that are compared with the queues
_RECOVERED_FILES: Final = 3  # Source: CommitLog#recoverNormally


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Bytes after the end of a log that belong to records of an earlier recovery.

    Attributes:
        log_end: physical offset one past the log's last record, where the broker writes its next one.
        data_end: physical offset one past the last byte of the leftovers.
        last_timestamp_ms: store time of the log's last record; -1 where it is not known.
    """

    log_end: int
    data_end: int
    last_timestamp_ms: int

    @property
    def size_bytes(self) -> int:
        """Bytes from the log's end to the end of the leftovers."""
        return self.data_end - self.log_end


def readable_segments(store: StoreFiles) -> list[Segment]:
    """List the segments of a store's CommitLog up to the log's end, without the leftovers after it.

    Raises:
        StoreNotFoundError: there is no store, or it holds no CommitLog file.
        StoreError: see ``StoreFiles.segments``.
    """
    segments = store.segments
    return cut_segments(segments, find_leftovers(store, segments))


def cut_segments(segments: Sequence[Segment], leftovers: Leftovers | None) -> list[Segment]:
    """Bound segments by the log's end; segments after it have no data, as preallocated files."""
    if leftovers is None:
        return list(segments)
    end = leftovers.log_end
    return [
        segment if segment.end_offset <= end else replace(segment, log_bytes=max(0, end - segment.start_offset))
        for segment in segments
    ]


def find_leftovers(store: StoreFiles, segments: Sequence[Segment]) -> Leftovers | None:
    """Find the log's end if records of an earlier recovery follow it; None without such records.

    A log whose last record is in its queue costs a read of the log's tail and of a unit.

    Raises:
        StoreError: a segment that cannot be read.
    """
    last_data = _find_last_data(store.storage, segments)
    if last_data is None:
        return None
    data_end = last_data[0].start_offset + last_data[1]
    tail = _read_tail(store, *last_data)
    if tail.dispatched_end is not None:
        return _find_cut_leftovers(store, segments, data_end) if tail.may_be_left(store) else None
    is_orderly = not store.storage.exists(paths.abort_file(store.root))
    if tail.is_broken_before_end_mark and is_orderly:
        cut = find_truncation_before_end_mark(store, last_data[0])
        if cut is not None:
            return Leftovers(cut.log_end, data_end, cut.last_timestamp_ms)
    last = _last_dispatched(store, data_end)
    if last is None:
        return _find_by_checkpoint(store, segments, data_end) if is_orderly and tail.may_be_left(store) else None
    if last.begin < segments[0].start_offset:
        return None
    walk = _Walk(last.begin)
    walk.run(store.storage, segments)
    if walk.end < last.end or last.is_lost:  # no sound record is where the last unit says
        return _find_after_damage(store, segments, last, data_end)
    if last.end >= data_end or not walk.is_broken or not walk.behind:
        return None
    leftovers = walk.leftovers(data_end)
    if is_orderly and not walk.undispatched:
        return leftovers
    if _are_from_earlier_recovery(store, walk.behind, walk.last, walk.end):
        return leftovers
    if is_orderly and _are_from_earlier_recovery(store, walk.undispatched, walk.dispatched, last.end):
        return leftovers
    return None


def _find_cut_leftovers(store: StoreFiles, segments: Sequence[Segment], data_end: int) -> Leftovers | None:
    """Find the log's end where the clock steps back in its last files; see ``find_truncation``."""
    cut = find_truncation(store, [segment for segment in segments if segment.start_offset < data_end])
    return None if cut is None else Leftovers(cut.log_end, data_end, cut.last_timestamp_ms)


def _find_by_checkpoint(store: StoreFiles, segments: Sequence[Segment], data_end: int) -> Leftovers | None:
    """Find the end of a log without queues, whose broker was stopped: the checkpoint has its last record's time."""
    leftovers = _find_cut_leftovers(store, segments, data_end)
    checkpoint = read_checkpoint(store)
    if leftovers is None or checkpoint is None or checkpoint.physic_msg_timestamp_ms != leftovers.last_timestamp_ms:
        return None
    return leftovers


def _find_after_damage(
    store: StoreFiles, segments: Sequence[Segment], last: "_LastUnit", data_end: int
) -> Leftovers | None:
    """Find the log's end where the last unit of all queues, or the record that it names, is damaged.

    The walk begins at the record of an earlier unit of that queue. If it passes the place that the last unit names, the
    unit is wrong; if it ends there, the record is. Only records that are old by the clock are leftovers.
    """
    begin = _begin_of_earlier_record(store.storage, segments, last)
    if begin is None or begin < segments[0].start_offset:
        return None
    walk = _Walk(begin)
    walk.run(store.storage, segments)
    if not walk.is_broken or not walk.behind or not _are_from_earlier_recovery(store, walk.behind, walk.last, walk.end):
        return None
    if walk.end == last.begin and last.end <= walk.behind[0].physical_offset:
        walk.end = last.end
    return walk.leftovers(data_end) if walk.end < data_end else None


def _begin_of_earlier_record(storage: Storage, segments: Sequence[Segment], last: "_LastUnit") -> int | None:
    """Find the nearest unit before the last one of its queue that names a sound record: where that begins."""
    if last.queue is None:
        return None
    for segment in reversed(last.queue.files.segments):
        first = segment.start_offset // UNIT_BYTES
        low = max(0, last.queue_offset - _COMPARED_RECORDS - first)
        high = min(last.queue_offset - first, segment.size_bytes // UNIT_BYTES)
        with storage.open(segment.path) as file:
            for _, units in read_units(file, first, low, high):
                for unit in units[message_units(units)][::-1]:
                    begin = int(unit["physical_offset"])
                    if _has_record(storage, segments, begin, int(unit["size"])):
                        return begin
    return None


def _has_record(storage: Storage, segments: Sequence[Segment], physical_offset: int, size: int) -> bool:
    """Return whether a sound record of a size is at a physical offset."""
    number = bisect_right(segments, physical_offset, key=lambda segment: segment.start_offset) - 1
    if number < 0 or physical_offset >= segments[number].end_offset:
        return False
    with storage.open(segments[number].path) as file:
        position = physical_offset - segments[number].start_offset
        message = read_message(partial(read_range, file), position, physical_offset)
    return message is not None and message.size == size


@dataclass(frozen=True, slots=True)
class LeftoverCount:
    """Sound records after a log's end.

    Attributes:
        older: those that were not stored after the log's last record.
    """

    messages: int
    older: int


def count_leftovers(storage: Storage, segments: Sequence[Segment], leftovers: Leftovers) -> LeftoverCount:
    """Count the sound records after a log's end. Raises StoreError."""
    from rmq_formats.arrow.rows import FrameRows  # noqa: PLC0415 # its kernels are loaded where leftovers are

    messages = older = 0
    for batch in leftover_frames(storage, segments, leftovers):
        times_ms = FrameRows(batch.data, batch.frames[batch.frames[:, CODE] == SOUND]).store_timestamps_ms
        messages += len(times_ms)
        older += int((times_ms <= leftovers.last_timestamp_ms).sum())
    return LeftoverCount(messages, older)


def leftover_frames(storage: Storage, segments: Sequence[Segment], leftovers: Leftovers) -> Iterator[FrameBatch]:
    """Scan the bytes after a log's end for records.

    Args:
        segments: of the log, not cut.

    Raises:
        StoreError: a file that cannot be read.
    """
    for segment in segments:
        if segment.end_offset <= leftovers.log_end:
            continue
        with storage.open(segment.path) as file:
            yield from scan_segment(
                file,
                segment.start_offset,
                segment.size_bytes,
                start=max(0, leftovers.log_end - segment.start_offset),
                data_end=segment.data_end(file),
                head_bytes=segment.head_bytes,
            )


def _find_last_data(storage: Storage, segments: Sequence[Segment]) -> tuple[Segment, int] | None:
    """Find the log's last segment with data, and the data's end in it; None in an empty log."""
    for segment in reversed(segments):
        with storage.open(segment.path) as file:
            end = segment.data_end(file)
        if end:
            return segment, end
    return None


# --- the common case: the log's last records are in their queues ------------------------------------


def dispatched_end(store: StoreFiles, segments: Sequence[Segment]) -> int:
    """Find how far the log is dispatched, at least: the end of a record that a queue names; 0 where none does."""
    last_data = _find_last_data(store.storage, segments)
    end = None if last_data is None else _read_tail(store, *last_data).dispatched_end
    if end is None:
        last = _last_dispatched(store, 0 if last_data is None else last_data[0].start_offset + last_data[1])
        end = 0 if last is None else last.end
    return end


@dataclass(frozen=True, slots=True)
class _Tail:
    """Last records of the log.

    Attributes:
        dispatched_end: end of a record that is in its queue, if no break follows; None without such a record.
        is_broken_before_end_mark: whether a break ends at the end mark of the log's last file.
    """

    dispatched_end: int | None = None
    is_broken: bool = False
    last_timestamp_ms: int = 0
    is_broken_before_end_mark: bool = False

    def may_be_left(self, store: StoreFiles) -> bool:
        """Return whether the tail may be one of leftovers: after a break, or older than the last flushed record."""
        checkpoint = read_checkpoint(store)
        is_older = checkpoint is not None and self.last_timestamp_ms < checkpoint.physic_msg_timestamp_ms
        return self.is_broken or is_older


def _read_tail(store: StoreFiles, segment: Segment, end: int) -> _Tail:
    """Read the last records of the log, which are in a segment up to an end of its data."""
    with store.storage.open(segment.path) as file:
        tail: list[StoredMessage] = []
        walked, is_broken, is_broken_before_end_mark = 0, False, False
        for batch in scan_segment(
            file,
            segment.start_offset,
            segment.size_bytes,
            start=max(0, end - _TAIL_BYTES),
            data_end=end,
            verify_crc=False,
            head_bytes=segment.head_bytes,
        ):
            if batch.damages:
                tail, is_broken = [], True
            tail = [
                *tail,
                *_decode_rows(batch, range(max(0, len(batch.frames) - _COMPARED_RECORDS), len(batch.frames))),
            ]
            walked = max(walked, batch.next_physical_offset)  # the last batch is behind no BLANK
            if batch.blank_at is not None and walked + BLANK_BYTES >= segment.start_offset + end:
                walked = segment.start_offset + end
                is_broken_before_end_mark = bool(batch.damages) and not len(batch.frames)
        if walked < segment.start_offset + end:
            return _Tail()
        named = (message for message in reversed(tail[-_COMPARED_RECORDS:]) if _names(store, message))
        dispatched_end = next((message.physical_offset + message.size for message in named), None)
        last_timestamp_ms = tail[-1].store_timestamp_ms if tail else 0
        return _Tail(dispatched_end, is_broken, last_timestamp_ms, is_broken_before_end_mark)


def _decode_rows(batch: FrameBatch, rows: Sequence[int]) -> Iterator[StoredMessage]:
    for row in rows:
        yield decode_record(batch.data.data, int(batch.frames[row, POSITION]), verify_crc=False)


def _unit_at(store: StoreFiles, message: StoredMessage) -> Unit | None:
    """Read the unit at a message's queue offset; None where its queue has no such place."""
    queue = open_queue(ConsumeQueue, store, message.topic, message.queue_id)
    unit = None if queue is None else queue.unit_at(message.queue_offset)
    return unit if unit is not None and unit.is_written and not unit.is_placeholder else None


def _names(store: StoreFiles, message: StoredMessage) -> bool:
    unit = _unit_at(store, message)
    return unit is not None and unit.physical_offset == message.physical_offset


# --- all queues -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _LastUnit:
    """The unit that goes furthest in the log, of all queues.

    Attributes:
        begin: physical offset of the record that it names.
        queue: that has the unit; None for a batch queue, and for a RocksDB, which tells the end alone.
        is_lost: whether a rebuild wrote the unit for a message that is damaged.
    """

    begin: int
    end: int
    queue: ConsumeQueue | None = None
    queue_offset: int = 0
    is_lost: bool = False


def _last_dispatched(store: StoreFiles, enough: int) -> _LastUnit | None:
    """Find the last record of the log that a queue names; None where no queue names one.

    Args:
        enough: queues are looked at until one goes so far.
    """
    last: _LastUnit | None = None
    for queue in file_queues(store):
        unit = queue.last_unit()
        is_lost = unit is not None and unit.size == LOST_UNIT_SIZE
        if unit is not None and (is_lost or not unit.is_placeholder):
            size = _size_in_log(store, unit.physical_offset) if is_lost else unit.size
            record_end = unit.physical_offset + size
            units = queue if isinstance(queue, ConsumeQueue) else None
            last = _later(last, _LastUnit(unit.physical_offset, record_end, units, unit.queue_offset, is_lost))
            if record_end >= enough:
                return last
    database = store.layouts.queue_database
    if database is not None:
        stored_end = _dispatched_to_database(store.storage, database)
        if stored_end is None:
            return None
        last = _later(last, _LastUnit(stored_end, stored_end))
    return last


def _size_in_log(store: StoreFiles, physical_offset: int) -> int:
    """Read the size of a damaged record out of its own first bytes; 0 where they are no record's."""
    segments = store.segments
    number = bisect_right(segments, physical_offset, key=lambda segment: segment.start_offset) - 1
    if number < 0 or physical_offset + SIZE_AND_MAGIC.size > segments[number].end_offset:
        return 0
    with store.storage.open(segments[number].path) as file:
        data = read_range(file, physical_offset - segments[number].start_offset, SIZE_AND_MAGIC.size)
    size, magic = SIZE_AND_MAGIC.unpack(data.ljust(SIZE_AND_MAGIC.size, b"\0"))
    fits = RECORD_FIXED_BYTES_V1 < size <= segments[number].end_offset - physical_offset
    return int(size) if fits and magic in RECORD_VERSIONS else 0


def _later(furthest: _LastUnit | None, candidate: _LastUnit) -> _LastUnit:
    return (
        candidate if furthest is None or (candidate.begin, candidate.end) > (furthest.begin, furthest.end) else furthest
    )


def _dispatched_to_database(storage: Storage, database: str) -> int | None:
    """Return how far a RocksDB's units go; None where it cannot be read: its broker runs, or its library is missing."""
    try:
        with opened_queues(storage, database) as queues:
            return queues.checkpoint() or None
    except (StoreError, FormatError):
        return None


# --- the walk -----------------------------------------------------------------------------------------


class _Walk:
    """Walk of the log from the last dispatched record on, as a broker's recovery, and on after the first break.

    Attributes:
        end: physical offset of the break.
        dispatched: the record that the walk begins with; None if it begins at the end of one.
        undispatched: the first records after ``dispatched``, up to the break.
        last: the last record before the break.
        behind: the first sound records after the break.
    """

    def __init__(self, begin: int) -> None:
        self.end = self._begin = begin
        self.is_broken = False
        self.dispatched: StoredMessage | None = None
        self.undispatched: list[StoredMessage] = []
        self.last: StoredMessage | None = None
        self.behind: list[StoredMessage] = []

    def leftovers(self, data_end: int) -> Leftovers:
        """Return the leftovers from the walk's end up to the end of the data."""
        return Leftovers(self.end, data_end, -1 if self.last is None else self.last.store_timestamp_ms)

    def run(self, storage: Storage, segments: Sequence[Segment]) -> None:
        """Walk until enough records after a break are collected, or to the end of the data."""
        for segment in segments:
            if segment.end_offset <= self._begin:
                continue
            with storage.open(segment.path) as file:
                data_end = segment.data_end(file)
                start = max(0, self._begin - segment.head_bytes - segment.start_offset)
                if data_end <= start:
                    continue
                self.is_broken |= segment.start_offset > self.end
                for batch in scan_segment(
                    file,
                    segment.start_offset,
                    segment.size_bytes,
                    start=start,
                    data_end=data_end,
                    search=False,
                    head_bytes=segment.head_bytes,
                ):
                    self._add(batch, segment)
                    if len(self.behind) == _COMPARED_RECORDS:
                        return

    def _add(self, batch: FrameBatch, segment: Segment) -> None:
        self.is_broken |= bool(batch.damages)
        sound = batch.frames[:, CODE] == SOUND
        before = 0 if self.is_broken else len(sound) if sound.all() else int(sound.argmin())
        if before:
            first_rows = range(min(before, _COMPARED_RECORDS - len(self.undispatched)))
            for message in _decode_rows(batch, first_rows):
                if message.physical_offset == self._begin:
                    self.dispatched = message
                else:
                    self.undispatched.append(message)
            (self.last,) = _decode_rows(batch, [before - 1])
            self.end = batch.physical_offset + int(batch.frames[before - 1, POSITION] + batch.frames[before - 1, SIZE])
        self.is_broken |= before < len(sound)
        if self.is_broken:
            rows = [row for row in range(before, len(sound)) if sound[row]]
            self.behind += _decode_rows(batch, rows[: _COMPARED_RECORDS - len(self.behind)])
        elif batch.blank_at is not None:
            self.end = segment.end_offset


def _are_from_earlier_recovery(
    store: StoreFiles, messages: Sequence[StoredMessage], last: StoredMessage | None, log_end: int
) -> bool:
    """Return whether records are from before a recovery: the clock steps back, or newer records have a queue offset.

    Args:
        last: the record before them.
        log_end: physical offset where they begin.
    """
    if messages and last is not None and messages[0].store_timestamp_ms < last.store_timestamp_ms:
        return True
    units = (_unit_at(store, message) for message in messages)
    return any(unit is not None and unit.physical_offset < log_end for unit in units)


@dataclass(frozen=True, slots=True)
class Truncation:
    """End of a log that a recovery cut.

    Attributes:
        log_end: physical offset one past the log's last record.
    """

    log_end: int
    last_timestamp_ms: int


def find_truncation(store: StoreFiles, segments: Sequence[Segment]) -> Truncation | None:
    """Find a break of the log's last files, at which the clock steps back, and in which no unit names a record.

    A unit would name a record that was damaged there, since later records are dispatched.

    Args:
        segments: of its log, by offset, up to the last that has data.

    Raises:
        StoreError: a file cannot be read.
    """
    from rmq_formats.arrow.rows import FrameRows  # noqa: PLC0415 # its kernels are loaded where leftovers are

    previous_end, previous_ms = segments[0].start_offset, 0
    for segment in segments[-_RECOVERED_FILES:]:
        with store.storage.open(segment.path) as file:
            for batch in scan_segment(
                file,
                segment.start_offset,
                segment.size_bytes,
                data_end=segment.data_end(file),
                head_bytes=segment.head_bytes,
            ):
                frames = batch.frames[batch.frames[:, CODE] == SOUND]
                begins = batch.physical_offset + frames[:, POSITION]
                ends = np.concatenate([[previous_end], begins + frames[:, SIZE]])
                times_ms = np.concatenate([[previous_ms], FrameRows(batch.data, frames).store_timestamps_ms])
                is_cut = (begins - segment.head_bytes > ends[:-1]) & (times_ms[1:] < times_ms[:-1])
                for row in np.flatnonzero(is_cut).tolist():
                    if not _are_named(store, int(ends[row]), int(begins[row])):
                        return Truncation(int(ends[row]), int(times_ms[row]))
                previous_end, previous_ms = int(ends[-1]), int(times_ms[-1])
                if batch.blank_at is not None:
                    previous_end = segment.end_offset
    return None


def find_truncation_before_end_mark(store: StoreFiles, segment: Segment) -> Truncation | None:
    """Find the end of a log in whose last file half a leftover follows, then the end mark.

    A broker writes an end mark where the next record goes into the next file, and a recovery deletes the files after
    its cut. A unit would name a record that was damaged before the end mark.

    Args:
        segment: the last one of the log that has data.

    Raises:
        StoreError: a file cannot be read.
    """
    from rmq_formats.arrow.rows import FrameRows  # noqa: PLC0415 # its kernels are loaded where leftovers are

    end, last_ms = segment.start_offset, 0
    with store.storage.open(segment.path) as file:
        for batch in scan_segment(
            file,
            segment.start_offset,
            segment.size_bytes,
            data_end=segment.data_end(file),
            head_bytes=segment.head_bytes,
        ):
            sound = batch.frames[batch.frames[:, CODE] == SOUND]
            if len(sound):
                end = batch.physical_offset + int(sound[-1, POSITION] + sound[-1, SIZE])
                last_ms = int(FrameRows(batch.data, sound[-1:]).store_timestamps_ms[0])
            elif batch.blank_at is not None and batch.damages and batch.damages[-1].physical_offset == end:
                is_leftover = end > segment.start_offset and not _are_named(store, end, batch.blank_at)
                return Truncation(end, last_ms) if is_leftover else None
    return None


def _are_named(store: StoreFiles, begin: int, end: int) -> bool:
    """Return whether a unit of any queue names a record that begins in ``[begin, end)`` of the log."""
    return any(queue.names_any(begin, end) for queue in file_queues(store))
