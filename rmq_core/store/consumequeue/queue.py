"""One ConsumeQueue: its units on disk, and which of them are readable.

Source: ``ConsumeQueue``. ``UnitWriter`` says at which places units stand.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import numpy as np

from rmq_core.store.consumequeue.ext import QueueExt
from rmq_core.store.consumequeue.files import FileSequence, OpenFiles
from rmq_core.store.results import StoredUnit
from rmq_formats.codecs.consumequeue import PRE_BLANK, UNIT_DTYPE, Unit, is_placeholder, is_pre_blank
from rmq_formats.codecs.layout import EXT_MAX_ADDRESS, UNIT_BYTES
from rmq_formats.kernels.live_dispatch_tables import TARGET_NEXT, TARGET_RECORD_END, TARGET_ROOM

_UNITS_AT_ONCE: Final = 4096


class ConsumeQueue:
    """One ConsumeQueue: a unit for each message, in the order of queue offsets.

    Attributes:
        topic: of the queue.
        queue_id: of the queue.
        min_offset: first queue offset whose message is still in the log.
        least_next: least queue offset of the next message: offsets that were given to records that are damaged
            now are not given again.
        is_whole: False if a file of it was missing.
        files: its files.
        ext: its ConsumeQueueExt; None without one.
    """

    def __init__(
        self, topic: str, queue_id: int, directory: str, file_bytes: int, open_files: OpenFiles,
        ext: QueueExt | None = None,
    ) -> None:  # fmt: skip
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

    def append(self, place: int, units: bytes) -> None:
        """Write consecutive units after the last one; pre-blanks fill a gap.

        Args:
            place: of the first, at or after the queue's end. Of a queue without files, any: its older units went
                with the log's oldest files.
            units: 20 bytes each.

        Raises:
            OSError: the disk is full, or broken; a queue without files has none then.
        """
        begin, is_first = self.max_offset, not self.files.files
        if is_first:
            begin = place - place % (self.files.file_bytes // UNIT_BYTES)
            self.min_offset = place
        units = PRE_BLANK * (place - begin) + units
        try:
            self.files.write(units, begin * UNIT_BYTES)
        except OSError:
            if is_first:  # by a file without units the queue would begin at 0
                with suppress(OSError):
                    self.files.trim(begin * UNIT_BYTES)
            raise
        self.max_offset = begin + len(units) // UNIT_BYTES

    def read(self, queue_offset: int, count: int) -> bytes | memoryview:
        """Read up to ``count`` units from a queue offset on, within one file."""
        count = min(count, self.max_offset - queue_offset)
        return self.files.read(queue_offset * UNIT_BYTES, count * UNIT_BYTES) if count > 0 else b""

    def unit(self, queue_offset: int) -> StoredUnit | None:
        """Return the unit at a queue offset; None if there is none, or one without a message."""
        data = self.read(queue_offset, 1)
        if len(data) < UNIT_BYTES:
            return None
        unit = Unit.decode(data)
        if unit.is_placeholder:
            return None
        return StoredUnit(queue_offset, unit.physical_offset, unit.size, unit.tags_code)

    def next_unit(self, queue_offset: int) -> StoredUnit | None:
        """Return the first unit at or after a queue offset that is no pre-blank; None without one."""
        while queue_offset < self.max_offset:
            unit = self.unit(queue_offset)
            if unit is not None:
                return unit
            units = np.frombuffer(self.read(queue_offset, _UNITS_AT_ONCE), dtype=UNIT_DTYPE)
            if not len(units):
                return None
            messages = np.flatnonzero(~is_placeholder(units))
            if len(messages):
                return self.unit(queue_offset + int(messages[0]))
            queue_offset += len(units)
        return None

    def all_units(self) -> Iterator[StoredUnit]:
        """All units that are there, but for pre-blanks."""
        unit = self.next_unit(self.first_stored)
        while unit is not None:
            yield unit
            unit = self.next_unit(unit.queue_offset + 1)

    def find(self, is_from_here: Callable[[StoredUnit], bool], begin: int | None = None) -> int:
        """Return the first queue offset whose message satisfies a monotonic condition (binary search).

        Args:
            is_from_here: the condition; pre-blanks are skipped.
            begin: where to begin; the oldest readable one by default.

        Returns:
            ``max_offset`` where none does.
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

    @property
    def first_stored(self) -> int:
        """The first queue offset that a file has room for, readable or not."""
        return self.files.start // UNIT_BYTES

    def trim(self, queue_offset: int) -> None:
        """Remove all units from a queue offset on, and the pre-blanks right before it.

        No queue may end in a pre-blank: the original takes its size for the end of the log.
        """
        first = self.first_stored
        while queue_offset > first:
            begin = max(first, queue_offset - _UNITS_AT_ONCE)
            data = b"".join(self.pieces(begin, queue_offset))
            messages = np.flatnonzero(~is_pre_blank(np.frombuffer(data, dtype=UNIT_DTYPE)))
            if len(messages):
                queue_offset = begin + int(messages[-1]) + 1
                break
            queue_offset = begin
        if self._cells is not None:
            row = self._cell - TARGET_NEXT
            self._cells[row + TARGET_ROOM] = 0  # the kernel must not write to the old place any more
            self._cells[row + TARGET_RECORD_END] = 0
        # A first file of zeros stays: its messages have expired, and its name tells where the queue ends.
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
        end = self.max_offset
        while end > self.first_stored:
            begin = max(self.first_stored, end - _UNITS_AT_ONCE)
            units = np.frombuffer(b"".join(self.pieces(begin, end)), dtype=UNIT_DTYPE)
            addresses = np.flatnonzero(units["tags_code"] <= EXT_MAX_ADDRESS)
            if len(addresses):
                return int(units["tags_code"][addresses[-1]])
            end = begin
        return None

    def pieces(self, begin: int, end: int) -> list[bytes | memoryview]:
        """Read all units between two places, file by file."""
        pieces: list[bytes | memoryview] = []
        while begin < end:
            pieces.append(self.files.read(begin * UNIT_BYTES, (end - begin) * UNIT_BYTES))
            begin += len(pieces[-1]) // UNIT_BYTES
        return pieces

    def write_again(self, physical_offset: int) -> None:
        """Write the units of records from a physical offset on again; see ``FileSequence.write_again``."""
        place = self.find_physical(physical_offset, self.first_stored)
        self.files.write_again(place * UNIT_BYTES, self.max_offset * UNIT_BYTES)
        if self.ext is not None:
            self.ext.files.write_again(self.ext.files.start, self.ext.end)

    def restart(self, queue_offset: int) -> None:
        """Remove the units from a queue offset on, to be written anew from there."""
        if queue_offset < self.max_offset:
            self.least_next = max(self.least_next, self.max_offset)
            self.trim(queue_offset)

    def blank(self, begin: int, end: int) -> None:
        """Turn units into pre-blanks; at the queue's end they are removed instead."""
        if end >= self.max_offset:
            self.least_next = max(self.least_next, self.max_offset)
            self.trim(begin)
        elif begin < end:
            self.files.write(PRE_BLANK * (end - begin), begin * UNIT_BYTES)

    def remove_before(self, physical_offset: int) -> None:
        """Remove the units of records before a physical offset, as a rebuild without them does; one stays at least."""
        kept = self.find_physical(physical_offset, self.first_stored)
        self.expire_files(physical_offset)
        self.files.remove_expired()
        self.blank(self.first_stored, kept)
        self.min_offset = kept

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

        Source: ``ConsumeQueue#correctMinOffset``, which takes a pre-blank for a message at offset 0.
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

        The last file stays, as its name is the next queue offset: a queue that began again at 0 would lag behind the
        offsets of its consumers.
        """
        expired, kept = 0, self.find_physical(log_min, self.first_stored)  # a file may end in pre-blanks
        while len(self.files.files) > 1 and (self.files.start + self.files.file_bytes) // UNIT_BYTES <= kept:
            self.files.expire_first()
            expired += 1
        return expired
