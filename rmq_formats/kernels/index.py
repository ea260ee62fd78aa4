"""Builds the entries and slots of an IndexFile in log order.

Source: ``IndexFile#putKey``. ``tests.support.oracles.index`` is the plain-Python oracle.
"""

from typing import Any, Final

import numpy as np
from numba import njit, types

from rmq_formats.codecs.layout import (
    INDEX_BEGIN_PHYSICAL_OFFSET_AT,
    INDEX_BEGIN_TIMESTAMP_AT,
    INDEX_COUNT_AT,
    INDEX_END_PHYSICAL_OFFSET_AT,
    INDEX_END_TIMESTAMP_AT,
    INDEX_ENTRY_BYTES,
    INDEX_ENTRY_PHYSICAL_OFFSET_AT,
    INDEX_ENTRY_PREVIOUS_AT,
    INDEX_ENTRY_SECONDS_AT,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
    INDEX_SLOT_COUNT_AT,
)
from rmq_formats.kernels.bytes import COMPILED, prefetch, read_i32, read_i64, write_i32, write_i64
from rmq_formats.kernels.dispatch import KEY_HASH, KEY_PHYSICAL_OFFSET, KEY_STORE_TIMESTAMP

# State of a file under construction, int64[STATE_COLUMNS]: its header's fields.
BEGIN_TIMESTAMP: Final = 0
END_TIMESTAMP: Final = 1
BEGIN_PHYSICAL_OFFSET: Final = 2
END_PHYSICAL_OFFSET: Final = 3
SLOT_COUNT: Final = 4
INDEX_COUNT: Final = 5  # number of the next entry; 1 in a new file
STATE_COLUMNS: Final = 6

# Columns that come out of an Arrow file are read-only.
READ_INT32 = types.Array(types.int32, 1, "C", readonly=True)
READ_INT64 = types.Array(types.int64, 1, "C", readonly=True)
AHEAD = 24  # entries ahead: the slot table is far larger than a cache, its lines must be prefetched
MAX_SECONDS = 0x7FFFFFFF


