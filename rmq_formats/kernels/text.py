"""Computes Java's ``String.hashCode``, and parses RocketMQ's property blocks, over UTF-8 bytes.

Source: ``java.lang.String#hashCode``, ``MessageDecoder#string2messageProperties``.
"""

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from rmq_formats.kernels.bytes import (
    COMPILED,
    INLINED,
    emitted,
    match_mask_16,
    match_mask_32,
    read_i32,
    read_i64,
    same_bytes,
    trailing_zeros,
)

# Rows of a property lookup, int64[PROPERTY_ROWS, 2]: position of the value and its length, -1 where there is none.
TAGS: Final = 0
KEYS: Final = 1
UNIQ_KEY: Final = 2
DELAY: Final = 3
LIGHT_OFFSETS: Final = 4  # INNER_MULTI_QUEUE_OFFSET: places in light queues (LMQ)
INNER_BASE: Final = 5  # of an inner batch: the queue offset of its first message
INNER_NUM: Final = 6  # of an inner batch: its messages
LIGHT_NAMES: Final = 7  # INNER_MULTI_DISPATCH: names of light queues
PROPERTY_ROWS: Final = 8

_TAGS_WORD = int.from_bytes(b"TAGS", "big", signed=True)
_KEYS_WORD = int.from_bytes(b"KEYS", "big", signed=True)
_DELA_WORD = int.from_bytes(b"DELA", "big", signed=True)
_UNIQ_WORD = int.from_bytes(b"UNIQ", "big", signed=True)
_KEY_WORD = int.from_bytes(b"_KEY", "big", signed=True)
_INNE_WORD = int.from_bytes(b"INNE", "big", signed=True)
_INNER_BASE = np.frombuffer(b"INNER_BASE", dtype=np.uint8)
_INNER_NUM = np.frombuffer(b"INNER_NUM", dtype=np.uint8)
_LIGHT_OFFSETS = np.frombuffer(b"INNER_MULTI_QUEUE_OFFSET", dtype=np.uint8)
_LIGHT_NAMES = np.frombuffer(b"INNER_MULTI_DISPATCH", dtype=np.uint8)
_POWERS = np.array([pow(31, exponent, 1 << 32) for exponent in range(17)], dtype=np.uint32)
REPLACEMENT: Final = 0xFFFD
_HIGH_BITS = -9187201950435737472  # 0x8080808080808080


@njit("UniTuple(int64, 2)(uint8[::1], int64, int64)", **COMPILED)
def decode_code_point(data: Any, at: int, stop: int) -> tuple[int, int]:
    """Decode the code point at ``data[at]``, and its length in bytes.

    Invalid UTF-8 gives U+FFFD for its longest valid beginning, as decoders of Java and Python do.
    """
    lead = np.int64(data[at])
    if lead < 0x80:
        return lead, 1
    if lead < 0xC2 or lead > 0xF4:
        return REPLACEMENT, 1
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
            return REPLACEMENT, step
        trail = np.int64(data[at + step])
        if trail < low or trail > high:
            return REPLACEMENT, step
        code = (code << 6) | (trail & 0x3F)
        low, high = 0x80, 0xBF
    return code, trail_count + 1


@njit("boolean(uint8[::1], int64, int64)", **COMPILED)
def is_utf8(data: Any, at: int, stop: int) -> bool:
    """Return whether ``data[at:stop]`` is UTF-8 as Java encodes it."""
    while at < stop:
        if at + 8 <= stop and read_i64(data, at) & _HIGH_BITS == 0:
            at += 8
            continue
        code, size = decode_code_point(data, at, stop)
        # U+FFFD itself is EF BF BD; anything else that decodes to it is not UTF-8.
        if code == REPLACEMENT and not (size == 3 and data[at] == 0xEF):
            return False
        at += size
    return True


