"""One ConsumeQueue: its units on disk, its first readable unit, and an estimate of the units that match a filter.

Source: ``ConsumeQueue``. ``UnitWriter`` decides at which queue offsets units are written.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_core.store.consumequeue.ext import ExtReader, MayMatchUnit, QueueExt
from rmq_core.store.consumequeue.files import FileSequence, OpenFiles
from rmq_core.store.results import StoredUnit
from rmq_formats.codecs.consumequeue import PRE_BLANK, UNIT_DTYPE, Unit, is_pre_blank, is_unwritten, names_no_record
from rmq_formats.codecs.layout import EXT_MAX_ADDRESS, UNIT_BYTES
from rmq_formats.kernels.live_dispatch_tables import TARGET_NEXT, TARGET_RECORD_END, TARGET_ROOM

MAX_SCANNED_UNITS: Final = 20_000  # units that an estimate reads at most: ``maxConsumeQueueScan``
MAX_MATCHES: Final = 5000  # ``sampleCountThreshold``: above it, the estimate extrapolates from the scanned units
_UNITS_AT_ONCE: Final = 4096
_FILES_SCANNED: Final = 3  # the last files; ConsumeQueue#recover


class ConsumeQueue:
    """One ConsumeQueue: a unit for each message, in the order of queue offsets.

    Attributes:
        min_offset: first queue offset whose message is still in the log.
        least_next: least queue offset of the next message, so that the offsets of records that are now damaged
            are not assigned again.
        is_whole: False if a file was missing.
    """

    def __init__(
        self,
        topic: str,
        queue_id: int,
        directory: str,
        file_bytes: int,
        open_files: OpenFiles,
        ext: QueueExt | None = None,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.min_offset = 0
        self._max_offset = 0
        self._cells: memoryview | None = None
        self._cell = 0
        self.least_next = 0
        self.is_whole = True
        self.files = FileSequence(directory, file_bytes, open_files)
        self.ext = ext

    @property
    def max_offset(self) -> int:
        """Queue offset of the next unit."""
        return self._max_offset if self._cells is None else self._cells[self._cell]

    @max_offset.setter
    def max_offset(self, queue_offset: int) -> None:
        if self._cells is None:
            self._max_offset = queue_offset
        else:
            self._cells[self._cell] = queue_offset

    def bind(self, cells: memoryview | None, cell: int = 0) -> None:
        """Bind ``max_offset`` to a cell of the target table, which the dispatch kernel increments."""
        max_offset = self.max_offset
        self._cells, self._cell = cells, cell
        self.max_offset = max_offset

    def append(self, queue_offset: int, units: bytes) -> None:
        """Write consecutive units, 20 bytes each, after the last one; pre-blanks fill a gap.

        Args:
            queue_offset: of the first unit, at or after the queue's end. Any offset for a queue without files, whose
                older units were deleted with the log's oldest files.
        """
        begin, is_first = self.max_offset, not self.files.files
        if is_first:
            begin = queue_offset - queue_offset % (self.files.file_bytes // UNIT_BYTES)
            self.min_offset = queue_offset
        units = PRE_BLANK * (queue_offset - begin) + units
        try:
            self.files.write(units, begin * UNIT_BYTES)
        except OSError:
            if is_first:  # a file without units would make the queue begin at 0
                with suppress(OSError):
                    self.files.trim(begin * UNIT_BYTES)
            raise
        self.max_offset = begin + len(units) // UNIT_BYTES

    def read(self, queue_offset: int, count: int) -> bytes | memoryview:
        """Read up to ``count`` units from a queue offset on, within one file."""
        count = min(count, self.max_offset - queue_offset)
        return self.files.read(queue_offset * UNIT_BYTES, count * UNIT_BYTES) if count > 0 else b""

    def unit(self, queue_offset: int) -> StoredUnit | None:
        """Return the unit at a queue offset; None without a unit, or if the unit has no message."""
        data = self.read(queue_offset, 1)
        if len(data) < UNIT_BYTES:
            return None
        unit = Unit.decode(data)
        if unit.names_no_record:
            return None
        return StoredUnit(queue_offset, unit.physical_offset, unit.size, unit.tags_code)

    def next_unit(self, queue_offset: int) -> StoredUnit | None:
        """Return the first unit with a message at or after a queue offset; None without such a unit."""
        while queue_offset < self.max_offset:
            unit = self.unit(queue_offset)
            if unit is not None:
                return unit
            units = np.frombuffer(self.read(queue_offset, _UNITS_AT_ONCE), dtype=UNIT_DTYPE)
            if not len(units):
                return None
            messages = np.flatnonzero(~names_no_record(units))
            if len(messages):
                return self.unit(queue_offset + int(messages[0]))
            queue_offset += len(units)
        return None

    def all_units(self) -> Iterator[StoredUnit]:
        """Yield all units that have a message."""
        unit = self.next_unit(self.first_stored)
        while unit is not None:
            yield unit
            unit = self.next_unit(unit.queue_offset + 1)

    def find(self, is_from_here: Callable[[StoredUnit], bool], begin: int | None = None) -> int:
        """Return the first queue offset whose message satisfies a monotonic condition; else ``max_offset``.

        Args:
            is_from_here: the condition; pre-blanks are skipped.
            begin: queue offset at which the search begins; the oldest readable one by default.
        """

        def is_satisfied_at(queue_offset: int) -> bool:
            unit = self.next_unit(queue_offset)
            return unit is None or is_from_here(unit)

        begin = self.min_offset if begin is None else begin
        first_offset = begin + bisect_left(range(begin, self.max_offset), True, key=is_satisfied_at)
        unit = self.next_unit(first_offset)
        return self.max_offset if unit is None else unit.queue_offset

    def find_physical(self, physical_offset: int, begin: int | None = None) -> int:
        """Return the first queue offset whose record is at or after a physical offset."""
        return self.find(lambda unit: unit.physical_offset >= physical_offset, begin)

    def load(self, sound_until: int | None) -> None:
        """Open the files, find the last unit, and set ``is_whole``.

        Args:
            sound_until: physical offset below which the units on the disk are sound: a binary search finds the last of
                these units, and later units are removed. With None the last files are read unit by unit.
        """
        self.is_whole = self.files.load()
        files = self.files.files
        if files and sound_until is None:
            self._scan(max(self.files.start, files[-1].start - (_FILES_SCANNED - 1) * self.files.file_bytes))
        elif files and sound_until is not None:
            self._search(sound_until)
        if self.ext is not None:
            self.ext.load(self.last_address())

    def scan_all(self) -> None:
        """Find the end of the sound units from the first file on."""
        if self.files.files:
            self._scan(self.files.start)

    def _search(self, sound_until: int) -> None:
        self.max_offset = self.files.end // UNIT_BYTES
        self.max_offset = self.find(
            lambda unit: unit.size <= 0 or unit.physical_offset >= sound_until, self.first_stored
        )
        if self.files.has_data(self.max_offset * UNIT_BYTES):
            self.trim(self.max_offset)

    def _scan(self, offset: int) -> None:
        """Cut the queue at the first unit at or after a byte offset that was never written."""
        while offset < self.files.end:
            units = np.frombuffer(self.files.read(offset, self.files.file_bytes), dtype=UNIT_DTYPE)
            unwritten = np.flatnonzero(is_unwritten(units))
            if len(unwritten):
                offset += int(unwritten[0]) * UNIT_BYTES
                break
            offset += len(units) * UNIT_BYTES
        self.max_offset = offset // UNIT_BYTES
        self.trim(self.max_offset)

    @property
    def first_stored(self) -> int:
        """The first queue offset of the first file, readable or not."""
        return self.files.start // UNIT_BYTES

    def trim(self, queue_offset: int) -> None:
        """Remove all units from a queue offset on, and the pre-blanks right before it.

        No queue may end in a pre-blank: the original takes its size for the end of the log.
        """
        first = self.first_stored
        last = self._find_last(queue_offset, lambda units: ~is_pre_blank(units))
        queue_offset = min(queue_offset, first) if last is None else last + 1
        if self._cells is not None:
            row = self._cell - TARGET_NEXT
            self._cells[row + TARGET_ROOM] = 0  # the kernel must not write after the old end
            self._cells[row + TARGET_RECORD_END] = 0
        # A first file of zeros stays: its messages have expired, and its name is the end of the queue.
        start, size = self.files.start, self.files.file_bytes
        keeps_first = queue_offset == first > 0 and not bytes(self.files.read(start, size)).strip(b"\0")
        self.files.trim((queue_offset + keeps_first) * UNIT_BYTES)
        self.max_offset = queue_offset if self.files.files else 0
        self.min_offset = min(self.min_offset, self.max_offset)
        if self.ext is not None:
            self.ext.cut(self.last_address())

    def trim_empty_files(self) -> None:
        """Remove files without units at the end, except a file whose name is the next queue offset."""
        files = self.files.files
        if files and files[-1].start >= self.max_offset * UNIT_BYTES and (len(files) > 1 or files[0].start == 0):
            self.trim(self.max_offset)

    def last_address(self) -> int | None:
        """Return the last tags code that is an address in ConsumeQueueExt; None without one."""
        last = self._find_last(self.max_offset, lambda units: units["tags_code"] <= EXT_MAX_ADDRESS)
        return None if last is None else Unit.decode(self.read(last, 1)).tags_code

    def _find_last(self, end: int, test: Callable[[NDArray[np.void]], NDArray[np.bool_]]) -> int | None:
        """Return the last queue offset before ``end`` whose unit passes a test of UNIT_DTYPE[n]; None without one."""
        while end > self.first_stored:
            begin = max(self.first_stored, end - _UNITS_AT_ONCE)
            offsets = np.flatnonzero(test(np.frombuffer(b"".join(self.pieces(begin, end)), dtype=UNIT_DTYPE)))
            if len(offsets):
                return begin + int(offsets[-1])
            end = begin
        return None

    def pieces(self, begin: int, end: int) -> list[bytes | memoryview]:
        """Read all units between two queue offsets, file by file."""
        pieces: list[bytes | memoryview] = []
        while begin < end:
            pieces.append(self.files.read(begin * UNIT_BYTES, (end - begin) * UNIT_BYTES))
            begin += len(pieces[-1]) // UNIT_BYTES
        return pieces

    def rewrite(self, physical_offset: int) -> None:
        """Rewrite the units of records from a physical offset on; see ``FileSequence.rewrite``."""
        queue_offset = self.find_physical(physical_offset, self.first_stored)
        self.files.rewrite(queue_offset * UNIT_BYTES, self.max_offset * UNIT_BYTES)
        if self.ext is not None:
            self.ext.files.rewrite(self.ext.files.start, self.ext.end)

    def restart(self, queue_offset: int) -> None:
        """Remove the units from a queue offset on, before the caller writes new ones."""
        if queue_offset < self.max_offset:
            self.least_next = max(self.least_next, self.max_offset)
            self.trim(queue_offset)

    def blank(self, begin: int, end: int) -> None:
        """Overwrite units with pre-blanks; remove the units if no other unit follows."""
        if end >= self.max_offset:
            self.least_next = max(self.least_next, self.max_offset)
            self.trim(begin)
        elif begin < end:
            self.files.write(PRE_BLANK * (end - begin), begin * UNIT_BYTES)

    def remove_before(self, physical_offset: int) -> None:
        """Remove the units of records before a physical offset; the caller makes sure that a later unit exists."""
        first_remaining = self.find_physical(physical_offset, self.first_stored)
        self.expire_files(physical_offset)
        self.files.remove_expired()
        self.blank(self.first_stored, first_remaining)
        self.min_offset = first_remaining

    def first_physical(self) -> int:
        """Physical offset of the first unit's record; -1 without one."""
        unit = self.next_unit(self.first_stored)
        return -1 if unit is None else unit.physical_offset

    def last_end(self) -> int:
        """Physical offset after the record of the last unit; -1 without units."""
        unit = self.unit(self.max_offset - 1) if self.max_offset > self.first_stored else None
        return -1 if unit is None else unit.physical_offset + unit.size

    def correct_min(self, log_min: int) -> None:
        """Move ``min_offset`` to the first message that the log still has.

        Source: ``ConsumeQueue#correctMinOffset``, which mistakes a pre-blank for a message at offset 0.
        """
        begin = max(self.min_offset, self.first_stored)
        first = self.next_unit(begin)
        if first is not None and first.physical_offset >= log_min:
            self.min_offset = first.queue_offset
        else:
            self.min_offset = self.find_physical(log_min, begin)
        if self.ext is not None:
            unit = self.next_unit(self.min_offset)
            if unit is not None:
                self.ext.remove_before(unit.tags_code)

    def expire_files(self, log_min: int) -> int:
        """Detach the files whose messages have all expired, except the last file; return their number.

        The last file stays, as its name is the next queue offset: in a queue that began again at 0, the committed
        offsets of consumers would exceed the max offset.
        """
        first_unexpired = self.find_physical(log_min, self.first_stored)  # a file may end in pre-blanks
        return self.files.expire_before(first_unexpired * UNIT_BYTES)


