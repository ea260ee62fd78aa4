"""One BatchConsumeQueue: a unit for each record, which may be an inner batch of several messages.

Units are consecutive, in the order of the log. A unit's *row* is its number in the queue's files, from 0 on; its base
is the queue offset of its first message. Methods that take queue offsets in ``ConsumeQueue`` take rows here, so that
recovery and cleaning treat both classes alike. Source: ``BatchConsumeQueue``.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmq_core.store.consumequeue.files import FileSequence, OpenFiles
from rmq_formats.codecs.batch_consumequeue import BATCH_UNIT, BATCH_UNIT_DTYPE, NOT_COMPACTED, used_count
from rmq_formats.codecs.consumequeue import MAX_QUEUE_OFFSET
from rmq_formats.codecs.layout import BATCH_UNIT_BYTES, MAX_BATCH_COUNT

NewUnit = tuple[int, int, int, int, int, int]  # fields of a BatchUnit, from physical_offset to message_count
_FILES_SCANNED: Final = 3  # the last files; BatchConsumeQueue#recover


class BatchUnit(NamedTuple):
    """A unit: its row, then the stored fields of the record, in the order of the bytes."""

    row: int
    physical_offset: int
    size: int
    tags_code: int
    store_timestamp_ms: int
    base_offset: int
    message_count: int
    compacted_offset: int
    reserved: int

    @property
    def end_offset(self) -> int:
        """Queue offset after the unit's last message."""
        return self.base_offset + self.message_count


