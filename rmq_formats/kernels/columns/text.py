"""Finds texts in property blocks: all names and values, TAGS, KEYS and UNIQ_KEY, the parts of KEYS.

Arguments and tables of spans are those of ``rmq_formats.kernels.columns.gather``: ``column`` is that of the blocks'
positions, ``separators`` int32[bytes of the longest block], scratch. Blocks have been made valid UTF-8 before. The
plain-Python oracle is ``rmq_formats.codecs.properties``.
"""

from typing import Any, Final

import numpy as np
from numba import njit

from rmq_formats.codecs.layout import MAX_PROPERTIES_BYTES
from rmq_formats.kernels.bytes import (
    COMPILED,
    INLINED,
    find_byte,
    match_mask_32,
    read_i32,
    read_i64,
    same_bytes,
    trailing_zeros,
)

# Columns of a table of well-known properties, int64[n, WELL_KNOWN_COLUMNS]: spans of their values.
TAGS_AT: Final = 0
KEYS_AT: Final = 2
UNIQ_KEY_AT: Final = 4
WELL_KNOWN_COLUMNS: Final = 6

# Columns of an entry table, int64[n, ENTRY_COLUMNS]: spans of names and of values.
ENTRY_NAME_AT: Final = 0
ENTRY_VALUE_AT: Final = 2
ENTRY_COLUMNS: Final = 4
ENTRY_MIN_BYTES: Final = 3  # a name, 0x01 and a value; the last one of a block may lack its 0x02

MAX_BLOCK_BYTES: Final = 1 << 17  # U+FFFD for each byte, three bytes, is the worst that repairing UTF-8 does
FEW_SLOTS: Final = 64
NAME_SLOTS: Final = 1 << 15  # twice the entries that a block can have: four bytes make one
assert 3 * MAX_PROPERTIES_BYTES < MAX_BLOCK_BYTES
assert MAX_PROPERTIES_BYTES // 4 + 1 <= NAME_SLOTS // 2

_TAGS_WORD = int.from_bytes(b"TAGS", "big", signed=True)
_KEYS_WORD = int.from_bytes(b"KEYS", "big", signed=True)
_UNIQ_KEY_WORD = int.from_bytes(b"UNIQ_KEY", "big", signed=True)
_SPACE = np.uint8(32)


@njit("int64(uint8[::1], int64, int64, int32[::1])", **INLINED)
def find_separators(data: Any, start: int, stop: int, separators: Any) -> int:
    """Find the positions of all bytes 0x01 and 0x02 in ``data[start:stop]``, counted from ``start``; count them."""
    count = 0
    at = start
    while at < stop:
        if at + 32 <= len(data):
            address = np.uint64(data.ctypes.data + at)
            mask = match_mask_32(address, np.uint8(1)) | match_mask_32(address, np.uint8(2))
            if stop - at < 32:
                mask &= (np.uint64(1) << np.uint64(stop - at)) - np.uint64(1)
            while mask != 0:
                separators[count] = at - start + trailing_zeros(mask)
                count += 1
                mask &= mask - np.uint64(1)
            at += 32
        else:
            if data[at] == 1 or data[at] == 2:
                separators[count] = at - start
                count += 1
            at += 1
    return count


@njit("int64(uint8[::1], int64, int64)", **INLINED)
def _value_column(data: Any, at: int, name_bytes: int) -> int:
    """Return the column of the spans of TAGS, KEYS or UNIQ_KEY, if that is the name; else -1."""
    if name_bytes == 4:
        word = read_i32(data, at)
        if word == _TAGS_WORD:
            return TAGS_AT
        if word == _KEYS_WORD:
            return KEYS_AT
    elif name_bytes == 8 and read_i64(data, at) == _UNIQ_KEY_WORD:
        return UNIQ_KEY_AT
    return -1


@njit("void(uint8[::1], int64[:, ::1], int64, int32[::1], int64[:, ::1])", **COMPILED)
def find_well_known(data: Any, table: Any, column: int, separators: Any, well_known: Any) -> None:
    """Find TAGS, KEYS and UNIQ_KEY in property blocks; of several, the last one counts.

    ``well_known`` is int64[rows, WELL_KNOWN_COLUMNS], written: spans of the values.
    Source: ``MessageDecoder#string2messageProperties``.
    """
    for row in range(len(table)):
        start = table[row, column]
        stop = start + table[row, column + 1]
        well_known[row, 0], well_known[row, 1], well_known[row, 2], well_known[row, 3] = -1, 0, -1, 0
        well_known[row, 4], well_known[row, 5] = -1, 0
        count = find_separators(data, start, stop, separators)
        entry, name_end, index = start, np.int64(-1), 0
        while entry < stop:
            at = stop if index >= count else start + separators[index]
            index += 1
            if at < stop and data[at] == 1:
                name_end = at if name_end < 0 else name_end
                continue
            if name_end > entry and at - name_end > 1:
                value_at = _value_column(data, entry, name_end - entry)
                if value_at >= 0:
                    well_known[row, value_at], well_known[row, value_at + 1] = name_end + 1, at - name_end - 1
            entry, name_end = at + 1, np.int64(-1)


