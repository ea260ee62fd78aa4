"""Verification kernels: compare a store's files with what its CommitLog demands.

Each kernel runs as long as all is as expected and returns where it is not; slower code then makes
the finding, once for each fault. Arrays are borrowed. The tables are those of ``scan``, ``units`` and ``index``.
"""

from typing import Any, Final

import numpy as np
from numba import njit, types

from rmq_formats.codecs.layout import (
    EXT_UNIT_MIN_BYTES,
    FLAG_BORN_HOST_V6,
    FLAG_COMPRESSED,
    FLAG_COMPRESSION_LZ4,
    FLAG_COMPRESSION_MASK,
    FLAG_COMPRESSION_ZLIB,
    FLAG_COMPRESSION_ZSTD,
    FLAG_STORE_HOST_V6,
    FLAG_TRANSACTION_COMMIT,
    INDEX_ENTRY_BYTES,
    INDEX_ENTRY_PHYSICAL_OFFSET_AT,
    INDEX_ENTRY_PREVIOUS_AT,
    INDEX_ENTRY_SECONDS_AT,
    INDEX_SLOT_BYTES,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    UNIT_BYTES,
    UNIT_SIZE_AT,
    UNIT_TAGS_CODE_AT,
)
from rmq_formats.codecs.record_layout import (
    HOST_V6_EXTRA_BYTES,
    PORT_BYTES,
    RECORD_BORN_TIMESTAMP_AT,
    RECORD_PREPARED_OFFSET_AT,
    RECORD_QUEUE_ID_AT,
    RECORD_QUEUE_OFFSET_AT,
    RECORD_RECONSUME_TIMES_AT,
    RECORD_STORE_TIMESTAMP_AT,
    RECORD_SYS_FLAG_AT,
)
from rmq_formats.kernels.bytes import (
    COMPILED,
    INLINED,
    match_mask_32,
    prefetch,
    read_i16,
    read_i32,
    read_i64,
    trailing_zeros,
)
from rmq_formats.kernels.dispatch import store_timestamp
from rmq_formats.kernels.index import AHEAD, MAX_SECONDS, READ_INT32, READ_INT64
from rmq_formats.kernels.scan import (
    BODY_AT,
    BODY_BYTES,
    CODE,
    POSITION,
    PROPERTIES_AT,
    PROPERTIES_BYTES,
    SOUND,
    TOPIC_AT,
    TOPIC_BYTES,
)
from rmq_formats.kernels.scan import SIZE as RECORD_BYTES
from rmq_formats.kernels.text import is_utf8
from rmq_formats.kernels.units import PHYSICAL_OFFSET, SIZE, TAGS_CODE

# Bits of a record's odd fields.
ODD_TOPIC: Final = 1
ODD_PROPERTIES: Final = 2
ODD_SYS_FLAG: Final = 4
ODD_QUEUE_ID: Final = 8
ODD_QUEUE_OFFSET: Final = 16
ODD_BORN_TIMESTAMP: Final = 32
ODD_BORN_HOST: Final = 64
ODD_STORE_TIMESTAMP: Final = 128
ODD_STORE_HOST: Final = 256
ODD_RECONSUME_TIMES: Final = 512
ODD_PREPARED_OFFSET: Final = 1024
ODD_COMPRESSION: Final = 2048

# Summary of a window by ``check_records``, int64[SUMMARY_COLUMNS].
ODD_COUNT: Final = 0
FAILED_COUNT: Final = 1  # frames that are not sound
FALL_COUNT: Final = 2  # store timestamps below that of the record before
LARGEST_BYTES: Final = 3
LATEST_MS: Final = 4  # -1 without a sound frame
SUMMARY_COLUMNS: Final = 5

_KNOWN_FLAGS = 0x7FF
_MAX_TIMESTAMP = 1 << 48  # ms: the year 10889
_MAX_RECONSUME_TIMES = 1 << 24
_MAX_PORT = 0xFFFF
_GZIP_MAGIC = 0x1F8B  # of clients of RocketMQ 5, stored under the flag of zlib
_LZ4_MAGIC = 0x04224D18
_ZSTD_MAGIC = 0x28B52FFD

# Kinds of a fault in an Index entry, rows of a fault table int64[n, 4]: number, field, expected, actual.
FAULT_SECONDS: Final = 0
FAULT_PREVIOUS: Final = 1

