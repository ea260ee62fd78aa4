"""One IndexFile of a running store: mapped, appended to in place, searched. Source: ``IndexFile``."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_core.store.files.disk import Disk
from rmq_core.store.files.mapped_file import MappedFile
from rmq_formats.codecs.index import IndexEntry, IndexHeader, entry_position, slot_position
from rmq_formats.codecs.layout import INDEX_COUNT_AT, INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, index_file_bytes

# Step of allocation: a write through the map needs allocated blocks, as a full disk would end the process.
_ALLOCATION_BYTES: Final = 4 << 20


class MappedIndexFile(MappedFile):
    """One IndexFile, mapped.

    Attributes:
        name: the file's name as a number, in the order of which files are read.
        slots: ``maxHashSlotNum``.
        entries: ``maxIndexNum``; entry 0 is never used.
    """

    def __init__(self, path: str, name: int, slots: int, entries: int, disk: Disk) -> None:
        super().__init__(path, index_file_bytes(slots, entries), disk)
        self.name = name
        self.slots = slots
        self.entries = entries
        self.is_dirty = False
        self._allocated = 0

    @classmethod
    def create(
        cls, path: str, name: int, slots: int, entries: int, disk: Disk, end: tuple[int, int]
    ) -> "MappedIndexFile":
        """Create a file; ``end`` is end timestamp (ms) and physical offset of the previous file, or 0 and 0."""
        file = cls(path, name, slots, entries, disk)
        file._descriptor = disk.create(path, file.size, allocate=False)
        try:
            file._allocate(INDEX_HEADER_BYTES)
        except OSError:
            disk.remove(path)
            raise
        timestamp, physical_offset = (max(value, 0) for value in end)
        header = IndexHeader(timestamp, timestamp, physical_offset, physical_offset)
        file.map[:INDEX_HEADER_BYTES] = header.encode()
        return file

    @property
    def header(self) -> IndexHeader:
        """The current header."""
        return IndexHeader.decode(self.map[:INDEX_HEADER_BYTES])

    @property
    def index_count(self) -> int:
        """Number of the next entry."""
        return max(int.from_bytes(self.map[INDEX_COUNT_AT : INDEX_COUNT_AT + 4], "big", signed=True), 1)

    @property
    def room(self) -> int:
        """Number of entries that still fit."""
        return max(self.entries - self.index_count, 0)

    @property
    def allocated_count(self) -> int:
        """Number of the first entry whose disk blocks are not allocated yet."""
        return max(self._allocated - entry_position(0, self.slots), 0) // INDEX_ENTRY_BYTES

    def _allocate(self, end: int) -> None:
        if self._allocated == 0:  # the first entry also writes to header and slots
            first = entry_position(0, self.slots)
            self._disk.allocate(self.descriptor, 0, first)
            self._allocated = first
        while self._allocated < end:
            step = min(_ALLOCATION_BYTES, self.size - self._allocated)
            self._disk.allocate(self.descriptor, self._allocated, step)
            self._allocated += step

    def append(self, keys: NDArray[np.int64]) -> None:
        """Append entries, rows of a key table in log order; the caller checks ``room``. An OSError appends none."""
        from rmq_formats.kernels.index import append_in_place  # noqa: PLC0415 # numba, see ``kernel_loading``

        self._allocate(entry_position(self.index_count + len(keys), self.slots))
        append_in_place(self.array, self.slots, keys)

    def entry(self, number: int) -> IndexEntry:
        """Return an entry by its number."""
        at = entry_position(number, self.slots)
        return IndexEntry.decode(self.map[at : at + INDEX_ENTRY_BYTES])

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the physical offsets of a hash's entries, newest first, as ``rmq_formats.read.index_lookup`` does."""
        begin_timestamp_ms = self.header.begin_timestamp_ms
        slot_at = slot_position(key_hash, self.slots)
        number = int.from_bytes(self.map[slot_at : slot_at + 4], "big", signed=True)
        bound = min(self.index_count, self.entries)
        while 0 < number < bound:  # links lead to lower numbers, so a damaged chain that is a cycle ends
            entry = self.entry(number)
            store_ms = begin_timestamp_ms + entry.seconds * 1000
            if entry.seconds < 0:
                return
            if entry.key_hash == key_hash and begin_ms <= store_ms <= end_ms:
                yield entry.physical_offset
            if store_ms < begin_ms:
                return
            bound, number = number, entry.previous

    def count_below(self, physical_offset: int) -> int:
        """Return the number of the first entry whose record is at or after a physical offset, in log order."""
        numbers = range(1, self.index_count)
        return 1 + bisect_left(numbers, physical_offset, key=lambda number: self.entry(number).physical_offset)

    def truncate(self, header: IndexHeader) -> None:
        """Remove all entries beyond a header's count, and rebuild the hash slots from the remaining entries.

        After an OSError the store cannot be opened.
        """
        from rmq_formats.kernels.index import rechain  # noqa: PLC0415 # as above

        end = entry_position(header.index_count, self.slots)
        self.unmap()  # the file is truncated and extended again
        self._disk.zero(self.descriptor, end, self.size)
        self._allocated = 0
        self._allocate(end)
        slot_count = int(rechain(self.array, self.slots, header.index_count))
        self.map[:INDEX_HEADER_BYTES] = replace(header, slot_count=slot_count).encode()

    def is_sound(self) -> bool:
        """Return whether the file has a header that fits the store's settings.

        A file that was created but not flushed before a loss of power has a header of zeros.
        """
        if not any(self.map[:INDEX_HEADER_BYTES]):
            return False
        header = self.header
        return header.index_count <= self.entries and 0 <= header.begin_physical_offset <= header.end_physical_offset

    def fsync(self) -> None:
        """Flush the file to the disk."""
        self.is_dirty = False
        self._disk.sync(self.descriptor)
