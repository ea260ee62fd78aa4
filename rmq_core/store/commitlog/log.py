"""The CommitLog: its mapped files, the position of the next record, and slices of stored records."""

from contextlib import suppress
from struct import Struct
from typing import Any, Final

import numpy as np

from rmq_core.store.files.disk import Disk
from rmq_core.store.files.mapped_file import MappedFile
from rmq_core.store.results import StoredUnit
from rmq_formats.codecs import paths
from rmq_formats.codecs.layout import BLANK_BYTES, MAGIC_BLANK, PROPERTY_INNER_BASE, PROPERTY_INNER_NUM, RECORD_VERSIONS
from rmq_formats.codecs.properties import raw_property
from rmq_formats.codecs.record import decode_record
from rmq_formats.codecs.record_layout import (
    RECORD_FIXED_BYTES_V1,
    SIZE_AND_MAGIC,
    SYS_FLAG,
    head_struct,
    store_timestamp_at,
)

_INT64 = Struct(">q")
_PHYSICAL_OFFSET = head_struct("physical_offset")
_WINDOW_BYTES: Final = 64 << 10  # of a search for a record
_GROWTH_FACTOR: Final = 4  # of the next window, after a window without a record


class LogFile(MappedFile):
    """One mapped file of the CommitLog; ``start`` is the physical offset of its first byte."""

    def __init__(self, path: str, start: int, size: int, disk: Disk, descriptor: int | None = None) -> None:
        super().__init__(path, size, disk, descriptor)
        self.start = start
        self.end = start + size  # physical offset after its last byte


