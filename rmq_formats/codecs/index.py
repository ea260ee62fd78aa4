"""Codec of IndexFiles: an on-disk hash table from message keys to physical offsets.

Header, slots, entries; a slot names the newest entry of its chain, and an entry the one before it.
Source: ``IndexHeader#load``, ``IndexFile#isTimeMatched``.
"""

from dataclasses import astuple, dataclass, replace
from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from rmq_formats.codecs.layout import INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, INDEX_SLOT_BYTES, pack_fields
from rmq_formats.errors import OptionError, TruncatedError

_HEADER = Struct(">qqqqii")
_SLOT = Struct(">i")
_ENTRY = Struct(">iqii")
ENTRY_DTYPE: Final = np.dtype(
    [("key_hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
assert _HEADER.size == INDEX_HEADER_BYTES
assert _SLOT.size == INDEX_SLOT_BYTES
assert _ENTRY.size == ENTRY_DTYPE.itemsize == INDEX_ENTRY_BYTES

MAX_INT: Final = (1 << 31) - 1
MAX_LONG: Final = (1 << 63) - 1
ALL_TAGS: Final = 0  # physical offset from which TAGS are indexed, as brokers since 5.4 do
NO_TAGS: Final = MAX_LONG  # … as brokers before 5.4 do
TAGS_MARK: Final = "T#"  # before TAGS in a key: that is topic + "#T#" + TAGS
AUTO: Final = "auto"
INDEX_TAGS: Final[dict[str, int | None]] = {AUTO: None, "yes": ALL_TAGS, "no": NO_TAGS}


def parse_index_tags(text: str) -> int | None:
    """Parse an option ``--index-tags``: the physical offset from which TAGS are indexed; None for ``auto``.

    Raises OptionError for a text other than ``auto``, ``yes`` and ``no``.
    """
    if text not in INDEX_TAGS:
        raise OptionError(f"--index-tags {text}: give {', '.join(INDEX_TAGS)}")
    return INDEX_TAGS[text]


class IndexBound(NamedTuple):
    """Store time and physical offset of the first or of the last message of an IndexFile."""

    timestamp_ms: int
    physical_offset: int


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """Header of an IndexFile, its first 40 bytes: times and physical offsets of the first and last entry's messages.

    Attributes:
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
        """Encode the header's 40 bytes. Raises LengthError if a number does not fit into its field."""
        return pack_fields(_HEADER, *astuple(self))

    @classmethod
    def decode(cls, buffer: bytes | bytearray | memoryview) -> "IndexHeader":
        """Decode a header; an index count of 0, without an entry yet, is read as 1. Raises TruncatedError."""
        if len(buffer) < INDEX_HEADER_BYTES:
            raise TruncatedError("the bytes end within an IndexFile's header", actual=len(buffer))
        header = cls(*_HEADER.unpack_from(buffer))
        return replace(header, index_count=max(header.index_count, 1))

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Return whether a query of that time range has to look into this file."""
        first_ms, last_ms = self.begin_timestamp_ms, self.end_timestamp_ms
        # If the clock went back, last_ms may be the smaller one: hence three cases, as in Java.
        around = begin_ms < first_ms and end_ms > last_ms
        return around or first_ms <= begin_ms <= last_ms or first_ms <= end_ms <= last_ms


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One entry of an IndexFile: one key of one message.

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
        """Encode the entry's 20 bytes. Raises LengthError if a number does not fit into its field."""
        return pack_fields(_ENTRY, *astuple(self))

    @classmethod
    def decode(cls, buffer: bytes | bytearray | memoryview, position: int = 0) -> "IndexEntry":
        """Decode the entry at a position. Raises TruncatedError if fewer than 20 bytes are left."""
        if not 0 <= position <= len(buffer) - INDEX_ENTRY_BYTES:
            raise TruncatedError("the bytes end within an Index entry", physical_offset=position)
        return cls(*_ENTRY.unpack_from(buffer, position))


def slot_position(key_hash: int, slots: int) -> int:
    """Return the file position of a hash's slot, in bytes."""
    return INDEX_HEADER_BYTES + key_hash % slots * INDEX_SLOT_BYTES


def entry_position(number: int, slots: int) -> int:
    """Return the file position of an entry, in bytes."""
    return INDEX_HEADER_BYTES + slots * INDEX_SLOT_BYTES + number * INDEX_ENTRY_BYTES
