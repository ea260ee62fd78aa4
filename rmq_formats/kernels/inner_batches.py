"""Finds inner batches: records of several messages, with the base offset and the count in two properties.

Source: ``CommitLog#checkMessageAndReturnSize``, where a record without both properties is one message.
"""

from typing import Any, Final

import numpy as np
from numba import njit

from rmq_formats.kernels.bytes import ALLOCATING
from rmq_formats.kernels.scan import CODE, POSITION, PROPERTIES_AT, PROPERTIES_BYTES, SOUND
from rmq_formats.kernels.text import INNER_BASE, INNER_NUM, PROPERTY_ROWS, find_properties, parse_decimal, parse_long

# Columns of a table of inner batches, int64[n, BATCH_COLUMNS], ascending by physical offset.
BATCH_PHYSICAL_OFFSET: Final = 0
BATCH_BASE_OFFSET: Final = 1  # queue offset of the first message
BATCH_MESSAGES: Final = 2
BATCH_COLUMNS: Final = 3


@njit("int64(uint8[::1], int64, int64[:, ::1], int64[:, ::1])", **ALLOCATING)
def find_inner_batches(data: Any, physical_offset: int, frames: Any, batches: Any) -> int:
    """Fill a table, int64[n, BATCH_COLUMNS], with the inner batches among the sound frames of a window; count them.

    ``physical_offset`` is that of ``data[0]``.
    """
    values = np.empty((PROPERTY_ROWS, 2), dtype=np.int64)
    count = 0
    for row in range(len(frames)):
        if frames[row, CODE] != SOUND:
            continue
        begin = frames[row, PROPERTIES_AT]
        find_properties(data, begin, begin + frames[row, PROPERTIES_BYTES], values)
        if values[INNER_BASE, 1] <= 0 or values[INNER_NUM, 1] <= 0:
            continue
        base = parse_long(data, values[INNER_BASE, 0], values[INNER_BASE, 1])
        messages = parse_decimal(data, values[INNER_NUM, 0], values[INNER_NUM, 1])
        if base < 0 or not 0 < messages <= 0x7FFF:
            continue
        batches[count, BATCH_PHYSICAL_OFFSET] = physical_offset + frames[row, POSITION]
        batches[count, BATCH_BASE_OFFSET], batches[count, BATCH_MESSAGES] = base, messages
        count += 1
    return count