# The state of a walk over an IndexFile's entries, int64[STATE_COLUMNS].
STATE_FAULTS: Final = 0  # faults so far; those beyond the fault table's end are only counted
STATE_SLOTS_USED: Final = 1
STATE_COLUMNS: Final = 2
NO_BEGIN: Final = -1  # seconds are not compared


@njit("boolean(uint8[::1], int64, int64)", **COMPILED)
def is_plain_topic(data: Any, at: int, stop: int) -> bool:
    """Return whether the topic is printable ASCII that can name a directory; others need a closer look."""
    if at == stop or (stop - at <= 2 and data[at] == 46):
        return False
    for index in range(at, stop):
        if data[index] <= 32 or data[index] >= 127 or data[index] == 47:
            return False
    return True


@njit("boolean(uint8[::1], int64, int64)", **COMPILED)
def are_properties(data: Any, start: int, stop: int) -> bool:
    """Return whether a property block parses: each entry has a name and a separator; a value may be empty."""
    entry, separator = start, -1
    at = start
    while at < stop:
        address = np.uint64(data.ctypes.data + at)
        width = 1
        if at + 32 <= len(data):
            width = 32
            names = match_mask_32(address, np.uint8(NAME_VALUE_SEPARATOR))
            ends = match_mask_32(address, np.uint8(PROPERTY_SEPARATOR))
            if stop - at < width:
                inside = (np.uint64(1) << np.uint64(stop - at)) - np.uint64(1)
                names &= inside
                ends &= inside
        else:
            names, ends = np.uint64(data[at] == NAME_VALUE_SEPARATOR), np.uint64(data[at] == PROPERTY_SEPARATOR)
        both = names | ends
        while both != 0:
            bit = trailing_zeros(both)
            both &= both - np.uint64(1)
            if (ends >> np.uint64(bit)) & np.uint64(1):
                if separator <= entry:
                    return False
                entry, separator = at + bit + 1, -1
            elif separator < 0:
                separator = at + bit
        at += width
    if entry < stop and separator <= entry:
        return False
    return is_utf8(data, start, stop)


@njit("boolean(uint8[::1], int64, int64, int64)", **COMPILED)
def has_declared_compression(data: Any, sys_flag: int, at: int, byte_count: int) -> bool:
    """Return whether the stored body begins as the compression that ``sys_flag`` names does."""
    kind = sys_flag & FLAG_COMPRESSION_MASK
    if sys_flag & FLAG_COMPRESSED == 0:
        return kind == 0
    if kind == 0 or kind == FLAG_COMPRESSION_ZLIB:
        begin = np.int64(data[at]) << 8 | np.int64(data[at + 1]) if byte_count >= 2 else 0
        return begin == _GZIP_MAGIC or (begin >> 8 & 0x0F == 8 and begin % 31 == 0)
    if kind == FLAG_COMPRESSION_LZ4:
        return byte_count >= 4 and read_i32(data, at) == _LZ4_MAGIC
    return kind == FLAG_COMPRESSION_ZSTD and byte_count >= 4 and read_i32(data, at) == _ZSTD_MAGIC


@njit("int64(uint8[::1], int64, int64)", **INLINED)
def _odd_fields(data: Any, position: int, physical_offset: int) -> int:
    """Return the bits of the fixed fields whose values no broker writes."""
    odd = 0
    sys_flag = read_i32(data, position + RECORD_SYS_FLAG_AT)
    if sys_flag & ~_KNOWN_FLAGS:
        odd |= ODD_SYS_FLAG
    if read_i32(data, position + RECORD_QUEUE_ID_AT) < 0:
        odd |= ODD_QUEUE_ID
    if read_i64(data, position + RECORD_QUEUE_OFFSET_AT) < 0:
        odd |= ODD_QUEUE_OFFSET
    if not 0 <= read_i64(data, position + RECORD_BORN_TIMESTAMP_AT) < _MAX_TIMESTAMP:
        odd |= ODD_BORN_TIMESTAMP
    position += HOST_V6_EXTRA_BYTES if sys_flag & FLAG_BORN_HOST_V6 else 0
    if not 0 <= read_i32(data, position + RECORD_STORE_TIMESTAMP_AT - PORT_BYTES) <= _MAX_PORT:
        odd |= ODD_BORN_HOST
    if not 0 <= read_i64(data, position + RECORD_STORE_TIMESTAMP_AT) < _MAX_TIMESTAMP:
        odd |= ODD_STORE_TIMESTAMP
    position += HOST_V6_EXTRA_BYTES if sys_flag & FLAG_STORE_HOST_V6 else 0
    if not 0 <= read_i32(data, position + RECORD_RECONSUME_TIMES_AT - PORT_BYTES) <= _MAX_PORT:
        odd |= ODD_STORE_HOST
    if not 0 <= read_i32(data, position + RECORD_RECONSUME_TIMES_AT) < _MAX_RECONSUME_TIMES:
        odd |= ODD_RECONSUME_TIMES
    prepared = read_i64(data, position + RECORD_PREPARED_OFFSET_AT)
    # The second half of a transaction names its first half; every other record has 0 here.
    if prepared != 0 and (sys_flag & FLAG_TRANSACTION_COMMIT == 0 or not 0 < prepared < physical_offset):
        odd |= ODD_PREPARED_OFFSET
    return odd