@emitted(types.int64(types.uint64, types.int64))
def _ascii_hash_16(context: Any, builder: Any, address: Any, byte_count: Any) -> Any:
    """Hash the last ``byte_count`` (1 to 16) of the 16 bytes at ``address``; -1 if not all are ASCII."""
    bytes_type, words_type = (ir.VectorType(ir.IntType(bits), 16) for bits in (8, 32))
    loaded = builder.load(builder.inttoptr(address, bytes_type.as_pointer()), align=1)
    byte_counts = builder.trunc(byte_count, ir.IntType(8))
    single = builder.insert_element(ir.Constant(bytes_type, ir.Undefined), byte_counts, ir.IntType(32)(0))
    counts = builder.shuffle_vector(single, ir.Constant(bytes_type, ir.Undefined), ir.Constant(words_type, [0] * 16))
    inside = builder.icmp_unsigned("<", ir.Constant(bytes_type, list(range(15, -1, -1))), counts)
    text = builder.select(inside, loaded, ir.Constant(bytes_type, [0] * 16))
    high = builder.bitcast(builder.icmp_signed("<", text, ir.Constant(bytes_type, [0] * 16)), ir.IntType(16))
    powers = ir.Constant(words_type, [pow(31, 15 - lane, 1 << 32) for lane in range(16)])
    products = builder.mul(builder.zext(text, words_type), powers)
    reduce_type = ir.FunctionType(ir.IntType(32), [words_type])
    reduce = cgutils.get_or_insert_function(builder.module, reduce_type, "llvm.vector.reduce.add.v16i32")
    total = builder.zext(builder.call(reduce, [products]), ir.IntType(64))
    return builder.select(builder.icmp_unsigned("==", high, ir.IntType(16)(0)), total, ir.IntType(64)(-1))


@njit("uint32(uint8[::1], int64, int64, uint32)", **COMPILED)
def _java_hash_by_character(data: Any, start: int, stop: int, seed: int) -> int:
    hashed = np.uint32(seed)
    at = start
    while at < stop:
        code, size = decode_code_point(data, at, stop)
        at += size
        if code > 0xFFFF:
            hashed = hashed * np.uint32(31) + np.uint32(0xD800 + ((code - 0x10000) >> 10))
            code = 0xDC00 + (code & 0x3FF)
        hashed = hashed * np.uint32(31) + np.uint32(code)
    return hashed


@njit("uint32(uint8[::1], int64, int64, uint32)", **INLINED)
def java_hash(data: Any, start: int, stop: int, seed: int) -> int:
    """Compute Java's hash of the UTF-8 text ``data[start:stop]``, continued from ``seed`` (0 for a whole text).

    ASCII goes sixteen characters a step: the hash is a polynomial, so a range is one vector of
    products. The load ends at the text's end and may begin before it, never before ``data[0]``.
    The int32 view of the result, a uint32, is Java's hash.
    """
    hashed = np.uint32(seed)
    at = start
    while at < stop:
        step = min(stop - at, 16)
        if at + step < 16:
            break
        part = _ascii_hash_16(np.uint64(data.ctypes.data + at + step - 16), step)
        if part < 0:
            break
        hashed = np.uint32(hashed * _POWERS[step] + np.uint32(part))
        at += step
    if at < stop:
        return _java_hash_by_character(data, at, stop, hashed)
    return hashed


@njit("int64(uint8[::1], int64, int64)", **COMPILED)
def put_decimal(out: Any, at: int, value: int) -> int:
    """Write an integer in decimal at ``out[at]``; return the position after it."""
    rest = np.uint64(value)
    if value < 0:
        out[at] = 45
        at += 1
        rest = np.uint64(0) - rest
    end = at + 1
    probe = rest
    while probe >= np.uint64(10):
        probe //= np.uint64(10)
        end += 1
    for index in range(end - 1, at - 1, -1):
        out[index] = 48 + rest % np.uint64(10)
        rest //= np.uint64(10)
    return end


@njit(**COMPILED)  # no signature: numba types global arrays as read-only, arguments not
def _begins_with(data: Any, entry: int, end: int, name: Any) -> bool:
    """Return whether an entry begins with a name and has room for 0x01 and one byte of a value."""
    return end - entry >= len(name) + 2 and same_bytes(data, entry, name, 0, len(name))


