"""Compares the units of a queue's files with the queue's records: which they name, and which of them rise."""

from typing import Any

import numpy as np
from numba import njit

from rmq_formats.kernels.bytes import ALLOCATING, COMPILED
from rmq_formats.kernels.units import PHYSICAL_OFFSET

NO_RECORD = -1


@njit("void(int64[:, ::1], int64[:, ::1], int64[::1])", **COMPILED)
def name_records(units: Any, rows: Any, names: Any) -> None:
    """Find the record that each unit names.

    Args:
        units: int64[m, ROW_COLUMNS].
        rows: int64[k, ROW_COLUMNS], ascending by physical offset.
        names: int64[m], written: the row with the unit's physical offset, or NO_RECORD.
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
    """Choose a longest strictly rising subsequence.

    Args:
        values: int64[n].
        chosen: bool[n], written.
    """
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
