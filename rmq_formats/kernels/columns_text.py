"""Columns of text that is not in the record as it stands: properties, keys, hosts, message ids.

Spans are those of ``rmq_formats.kernels.columns``. Text has been made valid UTF-8 before. The plain-Python
oracles are ``rmq_formats.properties``, ``rmq_formats.hosts`` and ``rmq_formats.message_id``.
"""

from typing import Any, Final

import numpy as np
from numba import njit

from rmq_formats.kernels.bytes import copy_bytes, find_byte, read_i32, read_i64
from rmq_formats.kernels.scan import POSITION
from rmq_formats.kernels.text import find_properties
from rmq_formats.layout import RECORD_PHYSICAL_OFFSET_AT

# Columns of an entry table, int64[n, ENTRY_COLUMNS]: spans of names and of values.
ENTRY_NAME_AT: Final = 0
ENTRY_VALUE_AT: Final = 2
ENTRY_COLUMNS: Final = 4
ENTRY_MIN_BYTES: Final = 3  # a name, 0x01 and a value; the last one of a block may lack its 0x02

MAX_PROPERTY_SLOTS: Final = 16384  # a power of two above the 10,923 entries that 32,767 bytes can hold
MAX_HOST_TEXT_BYTES: Final = 54  # [ 39 ] : and a port of up to 11 characters
MAX_MESSAGE_ID_BYTES: Final = 56

_UPPER_HEX = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)
_LOWER_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_SPACE = np.uint8(32)


@njit("void(uint8[::1], int64[:, ::1], int64, int64[:, :, ::1])", cache=True, nogil=True)
def find_well_known(data: Any, table: Any, column: int, found: Any) -> None:
    """Find TAGS, KEYS, UNIQ_KEY and DELAY in property blocks.

    Args:
        data: uint8[n], the window.
        table: int64[rows, columns], a table of spans.
        column: that of the blocks' positions.
        found: int64[rows, 4, 2], written: see ``rmq_formats.kernels.text.find_properties``.
    """
    for row in range(len(table)):
        at = table[row, column]
        find_properties(data, at, at + table[row, column + 1], found[row])


@njit("boolean(uint8[::1], int64, int64, int64)", cache=True, nogil=True)
def same_bytes(data: Any, first: int, second: int, byte_count: int) -> bool:
    """Whether the window holds the same bytes at two positions."""
    for index in range(byte_count):
        if data[first + index] != data[second + index]:
            return False
    return True


@njit("uint64(uint8[::1], int64, int64)", cache=True, nogil=True)
def _name_hash(data: Any, at: int, byte_count: int) -> int:
    """Hash of a property's name, from its length and at most its first and last eight bytes."""
    if byte_count >= 8:
        word = read_i64(data, at) ^ (read_i64(data, at + byte_count - 8) * np.int64(31))
    else:
        word = np.int64(0)
        for index in range(byte_count):
            word = (word << np.int64(8)) | np.int64(data[at + index])
    mixed = (np.uint64(word) + np.uint64(byte_count)) * np.uint64(0x9E3779B97F4A7C15)
    return mixed ^ (mixed >> np.uint64(29))