@njit("void(uint8[::1], int64, int64[:, ::1], int64[::1], int64[::1], int64[::1])", **COMPILED)
def check_records(data: Any, physical_offset: int, frames: Any, timestamps: Any, odd: Any, summary: Any) -> None:
    """Check the fields that no checksum covers in the sound frames of a window.

    Args:
        physical_offset: of ``data[0]``.
        timestamps: int64[n], written: store timestamp in ms, or -1 where the frame is not sound.
        odd: int64[n], written: bits of what is odd.
        summary: int64[SUMMARY_COLUMNS], written.
    """
    odd_count = failed_count = fall_count = largest = 0
    latest = previous = np.int64(-1)
    for row in range(len(frames)):
        timestamps[row], odd[row] = -1, 0
        if frames[row, CODE] != SOUND:
            failed_count += 1
            continue
        position = frames[row, POSITION]
        sys_flag = read_i32(data, position + RECORD_SYS_FLAG_AT)
        odd_bits = _odd_fields(data, position, physical_offset + position)
        if not has_declared_compression(data, sys_flag, frames[row, BODY_AT], frames[row, BODY_BYTES]):
            odd_bits |= ODD_COMPRESSION
        if not is_plain_topic(data, frames[row, TOPIC_AT], frames[row, TOPIC_AT] + frames[row, TOPIC_BYTES]):
            odd_bits |= ODD_TOPIC
        at = frames[row, PROPERTIES_AT]
        if not are_properties(data, at, at + frames[row, PROPERTIES_BYTES]):
            odd_bits |= ODD_PROPERTIES
        timestamp = store_timestamp(data, position, sys_flag)
        timestamps[row], odd[row] = timestamp, odd_bits
        if odd_bits:
            odd_count += 1
        if timestamp < previous:
            fall_count += 1
        previous = timestamp
        latest = max(latest, timestamp)
        largest = max(largest, frames[row, RECORD_BYTES])
    summary[ODD_COUNT], summary[FAILED_COUNT], summary[FALL_COUNT] = odd_count, failed_count, fall_count
    summary[LARGEST_BYTES], summary[LATEST_MS] = largest, latest


@njit("int64(int64[:, ::1], uint8[::1])", **COMPILED)
def equal_units(rows: Any, data: Any) -> int:
    """Count the units of ``data``, from the first on, that equal these rows, int64[n, ROW_COLUMNS]."""
    for index in range(len(rows)):
        at = index * UNIT_BYTES
        if (
            read_i64(data, at) != rows[index, PHYSICAL_OFFSET]
            or read_i32(data, at + UNIT_SIZE_AT) != rows[index, SIZE]
            or read_i64(data, at + UNIT_TAGS_CODE_AT) != rows[index, TAGS_CODE]
        ):
            return index
    return len(rows)


@njit("void(uint8[::1], int64, int64[:, ::1], int64[::1])", **COMPILED)
def walk_ext(data: Any, start: int, units: Any, result: Any) -> None:
    """Walk consecutive ConsumeQueueExt units of a file, up to a place without a unit.

    Args:
        units: int64[capacity, 3], written: position, tags code, store timestamp in ms. There is room for as
            many of the smallest size as fit.
        result: int64[2], written: units read, position behind them.
    """
    at, count = start, 0
    while at + EXT_UNIT_MIN_BYTES <= len(data):
        size = read_i16(data, at)
        if size < EXT_UNIT_MIN_BYTES or at + size > len(data) or read_i16(data, at + 18) != size - EXT_UNIT_MIN_BYTES:
            break
        units[count, 0], units[count, 1], units[count, 2] = at, read_i64(data, at + 2), read_i64(data, at + 10)
        at += size
        count += 1
    result[0], result[1] = count, at


