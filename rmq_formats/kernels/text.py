"""Java's ``String.hashCode`` and RocketMQ's property blocks, over UTF-8 bytes.

Source: ``java.lang.String#hashCode``, ``MessageDecoder#string2messageProperties``.
"""

from typing import Any, Final

import numpy as np
from numba import njit

from rmq_formats.kernels.bytes import find_byte, read_i32, read_i64

# Rows of a property lookup, int64[4, 2]: position of the value and its length, -1 where there is none.
TAGS: Final = 0
KEYS: Final = 1
UNIQ_KEY: Final = 2
DELAY: Final = 3

_TAGS_WORD = int.from_bytes(b"TAGS", "big", signed=True)
_KEYS_WORD = int.from_bytes(b"KEYS", "big", signed=True)
_DELA_WORD = int.from_bytes(b"DELA", "big", signed=True)
_UNIQ_KEY_WORD = int.from_bytes(b"UNIQ_KEY", "big", signed=True)
_POWERS = np.array([pow(31, exponent, 1 << 32) for exponent in range(9)], dtype=np.uint32)
_HIGH_BITS = np.int64(-0x7F7F7F7F7F7F7F80)  # 0x8080808080808080
REPLACEMENT: Final = 0xFFFD


@njit("int64(uint8[::1], int64, int64, int64[::1])", cache=True, nogil=True)
def decode_code_point(data: Any, at: int, stop: int, size: Any) -> int:
    """The code point at ``data[at]``; ``size[0]`` becomes its length in bytes.

    What is not UTF-8 gives U+FFFD for its longest valid beginning, as decoders of Java and Python do.
    """
    lead = np.int64(data[at])
    size[0] = 1
    if lead < 0x80:
        return lead
    if lead < 0xC2 or lead > 0xF4:
        return REPLACEMENT
    trail_count = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
    low, high = 0x80, 0xBF
    if lead == 0xE0:
        low = 0xA0
    elif lead == 0xED:
        high = 0x9F
    elif lead == 0xF0:
        low = 0x90
    elif lead == 0xF4:
        high = 0x8F
    code = lead & (0x3F >> trail_count)
    for step in range(1, trail_count + 1):
        if at + step >= stop:
            return REPLACEMENT
        trail = np.int64(data[at + step])
        if trail < low or trail > high:
            return REPLACEMENT
        code = (code << 6) | (trail & 0x3F)
        size[0] = step + 1
        low, high = 0x80, 0xBF
    return code


@njit("uint32(uint8[::1], int64, int64, uint32)", cache=True, nogil=True)
def java_hash(data: Any, start: int, stop: int, seed: int) -> int:
    """Java's hash of the UTF-8 text ``data[start:stop]``, continued from ``seed`` (0 for a whole text).

    Returns:
        The hash as uint32; its int32 view is what Java has.
    """
    hashed = np.uint32(seed)
    at = start
    size = np.empty(1, dtype=np.int64)
    while at < stop:
        while at + 8 <= stop:  # eight ASCII characters a step: one dependent multiplication, not eight
            if read_i64(data, at) & _HIGH_BITS:
                break
            hashed *= _POWERS[8]
            for step in range(8):
                hashed += np.uint32(data[at + step]) * _POWERS[7 - step]
            at += 8
        if at >= stop:
            break
        code = np.int64(data[at])
        if code < 0x80:
            at += 1
        else:
            code = decode_code_point(data, at, stop, size)
            at += size[0]
        if code > 0xFFFF:
            hashed = hashed * np.uint32(31) + np.uint32(0xD800 + ((code - 0x10000) >> 10))
            code = 0xDC00 + (code & 0x3FF)
        hashed = hashed * np.uint32(31) + np.uint32(code)
    return hashed


@njit("void(uint8[::1], int64, int64, int64[:, ::1])", cache=True, nogil=True)
def find_properties(data: Any, start: int, stop: int, found: Any) -> None:
    """Find TAGS, KEYS, UNIQ_KEY and DELAY in a property block; of several, the last one counts.

    Args:
        data: uint8[n], the window.
        start: first byte of the block.
        stop: one past its last byte.
        found: int64[4, 2], written: position and length of each value, -1 and 0 where there is none.
    """
    for name in range(4):
        found[name, 0], found[name, 1] = -1, 0
    at = start
    while at < stop:
        end = find_byte(data, at, stop, np.uint8(2))
        separator = find_byte(data, at, end, np.uint8(1))
        name_bytes = separator - at
        value_bytes = end - separator - 1
        if name_bytes > 0 and value_bytes > 0:
            row = -1
            if name_bytes == 4:
                word = read_i32(data, at)
                if word == _TAGS_WORD:
                    row = TAGS
                elif word == _KEYS_WORD:
                    row = KEYS
            elif name_bytes == 8:
                if read_i64(data, at) == _UNIQ_KEY_WORD:
                    row = UNIQ_KEY
            elif name_bytes == 5 and read_i32(data, at) == _DELA_WORD and data[at + 4] == 89:
                row = DELAY
            if row >= 0:
                found[row, 0], found[row, 1] = separator + 1, value_bytes
        at = end + 1


@njit("int64(uint8[::1], int64, int64)", cache=True, nogil=True)
def parse_decimal(data: Any, start: int, byte_count: int) -> int:
    """The decimal integer in the text, or -1 where it is none or above 10**9: delay levels are small."""
    if byte_count < 1 or byte_count > 9:
        return -1
    value = 0
    for at in range(start, start + byte_count):
        digit = np.int64(data[at]) - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value