@njit(
    types.void(READ_INT32, READ_INT64, READ_INT64, types.int32[::1], types.int64[::1], types.uint8[::1]),
    **COMPILED,
)
def chain_entries(
    hashes: Any, physical_offsets: Any, store_timestamps_ms: Any, slots: Any, state: Any, out: Any
) -> None:
    """Append entries, each one of int32[n], int64[n] and int64[n], to a file under construction.

    Args:
        hashes: key hashes, not negative.
        slots: int32[slot count], native order: the newest entry of each chain, 0 if none; updated.
        state: int64[STATE_COLUMNS]; updated. The caller makes sure that the file has room.
        out: uint8[n * INDEX_ENTRY_BYTES], written: the entries, which follow those before.
    """
    slot_count = len(slots)
    base = slots.ctypes.data
    for row in range(len(hashes)):
        if row + AHEAD < len(hashes):
            prefetch(np.uint64(base + 4 * (hashes[row + AHEAD] % slot_count)))
        slot = hashes[row] % slot_count
        previous = slots[slot]
        timestamp = store_timestamps_ms[row]
        seconds = 0
        if state[BEGIN_TIMESTAMP] > 0:
            seconds = min(max((timestamp - state[BEGIN_TIMESTAMP]) // 1000, 0), MAX_SECONDS)
        at = row * INDEX_ENTRY_BYTES
        write_i32(out, at, hashes[row])
        write_i64(out, at + INDEX_ENTRY_PHYSICAL_OFFSET_AT, physical_offsets[row])
        write_i32(out, at + INDEX_ENTRY_SECONDS_AT, seconds)
        write_i32(out, at + INDEX_ENTRY_PREVIOUS_AT, previous)
        slots[slot] = state[INDEX_COUNT]
        if state[INDEX_COUNT] <= 1:
            state[BEGIN_TIMESTAMP] = timestamp
            state[BEGIN_PHYSICAL_OFFSET] = physical_offsets[row]
        if previous == 0:
            state[SLOT_COUNT] += 1
        state[INDEX_COUNT] += 1
        state[END_TIMESTAMP] = timestamp
        state[END_PHYSICAL_OFFSET] = physical_offsets[row]


@njit("void(uint8[::1], int64, int64[:, ::1])", **COMPILED)
def append_in_place(image: Any, slot_count: int, keys: Any) -> None:
    """Append entries to a file that is in use, as ``chain_entries`` does, on the file's own bytes.

    Entries come first, then slots, then the header: a concurrent reader finds no entry that does not exist.

    Args:
        image: uint8[n], the whole file, mapped; updated.
        keys: int64[m, KEY_COLUMNS]; the caller makes sure that the file has room for all.
    """
    begin_timestamp = read_i64(image, INDEX_BEGIN_TIMESTAMP_AT)
    count = max(read_i32(image, INDEX_COUNT_AT), 1)
    first = count
    used_slots = read_i32(image, INDEX_SLOT_COUNT_AT)
    entries_at = INDEX_HEADER_BYTES + slot_count * INDEX_SLOT_BYTES
    for row in range(len(keys)):
        key_hash, timestamp = keys[row, KEY_HASH], keys[row, KEY_STORE_TIMESTAMP]
        slot_at = INDEX_HEADER_BYTES + key_hash % slot_count * INDEX_SLOT_BYTES
        previous = read_i32(image, slot_at)
        if previous < 0 or previous > count:
            previous = 0
        seconds = 0
        if begin_timestamp > 0:
            seconds = min(max((timestamp - begin_timestamp) // 1000, 0), MAX_SECONDS)
        at = entries_at + count * INDEX_ENTRY_BYTES
        write_i32(image, at, key_hash)
        write_i64(image, at + INDEX_ENTRY_PHYSICAL_OFFSET_AT, keys[row, KEY_PHYSICAL_OFFSET])
        write_i32(image, at + INDEX_ENTRY_SECONDS_AT, seconds)
        write_i32(image, at + INDEX_ENTRY_PREVIOUS_AT, previous)
        write_i32(image, slot_at, count)
        if count == 1:
            begin_timestamp = timestamp
        if previous == 0:
            used_slots += 1
        count += 1
    if len(keys) == 0:
        return
    if first == 1:
        write_i64(image, INDEX_BEGIN_TIMESTAMP_AT, keys[0, KEY_STORE_TIMESTAMP])
        write_i64(image, INDEX_BEGIN_PHYSICAL_OFFSET_AT, keys[0, KEY_PHYSICAL_OFFSET])
    write_i64(image, INDEX_END_TIMESTAMP_AT, keys[len(keys) - 1, KEY_STORE_TIMESTAMP])
    write_i64(image, INDEX_END_PHYSICAL_OFFSET_AT, keys[len(keys) - 1, KEY_PHYSICAL_OFFSET])
    write_i32(image, INDEX_SLOT_COUNT_AT, used_slots)
    write_i32(image, INDEX_COUNT_AT, count)


@njit("int64(uint8[::1], int64, int64)", **COMPILED)
def rechain(image: Any, slot_count: int, index_count: int) -> int:
    """Recompute the slots from the entries below ``index_count``, and these entries' links; count the slots in use.

    ``image`` is the whole file, uint8[n], whose header is not updated.
    """
    image[INDEX_HEADER_BYTES : INDEX_HEADER_BYTES + slot_count * INDEX_SLOT_BYTES] = 0
    entries_at = INDEX_HEADER_BYTES + slot_count * INDEX_SLOT_BYTES
    used_slots = 0
    for number in range(1, index_count):
        at = entries_at + number * INDEX_ENTRY_BYTES
        slot_at = INDEX_HEADER_BYTES + (read_i32(image, at) & MAX_SECONDS) % slot_count * INDEX_SLOT_BYTES
        previous = read_i32(image, slot_at)
        write_i32(image, at + INDEX_ENTRY_PREVIOUS_AT, previous)
        write_i32(image, slot_at, number)
        used_slots += previous == 0
    return used_slots
