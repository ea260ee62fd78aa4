"""Gathers the fields of records in a window into columns: integers, timestamps and byte strings.

``data`` is the window, uint8[n], and ``frames`` the frame table of its records, int64[rows, FRAME_COLUMNS].

A table of *spans* is an int64 array of which two neighbouring columns are the position and the length of a
byte string in the window; a negative position stands for "there is none", and its length is 0. ``column`` is that of
the positions. The frame table of ``rmq_formats.kernels.scan`` is one (body, topic, properties), others are made by
``rmq_formats.kernels.columns.text``.

Kernels that append write after the rows of earlier windows in the caller's buffers, from row ``at`` on. ``offsets``
is int32[capacity + 1], written from ``at + 1`` on; ``out`` is uint8[capacity] with ``target`` bytes in use, and the
new number of these is returned. The caller provides the room, with ``SLACK_BYTES`` more than is needed where byte
strings go.
"""

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import njit, types

from rmq_formats.codecs.layout import FLAG_BORN_HOST_V6, FLAG_STORE_HOST_V6
from rmq_formats.codecs.record_layout import (
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    HOST_V6_EXTRA_BYTES,
    RECORD_BORN_HOST_AT,
    RECORD_HEAD_BYTES,
    RECORD_RECONSUME_TIMES_AT,
    RECORD_STORE_TIMESTAMP_AT,
    RECORD_SYS_FLAG_AT,
)
from rmq_formats.kernels.bytes import COMPILED, INLINED, copy_bytes, emitted, read_i32, read_i64
from rmq_formats.kernels.scan import BODY_AT, POSITION
from rmq_formats.kernels.text import is_utf8

# Anchors that a field's distance is counted from.
ANCHOR_RECORD: Final = 0  # the record's first byte
ANCHOR_STORE_TIMESTAMP: Final = 1  # behind the born host
ANCHOR_BODY: Final = 2  # the body's first byte

MIN_TIMESTAMP_MS: Final = -62_135_596_800_000  # 0001-01-01, the first that Spark's TIMESTAMP documents
MAX_TIMESTAMP_MS: Final = 253_402_300_799_999  # 9999-12-31, the last
_BEHIND_HOSTS_BYTES = RECORD_HEAD_BYTES - RECORD_RECONSUME_TIMES_AT  # from the store host to the body
SLACK_BYTES: Final = 32  # short strings are copied sixteen bytes at a time


@emitted(types.uint32(types.uint64))
def _high_bits_32(context: Any, builder: Any, address: Any) -> Any:
    """Bit i is set where byte i of the 32 at ``address`` is not ASCII."""
    vector = ir.VectorType(ir.IntType(8), 32)
    loaded = builder.load(builder.inttoptr(address, vector.as_pointer()), align=1)
    negative = builder.icmp_signed("<", loaded, ir.Constant(vector, [0] * 32))
    return builder.bitcast(negative, ir.IntType(32))


@emitted(types.void(types.uint64, types.uint64))
def _copy_16(context: Any, builder: Any, target: Any, source: Any) -> Any:
    """Copy sixteen bytes between two addresses (uint64)."""
    pointer = ir.VectorType(ir.IntType(8), 16).as_pointer()
    loaded = builder.load(builder.inttoptr(source, pointer), align=1)
    builder.store(loaded, builder.inttoptr(target, pointer), align=1)


@njit("void(uint8[::1], int64, int64, uint8[::1], int64)", **INLINED)
def append_bytes(data: Any, at: int, byte_count: int, out: Any, target: int) -> None:
    """Copy ``data[at : at + byte_count]`` to ``out[target]``, and perhaps some bytes more."""
    source_address = np.uint64(data.ctypes.data + at)
    target_address = np.uint64(out.ctypes.data + target)
    if byte_count <= 32 and at + 32 <= len(data):
        if byte_count > 0:
            _copy_16(target_address, source_address)
        if byte_count > 16:
            _copy_16(target_address + np.uint64(16), source_address + np.uint64(16))
    else:
        copy_bytes(target_address, source_address, byte_count)


