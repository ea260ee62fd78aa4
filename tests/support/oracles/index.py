"""Builds IndexFiles and looks keys up in them, in plain Python.

This is the oracle that ``rmq_formats.kernels.index``, the broker's Index and the look-ups in stores at rest are
compared with, and the place to read the rules.
"""

from collections.abc import Iterable
from struct import Struct

from rmq_formats.codecs.hashing import index_tags_key
from rmq_formats.codecs.index import (
    MAX_INT,
    MAX_LONG,
    NO_TAGS,
    IndexEntry,
    IndexHeader,
    entry_position,
    slot_position,
)
from rmq_formats.codecs.layout import (
    FLAG_TRANSACTION_MASK,
    FLAG_TRANSACTION_ROLLBACK,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER_BYTES,
    index_file_bytes,
)
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.errors import LengthError, OptionError

_SLOT = Struct(">i")


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
    """Find the physical offsets of the entries with a hash, newest first; other keys may share the hash.

    In a sound chain each entry's number is below that of the one before. The walk ends where that does not
    hold, so that no damage makes it go round (Java follows any link but one to itself).

    Args:
        image: the whole file.
        slots: as the file was made (``maxHashSlotNum``).
        entries: likewise (``maxIndexNum``).
        key_hash: of topic and key, see ``rmq_formats.codecs.hashing.index_key_hash``.
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


def index_keys(message: StoredMessage, tags_from: int = NO_TAGS) -> list[str]:
    """Return the keys under which dispatch indexes a message, in order: its UNIQ_KEY, the parts of KEYS, its TAGS.

    The TAGS only of messages at or behind the physical offset ``tags_from``: brokers before 5.4 do not index them.

    None for the rollback of a transaction. A key may come twice, and is then indexed twice.

    Source: ``IndexService#buildIndex``.
    """
    if message.sys_flag & FLAG_TRANSACTION_MASK == FLAG_TRANSACTION_ROLLBACK:
        return []
    uniq_key = message.uniq_key
    tags = [index_tags_key(message.tags)] if message.tags and message.physical_offset >= tags_from else []
    return ([] if uniq_key is None else [uniq_key]) + message.keys + tags


class _IndexFileBuilder:
    """An IndexFile that is being filled in memory; the header's fields are kept apart until it is done."""

    def __init__(self, slots: int, entries_per_file: int, previous: "_IndexFileBuilder | None") -> None:
        self.slots = slots
        self.capacity = entries_per_file
        self.image = bytearray(index_file_bytes(slots, entries_per_file))
        # A new file starts with the end of the one before; its first entry counts seconds from there.
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
    """Build the IndexFiles, in order, from keys in log order.

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
    file: _IndexFileBuilder | None = None
    for key_hash, physical_offset, store_timestamp_ms in entries:
        if file is None or file.is_full:
            if file is not None:
                done.append(file.finish())
            file = _IndexFileBuilder(slots, entries_per_file, file)
        if key_hash is not None:
            file.put(key_hash, physical_offset, store_timestamp_ms)
    return [*done, file.finish()] if file is not None else done