@njit("uint64(uint8[::1], int64, int64)", **INLINED)
def _name_hash(data: Any, at: int, byte_count: int) -> int:
    """Hash a property's name, from its length and at most its first and last eight bytes."""
    if byte_count >= 8:
        word = read_i64(data, at) ^ (read_i64(data, at + byte_count - 8) * np.int64(31))
    elif byte_count >= 4:
        word = read_i32(data, at) << np.int64(24) ^ read_i32(data, at + byte_count - 4)
    else:
        word = np.int64(0)
        for index in range(byte_count):
            word = (word << np.int64(8)) | np.int64(data[at + index])
    mixed = (np.uint64(word) + np.uint64(byte_count)) * np.uint64(0x9E3779B97F4A7C15)
    return mixed ^ (mixed >> np.uint64(29))


@njit("int64(uint8[::1], int64[:, ::1], int64, int64, int64, int32[::1], int64)", **INLINED)
def _find_name(data: Any, entries: Any, first: int, at: int, name_bytes: int, slots: Any, mask: int) -> int:
    """Find the slot of a name among one row's entries; its value is the entry's number plus one, or 0 if free."""
    slot = np.int64(_name_hash(data, at, name_bytes) & np.uint64(mask))
    while slots[slot] != 0:
        other = first + slots[slot] - 1
        if entries[other, 1] == name_bytes and same_bytes(data, entries[other, 0], data, at, name_bytes):
            return slot
        slot = (slot + 1) & mask
    return slot


@njit(
    "int64(uint8[::1], int64[:, ::1], int64, int32[::1], int32[::1], int64, int64, int32[::1], int64[:, ::1],"
    " int64[:, ::1])",
    **COMPILED,
)
def parse_properties(
    data: Any,
    table: Any,
    column: int,
    separators: Any,
    slots: Any,
    at: int,
    base: int,
    offsets: Any,
    entries: Any,
    well_known: Any,
) -> int:
    """Parse names and values of property blocks; of a repeated name the last value counts, in the first's place.

    Args:
        slots: int32[NAME_SLOTS], scratch; for longer blocks a power of two that is half of their bytes.
        base: entries that are in the output; ``offsets`` tells where each row's entries end.
        entries: int64[>= sum of bytes / ENTRY_MIN_BYTES + rows, ENTRY_COLUMNS], written from 0 on.
        well_known: int64[rows, WELL_KNOWN_COLUMNS], written: see ``find_well_known``.

    Returns:
        How many entries there are in these rows.

    Source: ``MessageDecoder#string2messageProperties``.
    """
    total = 0
    for row in range(len(table)):
        start = table[row, column]
        stop = start + table[row, column + 1]
        well_known[row, 0], well_known[row, 1], well_known[row, 2], well_known[row, 3] = -1, 0, -1, 0
        well_known[row, 4], well_known[row, 5] = -1, 0
        count = find_separators(data, start, stop, separators)
        # An entry has a separator of its own, so that at most half of the slots are taken.
        mask = FEW_SLOTS - 1 if 2 * count < FEW_SLOTS else len(slots) - 1
        for slot in range(mask + 1):
            slots[slot] = 0
        first = total
        entry, name_end, index = start, np.int64(-1), 0
        while entry < stop:
            end = stop if index >= count else start + separators[index]
            index += 1
            if end < stop and data[end] == 1:
                name_end = end if name_end < 0 else name_end
                continue
            if name_end > entry and end - name_end > 1:
                name_bytes, value_bytes = name_end - entry, end - name_end - 1
                slot = _find_name(data, entries, first, entry, name_bytes, slots, mask)
                if slots[slot] == 0:
                    slots[slot] = total - first + 1
                    entries[total, 0], entries[total, 1] = entry, name_bytes
                    total += 1
                place = first + slots[slot] - 1
                entries[place, 2], entries[place, 3] = name_end + 1, value_bytes
                value_column = _value_column(data, entry, name_bytes)
                if value_column >= 0:
                    well_known[row, value_column], well_known[row, value_column + 1] = name_end + 1, value_bytes
            entry, name_end = end + 1, np.int64(-1)
        offsets[at + row + 1] = base + total
    return total


@njit("int64(uint8[::1], int64[:, ::1], int64, int64, int64, int32[::1], int64[:, ::1])", **COMPILED)
def split_spaces(data: Any, table: Any, column: int, at: int, base: int, offsets: Any, parts: Any) -> int:
    """Split texts at spaces, and count the parts; empty parts are left out. Source: ``IndexService#buildIndex``.

    Args:
        base: parts that are in the output; ``offsets`` tells where each row's parts end.
        parts: int64[>= sum of bytes / 2 + rows, 2], written from 0 on: spans.
    """
    count = 0
    for row in range(len(table)):
        begin = table[row, column]
        stop = begin + table[row, column + 1]
        while begin < stop:
            end = find_byte(data, begin, stop, _SPACE)
            if end > begin:
                parts[count, 0], parts[count, 1] = begin, end - begin
                count += 1
            begin = end + 1
        offsets[at + row + 1] = base + count
    return count
