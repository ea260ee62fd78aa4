"""Decides which records of a window are wanted, and checks records that are read one by one.

Tables of spans are those of ``rmq_formats.kernels.columns``.
"""

from typing import Any, Final

import numpy as np
from numba import njit

from rmq_formats.kernels.bytes import find_byte
from rmq_formats.kernels.columns import BORROWING
from rmq_formats.kernels.scan import CODE, FRAME_COLUMNS, SIZE, SOUND, TOPIC_AT, TOPIC_BYTES, check_crc, check_frame

# Columns of a queue table, int64[capacity, QUEUE_COLUMNS]; the names stand in a byte pool beside it.
QUEUE_TOPIC_AT: Final = 0
QUEUE_TOPIC_BYTES: Final = 1
QUEUE_ID: Final = 2
QUEUE_COLUMNS: Final = 3

# Columns of a table of points, int64[n, POINT_COLUMNS].
POINT_POSITION: Final = 0  # in the window
POINT_PHYSICAL_OFFSET: Final = 1
POINT_SIZE: Final = 2
POINT_COLUMNS: Final = 3

_SPACE = np.uint8(32)


@njit("boolean(uint8[::1], int64, uint8[::1], int64, int64)", **BORROWING)
def _same(data: Any, at: int, other: Any, other_at: int, byte_count: int) -> bool:
    for index in range(byte_count):
        if data[at + index] != other[other_at + index]:
            return False
    return True


@njit("uint64(uint8[::1], int64, int64, int64)", **BORROWING)
def _queue_hash(data: Any, at: int, byte_count: int, queue_id: int) -> int:
    hashed = np.uint64(0xCBF29CE484222325) + np.uint64(queue_id)
    for index in range(byte_count):
        hashed = (hashed ^ np.uint64(data[at + index])) * np.uint64(0x100000001B3)
    return hashed ^ (hashed >> np.uint64(31))


@njit(
    "int64(uint8[::1], int64[:, ::1], int32[::1], int64, int64[:, ::1], int32[::1], uint8[::1], int64[::1],"
    " int64[::1])",
    **BORROWING,
)
def number_queues(
    data: Any,
    frames: Any,
    queue_ids: Any,
    start: int,
    queues: Any,
    slots: Any,
    pool: Any,
    used: Any,
    out: Any,
) -> int:
    """Each record's row in a table of the queues that were met; new queues are added.

    Args:
        data: uint8[n], the window.
        frames: int64[rows, FRAME_COLUMNS].
        queue_ids: int32[rows].
        start: first row to look at.
        queues: int64[capacity, QUEUE_COLUMNS], updated.
        slots: int32[a power of two >= 2 * capacity], open addressing, 0 where empty; updated.
        pool: uint8[capacity], topic names; updated.
        used: int64[2]: rows of ``queues`` and bytes of ``pool`` in use; updated.
        out: int64[rows], written from ``start`` on.

    Returns:
        The row at which the table or the pool was full; ``len(frames)`` if all are done.
    """
    mask = len(slots) - 1
    for row in range(start, len(frames)):
        topic_at, topic_bytes = frames[row, TOPIC_AT], frames[row, TOPIC_BYTES]
        queue_id = np.int64(queue_ids[row])
        slot = np.int64(_queue_hash(data, topic_at, topic_bytes, queue_id) & np.uint64(mask))
        found = np.int64(-1)
        while slots[slot] != 0 and found < 0:
            queue = np.int64(slots[slot]) - 1
            if (
                queues[queue, QUEUE_ID] == queue_id
                and queues[queue, QUEUE_TOPIC_BYTES] == topic_bytes
                and _same(data, topic_at, pool, queues[queue, QUEUE_TOPIC_AT], topic_bytes)
            ):
                found = queue
            else:
                slot = (slot + 1) & mask
        if found < 0:
            found = used[0]
            if found == len(queues) or used[1] + topic_bytes > len(pool):
                return row
            for index in range(topic_bytes):
                pool[used[1] + index] = data[topic_at + index]
            queues[found, QUEUE_TOPIC_AT], queues[found, QUEUE_TOPIC_BYTES] = used[1], topic_bytes
            queues[found, QUEUE_ID] = queue_id
            slots[slot] = found + 1
            used[0] += 1
            used[1] += topic_bytes
        out[row] = found
    return len(frames)