class BatchQueue:
    """One BatchConsumeQueue, with the interface that recovery and cleaning use of ``ConsumeQueue``.

    Attributes:
        min_offset: first queue offset whose message is still in the log; -1 if the queue never had a message, as in
            Java.
    """

    ext: Final = None

    def __init__(self, topic: str, queue_id: int, directory: str, file_bytes: int, open_files: OpenFiles) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.min_offset = -1
        self.max_offset = 0
        self.least_next = 0
        self.is_whole = True
        self.files = FileSequence(directory, file_bytes, open_files)
        self._end = 0  # row of the next unit
        self._last_physical = -1  # physical offset of the last unit's record

    def bind(self, cells: memoryview | None, cell: int = 0) -> None:
        """Do nothing: no kernel increments ``max_offset``."""

    # --- units --------------------------------------------------------------------------
    def append(self, units: Iterable[NewUnit]) -> int:
        """Append the units of records, in log order; skip records that have a unit already.

        Units whose base or number of messages is out of range are skipped, too; their number is returned.
        """
        last_physical = self._last_physical
        data, displaced, min_offset, max_offset = bytearray(), 0, self.min_offset, self.max_offset
        for physical_offset, size, tags_code, store_timestamp_ms, base, count in units:
            if physical_offset <= last_physical:
                continue
            if not (0 <= base < MAX_QUEUE_OFFSET and 0 < count <= MAX_BATCH_COUNT):
                displaced += 1
                continue
            data += BATCH_UNIT.pack(physical_offset, size, tags_code, store_timestamp_ms, base, count, NOT_COMPACTED, 0)
            min_offset, max_offset = base if min_offset < 0 else min_offset, base + count
            last_physical = physical_offset
        if data:
            self._write(bytes(data), self._end)
            self.min_offset, self.max_offset, self._last_physical = min_offset, max_offset, last_physical
        return displaced

    def _write(self, units: bytes, row: int) -> None:
        self.files.write(units, row * BATCH_UNIT_BYTES)
        self._end = row + len(units) // BATCH_UNIT_BYTES

    def unit(self, row: int) -> BatchUnit | None:
        """Return the unit of a row; None if there is none."""
        if not self.first_stored <= row < self._end:
            return None
        return BatchUnit(row, *BATCH_UNIT.unpack(self.files.read(row * BATCH_UNIT_BYTES, BATCH_UNIT_BYTES)))

    def units(self, row: int, count: int) -> NDArray[np.void]:
        """Return up to ``count`` units from a row on, within one file: BATCH_UNIT_DTYPE[n]."""
        return np.frombuffer(self.read(row, count), dtype=BATCH_UNIT_DTYPE)

    def read(self, row: int, count: int) -> bytes | memoryview:
        """Return the bytes of up to ``count`` units from a row on, within one file."""
        count = min(count, self._end - row)
        return self.files.read(row * BATCH_UNIT_BYTES, count * BATCH_UNIT_BYTES) if count > 0 else b""

    def find_row(self, queue_offset: int) -> int:
        """Return the row of the unit that contains a queue offset; in a gap, the row of the next unit."""
        return self.find(lambda unit: unit.end_offset > queue_offset)

    def unit_of(self, queue_offset: int) -> BatchUnit | None:
        """Return the unit that has the message of a queue offset; None if there is none."""
        unit = self.unit(self.find_row(queue_offset))
        return unit if unit is not None and unit.base_offset <= queue_offset < unit.end_offset else None

    def find(self, is_from_here: Callable[[BatchUnit], bool], begin: int | None = None) -> int:
        """Return the first row whose unit satisfies a monotonic condition (binary search); else one past the last."""

        def is_satisfied_at(row: int) -> bool:
            unit = self.unit(row)
            return unit is None or is_from_here(unit)

        begin = self.first_stored if begin is None else begin
        return begin + bisect_left(range(begin, self._end), True, key=is_satisfied_at)

    def find_physical(self, physical_offset: int, begin: int | None = None) -> int:
        """Return the first row whose record is at or after a physical offset."""
        return self.find(lambda unit: unit.physical_offset >= physical_offset, begin)

    next_unit = unit

    def offset_by_time(self, time_ms: int, *, upper: bool) -> int:
        """Return the base of the first unit stored at a time or later, else of the last; ``upper`` is as in the store.

        Source: ``BatchConsumeQueue#getOffsetInQueueByTime``, which never returns the end of the queue.
        """
        bound_ms = time_ms + 1 if upper else time_ms
        row = self.find(lambda unit: unit.store_timestamp_ms >= bound_ms)
        unit = self.unit(min(row - 1 if upper and row > self.first_stored else row, self._end - 1))
        base_offset = 0 if unit is None else unit.base_offset
        return min(max(base_offset, self.min_offset), self.max_offset)

    # --- ends ---------------------------------------------------------------------------
    def load(self, sound_until: int | None) -> None:
        """Open the files and find the last unit; see ``ConsumeQueue.load``."""
        self.is_whole = self.files.load()
        if not self.files.files:
            return
        self._end = self.files.end // BATCH_UNIT_BYTES
        if sound_until is None:
            self._scan(
                max(self.files.start, self.files.end - _FILES_SCANNED * self.files.file_bytes) // BATCH_UNIT_BYTES
            )
        else:
            self.trim(self.find(lambda unit: unit.size <= 0 or unit.physical_offset >= sound_until))

    def scan_all(self) -> None:
        """Find the end of the sound units from the first file on."""
        if self.files.files:
            self._scan(self.first_stored)

    def _scan(self, row: int) -> None:
        while row < self._end:
            units = self.units(row, self._end - row)
            used_rows = used_count(units)
            # The original cuts a queue without overwriting the units: units of a lost log may follow newer ones.
            decreases = np.flatnonzero(np.diff(units["physical_offset"][:used_rows]) <= 0)
            used_rows = int(decreases[0]) + 1 if len(decreases) else used_rows
            row += used_rows
            if used_rows < len(units):
                break
        self.trim(row)

    @property
    def first_stored(self) -> int:
        """The first row of the first file, with a unit or without."""
        return self.files.start // BATCH_UNIT_BYTES

    def trim(self, row: int) -> None:
        """Remove all units at and after a row."""
        if row < self._end or self.files.has_data(row * BATCH_UNIT_BYTES):
            self.files.trim(row * BATCH_UNIT_BYTES)
        self._end = row if self.files.files else 0
        self._update_bounds()

    def rewrite(self, physical_offset: int) -> None:
        """Rewrite the units of records from a physical offset on; see ``FileSequence.rewrite``."""
        self.files.rewrite(self.find_physical(physical_offset) * BATCH_UNIT_BYTES, self._end * BATCH_UNIT_BYTES)

    def trim_torn(self) -> None:
        """Remove the last unit if a sector of it is lost: its last fields are never both zero."""
        last = self.unit(self._end - 1)
        if last is not None and last.compacted_offset == last.reserved == 0:
            self.trim(last.row)

    def _update_bounds(self) -> None:
        last, first = self.unit(self._end - 1), self.unit(self.first_stored)
        self.max_offset = 0 if last is None else last.end_offset
        self._last_physical = -1 if last is None else last.physical_offset
        if first is None:
            self.min_offset = -1
        elif self.min_offset < 0:
            self.min_offset = first.base_offset
        self.min_offset = min(self.min_offset, self.max_offset)

    def trim_empty_files(self) -> None:
        """Remove files at the end that have no units."""
        files = self.files.files
        if files and files[-1].start >= self._end * BATCH_UNIT_BYTES:
            self.trim(self._end)

    def restart(self, physical_offset: int) -> None:
        """Remove the units of records from a physical offset on, before the caller writes new ones."""
        row = self.find_physical(physical_offset)
        if row < self._end:
            self.least_next = max(self.least_next, self.max_offset)
            self.trim(row)

    def blank(self, begin: int, end: int) -> None:
        """Remove the units of damaged records, as a rebuild does; later units move up."""
        if begin < end:
            self.least_next = max(self.least_next, self.max_offset)
            self._remove_rows(begin, end)

    def remove_before(self, physical_offset: int) -> None:
        """Remove the units of records before a physical offset, as a rebuild without them does."""
        self._remove_rows(self.first_stored, self.find_physical(physical_offset))

    def _remove_rows(self, begin: int, end: int) -> None:
        """Remove the units of a range of rows; if the first row is removed, the remaining units begin at row 0."""
        remaining_units, row = [], end
        while row < self._end:
            remaining_units.append(self.units(row, self._end - row).tobytes())
            row += len(remaining_units[-1]) // BATCH_UNIT_BYTES
        is_first = begin == self.first_stored
        self.trim(begin)
        if remaining_units:
            self._write(b"".join(remaining_units), 0 if is_first else begin)
            self._update_bounds()

    def first_physical(self) -> int:
        """Physical offset of the first unit's record; -1 without one."""
        unit = self.unit(self.first_stored)
        return -1 if unit is None else unit.physical_offset

    def last_end(self) -> int:
        """Physical offset after the record of the last unit; -1 without units."""
        unit = self.unit(self._end - 1)
        return -1 if unit is None else unit.physical_offset + unit.size

    def correct_min(self, log_min: int) -> None:
        """Move ``min_offset`` to the first message that the log still has. Source: ``correctMinOffset``."""
        unit = self.unit(self.find_physical(log_min))
        if unit is not None:
            self.min_offset = unit.base_offset
        elif self.min_offset >= 0:
            self.min_offset = self.max_offset

    def expire_files(self, log_min: int) -> int:
        """Detach the files whose messages have all expired, except the last file; return their number."""
        return self.files.expire_before(self.find_physical(log_min) * BATCH_UNIT_BYTES)
