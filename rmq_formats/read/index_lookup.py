"""Look-ups with few small reads: keys in IndexFiles, store times in ConsumeQueues, ranges that the Index may lack.

An IndexFile does not record its number of slots, a setting of the broker; this module infers the number.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import paths
from rmq_formats.codecs.hashing import index_key_hash
from rmq_formats.codecs.index import ENTRY_DTYPE, MAX_LONG, IndexEntry, IndexHeader, entry_position, slot_position
from rmq_formats.codecs.layout import (
    INDEX_ENTRIES,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
    INDEX_SLOTS,
    RECORD_VERSIONS,
    index_file_bytes,
)
from rmq_formats.codecs.record_layout import HOST_FLAGS, head_struct, store_timestamp_at
from rmq_formats.errors import FormatError
from rmq_formats.read.queue_units import QueueUnit
from rmq_formats.read.queues import ConsumeQueue
from rmq_formats.read.ranges import Range, segment_at
from rmq_formats.storage.segments import OpenRange, Segment, Storage, read_range
from rmq_formats.storage.store_files import StoreFiles

_SLOT = Struct(">i")
_INT64 = Struct(">q")
_INTEGERS_AT_ONCE: Final = 1 << 18
_ENTRIES_AT_ONCE: Final = 1 << 16
_INTEGERS_PER_ENTRY: Final = INDEX_ENTRY_BYTES // INDEX_SLOT_BYTES


@dataclass(frozen=True, slots=True)
class IndexFile:
    """An open IndexFile, with the header at the time of the opening."""

    file: OpenRange
    header: IndexHeader
    slots: int  # ``maxHashSlotNum``; 0 in a file without entries, which show the number
    entries: int  # ``maxIndexNum``: the largest number of entries, entry 0 included

    @classmethod
    def read(cls, file: OpenRange, path: str) -> "IndexFile":
        """Read the header of a file, and find the number of slots; ``path`` is for errors. Raises FormatError."""
        header = IndexHeader.decode(read_range(file, 0, INDEX_HEADER_BYTES))
        for slots in chain([INDEX_SLOTS], _candidates(file, header)):
            entries, rest = divmod(file.size_bytes - index_file_bytes(slots, 0), INDEX_ENTRY_BYTES)
            index_file = cls(file, header, slots, entries)
            if rest == 0 and header.index_count <= entries and index_file._ends_in_its_slot():
                return index_file
        if header.index_count <= 1:
            return cls(file, header, 0, 0)
        raise FormatError("not an IndexFile, or a damaged one: no number of slots fits its entries", path=path)

    @property
    def entry_count(self) -> int:
        """Number of entries in use."""
        return self.header.index_count - 1

    def _ends_in_its_slot(self) -> bool:
        """Return whether the last entry is the head of its slot's chain, as in a sound file."""
        last = self.header.index_count - 1
        if last < 1:  # without an entry nothing can be checked: only the default is accepted
            return self.file.size_bytes == index_file_bytes(INDEX_SLOTS, INDEX_ENTRIES)
        key_hash = self._entry(last).key_hash
        newest = self._slot(key_hash) if key_hash >= 0 else 0
        if newest > last:  # a running broker has added entries since the header was read
            return newest < IndexHeader.decode(read_range(self.file, 0, INDEX_HEADER_BYTES)).index_count
        return newest == last

    def _slot(self, key_hash: int) -> int:
        data = read_range(self.file, slot_position(key_hash, self.slots), INDEX_SLOT_BYTES)
        return int(_SLOT.unpack(data)[0])

    def _entry(self, number: int) -> IndexEntry:
        return IndexEntry.decode(read_range(self.file, entry_position(number, self.slots), INDEX_ENTRY_BYTES))

    def find(self, key_hash: int, *, begin_ms: int = 0, end_ms: int = MAX_LONG) -> Iterator[int]:
        """Find physical offsets of the entries with a hash, newest first, by reads of 20 bytes.

        The numbers of the entries in a sound chain descend. The walk ends at a link to a larger number, so that damage
        makes no endless loop (Java follows any link but one to itself). Source: ``IndexFile#selectPhyOffset``.
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
        """Compute an entry's store time in milliseconds, to the second."""
        return self.header.begin_timestamp_ms + seconds * 1000

    def chunks(self, first: int = 1) -> Iterator[tuple[int, NDArray[np.void]]]:
        """Read entries in order, as number of the first and an array of ENTRY_DTYPE."""
        for number in range(max(1, first), self.header.index_count if self.slots else 0, _ENTRIES_AT_ONCE):
            count = min(_ENTRIES_AT_ONCE, self.header.index_count - number)
            data = read_range(self.file, entry_position(number, self.slots), count * INDEX_ENTRY_BYTES)
            yield number, np.frombuffer(data, dtype=ENTRY_DTYPE)


