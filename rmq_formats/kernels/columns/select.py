"""Selects the records of a window that match a query, and checks records that are read one by one.

Arguments and tables of spans are those of ``rmq_formats.kernels.columns.gather``.
"""

from typing import Any, Final

import numpy as np
from numba import njit

from rmq_formats.codecs.record_layout import RECORD_FIXED_BYTES_V1, RECORD_PHYSICAL_OFFSET_AT
from rmq_formats.kernels.bytes import COMPILED, find_byte, read_i32, read_i64, same_bytes
from rmq_formats.kernels.dispatch import find_queue
from rmq_formats.kernels.scan import CODE, SIZE, SOUND, TOPIC_AT, TOPIC_BYTES, check_crc, check_frame
from rmq_formats.kernels.text import java_hash

# Columns of a table of points, int64[n, POINT_COLUMNS].
POINT_POSITION: Final = 0  # in the window
POINT_PHYSICAL_OFFSET: Final = 1
POINT_SIZE: Final = 2
POINT_COLUMNS: Final = 3

_SPACE = np.uint8(32)


@njit(
    "int64(uint8[::1], int64[:, ::1], int32[::1], int64, int64[:, ::1], int32[::1], uint8[::1], int64[::1],"
    " int64[::1])",
    **COMPILED,
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
    """Find each record's row in a table of the queues that occurred; new queues are added.

    Args:
        queues, slots, pool, used: the queue table; see ``kernels.dispatch.find_queue``.
        out: int64[rows], written from ``start`` on.

    Returns:
        The row at which the table or the pool was full; ``len(frames)`` if all are done.
    """
    for row in range(start, len(frames)):
        topic_at, topic_bytes = frames[row, TOPIC_AT], frames[row, TOPIC_BYTES]
        topic_hash = java_hash(data, topic_at, topic_at + topic_bytes, np.uint32(0))
        queue = find_queue(data, topic_at, topic_bytes, topic_hash, np.int64(queue_ids[row]), queues, slots, pool, used)
        if queue < 0:
            return row
        out[row] = queue
    return len(frames)


@njit("void(int64[::1], int64[::1], int64[::1], int64[::1], boolean[::1])", **COMPILED)
def within_bounds(numbers: Any, values: Any, lowest: Any, end: Any, keep: Any) -> None:
    """Clear the mark of each row whose value is outside its queue's bounds.

    Args:
        numbers: int64[rows], each row's queue.
        lowest: int64[queues], smallest wanted value.
        end: int64[queues], one past the largest.
    """
    for row in range(len(numbers)):
        number = numbers[row]
        if values[row] < lowest[number] or values[row] >= end[number]:
            keep[row] = False


@njit("void(uint8[::1], int64[:, ::1], int64, uint8[::1], int64[:, ::1], boolean[::1])", **COMPILED)
def match_any(data: Any, table: Any, column: int, pool: Any, spans: Any, keep: Any) -> None:
    """Mark the rows whose byte string is one of a set: ``spans`` of ``pool``, int64[strings, 2]."""
    for row in range(len(table)):
        at, byte_count = table[row, column], table[row, column + 1]
        keep[row] = False
        if at < 0:
            continue
        for index in range(len(spans)):
            if spans[index, 1] == byte_count and same_bytes(data, at, pool, spans[index, 0], byte_count):
                keep[row] = True
                break


@njit("void(uint8[::1], int64[:, ::1], int64, uint8[::1], boolean[::1])", **COMPILED)
def match_part(data: Any, table: Any, column: int, part: Any, keep: Any) -> None:
    """Mark the rows whose byte string has ``part``, which is not empty, among its space-separated parts."""
    for row in range(len(table)):
        at = table[row, column]
        stop = at + table[row, column + 1]
        keep[row] = False
        while at < stop:
            end = find_byte(data, at, stop, _SPACE)
            if end - at == len(part) and same_bytes(data, at, part, 0, len(part)):
                keep[row] = True
                break
            at = end + 1


@njit("int64(uint8[::1], int64, int64[:, ::1], int64, int64, boolean, int64[:, ::1])", **COMPILED)
def check_points(
    data: Any, data_bytes: int, points: Any, file_offset: int, file_bytes: int, verify_crc: bool, frames: Any
) -> int:
    """Check records that were read one by one; those that are sound, or fail a checksum, become frames.

    Args:
        data: uint8[>= data_bytes], the records, concatenated.
        points: int64[n, POINT_COLUMNS]: where each stands in ``data`` and in the log, and its size.
        file_offset: physical offset of their segment's first byte.
        frames: int64[>= n, FRAME_COLUMNS], written from row 0 on.

    Returns:
        How many frames there are. A point without a sound frame of that size gives none.
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


@njit("int64(uint8[::1], int64[:, ::1], int64[::1])", **COMPILED)
def list_records(data: Any, points: Any, result: Any) -> int:
    """List the positions and sizes of consecutive records, and count them, by the sizes that they begin with.

    Args:
        points: int64[>= n / RECORD_FIXED_BYTES_V1, POINT_COLUMNS], written from row 0 on.
        result: int64[1]: where the walk ended, which is n if all the bytes are records.
    """
    position, count = 0, 0
    while position + RECORD_FIXED_BYTES_V1 <= len(data):
        size = read_i32(data, position)
        if size < RECORD_FIXED_BYTES_V1 or size > len(data) - position:
            break
        points[count, POINT_POSITION] = position
        points[count, POINT_PHYSICAL_OFFSET] = read_i64(data, position + RECORD_PHYSICAL_OFFSET_AT)
        points[count, POINT_SIZE] = size
        position += size
        count += 1
    result[0] = position
    return count