@njit(
    "void(uint8[::1], int64[:, ::1], int64[:, ::1], int64[:, ::1], int64, int32[:, ::1], int64[:, ::1])",
    **COMPILED,
)
def append_fixed(data: Any, frames: Any, narrow: Any, wide: Any, at: int, out_narrow: Any, out_wide: Any) -> None:
    """Append integers of each record to columns: the fields of 32 bits in ``narrow``, of 64 bits in ``wide``.

    Args:
        narrow: int64[fields, 2]: anchor and distance in bytes of each field of 32 bits.
        wide: int64[fields, 2]: the same for 64 bits.
        out_narrow: int32[fields, capacity], written from column ``at`` on.
        out_wide: int64[fields, capacity], likewise.
    """
    for row in range(len(frames)):
        position = frames[row, POSITION]
        store_timestamp_at = position + RECORD_STORE_TIMESTAMP_AT
        if read_i32(data, position + RECORD_SYS_FLAG_AT) & FLAG_BORN_HOST_V6:
            store_timestamp_at += HOST_V6_EXTRA_BYTES
        anchors = (position, store_timestamp_at, frames[row, BODY_AT])
        for field in range(len(narrow)):
            out_narrow[field, at + row] = read_i32(data, anchors[narrow[field, 0]] + narrow[field, 1])
        for field in range(len(wide)):
            out_wide[field, at + row] = read_i64(data, anchors[wide[field, 0]] + wide[field, 1])


@njit("int64(int64[::1], int64[::1], boolean[::1])", **COMPILED)
def to_microseconds(timestamps_ms: Any, out: Any, valid: Any) -> int:
    """Convert timestamps in the years 1 to 9999 to microseconds; count the others, which get 0 and are not valid.

    ``out`` may be ``timestamps_ms`` itself.
    """
    invalid_count = 0
    for row in range(len(timestamps_ms)):
        timestamp_ms = timestamps_ms[row]
        inside = MIN_TIMESTAMP_MS <= timestamp_ms <= MAX_TIMESTAMP_MS
        valid[row] = inside
        out[row] = timestamp_ms * 1000 if inside else 0
        invalid_count += not inside
    return invalid_count


@njit("void(uint8[::1], int64[:, ::1], boolean, int64[:, ::1])", **COMPILED)
def find_hosts(data: Any, frames: Any, born: bool, spans: Any) -> None:
    """Find the span, int64[rows, 2], of each record's born host, or else store host: 8 bytes or 20."""
    flag = FLAG_BORN_HOST_V6 if born else FLAG_STORE_HOST_V6
    for row in range(len(frames)):
        position = frames[row, POSITION]
        is_v6 = read_i32(data, position + RECORD_SYS_FLAG_AT) & flag
        host_bytes = HOST_V6_BYTES if is_v6 else HOST_V4_BYTES
        spans[row, 1] = host_bytes
        if born:
            spans[row, 0] = position + RECORD_BORN_HOST_AT
        else:
            spans[row, 0] = frames[row, BODY_AT] - _BEHIND_HOSTS_BYTES - host_bytes


@njit("int64(int64[:, ::1], int64)", **COMPILED)
def total_bytes(table: Any, column: int) -> int:
    """Sum the lengths of the byte strings in one pair of columns; ``column`` is that of the positions."""
    total = 0
    for row in range(len(table)):
        total += table[row, column + 1]
    return total


@njit("int64(uint8[::1], int64[:, ::1], int64, int64, int32[::1], uint8[::1], int64)", **COMPILED)
def append_spans(data: Any, table: Any, column: int, at: int, offsets: Any, out: Any, target: int) -> int:
    """Append the byte strings of one pair of columns, with their Arrow offsets."""
    for row in range(len(table)):
        byte_count = table[row, column + 1]
        append_bytes(data, table[row, column], byte_count, out, target)
        target += byte_count
        offsets[at + row + 1] = target
    return target


@njit("void(int64[:, ::1], int64, int64, boolean[::1])", **COMPILED)
def append_valid(table: Any, column: int, at: int, valid: Any) -> None:
    """Set which rows have a byte string; ``valid`` is boolean[capacity], written from ``at`` on."""
    for row in range(len(table)):
        valid[at + row] = table[row, column] >= 0


@njit("int64(uint8[::1], int64, int64)", **INLINED)
def ascii_end(data: Any, start: int, stop: int) -> int:
    """Find where ``data[start:stop]`` stops being ASCII for sure, by steps of 32 bytes or fewer; at most stop."""
    at = start
    while at < stop and at + 32 <= len(data):
        mask = np.uint64(_high_bits_32(np.uint64(data.ctypes.data + at)))
        if stop - at < 32:
            mask &= (np.uint64(1) << np.uint64(stop - at)) - np.uint64(1)
        if mask != 0:
            return at
        at += 32
    return min(at, stop)


@njit("int64(uint8[::1], int64[:, ::1], int64, boolean[::1])", **COMPILED)
def find_invalid_utf8(data: Any, table: Any, column: int, invalid: Any) -> int:
    """Mark, and count, the rows whose byte string is not UTF-8 as Arrow and Java demand it, without surrogates."""
    count = 0
    for row in range(len(table)):
        at = table[row, column]
        stop = at + table[row, column + 1]
        at = ascii_end(data, at, stop)
        wrong = at < stop and not is_utf8(data, at, stop)
        invalid[row] = wrong
        count += wrong
    return count
