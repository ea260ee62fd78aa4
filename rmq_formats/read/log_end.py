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

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

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
from rmq_formats.read.queue_databases import open_queues
from rmq_formats.read.queues import ConsumeQueue, message_units, read_units
from rmq_formats.read.ranges import segment_at
from rmq_formats.scan.segment import FrameBatch, log_frames
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
    return _LogEndSearch(store, segments).find_leftovers()


def dispatched_end(store: StoreFiles, segments: Sequence[Segment]) -> int:
    """Find how far the log is dispatched, at least: the end of a record that a queue names; 0 where none does."""
    return _LogEndSearch(store, segments).find_dispatched_end()


@dataclass(frozen=True, slots=True)
class LeftoverCount:
    """Sound records after a log's end.

    Attributes:
        older: those that were not stored after the log's last record.
    """

    messages: int
    older: int


def count_leftovers(storage: Storage, segments: Sequence[Segment], leftovers: Leftovers) -> LeftoverCount:
    """Count the sound records after a log's end.

    Args:
        segments: of the log, not cut.

    Raises:
        StoreError: a file that cannot be read.
    """
    messages = older = 0
    for _, batch in log_frames(storage, segments, start=leftovers.log_end):
        times_ms = _store_times_ms(batch, batch.frames[batch.frames[:, CODE] == SOUND])
        messages += len(times_ms)
        older += int((times_ms <= leftovers.last_timestamp_ms).sum())
    return LeftoverCount(messages, older)


def _find_last_data(storage: Storage, segments: Sequence[Segment]) -> tuple[list[Segment], int]:
    """Find the log's last segment with data, bounded by its data, and the data's end; an empty log has no segment."""
    for segment in reversed(segments):
        with storage.open(segment.path) as file:
            end = segment.data_end(file)
        if end:
            return [replace(segment, log_bytes=end)], segment.start_offset + end
    return [], 0


