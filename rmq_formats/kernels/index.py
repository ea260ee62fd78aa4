"""Builds the entries and slots of an IndexFile in log order.

Source: ``IndexFile#putKey``. ``rmq_formats.index`` is the plain-Python oracle.
"""

from typing import Any, Final

import numpy as np
from numba import njit, types

from rmq_formats.kernels.bytes import prefetch, write_i32, write_i64
from rmq_formats.layout import INDEX_ENTRY_BYTES

# The state of a file under construction, int64[STATE_COLUMNS]; what its header will say.
BEGIN_TIMESTAMP: Final = 0
END_TIMESTAMP: Final = 1
BEGIN_PHYSICAL_OFFSET: Final = 2
END_PHYSICAL_OFFSET: Final = 3
SLOT_COUNT: Final = 4
INDEX_COUNT: Final = 5  # of the next entry; 1 in a new file
STATE_COLUMNS: Final = 6

# Columns that come out of an Arrow file are read-only.
_READ_INT32 = types.Array(types.int32, 1, "C", readonly=True)
_READ_INT64 = types.Array(types.int64, 1, "C", readonly=True)
_AHEAD = 24  # entries: the slot table is far larger than a cache, its lines must be asked for early
_MAX_SECONDS = 0x7FFFFFFF


@njit(
    types.void(_READ_INT32, _READ_INT64, _READ_INT64, types.int32[::1], types.int64[::1], types.uint8[::1]),
    cache=True,
    nogil=True,
)
def chain_entries(
    hashes: Any, physical_offsets: Any, store_timestamps_ms: Any, slots: Any, state: Any, out: Any
) -> None:
    """Append entries to a file under construction.

    Args:
        hashes: int32[n], key hashes, not negative.
        physical_offsets: int64[n].
        store_timestamps_ms: int64[n].
        slots: int32[slot count], native order: the newest entry of each chain, 0 if none; updated.
        state: int64[STATE_COLUMNS]; updated. The caller sees to it that the file has room.
        out: uint8[n * INDEX_ENTRY_BYTES], written: the entries, for their place behind those before.
    """
    slot_count = len(slots)
    base = slots.ctypes.data
    for row in range(len(hashes)):
        if row + _AHEAD < len(hashes):
            prefetch(np.uint64(base + 4 * (hashes[row + _AHEAD] % slot_count)))
        slot = hashes[row] % slot_count
        previous = slots[slot]
        timestamp = store_timestamps_ms[row]
        seconds = 0
        if state[BEGIN_TIMESTAMP] > 0:
            seconds = min(max((timestamp - state[BEGIN_TIMESTAMP]) // 1000, 0), _MAX_SECONDS)
        at = row * INDEX_ENTRY_BYTES
        write_i32(out, at, hashes[row])
        write_i64(out, at + 4, physical_offsets[row])
        write_i32(out, at + 12, seconds)
        write_i32(out, at + 16, previous)
        slots[slot] = state[INDEX_COUNT]
        if state[INDEX_COUNT] <= 1:
            state[BEGIN_TIMESTAMP] = timestamp
            state[BEGIN_PHYSICAL_OFFSET] = physical_offsets[row]
        if previous == 0:
            state[SLOT_COUNT] += 1
        state[INDEX_COUNT] += 1
        state[END_TIMESTAMP] = timestamp
        state[END_PHYSICAL_OFFSET] = physical_offsets[row]