class CommitLog:
    """The CommitLog's files in order, and the position of the next record.

    Attributes:
        files: in the order of the log; a missing file leaves a gap.
        start: physical offset at which the last file begins.
        position: of the next record in the last file; equal to ``file_bytes`` if the next record needs a new file.
        max_offset: physical offset of the next record. Appends set it last, as other threads read it.
        memory: the last file's map.
        preallocate_at: position at which the next file should be created; the caller resets it.
    """

    def __init__(self, directory: str, file_bytes: int, disk: Disk) -> None:
        self.directory = directory
        self.file_bytes = file_bytes
        self.files: list[LogFile] = []
        self.position = file_bytes
        self.max_offset = 0
        self.memory: Any = None
        self.preallocate_at = file_bytes + 1
        self._by_start: dict[int, LogFile] = {}
        self._disk = disk
        self.start = -file_bytes

    def adopt(self, files: list[LogFile], end: int) -> None:
        """Adopt recovered files; ``end`` is the physical offset of the next record."""
        self.files = files
        self._by_start = {file.start: file for file in files}
        if not files:
            return
        last = files[-1]
        self.start = last.start
        self.position = end - last.start
        self.max_offset = end
        if self.position < self.file_bytes:
            # A file that the original created is sparse: on a full disk, a write through the map into a hole ends
            # the process.
            self._disk.allocate(last.descriptor, 0, self.file_bytes)
        self.memory = last.map
        self._expect_next()

    def _expect_next(self) -> None:
        self.preallocate_at = self.file_bytes - self.file_bytes // 4

    @property
    def min_offset(self) -> int:
        """Physical offset of the first file; 0 without files."""
        return self.files[0].start if self.files else 0

    def roll(self, new_file: LogFile) -> None:
        """Fill the last file up with a BLANK and continue in the next one; an OSError leaves the log unchanged."""
        memory = new_file.map
        free_bytes = self.file_bytes - self.position
        if free_bytes >= BLANK_BYTES:
            SIZE_AND_MAGIC.pack_into(self.memory, self.position, free_bytes, MAGIC_BLANK)
        self.files.append(new_file)
        self._by_start[new_file.start] = new_file
        self.start, self.position, self.memory = new_file.start, 0, memory
        self.max_offset = new_file.start
        self._expect_next()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes that fit into the last file, by a write call instead of the map.

        A process that is killed during the call leaves the first of the bytes. A copy into the map (``memcpy``) may
        leave the last ones alone, and a slave would never request the missing first ones from its master. After an
        OSError the log's end is unchanged.
        """
        descriptor = self.files[-1].descriptor
        try:
            self._disk.write(descriptor, data, self.position)
        except OSError:
            # Some bytes may have been written. Whole records among them would be recovered at the next start, so
            # they are overwritten with zeros; if that fails too, see ``has_trailing_bytes``.
            with suppress(OSError):
                self._disk.write(descriptor, bytes(len(data)), self.position)
            raise
        self.position += len(data)
        self.max_offset += len(data)

    def create(self, start: int) -> LogFile:
        """Create a file with all its blocks allocated, and fsync its name. Any thread may call this."""
        path = f"{self.directory}/{paths.segment_name(start)}"
        descriptor = self._disk.create(path, self.file_bytes, allocate=True)
        file = LogFile(path, start, self.file_bytes, self._disk, descriptor)
        try:
            self._disk.sync_directory(self.directory)
        except OSError:
            self._disk.remove(path)
            raise
        return file

    def begin_at(self, start: int) -> None:
        """Create the first file of an empty log, for a slave whose log does not begin at 0.

        A file that was created for a first record, and has none, is removed. After an OSError the log is still empty.
        """
        for file in self.files:
            self._disk.remove(file.path)
        if self.files:
            self._disk.sync_directory(self.directory)
        self.memory = None
        while self.files:
            self.remove_first().release()
        self.position, self.start = self.file_bytes, -self.file_bytes
        first = self.create(start)
        self.files, self._by_start = [first], {start: first}
        self.memory, self.position, self.start = first.map, 0, start
        self.max_offset = start
        self._expect_next()

    @property
    def has_trailing_bytes(self) -> bool:
        """True if bytes of a failed write follow the log's end; the next start would recover them as a record."""
        return self.memory is not None and any(self.memory[self.position : self.position + 4])

    def file_at(self, physical_offset: int) -> LogFile | None:
        """Return the file that contains a physical offset; None if there is none."""
        return self._by_start.get(physical_offset - physical_offset % self.file_bytes)

    def slice(self, physical_offset: int, size: int) -> memoryview | None:
        """Return a slice of the log; None if the range is deleted, not written yet, or not within one file."""
        if size <= 0 or physical_offset < 0 or physical_offset + size > self.max_offset:
            return None
        position = physical_offset % self.file_bytes
        file = self._by_start.get(physical_offset - position)
        if file is None or position + size > self.file_bytes:
            return None
        return file.view[position : position + size]

    def read_range(self, physical_offset: int, max_bytes: int) -> memoryview | None:
        """Return up to ``max_bytes`` from a physical offset on, within one file; None at the log's end."""
        readable_bytes = min(self.max_offset - physical_offset, self.file_bytes - physical_offset % self.file_bytes)
        return self.slice(physical_offset, min(readable_bytes, max_bytes))

    def record(self, physical_offset: int) -> memoryview | None:
        """Return the record at a physical offset; None if no record begins at the offset."""
        head = self.slice(physical_offset, RECORD_FIXED_BYTES_V1)
        if head is None:
            return None
        size, magic = SIZE_AND_MAGIC.unpack_from(head)
        if magic not in RECORD_VERSIONS or size < RECORD_FIXED_BYTES_V1:
            return None
        if _PHYSICAL_OFFSET.unpack_from(head)[0] != physical_offset:
            return None
        return self.slice(physical_offset, size)

    def store_timestamp_ms(self, physical_offset: int) -> int | None:
        """Store timestamp (ms) of the record at a physical offset; None without a record."""
        head = self.record(physical_offset)
        return None if head is None else store_timestamp_ms(head)

    def batch_unit(self, unit: StoredUnit) -> tuple[int, int, int, int, int, int] | None:
        """Build the BatchConsumeQueue unit for the record of a ConsumeQueue unit; return None if the record is missing.

        Source: ``CommitLog#checkMessageAndReturnSize``.
        """
        record = self.record(unit.physical_offset)
        if record is None:
            return None
        message = decode_record(record, physical_offset=unit.physical_offset)
        names = (PROPERTY_INNER_BASE, PROPERTY_INNER_NUM)
        base, count = (raw_property(message.properties_bytes, name.encode()) for name in names)
        base_and_count = (int(base), int(count)) if base.isdigit() and count.isdigit() else (message.queue_offset, 1)
        return unit.physical_offset, unit.size, unit.tags_code, message.store_timestamp_ms, *base_and_count

    def remove_first(self) -> LogFile:
        """Detach the oldest file; the caller deletes it from the disk."""
        file = self.files.pop(0)
        del self._by_start[file.start]
        return file

    def close(self) -> None:
        """Unmap and close all files."""
        self.memory = None
        for file in self.files:
            file.release()