def _store_times_ms(batch: FrameBatch, frames: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the store times of frames of a batch, in milliseconds."""
    from rmq_formats.arrow.rows import FrameRows  # noqa: PLC0415 # its kernels are loaded where leftovers are

    return FrameRows(batch.data, frames).store_timestamps_ms


def _decode_rows(batch: FrameBatch, rows: Iterable[int]) -> Iterator[StoredMessage]:
    for row in rows:
        yield decode_record(batch.data.data, int(batch.frames[row, POSITION]), verify_crc=False)


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


class _Walk:
    """Walk of the log from a record on, as a broker's recovery, and on after the first break.

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

    def add(self, segment: Segment, batch: FrameBatch) -> None:
        """Add the next batch of the log."""
        self.is_broken |= segment.start_offset > self.end or bool(batch.damages)
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


class _LogEndSearch:
    """Search of the end of one store's log."""

    def __init__(self, store: StoreFiles, segments: Sequence[Segment]) -> None:
        self._store = store
        self._segments = segments
        self._last_segments, self._data_end = _find_last_data(store.storage, segments)

    def find_leftovers(self) -> Leftovers | None:
        if not self._last_segments:
            return None
        tail = self._read_tail()
        if tail.dispatched_end is not None:
            return self._find_where_clock_steps_back() if self._may_be_leftover(tail) else None
        is_orderly = not self._store.storage.exists(paths.abort_file(self._store.root))
        if tail.is_broken_before_end_mark and is_orderly:
            leftovers = self._find_before_end_mark()
            if leftovers is not None:
                return leftovers
        last = self._last_dispatched()
        if last is None:
            return self._find_by_checkpoint() if is_orderly and self._may_be_leftover(tail) else None
        if last.begin < self._segments[0].start_offset:
            return None
        walk = self._walk_from(last.begin)
        if walk.end < last.end or last.is_lost:  # no sound record is where the last unit says
            return self._find_after_damage(last)
        if last.end >= self._data_end or not walk.is_broken or not walk.behind:
            return None
        if (
            (is_orderly and not walk.undispatched)
            or self._are_from_earlier_recovery(walk.behind, walk.last, walk.end)
            or (is_orderly and self._are_from_earlier_recovery(walk.undispatched, walk.dispatched, last.end))
        ):
            return self._leftovers_after(walk)
        return None

    def find_dispatched_end(self) -> int:
        end = self._read_tail().dispatched_end
        if end is None:
            last = self._last_dispatched()
            end = 0 if last is None else last.end
        return end

    # --- the common case: the log's last records are in their queues ---

    def _read_tail(self) -> _Tail:
        """Read the last records of the log."""
        tail: list[StoredMessage] = []
        walked, is_broken, is_broken_before_end_mark = 0, False, False
        start = self._data_end - _TAIL_BYTES
        for _, batch in log_frames(self._store.storage, self._last_segments, start=start, verify_crc=False):
            if batch.damages:
                tail, is_broken = [], True
            last_rows = range(max(0, len(batch.frames) - _COMPARED_RECORDS), len(batch.frames))
            tail = [*tail, *_decode_rows(batch, last_rows)]
            walked = max(walked, batch.next_physical_offset)  # the last batch is behind no BLANK
            if batch.blank_at is not None and walked + BLANK_BYTES >= self._data_end:
                walked = self._data_end
                is_broken_before_end_mark = bool(batch.damages) and not len(batch.frames)
        if walked < self._data_end:
            return _Tail()
        named = (message for message in reversed(tail[-_COMPARED_RECORDS:]) if self._is_named(message))
        dispatched_end = next((message.physical_offset + message.size for message in named), None)
        last_timestamp_ms = tail[-1].store_timestamp_ms if tail else 0
        return _Tail(dispatched_end, is_broken, last_timestamp_ms, is_broken_before_end_mark)

    def _may_be_leftover(self, tail: _Tail) -> bool:
        """Return whether the tail may be one of leftovers: after a break, or older than the last flushed record."""
        checkpoint = read_checkpoint(self._store)
        is_older = checkpoint is not None and tail.last_timestamp_ms < checkpoint.physic_msg_timestamp_ms
        return tail.is_broken or is_older

    def _unit_at(self, message: StoredMessage) -> Unit | None:
        """Read the unit at a message's queue offset; None where its queue has no such place."""
        queue = open_queue(ConsumeQueue, self._store, message.topic, message.queue_id)
        unit = None if queue is None else queue.unit_at(message.queue_offset)
        return unit if unit is not None and unit.is_written and not unit.names_no_record else None

    def _is_named(self, message: StoredMessage) -> bool:
        unit = self._unit_at(message)
        return unit is not None and unit.physical_offset == message.physical_offset

    # --- the walk from the last record that a queue names ---

    def _last_dispatched(self) -> _LastUnit | None:
        """Find the last record of the log that a queue names; None where no queue names one."""
        last: _LastUnit | None = None
        for queue in file_queues(self._store):
            unit = queue.last_unit()
            is_lost = unit is not None and unit.size == LOST_UNIT_SIZE
            if unit is not None and (is_lost or not unit.names_no_record):
                size = self._size_in_log(unit.physical_offset) if is_lost else unit.size
                record_end = unit.physical_offset + size
                units = queue if isinstance(queue, ConsumeQueue) else None
                last = _later(last, _LastUnit(unit.physical_offset, record_end, units, unit.queue_offset, is_lost))
                if record_end >= self._data_end:
                    return last
        database = self._store.layouts.queue_database
        if database is not None:
            stored_end = self._dispatched_to_database(database)
            if stored_end is None:
                return None
            if stored_end:
                last = _later(last, _LastUnit(stored_end, stored_end))
        return last

    def _dispatched_to_database(self, database: str) -> int | None:
        """Return how far a database's units go: 0 without units, None where the database cannot be read."""
        try:
            with open_queues(self._store.storage, database) as queues:
                return queues.checkpoint()
        except (StoreError, FormatError):
            return None

    def _size_in_log(self, physical_offset: int) -> int:
        """Read the size of a damaged record out of its own first bytes; 0 where they are no record's."""
        segment = segment_at(self._segments, physical_offset)
        if segment is None:
            return 0
        with self._store.storage.open(segment.path) as file:
            data = read_range(file, physical_offset - segment.start_offset, SIZE_AND_MAGIC.size)
        size, magic = SIZE_AND_MAGIC.unpack(data.ljust(SIZE_AND_MAGIC.size, b"\0"))
        fits = RECORD_FIXED_BYTES_V1 < size <= segment.end_offset - physical_offset
        return int(size) if fits and magic in RECORD_VERSIONS else 0

    def _walk_from(self, begin: int) -> _Walk:
        """Walk from a record until enough records after a break are collected, or to the end of the data."""
        segment = segment_at(self._segments, begin)
        start = begin if segment is None else max(segment.start_offset, begin - segment.head_bytes)
        walk = _Walk(begin)
        for segment, batch in log_frames(self._store.storage, self._segments, start=start, search=False):
            walk.add(segment, batch)
            if len(walk.behind) == _COMPARED_RECORDS:
                break
        return walk

    def _leftovers_after(self, walk: _Walk) -> Leftovers:
        last_timestamp_ms = -1 if walk.last is None else walk.last.store_timestamp_ms
        return Leftovers(walk.end, self._data_end, last_timestamp_ms)

    def _are_from_earlier_recovery(
        self, messages: Sequence[StoredMessage], last: StoredMessage | None, log_end: int
    ) -> bool:
        """Return whether records are from before a recovery: the clock steps back, or newer records have their places.

        Args:
            last: the record before them.
            log_end: physical offset where they begin.
        """
        if messages and last is not None and messages[0].store_timestamp_ms < last.store_timestamp_ms:
            return True
        units = (self._unit_at(message) for message in messages)
        return any(unit is not None and unit.physical_offset < log_end for unit in units)

    def _find_after_damage(self, last: _LastUnit) -> Leftovers | None:
        """Find the log's end where the last unit of all queues, or the record that it names, is damaged.

        The walk begins at the record of an earlier unit of that queue. If it passes the place that the last unit names,
        the unit is wrong; if it ends there, the record is. Only records that are old by the clock are leftovers.
        """
        begin = self._begin_of_earlier_record(last)
        if begin is None or begin < self._segments[0].start_offset:
            return None
        walk = self._walk_from(begin)
        if (
            not walk.is_broken
            or not walk.behind
            or not self._are_from_earlier_recovery(walk.behind, walk.last, walk.end)
        ):
            return None
        if walk.end == last.begin and last.end <= walk.behind[0].physical_offset:
            walk.end = last.end
        return self._leftovers_after(walk) if walk.end < self._data_end else None

    def _begin_of_earlier_record(self, last: _LastUnit) -> int | None:
        """Find the nearest unit before the last one of its queue that names a sound record: where that begins."""
        if last.queue is None:
            return None
        for queue_file in reversed(last.queue.files.segments):
            first = queue_file.start_offset // UNIT_BYTES
            low = max(0, last.queue_offset - _COMPARED_RECORDS - first)
            high = min(last.queue_offset - first, queue_file.size_bytes // UNIT_BYTES)
            with self._store.storage.open(queue_file.path) as file:
                for _, units in read_units(file, first, low, high):
                    for unit in units[message_units(units)][::-1]:
                        begin = int(unit["physical_offset"])
                        if self._has_record(begin, int(unit["size"])):
                            return begin
        return None

    def _has_record(self, physical_offset: int, size: int) -> bool:
        """Return whether a sound record of a size is at a physical offset."""
        segment = segment_at(self._segments, physical_offset)
        if segment is None:
            return False
        with self._store.storage.open(segment.path) as file:
            position = physical_offset - segment.start_offset
            message = read_message(partial(read_range, file), position, physical_offset)
        return message is not None and message.size == size

    # --- where queues do not tell: the clock ---

    def _find_where_clock_steps_back(self) -> Leftovers | None:
        """Find a break of the log's last files, at which the clock steps back, and in which no unit names a record.

        A unit would name a record that was damaged there, since later records are dispatched.
        """
        segments = [segment for segment in self._segments if segment.start_offset < self._data_end]
        previous_end, previous_ms = segments[0].start_offset, 0
        for segment, batch in log_frames(self._store.storage, segments[-_RECOVERED_FILES:]):
            frames = batch.frames[batch.frames[:, CODE] == SOUND]
            begins = batch.physical_offset + frames[:, POSITION]
            ends = np.concatenate([[previous_end], begins + frames[:, SIZE]])
            times_ms = np.concatenate([[previous_ms], _store_times_ms(batch, frames)])
            is_cut = (begins - segment.head_bytes > ends[:-1]) & (times_ms[1:] < times_ms[:-1])
            for row in np.flatnonzero(is_cut).tolist():
                if not self._are_named(int(ends[row]), int(begins[row])):
                    return Leftovers(int(ends[row]), self._data_end, int(times_ms[row]))
            previous_end, previous_ms = int(ends[-1]), int(times_ms[-1])
            if batch.blank_at is not None:
                previous_end = segment.end_offset
        return None

    def _find_by_checkpoint(self) -> Leftovers | None:
        """Find the end of a log without queues, whose broker was stopped: the checkpoint has its last record's time."""
        leftovers = self._find_where_clock_steps_back()
        checkpoint = read_checkpoint(self._store)
        if leftovers is None or checkpoint is None or checkpoint.physic_msg_timestamp_ms != leftovers.last_timestamp_ms:
            return None
        return leftovers

    def _find_before_end_mark(self) -> Leftovers | None:
        """Find the end of a log in whose last file half a leftover follows, then the end mark.

        A broker writes an end mark where the next record goes into the next file, and a recovery deletes the files
        after its cut. A unit would name a record that was damaged before the end mark.
        """
        begin = end = self._last_segments[0].start_offset
        last_ms = 0
        for _, batch in log_frames(self._store.storage, self._last_segments):
            sound = batch.frames[batch.frames[:, CODE] == SOUND]
            if len(sound):
                end = batch.physical_offset + int(sound[-1, POSITION] + sound[-1, SIZE])
                last_ms = int(_store_times_ms(batch, sound[-1:])[0])
            elif batch.blank_at is not None and batch.damages and batch.damages[-1].physical_offset == end:
                is_leftover = end > begin and not self._are_named(end, batch.blank_at)
                return Leftovers(end, self._data_end, last_ms) if is_leftover else None
        return None

    def _are_named(self, begin: int, end: int) -> bool:
        """Return whether a unit of any queue names a record that begins in ``[begin, end)`` of the log."""
        return any(queue.names_any(begin, end) for queue in file_queues(self._store))


def _later(furthest: _LastUnit | None, candidate: _LastUnit) -> _LastUnit:
    if furthest is None or (candidate.begin, candidate.end) > (furthest.begin, furthest.end):
        return candidate
    return furthest