def _candidates(file: OpenRange, header: IndexHeader) -> Iterator[int]:
    """Find the numbers of slots that the header and the file's data allow.

    Used slots, as many as the header says, are the first integers that are not zero. Entry 0, never used, is five
    zeros; then comes the hash of entry 1, and if that is 0, one of its next integers.
    """
    slots_to_skip = max(header.slot_count, 0)
    for at in range(INDEX_HEADER_BYTES, file.size_bytes, _INTEGERS_AT_ONCE * INDEX_SLOT_BYTES):
        data = read_range(file, at, _INTEGERS_AT_ONCE * INDEX_SLOT_BYTES)
        used = np.flatnonzero(np.frombuffer(data, dtype=">i4", count=len(data) // INDEX_SLOT_BYTES))
        if len(used) > slots_to_skip:
            number = (at - INDEX_HEADER_BYTES) // INDEX_SLOT_BYTES + int(used[slots_to_skip])
            first_hash = range(number, number - _INTEGERS_PER_ENTRY, -1)  # the first one may be any integer of entry 1
            yield from (entry_1 - _INTEGERS_PER_ENTRY for entry_1 in first_hash if entry_1 > _INTEGERS_PER_ENTRY)
            return
        slots_to_skip -= len(used)


def first_unit_since(storage: Storage, log: Sequence[Segment], queue: ConsumeQueue, time_ms: int) -> QueueUnit | None:
    """Bisect for the first unit whose message was stored at a time or later; None without such a unit.

    Units of records that were deleted with the oldest files count as earlier. The log has at least one file.
    Source: ``ConsumeQueue#getOffsetInQueueByTime``.

    Raises:
        FormatError: a unit points to no record: the queue cannot be searched.
    """
    first, end = queue.files.first_offset, queue.max_offset()

    def is_since(queue_offset: int) -> bool:
        unit = queue.first_message(queue_offset, end)
        if unit is None:
            return True
        stored_ms = read_store_timestamp_ms(storage, log, unit.physical_offset)
        return (-1 if stored_ms is None else stored_ms) >= time_ms

    return queue.first_message(first + bisect_left(range(first, end), True, key=is_since), end)


def read_store_timestamp_ms(storage: Storage, log: Sequence[Segment], physical_offset: int) -> int | None:
    """Read the store time of a unit's record; None for a deleted record. Raises FormatError: there is no record."""
    if physical_offset < log[0].start_offset:
        return None
    segment = segment_at(log, physical_offset)
    if segment is None:
        raise FormatError("no file contains this offset", physical_offset)
    with storage.open(segment.path) as file:
        head = read_range(file, physical_offset - segment.start_offset, _TIMESTAMP_END).ljust(_TIMESTAMP_END, b"\0")
    magic, recorded_offset, sys_flag = _HEAD.unpack_from(head)
    if magic not in RECORD_VERSIONS or recorded_offset != physical_offset:
        raise FormatError("a unit that points to no record", physical_offset, segment.path)
    return int(_INT64.unpack_from(head, store_timestamp_at(sys_flag))[0])


_HEAD: Final = head_struct("magic", "physical_offset", "sys_flag")
_TIMESTAMP_END: Final = store_timestamp_at(HOST_FLAGS) + _INT64.size


def index_paths(store: StoreFiles) -> list[str]:
    """List the IndexFiles, oldest first."""
    directory = paths.index_dir(store.root)
    return [
        f"{directory}/{entry.name}"
        for entry in store.storage.entries(directory)
        if paths.is_index_file_name(entry.name)
    ]


def find_key_offsets(storage: Storage, files: Sequence[str], topics: Iterable[str], key: str) -> list[int]:
    """Look up physical offsets, ascending, of the entries with the hash of a key in any of the topics.

    Other keys may share the hash: the caller has to check the records. Raises FormatError.
    """
    hashes = sorted({index_key_hash(topic, key) for topic in topics})
    physical_offsets: set[int] = set()
    for path in files:
        with storage.open(path) as file:
            index = IndexFile.read(file, path)
            for key_hash in hashes:
                physical_offsets.update(index.find(key_hash))
    return sorted(physical_offsets)


def unknown_ranges(storage: Storage, files: Sequence[str], begin: int, end: int) -> list[Range]:
    """Return the parts of the log ``[begin, end)`` whose keys the Index may lack. Raises FormatError.

    A file covers all keys from its first entry's record up to its last entry's record, and some keys of the last.
    """
    covered_ranges = []
    for path in files:
        with storage.open(path) as file:
            header = IndexFile.read(file, path).header
        if header.index_count > 1:
            covered_ranges.append((header.begin_physical_offset, header.end_physical_offset))
    ranges, at = [], begin
    for first, last in sorted(covered_ranges):
        if first > at:
            ranges.append((at, min(first, end)))
        at = max(at, last)
    if at < end:
        ranges.append((at, end))
    return [(first, last) for first, last in ranges if first < last]
