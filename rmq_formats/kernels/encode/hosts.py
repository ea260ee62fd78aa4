"""Parser of hosts in text form, for ``rmq_formats.arrow.encode``."""

from typing import Any

import numpy as np
from numba import njit

from rmq_formats.codecs.record_layout import HOST_V4_BYTES
from rmq_formats.kernels.bytes import COMPILED, write_i32
from rmq_formats.kernels.encode.rows import put_text

TEXT_ROOM = 64  # bytes of scratch that the kernel may write
_MAX_TEXT_BYTES = 21  # 255.255.255.255:65535


@njit("int64(int64[:, ::1], int64, int64, uint8[::1], int64[:, ::1])", **COMPILED)
def parse_v4_hosts(texts: Any, default: int, default_bytes: int, out: Any, hosts: Any) -> int:
    """Parse ``a.b.c.d:port`` into the 8 bytes that a record has of it.

    Args:
        texts: int64[rows, 2].
        default: address of the bytes of a host, for null.
        out: uint8[rows * HOST_V4_BYTES + TEXT_ROOM], written; the last TEXT_ROOM bytes are room for a text.
        hosts: int64[rows, 2], written: texts of the hosts, length -1 for what is no such text.

    Returns:
        How many texts are no such ones.
    """
    refused = 0
    scratch = len(texts) * HOST_V4_BYTES
    for row in range(len(texts)):
        size = texts[row, 1]
        if size < 0:
            hosts[row, 0], hosts[row, 1] = default, default_bytes
            continue
        hosts[row, 0], hosts[row, 1] = out.ctypes.data + row * HOST_V4_BYTES, -1
        refused += 1
        if size > _MAX_TEXT_BYTES:
            continue
        put_text(out, scratch, texts[row, 0], size)
        at, end, place = scratch, scratch + size, row * HOST_V4_BYTES
        groups = 0
        value = digits = 0
        while at < end:
            byte = np.int64(out[at])
            if 48 <= byte <= 57:
                value = value * 10 + byte - 48
                digits += 1
            elif groups < 4 and digits > 0 and value < 256 and byte == (58 if groups == 3 else 46):
                out[place + groups] = np.uint8(value)
                groups += 1
                value = digits = 0
            else:
                break
            at += 1
        if at == end and groups == 4 and digits > 0 and digits < 6 and value < 65536:
            write_i32(out, place + 4, value)
            hosts[row, 1] = HOST_V4_BYTES
            refused -= 1
    return refused