@njit("void(int64[::1], int64[::1], int64[::1], int64[::1], boolean[::1])", **BORROWING)
def within_bounds(numbers: Any, values: Any, lowest: Any, end: Any, keep: Any) -> None:
    """Clear the mark of each row whose value is not within its queue's bounds.

    Args:
        numbers: int64[rows], each row's queue.
        values: int64[rows].
        lowest: int64[queues], smallest wanted value.
        end: int64[queues], one past the largest.
        keep: boolean[rows], updated.
    """
    for row in range(len(numbers)):
        number = numbers[row]
        if values[row] < lowest[number] or values[row] >= end[number]:
            keep[row] = False


@njit("void(uint8[::1], int64[:, ::1], int64, uint8[::1], int64[:, ::1], boolean[::1])", **BORROWING)
def match_any(data: Any, table: Any, column: int, pool: Any, wanted: Any, keep: Any) -> None:
    """Mark the rows whose byte string is one of some.

    Args:
        data: uint8[n], the window.
        table: int64[rows, columns], a table of spans.
        column: that of the positions; a negative one matches nothing.
        pool: uint8[m], the wanted strings.
        wanted: int64[strings, 2], their spans in the pool.
        keep: boolean[rows], written.
    """
    for row in range(len(table)):
        at, byte_count = table[row, column], table[row, column + 1]
        keep[row] = False
        if at < 0:
            continue
        for index in range(len(wanted)):
            if wanted[index, 1] == byte_count and _same(data, at, pool, wanted[index, 0], byte_count):
                keep[row] = True
                break


@njit("void(uint8[::1], int64[:, ::1], int64, uint8[::1], boolean[::1])", **BORROWING)
def match_part(data: Any, table: Any, column: int, wanted: Any, keep: Any) -> None:
    """Mark the rows of whose byte string one of the parts that spaces separate is ``wanted``.

    Args:
        data: uint8[n], the window.
        table: int64[rows, columns], a table of spans.
        column: that of the positions.
        wanted: uint8[m], not empty.
        keep: boolean[rows], written.
    """
    for row in range(len(table)):
        at = table[row, column]
        stop = at + table[row, column + 1]
        keep[row] = False
        while at < stop:
            end = find_byte(data, at, stop, _SPACE)
            if end - at == len(wanted) and _same(data, at, wanted, 0, len(wanted)):
                keep[row] = True
                break
            at = end + 1


@njit("int64(uint8[::1], int64, int64[:, ::1], int64, int64, boolean, int64[:, ::1])", **BORROWING)
def check_points(
    data: Any, data_bytes: int, points: Any, file_offset: int, file_bytes: int, verify_crc: bool, frames: Any
) -> int:
    """Judge records that were read one by one; those that are sound, or fail a checksum, become frames.

    Args:
        data: uint8[>= data_bytes], records that were read behind each other.
        data_bytes: bytes that are filled.
        points: int64[n, POINT_COLUMNS]: where each stands in ``data`` and in the log, and its size.
        file_offset: physical offset of their segment's first byte.
        file_bytes: the segment's size.
        verify_crc: check the sums.
        frames: int64[>= n, FRAME_COLUMNS], written from row 0 on.

    Returns:
        How many frames there are. A place at which no sound frame of that size stands gives none.
    """
    count = 0
    for index in range(len(points)):
        position = points[index, POINT_POSITION]
        window_at = points[index, POINT_PHYSICAL_OFFSET] - file_offset - position
        row = frames[count]
        code = check_frame(data, data_bytes, window_at, file_offset, file_bytes, position, row)
        if code != SOUND or row[SIZE] != points[index, POINT_SIZE]:
            continue
        if verify_crc:
            row[CODE] = check_crc(data, row)
        count += 1
    return count


assert FRAME_COLUMNS > CODE
