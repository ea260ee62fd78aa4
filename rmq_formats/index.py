"""IndexFile: a hash table on disk, from a message's keys to physical offsets.

Header, slots, entries; a slot names the newest entry of its chain, and an entry the one before it.
"""

from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from struct import Struct
from typing import Final

from rmq_formats.errors import LengthError, OptionError, TruncatedError
from rmq_formats.layout import (
    FLAG_TRANSACTION_MASK,
    FLAG_TRANSACTION_ROLLBACK,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
    index_file_bytes,
)
from rmq_formats.message import StoredMessage
from rmq_formats.packing import pack_fields

_HEADER = Struct(">qqqqii")
_SLOT = Struct(">i")
_ENTRY = Struct(">iqii")
assert _HEADER.size == INDEX_HEADER_BYTES
assert _SLOT.size == INDEX_SLOT_BYTES
assert _ENTRY.size == INDEX_ENTRY_BYTES

MAX_INT: Final = (1 << 31) - 1
MAX_LONG: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The first 40 bytes.

    Attributes:
        begin_timestamp_ms: store timestamp of the first entry's message.
        end_timestamp_ms: of the last one's.
        begin_physical_offset: physical offset of the first entry's message.
        end_physical_offset: of the last one's.
        slot_count: slots in use.
        index_count: number of the next entry; entries begin at 1.
    """

    begin_timestamp_ms: int = 0
    end_timestamp_ms: int = 0
    begin_physical_offset: int = 0
    end_physical_offset: int = 0
    slot_count: int = 0
    index_count: int = 1

    def encode(self) -> bytes:
        """The 40 bytes on disk.

        Raises:
            LengthError: a number does not fit into its field.
        """
        return pack_fields(_HEADER, *astuple(self))

    @classmethod
    def decode(cls, buffer: bytes | bytearray | memoryview) -> "IndexHeader":
        """Read a header; an index count of 0, in a file without an entry yet, is read as 1.

        Raises:
            TruncatedError: fewer than 40 bytes.

        Source: ``IndexHeader#load``.
        """
        if len(buffer) < INDEX_HEADER_BYTES:
            raise TruncatedError("the bytes end within an IndexFile's header", actual=len(buffer))
        header = cls(*_HEADER.unpack_from(buffer))
        return replace(header, index_count=max(header.index_count, 1))

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Whether a query of that time range has to look here. Source: ``IndexFile#isTimeMatched``."""
        first_ms, last_ms = self.begin_timestamp_ms, self.end_timestamp_ms
        # Where a clock went back, last_ms may be the smaller one: hence three cases, as in Java.
        around = begin_ms < first_ms and end_ms > last_ms
        return around or first_ms <= begin_ms <= last_ms or first_ms <= end_ms <= last_ms


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One key of one message.

    Attributes:
        key_hash: 0 to 2^31 - 1.
        physical_offset: of the record, in bytes.
        seconds: store timestamp minus the header's begin timestamp as it was then.
        previous: number of the entry before it in its chain; 0 for none.
    """

    key_hash: int
    physical_offset: int
    seconds: int
    previous: int

    def encode(self) -> bytes:
        """The 20 bytes on disk.

        Raises:
            LengthError: a number does not fit into its field.
        """
        return pack_fields(_ENTRY, *astuple(self))

    @classmethod
    def decode(cls, buffer: bytes | bytearray | memoryview, position: int = 0) -> "IndexEntry":
        """Read the entry at a position.

        Raises:
            TruncatedError: fewer than 20 bytes are left.
        """
        if not 0 <= position <= len(buffer) - INDEX_ENTRY_BYTES:
            raise TruncatedError("the bytes end within an Index entry", physical_offset=position)
        return cls(*_ENTRY.unpack_from(buffer, position))


def slot_position(key_hash: int, slots: int) -> int:
    """Where a hash's slot stands in the file, in bytes."""
    return INDEX_HEADER_BYTES + key_hash % slots * INDEX_SLOT_BYTES


def entry_position(number: int, slots: int) -> int:
    """Where an entry stands in the file, in bytes."""
    return INDEX_HEADER_BYTES + slots * INDEX_SLOT_BYTES + number * INDEX_ENTRY_BYTES


