"""Gathers the fields of records in a window into columns: integers, timestamps and byte strings.

A table of *spans* is an int64 array of which two neighbouring columns are the position and the length of a
byte string in the window; a negative position stands for "there is none", and its length is 0. The frame
table of ``rmq_formats.kernels.scan`` is one (body, topic, properties), others are made by
``rmq_formats.kernels.columns_text``. Arrays belong to the caller; none is kept.
"""

from typing import Any, Final

import numpy as np
from numba import njit

from rmq_formats.kernels.bytes import copy_bytes, read_i32, read_i64
from rmq_formats.kernels.scan import BODY_AT, POSITION
from rmq_formats.kernels.text import REPLACEMENT, decode_code_point
from rmq_formats.layout import (
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    RECORD_BORN_HOST_AT,
    RECORD_BORN_TIMESTAMP_AT,
    RECORD_SYS_FLAG_AT,
)

MIN_TIMESTAMP_MS: Final = -62_135_596_800_000  # 0001-01-01, the first that Spark's TIMESTAMP documents
MAX_TIMESTAMP_MS: Final = 253_402_300_799_999  # 9999-12-31, the last
STORE_HOST_BEFORE_BODY: Final = 16  # reconsume times, prepared transaction offset, body length

_HIGH_BITS = np.int64(-0x7F7F7F7F7F7F7F80)  # 0x8080808080808080


@njit("void(uint8[::1], int64[:, ::1], int64, int64, int32[::1])", cache=True, nogil=True)
def gather_i32(data: Any, table: Any, anchor: int, distance: int, out: Any) -> None:
    """Big-endian 32-bit integers that stand ``distance`` bytes behind the position in a column.

    Args:
        data: uint8[n], the window.
        table: int64[rows, columns].
        anchor: the column with positions, such as POSITION or BODY_AT.
        distance: in bytes, may be negative.
        out: int32[rows], written.
    """
    for row in range(len(table)):
        out[row] = read_i32(data, table[row, anchor] + distance)


@njit("void(uint8[::1], int64[:, ::1], int64, int64, int64[::1])", cache=True, nogil=True)
def gather_i64(data: Any, table: Any, anchor: int, distance: int, out: Any) -> None:
    """Big-endian 64-bit integers; see ``gather_i32``. ``out`` is int64[rows]."""
    for row in range(len(table)):
        out[row] = read_i64(data, table[row, anchor] + distance)


@njit("void(uint8[::1], int64[:, ::1], int64[::1])", cache=True, nogil=True)
def gather_store_timestamps(data: Any, frames: Any, out: Any) -> None:
    """Store timestamps in ms; they stand behind the born host, whose size the sys_flag tells.

    Args:
        data: uint8[n], the window.
        frames: int64[rows, FRAME_COLUMNS].
        out: int64[rows], written.
    """
    for row in range(len(frames)):
        position = frames[row, POSITION]
        at = position + RECORD_BORN_HOST_AT + HOST_V4_BYTES
        if read_i32(data, position + RECORD_SYS_FLAG_AT) & FLAG_BORN_HOST_V6:
            at += HOST_V6_BYTES - HOST_V4_BYTES
        out[row] = read_i64(data, at)


@njit("void(uint8[::1], int64[:, ::1], int64[::1])", cache=True, nogil=True)
def gather_born_timestamps(data: Any, frames: Any, out: Any) -> None:
    """Born timestamps in ms; see ``gather_store_timestamps``."""
    for row in range(len(frames)):
        out[row] = read_i64(data, frames[row, POSITION] + RECORD_BORN_TIMESTAMP_AT)


@njit("int64(int64[::1], int64[::1], boolean[::1])", cache=True, nogil=True)
def to_microseconds(timestamps_ms: Any, out: Any, valid: Any) -> int:
    """Microseconds of timestamps that are between the years 1 and 9999; others get 0 and are not valid.

    Args:
        timestamps_ms: int64[n].
        out: int64[n], written.
        valid: boolean[n], written.

    Returns:
        How many are not valid.
    """
    invalid_count = 0
    for row in range(len(timestamps_ms)):
        timestamp_ms = timestamps_ms[row]
        inside = MIN_TIMESTAMP_MS <= timestamp_ms <= MAX_TIMESTAMP_MS
        valid[row] = inside
        out[row] = timestamp_ms * 1000 if inside else 0
        invalid_count += not inside
    return invalid_count