@njit(
    "int64(uint8[::1], int64[:, ::1], int64, int64[::1], int32[::1], int64[:, ::1])",
    cache=True,
    nogil=True,
)
def parse_properties(data: Any, table: Any, column: int, slots: Any, offsets: Any, entries: Any) -> int:
    """Names and values of property blocks; of a repeated name the last value counts, in the first's place.

    Args:
        data: uint8[n], the window.
        table: int64[rows, columns], a table of spans.
        column: that of the blocks' positions.
        slots: int64[MAX_PROPERTY_SLOTS], zeros; scratch.
        offsets: int32[rows + 1], written: the entries of row r are offsets[r] to offsets[r + 1].
        entries: int64[>= sum of bytes / ENTRY_MIN_BYTES + rows, ENTRY_COLUMNS], written.

    Returns:
        How many entries there are.

    Source: ``MessageDecoder#string2messageProperties``.
    """
    count = 0
    offsets[0] = 0
    for row in range(len(table)):
        at = table[row, column]
        stop = at + table[row, column + 1]
        first = count
        used = np.int64(63)
        while used < (stop - at) // 2 and used < MAX_PROPERTY_SLOTS - 1:
            used = 2 * used + 1
        stamp = np.int64(row + 1) << 32  # tells this row's slots from those that earlier ones left
        while at < stop:
            end = find_byte(data, at, stop, np.uint8(2))
            separator = find_byte(data, at, end, np.uint8(1))
            name_bytes = separator - at
            if name_bytes > 0 and separator + 1 < end:
                slot = np.int64(_name_hash(data, at, name_bytes) & np.uint64(used))
                entry = count
                while slots[slot] & -(1 << 32) == stamp:
                    other = first + (slots[slot] & 0xFFFFFFFF)
                    if entries[other, 1] == name_bytes and same_bytes(data, entries[other, 0], at, name_bytes):
                        entry = other
                        break
                    slot = (slot + 1) & used
                if entry == count:
                    slots[slot] = stamp | (count - first)
                    entries[entry, 0], entries[entry, 1] = at, name_bytes
                    count += 1
                entries[entry, 2], entries[entry, 3] = separator + 1, end - separator - 1
            at = end + 1
        offsets[row + 1] = count
    return count


@njit("int64(uint8[::1], int64[:, ::1], int64, int32[::1], int64[:, ::1])", cache=True, nogil=True)
def split_spaces(data: Any, table: Any, column: int, offsets: Any, parts: Any) -> int:
    """The parts of texts that spaces separate; empty ones are left out.

    Args:
        data: uint8[n], the window.
        table: int64[rows, columns], a table of spans.
        column: that of the texts' positions.
        offsets: int32[rows + 1], written: the parts of row r are offsets[r] to offsets[r + 1].
        parts: int64[>= sum of bytes / 2 + rows, 2], written: spans.

    Returns:
        How many parts there are.

    Source: ``IndexService#buildIndex``.
    """
    count = 0
    offsets[0] = 0
    for row in range(len(table)):
        at = table[row, column]
        stop = at + table[row, column + 1]
        while at < stop:
            end = find_byte(data, at, stop, _SPACE)
            if end > at:
                parts[count, 0], parts[count, 1] = at, end - at
                count += 1
            at = end + 1
        offsets[row + 1] = count
    return count


@njit("int64(uint8[::1], int64[:, ::1], int64[:, ::1], int32[::1], uint8[::1])", cache=True, nogil=True)
def message_ids(data: Any, frames: Any, hosts: Any, offsets: Any, out: Any) -> int:
    """Offset message ids: store host and recorded physical offset in upper-case hex.

    Args:
        data: uint8[n], the window.
        frames: int64[rows, FRAME_COLUMNS].
        hosts: int64[rows, 2], spans of the store hosts.
        offsets: int32[rows + 1], written.
        out: uint8[rows * MAX_MESSAGE_ID_BYTES], written.

    Returns:
        Bytes written. Source: ``MessageDecoder#createMessageId``.
    """
    target = 0
    offsets[0] = 0
    for row in range(len(frames)):
        host_bytes = hosts[row, 1]
        for index in range(host_bytes + 8):
            if index < host_bytes:
                byte = data[hosts[row, 0] + index]
            else:
                byte = data[frames[row, POSITION] + RECORD_PHYSICAL_OFFSET_AT + index - host_bytes]
            out[target] = _UPPER_HEX[byte >> 4]
            out[target + 1] = _UPPER_HEX[byte & 15]
            target += 2
        offsets[row + 1] = target
    return target


