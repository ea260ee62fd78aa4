"""Finds the records in what a broker answers to a pull: whole records, one behind the other."""

from typing import Any

from numba import njit

from rmq_formats.kernels.bytes import read_i32, read_i64
from rmq_formats.kernels.columns import BORROWING
from rmq_formats.kernels.columns_select import POINT_PHYSICAL_OFFSET, POINT_POSITION, POINT_SIZE
from rmq_formats.layout import RECORD_FIXED_BYTES_V1, RECORD_PHYSICAL_OFFSET_AT


@njit("int64(uint8[::1], int64[:, ::1], int64[::1])", **BORROWING)
def list_records(data: Any, points: Any, result: Any) -> int:
    """Where records stand, by the sizes that they begin with.

    Args:
        data: uint8[n], the answers.
        points: int64[>= n / RECORD_FIXED_BYTES_V1, POINT_COLUMNS], written from row 0 on.
        result: int64[1]: where the walk ended, which is n if all the bytes are records.

    Returns:
        How many records there are.
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
