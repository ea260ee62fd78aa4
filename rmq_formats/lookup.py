"""An IndexFile on disk, read in places: its header, its chains, its entries in order.

How many slots it has stands nowhere in it: they are the broker's settings, and are found out here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.errors import FormatError
from rmq_formats.index import MAX_LONG, IndexEntry, IndexHeader, entry_position, slot_position
from rmq_formats.layout import (
    INDEX_ENTRIES,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
    INDEX_SLOTS,
    index_file_bytes,
)
from rmq_formats.segment import OpenRange, read_range

ENTRY: Final = np.dtype([("key_hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
assert ENTRY.itemsize == INDEX_ENTRY_BYTES

_SLOT = Struct(">i")
_INTEGERS_AT_ONCE: Final = 1 << 18
_ENTRIES_AT_ONCE: Final = 1 << 16
_UNUSED_INTEGERS: Final = INDEX_ENTRY_BYTES // INDEX_SLOT_BYTES  # entry 0


@dataclass(frozen=True, slots=True)
class IndexFile:
    """An open IndexFile.

    Attributes:
        file: its bytes.
        path: its path, for errors.
        header: as it was when the file was opened.
        slots: ``maxHashSlotNum``; 0 where it has no entry by which to tell.
        entries: ``maxIndexNum``: the most that fit, entry 0 included.
    """

    file: OpenRange
    path: str
    header: IndexHeader
    slots: int
    entries: int

    @classmethod
    def read(cls, file: OpenRange, path: str) -> "IndexFile":
        """Read the header, and find the number of slots.

        Raises:
            FormatError: no header, or no number of slots fits it.
        """
        header = IndexHeader.decode(read_range(file, 0, INDEX_HEADER_BYTES))
        for slots in (INDEX_SLOTS, *_candidates(file, header)):
            rest = file.size_bytes - index_file_bytes(slots, 0)
            entries = rest // INDEX_ENTRY_BYTES
            if rest % INDEX_ENTRY_BYTES == 0 and header.index_count <= entries:
                found = cls(file, path, header, slots, entries)
                if found._ends_in_its_slot():
                    return found
        if header.index_count <= 1:
            return cls(file, path, header, 0, 0)
        raise FormatError("not an IndexFile, or a damaged one: no number of slots fits its entries", path=path)

    @property
    def entry_count(self) -> int:
        """Entries in use."""
        return self.header.index_count - 1

    def _ends_in_its_slot(self) -> bool:
        """Whether the last entry is the newest of its chain, as it must be."""
        last = self.header.index_count - 1
        if last < 1:  # of no entry anything holds: only the default is believed
            return self.file.size_bytes == index_file_bytes(INDEX_SLOTS, INDEX_ENTRIES)
        key_hash = self._entry(last).key_hash
        return key_hash >= 0 and self._slot(key_hash) == last

    def _slot(self, key_hash: int) -> int:
        data = read_range(self.file, slot_position(key_hash, self.slots), INDEX_SLOT_BYTES)
        return int(_SLOT.unpack(data)[0])

    def _entry(self, number: int) -> IndexEntry:
        return IndexEntry.decode(read_range(self.file, entry_position(number, self.slots), INDEX_ENTRY_BYTES))

    def find(self, key_hash: int, *, begin_ms: int = 0, end_ms: int = MAX_LONG) -> Iterator[int]:
        """Physical offsets of the entries with a hash, newest first, by reads of 20 bytes.

        The rules are those of ``rmq_formats.index.find_key``, which works on a whole file in memory.
        """
        number = self._slot(key_hash) if self.slots else 0
        bound = self.header.index_count
        while 0 < number < bound:
            entry = self._entry(number)
            store_ms = self.store_ms(entry.seconds)
            if entry.seconds < 0:
                break
            if entry.key_hash == key_hash and begin_ms <= store_ms <= end_ms:
                yield entry.physical_offset
            if store_ms < begin_ms:
                break
            bound, number = number, entry.previous

    def store_ms(self, seconds: int) -> int:
        """Store time of an entry in milliseconds, to the second."""
        return self.header.begin_timestamp_ms + seconds * 1000

    def chunks(self, first: int = 1) -> Iterator[tuple[int, NDArray[np.void]]]:
        """Entries in order, as number of the first and an array of ``ENTRY``."""
        for number in range(max(1, first), self.header.index_count if self.slots else 0, _ENTRIES_AT_ONCE):
            count = min(_ENTRIES_AT_ONCE, self.header.index_count - number)
            data = read_range(self.file, entry_position(number, self.slots), count * INDEX_ENTRY_BYTES)
            yield number, np.frombuffer(data, dtype=ENTRY)


def _candidates(file: OpenRange, header: IndexHeader) -> list[int]:
    """Numbers of slots that the header allows.

    Slots in use, as many as it says, are the first integers that are not zero. Entry 0, never used, is five
    zeros; then comes the hash of entry 1, and if that is 0, one of its next integers.
    """
    wanted = header.slot_count
    end = file.size_bytes
    for at in range(INDEX_HEADER_BYTES, end, _INTEGERS_AT_ONCE * INDEX_SLOT_BYTES):
        size = min(_INTEGERS_AT_ONCE * INDEX_SLOT_BYTES, (end - at) // INDEX_SLOT_BYTES * INDEX_SLOT_BYTES)
        used = np.flatnonzero(np.frombuffer(read_range(file, at, size), dtype=">i4"))
        if len(used) > wanted >= 0:
            number = (at - INDEX_HEADER_BYTES) // INDEX_SLOT_BYTES + int(used[wanted])
            return [slots for slots in range(number - _UNUSED_INTEGERS, number - 2 * _UNUSED_INTEGERS, -1) if slots > 0]
        wanted -= len(used)
    return []
