"""Groups ConsumeQueue units by queue, and encodes them at their queue offsets."""

from typing import Any, Final

from numba import njit

from rmq_formats.codecs.layout import (
    PRE_BLANK_SIZE,
    UNIT_BYTES,
    UNIT_PHYSICAL_OFFSET_AT,
    UNIT_SIZE_AT,
    UNIT_TAGS_CODE_AT,
)
from rmq_formats.kernels.bytes import ALLOCATING, COMPILED, read_i32, read_i64, write_i32, write_i64
from rmq_formats.kernels.dispatch import (
    UNIT_PHYSICAL_OFFSET,
    UNIT_QUEUE,
    UNIT_QUEUE_OFFSET,
    UNIT_SIZE,
    UNIT_STORE_TIMESTAMP,
    UNIT_TAGS_CODE,
)

# Columns of a queue's rows, int64[n, ROW_COLUMNS]: a unit table without its queue column.
QUEUE_OFFSET: Final = 0
PHYSICAL_OFFSET: Final = 1
SIZE: Final = 2
TAGS_CODE: Final = 3
STORE_TIMESTAMP: Final = 4  # ms, or LIGHT_UNIT
ROW_COLUMNS: Final = 5


@njit("void(int64[:, ::1], int64[::1], int64[::1], int64[:, ::1])", **ALLOCATING)
def group_by_queue(units: Any, rank: Any, starts: Any, rows: Any) -> None:
    """Sort units by the rank of their queue, in one stable pass.

    Args:
        units: int64[n, UNIT_COLUMNS].
        rank: int64[queues], each queue's place in the output, a permutation.
        starts: int64[queues + 1], written: the queue of rank r has rows starts[r] to starts[r + 1].
        rows: int64[n, ROW_COLUMNS], written.
    """
    starts[:] = 0
    for index in range(len(units)):
        starts[rank[units[index, UNIT_QUEUE]] + 1] += 1
    for queue in range(1, len(starts)):
        starts[queue] += starts[queue - 1]
    free = starts[:-1].copy()
    for index in range(len(units)):
        queue = rank[units[index, UNIT_QUEUE]]
        row = free[queue]
        free[queue] += 1
        rows[row, QUEUE_OFFSET] = units[index, UNIT_QUEUE_OFFSET]
        rows[row, PHYSICAL_OFFSET] = units[index, UNIT_PHYSICAL_OFFSET]
        rows[row, SIZE] = units[index, UNIT_SIZE]
        rows[row, TAGS_CODE] = units[index, UNIT_TAGS_CODE]
        rows[row, STORE_TIMESTAMP] = units[index, UNIT_STORE_TIMESTAMP]


@njit("int64(int64[:, ::1])", **COMPILED)
def contiguous_count(rows: Any) -> int:
    """Count the rows from the first on whose queue offsets go up by one."""
    for index in range(1, len(rows)):
        if rows[index, QUEUE_OFFSET] != rows[0, QUEUE_OFFSET] + index:
            return index
    return len(rows)


@njit("void(int64[:, ::1], int64, uint8[::1])", **COMPILED)
def encode_units(rows: Any, first_queue_offset: int, out: Any) -> None:
    """Encode rows, ascending by queue offset, as units; each place without one becomes a pre-blank.

    Args:
        rows: int64[n, ROW_COLUMNS]; queue offsets at or above ``first_queue_offset``, none twice.
        first_queue_offset: of the unit at ``out[0]``.
        out: uint8[units * UNIT_BYTES], written up to the last row's unit; the rest stays as it is.
    """
    at = 0
    for index in range(len(rows)):
        unit_at = (rows[index, QUEUE_OFFSET] - first_queue_offset) * UNIT_BYTES
        while at < unit_at:
            write_i64(out, at + UNIT_PHYSICAL_OFFSET_AT, 0)
            write_i32(out, at + UNIT_SIZE_AT, PRE_BLANK_SIZE)
            write_i64(out, at + UNIT_TAGS_CODE_AT, 0)
            at += UNIT_BYTES
        write_i64(out, at + UNIT_PHYSICAL_OFFSET_AT, rows[index, PHYSICAL_OFFSET])
        write_i32(out, at + UNIT_SIZE_AT, rows[index, SIZE])
        write_i64(out, at + UNIT_TAGS_CODE_AT, rows[index, TAGS_CODE])
        at += UNIT_BYTES


@njit("void(uint8[::1], int64[:, ::1])", **COMPILED)
def decode_units(data: Any, rows: Any) -> None:
    """Decode units into rows: PHYSICAL_OFFSET, SIZE and TAGS_CODE; the other columns stay as they are."""
    for index in range(len(rows)):
        at = index * UNIT_BYTES
        rows[index, PHYSICAL_OFFSET] = read_i64(data, at + UNIT_PHYSICAL_OFFSET_AT)
        rows[index, SIZE] = read_i32(data, at + UNIT_SIZE_AT)
        rows[index, TAGS_CODE] = read_i64(data, at + UNIT_TAGS_CODE_AT)
