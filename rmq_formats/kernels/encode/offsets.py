"""Assigns encoded records their offsets by running sums of sizes and of queue offsets, then copies them there.

`rmq_offline.write.log_writer` drives it.
"""

from typing import Any, Final

import numpy as np
from numba import njit

from rmq_formats.codecs.layout import BLANK_BYTES, CRC_PROPERTY_BYTES
from rmq_formats.codecs.record_layout import RECORD_PHYSICAL_OFFSET_AT, RECORD_QUEUE_OFFSET_AT
from rmq_formats.kernels.bytes import COMPILED, copy_bytes, write_i64
from rmq_formats.kernels.crc import crc32
from rmq_formats.kernels.encode.rows import MARK_COUNTS, MARK_CRC, MARKS, ORDER_KEY, QUEUE, SIZE

# Columns of a place, int64[rows, PLACE_COLUMNS].
PHYSICAL_OFFSET: Final = 0
QUEUE_OFFSET: Final = 1  # KEPT leaves the record's own
PLACE_COLUMNS: Final = 2
KEPT: Final = -1

PLACED: Final = -1

_CRC_DIGITS = 10


@njit("int64(int64[:, ::1], int64[::1], boolean, int64, int64[::1], int64[:, ::1])", **COMPILED)
def lay_out(encoded: Any, queue_ends: Any, keep: bool, file_bytes: int, end: Any, places: Any) -> int:
    """Lay records end to end; a new file begins when a BLANK would not fit after the next record.

    Args:
        encoded: int64[rows, ENCODED_COLUMNS] of ``kernels.encode.rows``, in the order of the log.
        queue_ends: int64[queues], the next queue offset of each; updated.
        keep: the records must stand where ORDER_KEY says, and have their queue offsets already.
        file_bytes: size of a CommitLog file; the first one may have another size, and the later ones begin at multiples
            of ``file_bytes`` after it.
        end: int64[2]: physical offset one past the last record, and of the end of its file; updated.
        places: int64[rows, PLACE_COLUMNS], written.

    Returns:
        PLACED, or the row that is to be kept and does not follow the one before it.

    Source: ``CommitLog.DefaultAppendMessageCallback#doAppend``.
    """
    at, file_end = end[0], end[1]
    for row in range(len(encoded)):
        size = encoded[row, SIZE]
        if at + size + BLANK_BYTES > file_end or (keep and encoded[row, ORDER_KEY] == file_end):
            if file_end - at < BLANK_BYTES and at < file_end:
                return row
            at = file_end
            file_end += file_bytes
        if keep and encoded[row, ORDER_KEY] != at:
            return row
        places[row, PHYSICAL_OFFSET] = at
        places[row, QUEUE_OFFSET] = KEPT
        if not keep:
            places[row, QUEUE_OFFSET] = 0  # a prepared or rolled-back transaction message
            if encoded[row, MARKS] & MARK_COUNTS:
                places[row, QUEUE_OFFSET] = queue_ends[encoded[row, QUEUE]]
                queue_ends[encoded[row, QUEUE]] += 1
        at += size
    end[0], end[1] = at, file_end
    return PLACED


@njit("void(int64[:, ::1], int64[::1], int64[:, ::1], int64, int64, uint8[::1])", **COMPILED)
def place_records(encoded: Any, addresses: Any, places: Any, first: int, stop: int, out: Any) -> None:
    """Copy the rows ``first`` to ``stop``, of one file, to ``out``, and write its offsets into each record.

    Args:
        encoded: int64[rows, ENCODED_COLUMNS].
        addresses: int64[rows], where each record is in memory.
        places: int64[rows, PLACE_COLUMNS].
    """
    at = 0
    for row in range(first, stop):
        size = encoded[row, SIZE]
        copy_bytes(np.uint64(out.ctypes.data + at), np.uint64(addresses[row]), size)
        write_i64(out, at + RECORD_PHYSICAL_OFFSET_AT, places[row, PHYSICAL_OFFSET])
        if places[row, QUEUE_OFFSET] != KEPT:
            write_i64(out, at + RECORD_QUEUE_OFFSET_AT, places[row, QUEUE_OFFSET])
        if encoded[row, MARKS] & MARK_CRC:
            covered_end = at + size - CRC_PROPERTY_BYTES
            total = crc32(out, at, covered_end) & 0x7FFFFFFF
            digits_at = at + size - 1 - _CRC_DIGITS
            for digit in range(_CRC_DIGITS):  # the least significant first, MessageDecoder#createCrc32
                out[digits_at + digit] = np.uint8(48 + total % 10)
                total //= 10
        at += size