def store_timestamp_ms(record: memoryview) -> int:
    """Return the store timestamp (ms) of a record, from the record's first bytes."""
    return int(_INT64.unpack_from(record, store_timestamp_at(SYS_FLAG.unpack_from(record)[0]))[0])


class Boundaries:
    """The physical offsets in a CommitLog at which records begin or end."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def is_boundary(self, physical_offset: int) -> bool:
        """Return whether a record, a BLANK or a file begins at a physical offset, or the log ends at the offset."""
        log = self._log
        position = physical_offset % log.file_bytes
        if physical_offset == log.max_offset:
            return True
        if log.file_at(physical_offset) is None or not position:
            return not position
        head = log.slice(physical_offset, BLANK_BYTES)
        is_blank = head is not None and SIZE_AND_MAGIC.unpack(head) == (log.file_bytes - position, MAGIC_BLANK)
        return is_blank or log.record(physical_offset) is not None

    def last_record_before(self, physical_offset: int, about_bytes: int) -> int:
        """Return the begin of a whole record before a physical offset; without such a record, the log's begin.

        Args:
            physical_offset: need not be a boundary.
            about_bytes: maximal distance of the record, unless no record begins so near. The search stops at the
                begin of the file, as the master or the slave may have deleted earlier files.
        """
        log = self._log
        file_start = max(physical_offset - 1, 0) // log.file_bytes * log.file_bytes
        begin = max(physical_offset - about_bytes, file_start)
        while begin > log.min_offset:
            record_offset = self._first_record(begin, physical_offset)
            if record_offset is not None:
                return record_offset
            about_bytes *= _GROWTH_FACTOR
            begin = physical_offset - about_bytes
        record_offset = self._first_record(log.min_offset, physical_offset)
        return log.min_offset if record_offset is None else record_offset

    def last_until(self, physical_offset: int, floor: int) -> int:
        """Return the last boundary at or before a physical offset, searching from the earlier boundary ``floor``."""
        boundary, width = floor, _WINDOW_BYTES
        while physical_offset - width > floor:
            record_offset = self._first_record(physical_offset - width, physical_offset)
            if record_offset is not None:
                boundary = record_offset
                break
            width *= _GROWTH_FACTOR
        while True:
            end = self._end_of(boundary)
            if end is None or end > physical_offset:
                return boundary
            boundary = end

    def _end_of(self, physical_offset: int) -> int | None:
        """Return the end of the record or BLANK at a boundary; None if neither is whole."""
        log = self._log
        record = log.record(physical_offset)
        if record is not None:
            return physical_offset + len(record)
        file_end = physical_offset - physical_offset % log.file_bytes + log.file_bytes
        return file_end if physical_offset < log.max_offset and file_end <= log.max_offset else None

    def _first_record(self, begin: int, end: int) -> int | None:
        """Return the offset of the first sound record that begins in a range of the log; None without a record."""
        from rmq_formats.kernels import scan  # noqa: PLC0415 # numba, see ``kernel_loading``

        row = np.zeros(scan.FRAME_COLUMNS, dtype=np.int64)
        result = np.zeros(2, dtype=np.int64)
        while begin < end:
            file = self._log.file_at(begin)
            if file is None:
                return None
            data_bytes = min(self._log.max_offset - file.start, file.size)
            status = scan.find_sound(file.array, data_bytes, 0, file.start, file.size, begin - file.start, row, result)
            record_offset = file.start + int(result[0])
            if status == scan.SOUND:
                return record_offset if record_offset < end else None
            begin = file.end
        return None