@njit("void(uint8[::1], int64, int64, int64[:, ::1])", **INLINED)
def _record_property(data: Any, entry: int, end: int, values: Any) -> None:
    """Record the value of the entry ``data[entry:end]`` if its name is one of those above and its value is not empty.

    A name has no 0x01: where one of them stands before a 0x01, that is the first one, which ends the name.
    """
    if end - entry < 6:  # four characters, 0x01 and one of a value
        return
    row, name_bytes = -1, np.int64(4)
    word = read_i32(data, entry)
    if word == _TAGS_WORD:
        row = TAGS
    elif word == _KEYS_WORD:
        row = KEYS
    elif word == _UNIQ_WORD and end - entry > 9:
        if read_i32(data, entry + 4) == _KEY_WORD:
            row, name_bytes = UNIQ_KEY, 8
    elif word == _DELA_WORD and end - entry > 6 and data[entry + 4] == 89:
        row, name_bytes = DELAY, 5
    elif word == _INNE_WORD:
        if _begins_with(data, entry, end, _LIGHT_OFFSETS):
            row, name_bytes = LIGHT_OFFSETS, np.int64(len(_LIGHT_OFFSETS))
        elif _begins_with(data, entry, end, _LIGHT_NAMES):
            row, name_bytes = LIGHT_NAMES, np.int64(len(_LIGHT_NAMES))
        elif _begins_with(data, entry, end, _INNER_BASE):
            row, name_bytes = INNER_BASE, np.int64(len(_INNER_BASE))
        elif _begins_with(data, entry, end, _INNER_NUM):
            row, name_bytes = INNER_NUM, np.int64(len(_INNER_NUM))
    if row >= 0 and data[entry + name_bytes] == 1:
        values[row, 0], values[row, 1] = entry + name_bytes + 1, end - entry - name_bytes - 1


@njit("void(uint8[::1], int64, int64, int64[:, ::1])", **INLINED)
def find_properties(data: Any, start: int, stop: int, values: Any) -> None:
    """Find the properties named above in a property block; of several of one name, the last counts.

    An entry is ``name 0x01 value 0x02``, the last 0x02 may be missing; one with an empty name or value
    counts as absent. The ends come out of bit masks of 32 bytes, or 16 near the end of the array.
    ``values`` is int64[PROPERTY_ROWS, 2], written: position and length of each value, -1 and 0 where there is none.
    """
    for name in range(PROPERTY_ROWS):
        values[name, 0], values[name, 1] = -1, 0
    entry = at = start
    while at < stop:
        address = np.uint64(data.ctypes.data + at)
        if at + 32 <= len(data):
            width = 32
            ends = match_mask_32(address, np.uint8(2))
        elif at + 16 <= len(data):
            width = 16
            ends = match_mask_16(address, np.uint8(2))
        else:
            width = 1
            ends = np.uint64(data[at] == 2)
        if stop - at < width:
            ends &= (np.uint64(1) << np.uint64(stop - at)) - np.uint64(1)
        while ends != 0:
            end = at + trailing_zeros(ends)
            ends &= ends - np.uint64(1)
            _record_property(data, entry, end, values)
            entry = end + 1
        at += width
    _record_property(data, entry, stop, values)


@njit("int64(uint8[::1], int64, int64)", **INLINED)
def parse_decimal(data: Any, start: int, byte_count: int) -> int:
    """Parse an integer as ``Integer#parseInt`` does; -1 where the text is none, negative or too large."""
    first = start + 1 if byte_count > 1 and data[start] == 43 else start  # a plus sign
    stop = start + byte_count
    if not 1 <= stop - first <= 10:
        return -1
    value = 0
    for at in range(first, stop):
        digit = np.int64(data[at]) - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value if value <= 0x7FFFFFFF else -1


@njit("int64(uint8[::1], int64, int64)", **INLINED)
def parse_long(data: Any, start: int, byte_count: int) -> int:
    """Parse a number of at most 18 digits; -1 where the text is none, negative or longer: no queue offset is."""
    if not 1 <= byte_count <= 18:
        return -1
    value = 0
    for at in range(start, start + byte_count):
        digit = np.int64(data[at]) - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value
