"""Groups ConsumeQueue units by queue, places them as a broker does, encodes them, and compares them with records."""

from typing import Any, Final

import numpy as np
from numba import njit

from rmq_formats.codecs.consumequeue import MAX_QUEUE_OFFSET
from rmq_formats.codecs.layout import (
    PRE_BLANK_SIZE,
    UNIT_BYTES,
    UNIT_PHYSICAL_OFFSET_AT,
    UNIT_SIZE_AT,
    UNIT_TAGS_CODE_AT,
)
from rmq_formats.codecs.record_layout import RECORD_FIXED_BYTES_V1
from rmq_formats.kernels.bytes import ALLOCATING, COMPILED, INLINED, read_i32, read_i64, write_i32, write_i64
from rmq_formats.kernels.dispatch import UNIT_QUEUE, UNIT_QUEUE_OFFSET

# Columns of a queue's rows, int64[n, ROW_COLUMNS]: those of a unit table from UNIT_QUEUE_OFFSET on.
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
        for column in range(ROW_COLUMNS):
            rows[row, column] = units[index, UNIT_QUEUE_OFFSET + column]


@njit("int64(int64[:, ::1])", **COMPILED)
def contiguous_count(rows: Any) -> int:
    """Count the rows from the first on whose queue offsets go up by one."""
    for index in range(1, len(rows)):
        if rows[index, QUEUE_OFFSET] != rows[0, QUEUE_OFFSET] + index:
            return index
    return len(rows)


@njit("boolean(int64[:, ::1])", **COMPILED)
def are_plain(rows: Any) -> bool:
    """Return whether rows are as nearly all are: queue offsets go up by one, records do not overlap."""
    for index in range(1, len(rows)):
        if (
            rows[index, QUEUE_OFFSET] != rows[0, QUEUE_OFFSET] + index
            or rows[index, PHYSICAL_OFFSET] < rows[index - 1, PHYSICAL_OFFSET] + rows[index - 1, SIZE]
        ):
            return False
    return len(rows) == 0 or 0 <= rows[0, QUEUE_OFFSET] <= MAX_QUEUE_OFFSET - len(rows)


# Places of rows that get no unit, by append_rows.
SKIPPED: Final = -1  # its queue offset is below the queue's end
COVERED: Final = -2  # the queue has a unit of a record that ends behind it
IMPOSSIBLE: Final = -3  # no queue can begin at its queue offset
NO_FILE: Final = -1  # the end of a queue that has no file
NO_RECORD: Final = -1  # a unit names none of the records


@njit("int64(int64)", **INLINED)
def _position(place: int) -> int:
    """Compute the position of a unit in the queue, in bytes; unsigned, as compilers assume that signed products fit."""
    return np.int64(np.uint64(place) * np.uint64(UNIT_BYTES))


@njit("int64(int64[::1], int64[::1], int64, int64)", **INLINED)
def _lost_bytes(begins: Any, ends: Any, begin: int, end: int) -> int:
    """Sum the bytes of damaged ranges within ``[begin, end)``."""
    low, high = 0, len(ends)
    while low < high:
        middle = (low + high) // 2
        if ends[middle] <= begin:
            low = middle + 1
        else:
            high = middle
    total = 0
    while low < len(begins) and begins[low] < end:
        total += min(ends[low], end) - max(begins[low], begin)
        low += 1
    return total


@njit("int64(int64[:, ::1], int64, int64, int64[::1], int64[::1], int64[::1])", **COMPILED)
def append_rows(rows: Any, end: int, end_physical_offset: int, lost_begins: Any, lost_ends: Any, places: Any) -> int:
    """Append rows to a queue as a broker does that dispatches their records: a gap between queue offsets is closed.

    A gap that messages in a damaged range of the log explain is not: the broker gave these an offset each.

    Args:
        rows: int64[n, ROW_COLUMNS], in log order.
        end: one past the queue's last unit, or NO_FILE: then the first row begins the queue at its own offset.
        end_physical_offset: one past the record that the last unit names; -1 if there is none.
        lost_begins: int64[m], where each damaged range begins, ascending.
        lost_ends: int64[m], one past its end.
        places: int64[n], written: the place of each row's unit, or SKIPPED, COVERED, IMPOSSIBLE.

    Returns:
        The queue's end, or NO_FILE.

    Source: ``ConsumeQueue#putMessagePositionInfo``; products of queue offsets wrap there, too.
    """
    for index in range(len(rows)):
        queue_offset, physical_offset = rows[index, QUEUE_OFFSET], rows[index, PHYSICAL_OFFSET]
        if physical_offset + rows[index, SIZE] <= end_physical_offset:
            places[index] = COVERED
            continue
        if end == NO_FILE:
            if queue_offset < 0 or queue_offset > MAX_QUEUE_OFFSET:
                places[index] = IMPOSSIBLE
                continue
            end = queue_offset
        elif queue_offset != 0 and _position(queue_offset) < _position(end):
            places[index] = SKIPPED
            continue
        elif end < queue_offset <= MAX_QUEUE_OFFSET and len(lost_begins) > 0:
            lost = _lost_bytes(lost_begins, lost_ends, max(end_physical_offset, 0), physical_offset)
            if (queue_offset - end) <= lost // RECORD_FIXED_BYTES_V1:
                end = queue_offset
        places[index] = end
        end += 1
        end_physical_offset = physical_offset + rows[index, SIZE]
    return end


@njit("void(int64[:, ::1], int64, uint8[::1])", **COMPILED)
def encode_units(rows: Any, first_queue_offset: int, out: Any) -> None:
    """Encode rows as units; each place without one becomes a pre-blank.

    Args:
        rows: int64[n, ROW_COLUMNS]; queue offsets ascend from ``first_queue_offset`` or above, none twice.
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


@njit("void(int64[:, ::1], int64[:, ::1], int64[::1])", **COMPILED)
def name_records(units: Any, rows: Any, names: Any) -> None:
    """Find the record that each unit names, by its physical offset.

    Args:
        units: int64[m, ROW_COLUMNS].
        rows: int64[k, ROW_COLUMNS], ascending by physical offset.
        names: int64[m], written: a row of ``rows``, or NO_RECORD.
    """
    following = 0  # nearly all units name the row behind that of the unit before
    for index in range(len(units)):
        offset = units[index, PHYSICAL_OFFSET]
        if following < len(rows) and rows[following, PHYSICAL_OFFSET] == offset:
            names[index] = following
            following += 1
            continue
        low, high = 0, len(rows)
        while low < high:
            middle = (low + high) // 2
            if rows[middle, PHYSICAL_OFFSET] < offset:
                low = middle + 1
            else:
                high = middle
        if low < len(rows) and rows[low, PHYSICAL_OFFSET] == offset:
            names[index] = low
            following = low + 1
        else:
            names[index] = NO_RECORD


@njit("void(int64[::1], boolean[::1])", **ALLOCATING)
def longest_rise(values: Any, chosen: Any) -> None:
    """Choose a longest strictly rising subsequence: ``chosen`` is bool[n], written."""
    tails = np.empty(len(values), dtype=np.int64)  # index of the least last value of the rises of each length
    before = np.empty(len(values), dtype=np.int64)
    count = 0
    for index in range(len(values)):
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if values[tails[middle]] < values[index]:
                low = middle + 1
            else:
                high = middle
        before[index] = tails[low - 1] if low else -1
        tails[low] = index
        if low == count:
            count += 1
    chosen[:] = False
    index = tails[count - 1] if count else -1
    while index >= 0:
        chosen[index] = True
        index = before[index]