def estimate_count(
    queue: ConsumeQueue, begin: int, end: int, tags_codes: Set[int] | None, may_match_unit: MayMatchUnit | None
) -> int:
    """Estimate the number of messages between two queue offsets that match a filter.

    Exact for ranges of up to 20,000 units with up to 5,000 matches; for longer ranges the first units are extrapolated.
    The estimate reads the queue alone: other tags of the same hash code match, too, and SQL92 is tested by bit maps.

    Args:
        begin: queue offset of the first message; if the message is deleted, begin and end move up.
        end: queue offset after the last message.
        tags_codes: messages with one of these tags codes; None for all.
        may_match_unit: test of store timestamp (ms) and bit map, if ConsumeQueueExt has them; None for all.

    Source: ``ConsumeQueue#estimateMessageCount``.
    """
    count = max(0, end - max(0, begin))
    begin = max(begin, queue.min_offset)
    scanned_count = match_count = 0
    while scanned_count < min(count, MAX_SCANNED_UNITS):
        data = queue.read(begin + scanned_count, min(count, MAX_SCANNED_UNITS) - scanned_count)
        if not data:
            break
        units = np.frombuffer(data, dtype=UNIT_DTYPE)
        match_counts = match_count + np.cumsum(_match_units(queue, units, tags_codes, may_match_unit))
        match_limit_index = int(np.searchsorted(match_counts, MAX_MATCHES, side="right"))
        if match_limit_index < len(units):
            return (MAX_MATCHES + 1) * count // (scanned_count + match_limit_index + 1)
        scanned_count, match_count = scanned_count + len(units), int(match_counts[-1])
    return match_count * count // scanned_count if scanned_count == MAX_SCANNED_UNITS else match_count


def _match_units(
    queue: ConsumeQueue, units: NDArray[np.void], tags_codes: Set[int] | None, may_match_unit: MayMatchUnit | None
) -> NDArray[np.bool_]:
    """Return a mask of the units whose messages may match the filter."""
    unit_codes = units["tags_code"].astype(np.int64)
    matches = np.ones(len(units), dtype=np.bool_)
    ext = queue.ext
    addresses = np.flatnonzero(unit_codes <= EXT_MAX_ADDRESS) if ext is not None else ()
    if ext is not None and may_match_unit is not None:
        reader = ExtReader(ext)
        for index in addresses:
            unit = reader.at(int(unit_codes[index]))
            matches[index] = unit is None or may_match_unit(*unit)
    if tags_codes is not None:
        if ext is not None:
            for index in addresses:
                unit_codes[index] = ext.tags_code(int(unit_codes[index]))
        # The original compares the low half: that is all that it has of a delivery time.
        matches &= np.isin(unit_codes.astype(np.int32), np.fromiter(tags_codes, dtype=np.int64).astype(np.int32))
    return matches
