"""Formats columns of hosts and offset message ids as text.

Tables of spans, arguments, and kernels that append are those of ``rmq_formats.kernels.columns.gather``. The
plain-Python oracles are ``rmq_formats.codecs.hosts`` and ``rmq_formats.codecs.message_id``.
"""

from typing import Any, Final

import numpy as np
from numba import njit

from rmq_formats.codecs.record_layout import HOST_V4_BYTES, RECORD_PHYSICAL_OFFSET_AT
from rmq_formats.kernels.bytes import COMPILED, INLINED, read_i32, read_i64, same_bytes
from rmq_formats.kernels.columns.gather import append_bytes
from rmq_formats.kernels.scan import POSITION
from rmq_formats.kernels.text import put_decimal

MAX_HOST_TEXT_BYTES: Final = 54  # [ 39 ] : and a port of up to 11 characters
MAX_MESSAGE_ID_BYTES: Final = 56

_UPPER_HEX = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)
_LOWER_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


@njit("int64(uint8[::1], int64, int64, uint8[::1], int64)", **INLINED)
def append_hex(data: Any, at: int, byte_count: int, out: Any, target: int) -> int:
    """Write ``byte_count`` bytes in upper-case hex at ``out[target]``; return the position after them."""
    for index in range(byte_count):
        byte = data[at + index]
        out[target] = _UPPER_HEX[byte >> 4]
        out[target + 1] = _UPPER_HEX[byte & 15]
        target += 2
    return target


@njit(
    "int64(uint8[::1], int64[:, ::1], int64[:, ::1], int64, int32[::1], uint8[::1], int64)",
    **COMPILED,
)
def append_message_ids(data: Any, frames: Any, hosts: Any, at: int, offsets: Any, out: Any, target: int) -> int:
    """Append offset message ids: store host and recorded physical offset in upper-case hex.

    ``hosts`` are the spans of the store hosts; a row needs MAX_MESSAGE_ID_BYTES. Source:
    ``MessageDecoder#createMessageId``.
    """
    for row in range(len(frames)):
        target = append_hex(data, hosts[row, 0], hosts[row, 1], out, target)
        target = append_hex(data, frames[row, POSITION] + RECORD_PHYSICAL_OFFSET_AT, 8, out, target)
        offsets[at + row + 1] = target
    return target


@njit("int64(uint8[::1], int64, uint8[::1], int64)", **COMPILED)
def write_v4(data: Any, address_at: int, out: Any, at: int) -> int:
    """Write an IPv4 address of 4 bytes at ``out[at]``; return the position after it."""
    for index in range(4):
        if index > 0:
            out[at] = 46
            at += 1
        at = put_decimal(out, at, np.int64(data[address_at + index]))
    return at


@njit("int64(uint8[::1], int64, uint8[::1], int64)", **COMPILED)
def _write_v6(data: Any, address_at: int, out: Any, at: int) -> int:
    """Write IPv6 by RFC 5952: lower case, no leading zeros, ``::`` for the first longest run of two or more zeros."""
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


@njit("boolean(uint8[::1], int64)", **COMPILED)
def _is_mapped(data: Any, address_at: int) -> bool:
    """Return whether 16 bytes are ``::ffff:a.b.c.d``, which a JVM treats as IPv4."""
    return read_i64(data, address_at) == 0 and read_i32(data, address_at + 8) == 0xFFFF


@njit("int64(uint8[::1], int64[:, ::1], int64, int32[::1], uint8[::1], int64)", **COMPILED)
def append_hosts(data: Any, hosts: Any, at: int, offsets: Any, out: Any, target: int) -> int:
    """Append hosts, spans of 8 or 20 bytes, as ``ip:port`` or ``[ipv6]:port``; a row needs MAX_HOST_TEXT_BYTES."""
    before = target
    for row in range(len(hosts)):
        host_at, host_bytes = hosts[row, 0], hosts[row, 1]
        begin = target
        if (
            row > 0
            and hosts[row - 1, 1] == host_bytes
            and same_bytes(data, hosts[row - 1, 0], data, host_at, host_bytes)
        ):
            # Most records have the host of the one before: a copy is cheaper than eight divisions.
            append_bytes(out, before, begin - before, out, begin)
            target += begin - before
        else:
            if host_bytes == HOST_V4_BYTES:
                target = write_v4(data, host_at, out, target)
            elif _is_mapped(data, host_at):
                target = write_v4(data, host_at + 12, out, target)
            else:
                target = _write_v6(data, host_at, out, target)
            out[target] = 58
            target = put_decimal(out, target + 1, read_i32(data, host_at + host_bytes - 4))
        offsets[at + row + 1] = target
        before = begin
    return target