def find_key(
    image: bytes | bytearray | memoryview,
    slots: int,
    entries: int,
    key_hash: int,
    *,
    begin_ms: int = 0,
    end_ms: int = MAX_LONG,
    max_count: int | None = None,
) -> list[int]:
    """Physical offsets of the entries with a hash, newest first; other keys may share the hash.

    In a sound chain each entry's number is below that of the one before. The walk ends where that does not
    hold, so that no damage makes it go round (Java follows any link but one to itself).

    Args:
        image: the whole file.
        slots: as the file was made (``maxHashSlotNum``).
        entries: likewise (``maxIndexNum``).
        key_hash: of topic and key, see ``rmq_formats.hashing.index_key_hash``.
        begin_ms: earliest store time; entries know theirs to the second.
        end_ms: latest store time.
        max_count: stop after that many; None finds all.

    Raises:
        LengthError: the image is not a file of so many slots and entries.

    Source: ``IndexFile#selectPhyOffset``.
    """
    if slots < 1 or entries < 1 or len(image) != index_file_bytes(slots, entries):
        raise LengthError("size of an IndexFile", expected=index_file_bytes(slots, entries), actual=len(image))
    header = IndexHeader.decode(image)
    found: list[int] = []
    bound = min(header.index_count, entries)
    number = _SLOT.unpack_from(image, slot_position(key_hash, slots))[0]
    while 0 < number < bound and (max_count is None or len(found) < max_count):
        entry = IndexEntry.decode(image, entry_position(number, slots))
        store_ms = header.begin_timestamp_ms + entry.seconds * 1000
        if entry.seconds < 0:
            break
        if entry.key_hash == key_hash and begin_ms <= store_ms <= end_ms:
            found.append(entry.physical_offset)
        if store_ms < begin_ms:
            break
        bound, number = number, entry.previous
    return found


def index_keys(message: StoredMessage) -> list[str]:
    """The keys under which dispatch indexes a message, in order: its UNIQ_KEY, then the parts of KEYS.

    None for the rollback of a transaction. A key may come twice, and is then indexed twice.

    Source: ``IndexService#buildIndex``.
    """
    if message.sys_flag & FLAG_TRANSACTION_MASK == FLAG_TRANSACTION_ROLLBACK:
        return []
    uniq_key = message.uniq_key
    return ([] if uniq_key is None else [uniq_key]) + message.keys


class _IndexFile:
    """One file that is being filled; the header's fields are kept apart until it is done."""

    def __init__(self, slots: int, entries_per_file: int, previous: "_IndexFile | None") -> None:
        self.slots = slots
        self.capacity = entries_per_file
        self.image = bytearray(index_file_bytes(slots, entries_per_file))
        # A new file begins with the end of the one before; its first entry counts its seconds from there.
        self.end_timestamp_ms: int = max(previous.end_timestamp_ms, 0) if previous else 0
        self.end_offset: int = max(previous.end_offset, 0) if previous else 0
        self.begin_timestamp_ms = self.end_timestamp_ms
        self.begin_offset = self.end_offset
        self.slot_count = 0
        self.index_count = 1

    @property
    def is_full(self) -> bool:
        return self.index_count >= self.capacity

    def put(self, key_hash: int, physical_offset: int, store_timestamp_ms: int) -> None:
        """Add an entry. Source: ``IndexFile#putKey``."""
        slot_at = slot_position(key_hash, self.slots)
        previous = _SLOT.unpack_from(self.image, slot_at)[0]
        seconds = 0
        if self.begin_timestamp_ms > 0:
            seconds = min(max(store_timestamp_ms - self.begin_timestamp_ms, 0) // 1000, MAX_INT)
        entry = IndexEntry(key_hash, physical_offset, seconds, previous)
        entry_at = entry_position(self.index_count, self.slots)
        self.image[entry_at : entry_at + INDEX_ENTRY_BYTES] = entry.encode()
        _SLOT.pack_into(self.image, slot_at, self.index_count)
        if self.index_count == 1:
            self.begin_timestamp_ms, self.begin_offset = store_timestamp_ms, physical_offset
        self.end_timestamp_ms, self.end_offset = store_timestamp_ms, physical_offset
        self.slot_count += previous == 0
        self.index_count += 1

    def finish(self) -> bytes:
        header = IndexHeader(
            self.begin_timestamp_ms,
            self.end_timestamp_ms,
            self.begin_offset,
            self.end_offset,
            self.slot_count,
            self.index_count,
        )
        self.image[:INDEX_HEADER_BYTES] = header.encode()
        return bytes(self.image)


def build_index(entries: Iterable[tuple[int | None, int, int]], slots: int, entries_per_file: int) -> list[bytes]:
    """The IndexFiles, in order, of keys in log order.

    Java makes the next file when a message comes along and the last file is full, even if that message
    has no key. Give a key hash of None for such a message to have the same files in that case too.

    Args:
        entries: key hash, physical offset (bytes) and store timestamp (ms) of each key.
        slots: slots of a file (``maxHashSlotNum``).
        entries_per_file: entries of a file (``maxIndexNum``); number 0 is never used.

    Raises:
        OptionError: a file with no room for an entry.

    Source: ``IndexService#buildIndex``, ``#getAndCreateLastIndexFile``.
    """
    if slots < 1 or entries_per_file < 2:
        raise OptionError(f"an IndexFile of {slots} slots and {entries_per_file} entries has no room for an entry")
    done: list[bytes] = []
    file: _IndexFile | None = None
    for key_hash, physical_offset, store_timestamp_ms in entries:
        if file is None or file.is_full:
            if file is not None:
                done.append(file.finish())
            file = _IndexFile(slots, entries_per_file, file)
        if key_hash is not None:
            file.put(key_hash, physical_offset, store_timestamp_ms)
    return [*done, file.finish()] if file is not None else done