@njit("void(int64[:, ::1], int64, int64, int64, int64, int64[::1])", **COMPILED)
def _note_fault(faults: Any, number: int, field: int, expected: int, actual: int, state: Any) -> None:
    if state[STATE_FAULTS] < len(faults):
        row = state[STATE_FAULTS]
        faults[row, 0], faults[row, 1], faults[row, 2], faults[row, 3] = number, field, expected, actual
    state[STATE_FAULTS] += 1


@njit("void(uint8[::1], int64, int64, int64, int32[::1], int64[:, ::1], int64[::1])", **COMPILED)
def _follow_chain(entries: Any, at: int, number: int, key_hash: int, slots: Any, faults: Any, state: Any) -> None:
    """Compare an entry's link with the slot table as it was when the entry was added, and update the table."""
    slot = key_hash % len(slots)
    previous = read_i32(entries, at + INDEX_ENTRY_PREVIOUS_AT)
    if previous != slots[slot]:
        _note_fault(faults, number, FAULT_PREVIOUS, slots[slot], previous, state)
    if slots[slot] == 0:
        state[STATE_SLOTS_USED] += 1
    slots[slot] = number


@njit(
    types.int64(
        types.uint8[::1],
        types.int64,
        READ_INT32,
        READ_INT64,
        READ_INT64,
        types.int64,
        types.int32[::1],
        types.int64[:, ::1],
        types.int64[::1],
    ),
    **COMPILED,
)
def match_entries(
    entries: Any,
    number: int,
    hashes: Any,
    physical_offsets: Any,
    store_timestamps_ms: Any,
    begin_ms: int,
    slots: Any,
    faults: Any,
    state: Any,
) -> int:
    """Walk entries and keys in step, until an entry does not match its key; return the number of those that match.

    Args:
        entries: uint8[>= n * INDEX_ENTRY_BYTES].
        number: of the first of these entries in its file.
        hashes: int32[n], of the keys.
        begin_ms: what an entry's seconds count from; not positive where they are 0, -1 not to look at them.
        slots: int32[slot count], the newest entry of each chain; updated.
        faults: int64[capacity, 4], see FAULT_SECONDS; written.
        state: int64[STATE_COLUMNS]; updated.
    """
    base = slots.ctypes.data
    for row in range(len(hashes)):
        if row + AHEAD < len(hashes):
            prefetch(np.uint64(base + 4 * (hashes[row + AHEAD] % len(slots))))
        at = row * INDEX_ENTRY_BYTES
        if (
            read_i32(entries, at) != hashes[row]
            or read_i64(entries, at + INDEX_ENTRY_PHYSICAL_OFFSET_AT) != physical_offsets[row]
        ):
            return row
        if begin_ms != NO_BEGIN:
            seconds = 0
            if begin_ms > 0:
                seconds = min(max((store_timestamps_ms[row] - begin_ms) // 1000, 0), MAX_SECONDS)
            if read_i32(entries, at + INDEX_ENTRY_SECONDS_AT) != seconds:
                _note_fault(
                    faults, number + row, FAULT_SECONDS, seconds, read_i32(entries, at + INDEX_ENTRY_SECONDS_AT), state
                )
        _follow_chain(entries, at, number + row, hashes[row], slots, faults, state)
    return len(hashes)


@njit("void(uint8[::1], int64, int32[::1], int32[::1], int64[:, ::1], int64[::1])", **COMPILED)
def chain_only(entries: Any, number: int, hashes: Any, slots: Any, faults: Any, state: Any) -> None:
    """Update the slot table by entries without their keys, from the hashes that these entries should have."""
    for row in range(len(hashes)):
        if hashes[row] >= 0:
            _follow_chain(entries, row * INDEX_ENTRY_BYTES, number + row, hashes[row], slots, faults, state)


@njit("int64(uint8[::1], int32[::1], int64[::1])", **COMPILED)
def compare_slots(data: Any, slots: Any, differing: Any) -> int:
    """Count the slots of a file's slot table that differ from the recomputed ones; write the first of their numbers."""
    count = 0
    for slot in range(len(slots)):
        if read_i32(data, slot * INDEX_SLOT_BYTES) != slots[slot]:
            if count < len(differing):
                differing[count] = slot
            count += 1
    return count
