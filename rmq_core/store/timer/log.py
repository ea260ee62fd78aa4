"""The ``timerlog`` files: units of timer messages, in the order in which they were enqueued.

One write puts many appended units into the page cache. Files are sparse and read in blocks, so that a million waiting
messages take no memory. Source: ``TimerLog``.
"""

from collections.abc import Iterator
from typing import Final

from rmq_core.store.files.disk import Disk, list_segments
from rmq_formats.codecs import paths
from rmq_formats.codecs.layout import MAGIC_BLANK
from rmq_formats.codecs.timer import BLANK, TIMER_UNIT_BYTES, TimerUnit, encode_blank
from rmq_formats.errors import FormatError, StoreSizeError

_BLOCK_BYTES: Final = 16 << 10
_BLOCK_OF_UNITS_BYTES: Final = (1 << 20) // TIMER_UNIT_BYTES * TIMER_UNIT_BYTES
_COPY_BLOCK_BYTES: Final = 1 << 20


class TimerLog:
    """``timerlog``: units of timer messages, linked by slot of the wheel; ``end`` is the position of the next unit."""

    def __init__(self, directory: str, file_bytes: int, disk: Disk) -> None:
        """Open the existing files; raise StoreSizeError for a wrong size. ``truncate`` sets the log's end."""
        self.directory = directory
        self.file_bytes = file_bytes
        self._units_bytes = (file_bytes - BLANK.size) // TIMER_UNIT_BYTES * TIMER_UNIT_BYTES  # of a full file
        self._disk = disk
        self._open: dict[int, int] = {}  # descriptors by start
        segments = list_segments(directory)
        if segments and not segments[-1].size:  # ``MappedFileQueue#doLoad``
            disk.remove(segments.pop().path)
        for _, path, size in segments:
            if size != file_bytes:
                raise StoreSizeError(
                    f"{path}: has {size} bytes, but mappedFileSizeTimerLog is {file_bytes}. Use the old setting."
                )
        self._starts = [segment.start for segment in segments]
        self.end = self._starts[-1] + file_bytes if self._starts else 0
        self._tail = bytearray()  # appended units that are not written yet
        self._unsynced: set[int] = set()
        self._has_new_name = False
        self._block = b""
        self._block_at = 0

    @property
    def begin(self) -> int:
        """Position of the first unit."""
        return self._starts[0] if self._starts else 0

    @property
    def is_written(self) -> bool:
        """True if all appended units are written to the files."""
        return not self._tail

    # --- writing ------------------------------------------------------------------------
    def append(self, unit: TimerUnit) -> int:
        """Append a unit to the buffer that ``write`` writes; return its position. An OSError appends none."""
        if not self._starts or self.end >= self._starts[-1] + self.file_bytes:
            self._roll(self.end - self.end % self.file_bytes)
        elif TIMER_UNIT_BYTES + BLANK.size > self._free_bytes:
            self.write()
            last = self._starts[-1]
            self._disk.write(self._descriptor(last), encode_blank(self._free_bytes), self.end - last)
            self._roll(last + self.file_bytes)
        position = self.end
        self._tail += unit.encode()
        self.end = position + TIMER_UNIT_BYTES
        return position

    @property
    def _free_bytes(self) -> int:
        return self._starts[-1] + self.file_bytes - self.end

    def _roll(self, start: int) -> None:
        self.write()
        self._disk.make_directory(self.directory)
        self._open[start] = self._disk.create(self._path(start), self.file_bytes, allocate=False)
        self._has_new_name = True
        self._starts.append(start)
        self.end = start

    def write(self) -> None:
        """Write the appended units to the file; an OSError retains them for another try."""
        if self._tail:
            last = self._starts[-1]
            self._disk.write(self._descriptor(last), self._tail, self._tail_position - last)
            self._unsynced.add(last)
            self._tail = bytearray()
            self._block = b""  # the cached block may end before the tail, which is written now

    @property
    def _tail_position(self) -> int:
        return self.end - len(self._tail)

    def truncate(self, end: int) -> None:
        """Cut the log at a position: fill the rest of its file with zeros, and remove later files."""
        while self._starts and self._starts[-1] >= max(end, 1) and len(self._starts) > 1:
            self._remove(self._starts.pop())
        if self._starts:
            last = self._starts[-1]
            self._disk.zero(self._descriptor(last), max(end - last, 0), self.file_bytes)
            self._unsynced.add(last)
        self.end = end
        self._block = b""

    def remove_before(self, physical_offset: int) -> int:
        """Remove files whose messages are all before the CommitLog's begin, except the last; return their number.

        Source: ``MappedFileQueue#deleteExpiredFileByOffsetForTimerLog``.
        """
        removed_count = 0
        while len(self._starts) > 1:
            unit = self.read(self._starts[0] + self._units_bytes - TIMER_UNIT_BYTES)
            if unit is None or unit.physical_offset >= physical_offset:
                break
            self._remove(self._starts.pop(0))
            removed_count += 1
        return removed_count

    def _remove(self, start: int) -> None:
        descriptor = self._open.pop(start, None)
        if descriptor is not None:
            self._disk.close(descriptor)
        self._unsynced.discard(start)
        self._disk.remove(self._path(start))

    # --- the disk -----------------------------------------------------------------------
    def collect_unsynced(self) -> tuple[list[str], bool]:
        """Collect the files to fsync, and whether their directory needs an fsync; then count all as flushed."""
        files, has_new_names = [self._path(start) for start in sorted(self._unsynced)], self._has_new_name
        self._unsynced.clear()
        self._has_new_name = False
        return files, has_new_names

    def rewrite(self, begin: int) -> None:
        """Rewrite the units after a position, before another flush.

        After a failed flush the units are in memory alone, in pages that count as clean: a flush would not write them.
        """
        for start in self._starts:
            at, end = max(begin - start, 0), min(self._tail_position - start, self.file_bytes)
            if at >= end:
                continue
            self._unsynced.add(start)
            while at < end:
                data = self._read(start, at, min(end - at, _COPY_BLOCK_BYTES))
                self._disk.write(self._descriptor(start), data, at)
                at += len(data)
        self._has_new_name = True

    def _path(self, start: int) -> str:
        return f"{self.directory}/{paths.segment_name(start)}"

    def _descriptor(self, start: int) -> int:
        descriptor = self._open.get(start)
        if descriptor is None:
            descriptor = self._open[start] = self._disk.open(self._path(start))
        return descriptor

    # --- reading ------------------------------------------------------------------------
    def read(self, position: int) -> TimerUnit | None:
        """Return the unit at a position; None without a unit."""
        if not self.begin <= position <= self.end - TIMER_UNIT_BYTES:
            return None
        at = position - self._block_at
        if not (self._block and 0 <= at <= len(self._block) - TIMER_UNIT_BYTES):
            if self._tail and position >= self._tail_position:
                return TimerUnit.decode(self._tail, position - self._tail_position)
            start = position - position % self.file_bytes
            # Chains are read backwards, so that the block ends with this unit.
            begin = max(start, position + TIMER_UNIT_BYTES - _BLOCK_BYTES)
            self._block = self._read(start, begin - start, position + TIMER_UNIT_BYTES - begin)
            self._block_at = begin
            at = position - begin
        try:
            return TimerUnit.decode(self._block, at)
        except FormatError:
            return None

    def _read(self, start: int, offset: int, size: int) -> bytes:
        return self._disk.read(self._descriptor(start), size, offset) if start in self._starts else b""

    def positions(self, begin: int, end: int) -> Iterator[int]:
        """Yield the positions of the units from ``begin`` on and before ``end``."""
        for start in self._starts:
            first = max(begin - start, 0) + start
            yield from range(first, min(start + self._units_bytes, end), TIMER_UNIT_BYTES)

    def blocks(self, begin: int = 0, end: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield the units between the begin of a file and the end of a unit, in blocks of some thousands.

        Yields position of the first unit, and the block's bytes.
        """
        self.write()
        for start in (start for start in self._starts if start >= begin):
            stop = min(start + self._units_bytes, self.end if end is None else end)
            for position in range(start, stop, _BLOCK_OF_UNITS_BYTES):
                yield position, self._read(start, position - start, min(_BLOCK_OF_UNITS_BYTES, stop - position))

    def sound_end(self, begin: int) -> int:
        """Return the end of the consecutive sound units from a position on."""
        position = max(begin, self.begin)
        for start in [start for start in self._starts if start + self.file_bytes > position]:
            position = max(position, start)
            sound, is_full = self._sound_end_in_file(start, position - start)
            position = start + sound
            if not is_full:
                return position
        return position

    def _sound_end_in_file(self, start: int, offset: int) -> tuple[int, bool]:
        """Return the offset in a file at which its sound units end, and whether a BLANK follows."""
        step = _BLOCK_BYTES // TIMER_UNIT_BYTES * TIMER_UNIT_BYTES
        while offset < self.file_bytes:
            block = self._read(start, offset, min(step, self.file_bytes - offset))
            for block_offset in range(0, len(block), TIMER_UNIT_BYTES):
                if len(block) - block_offset >= BLANK.size and BLANK.unpack_from(block, block_offset)[2] == MAGIC_BLANK:
                    return offset + block_offset, True
                try:
                    TimerUnit.decode(block, block_offset)
                except FormatError:
                    return offset + block_offset, False
            offset += step
        return self.file_bytes, True

    def close(self) -> None:
        """Close all files."""
        for descriptor in self._open.values():
            self._disk.close(descriptor)
        self._open.clear()