@njit("void(uint8[::1], int64[:, ::1], boolean, int64[:, ::1])", cache=True, nogil=True)
def find_hosts(data: Any, frames: Any, born: bool, spans: Any) -> None:
    """Where each record's born or store host stands; its length is 8 bytes or 20.

    Args:
        data: uint8[n], the window.
        frames: int64[rows, FRAME_COLUMNS].
        born: the born host; else the store host.
        spans: int64[rows, 2], written.
    """
    flag = FLAG_BORN_HOST_V6 if born else FLAG_STORE_HOST_V6
    for row in range(len(frames)):
        position = frames[row, POSITION]
        is_v6 = read_i32(data, position + RECORD_SYS_FLAG_AT) & flag
        host_bytes = HOST_V6_BYTES if is_v6 else HOST_V4_BYTES
        spans[row, 1] = host_bytes
        if born:
            spans[row, 0] = position + RECORD_BORN_HOST_AT
        else:
            spans[row, 0] = frames[row, BODY_AT] - STORE_HOST_BEFORE_BODY - host_bytes


@njit("int64(int64[:, ::1], int64, int32[::1])", cache=True, nogil=True)
def span_offsets(table: Any, column: int, offsets: Any) -> int:
    """Arrow offsets of the byte strings of one pair of columns.

    Args:
        table: int64[rows, columns], a table of spans.
        column: that of the positions; the lengths are in the next one.
        offsets: int32[rows + 1], written.

    Returns:
        The sum of the lengths in bytes. Where it is above 2^31 - 1 the offsets are worthless.
    """
    total = np.int64(0)
    offsets[0] = 0
    for row in range(len(table)):
        total += table[row, column + 1]
        offsets[row + 1] = total
    return total


@njit("void(uint8[::1], int64[:, ::1], int64, uint8[::1])", cache=True, nogil=True)
def gather_spans(data: Any, table: Any, column: int, out: Any) -> None:
    """Copy the byte strings of one pair of columns behind each other.

    Args:
        data: uint8[n], the window.
        table: int64[rows, columns], a table of spans.
        column: that of the positions.
        out: uint8[>= sum of the lengths], written.
    """
    source, target = np.uint64(data.ctypes.data), np.uint64(out.ctypes.data)
    for row in range(len(table)):
        size = table[row, column + 1]
        copy_bytes(target, source + np.uint64(table[row, column]), size)
        target += np.uint64(size)


@njit("boolean(uint8[::1], int64, int64)", cache=True, nogil=True)
def is_utf8(data: Any, start: int, stop: int) -> bool:
    """Whether ``data[start:stop]`` is UTF-8, without surrogates, as Arrow and Java demand it."""
    at = start
    while at < stop:
        while at + 8 <= stop and read_i64(data, at) & _HIGH_BITS == 0:
            at += 8
        if at >= stop:
            break
        if data[at] < 0x80:
            at += 1
            continue
        code, size = decode_code_point(data, at, stop)
        # U+FFFD itself is EF BF BD; anything else that decodes to it is not UTF-8.
        if code == REPLACEMENT and not (data[at] == 0xEF and size == 3):
            return False
        at += size
    return True


@njit("int64(uint8[::1], int64[:, ::1], int64, boolean[::1])", cache=True, nogil=True)
def find_invalid_utf8(data: Any, table: Any, column: int, invalid: Any) -> int:
    """Mark the rows whose byte string is not UTF-8.

    Args:
        data: uint8[n], the window.
        table: int64[rows, columns], a table of spans.
        column: that of the positions.
        invalid: boolean[rows], written.

    Returns:
        How many there are.
    """
    count = 0
    for row in range(len(table)):
        at = table[row, column]
        wrong = not is_utf8(data, at, at + table[row, column + 1])
        invalid[row] = wrong
        count += wrong
    return count