@njit("int64(int64, uint8[::1], int64)", cache=True, nogil=True)
def _write_decimal(value: int, out: Any, at: int) -> int:
    """Write a 32-bit integer in decimal at ``out[at]``; returns where it ends."""
    if value < 0:
        out[at] = 45
        at += 1
        value = -value
    weight = np.int64(1)
    while value // weight >= 10:
        weight *= 10
    while weight > 0:
        out[at] = np.uint8(48 + value // weight % 10)
        at += 1
        weight //= 10
    return at


@njit("int64(uint8[::1], int64, uint8[::1], int64)", cache=True, nogil=True)
def _write_v4(data: Any, address_at: int, out: Any, at: int) -> int:
    for index in range(4):
        if index > 0:
            out[at] = 46
            at += 1
        at = _write_decimal(np.int64(data[address_at + index]), out, at)
    return at


@njit("int64(uint8[::1], int64, uint8[::1], int64)", cache=True, nogil=True)
def _write_v6(data: Any, address_at: int, out: Any, at: int) -> int:
    """RFC 5952: lower case, no leading zeros, ``::`` for the first longest run of two or more zeros."""
    best_start, best_length, length = -1, 1, 0
    for group in range(8):
        zero = data[address_at + 2 * group] == 0 and data[address_at + 2 * group + 1] == 0
        length = length + 1 if zero else 0
        if length > best_length:
            best_start, best_length = group + 1 - length, length
    out[at] = 91
    at += 1
    group = 0
    while group < 8:
        if group == best_start:
            out[at], out[at + 1] = 58, 58
            at += 2
            group += best_length
            continue
        if group > 0 and out[at - 1] != 58:
            out[at] = 58
            at += 1
        value = np.int64(data[address_at + 2 * group]) << 8 | np.int64(data[address_at + 2 * group + 1])
        shift = 12
        while shift > 0 and value >> shift == 0:
            shift -= 4
        while shift >= 0:
            out[at] = _LOWER_HEX[value >> shift & 15]
            at += 1
            shift -= 4
        group += 1
    out[at] = 93
    return at + 1


@njit("boolean(uint8[::1], int64)", cache=True, nogil=True)
def _is_mapped(data: Any, address_at: int) -> bool:
    """Whether 16 bytes are ``::ffff:a.b.c.d``, which a JVM takes for IPv4."""
    return (
        read_i64(data, address_at) == 0
        and data[address_at + 8] == 0
        and data[address_at + 9] == 0
        and data[address_at + 10] == 255
        and data[address_at + 11] == 255
    )


@njit("int64(uint8[::1], int64[:, ::1], int32[::1], uint8[::1])", cache=True, nogil=True)
def host_texts(data: Any, hosts: Any, offsets: Any, out: Any) -> int:
    """Hosts as ``ip:port`` or ``[ipv6]:port``.

    Args:
        data: uint8[n], the window.
        hosts: int64[rows, 2], spans of 8 or 20 bytes.
        offsets: int32[rows + 1], written.
        out: uint8[rows * MAX_HOST_TEXT_BYTES], written.

    Returns:
        Bytes written.
    """
    target = 0
    offsets[0] = 0
    for row in range(len(hosts)):
        at, host_bytes = hosts[row, 0], hosts[row, 1]
        begin = target
        if row > 0 and hosts[row - 1, 1] == host_bytes and same_bytes(data, hosts[row - 1, 0], at, host_bytes):
            # Most records have the host of the one before: a copy is cheaper than eight divisions.
            size = np.int64(offsets[row] - offsets[row - 1])
            base = np.uint64(out.ctypes.data)
            copy_bytes(base + np.uint64(begin), base + np.uint64(offsets[row - 1]), size)
            target += size
        else:
            if host_bytes == 8:
                target = _write_v4(data, at, out, target)
            elif _is_mapped(data, at):
                target = _write_v4(data, at + 12, out, target)
            else:
                target = _write_v6(data, at, out, target)
            out[target] = 58
            target = _write_decimal(read_i32(data, at + host_bytes - 4), out, target + 1)
        offsets[row + 1] = target
    return target
