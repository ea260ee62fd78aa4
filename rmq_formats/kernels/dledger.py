"""Walks the entries of a DLedger CommitLog: headers of 48 bytes, each before one record of the classic layout.

The counterparts of ``kernels.scan``, with the same arguments and results: positions of walks are those of entries,
POSITION of a frame's row is that of its record. ``physical_offset`` is that of ``data[0]``. A record says itself where
it stands, and so is read whatever its header says; ``check_heads`` and ``follow_entries`` compare headers. The
plain-Python oracles are ``tests.support.oracles.commitlog_walk`` and, of the latter, in ``tests.kernels.test_dledger``.
"""

from typing import Any, Final

import numpy as np
from numba import njit

from rmq_formats.codecs.dledger import (
    ENTRY_BODY_BYTES_AT,
    ENTRY_BODY_CRC_AT,
    ENTRY_CHAIN_CRC_AT,
    ENTRY_CHANNEL_AT,
    ENTRY_HEAD_BYTES,
    ENTRY_INDEX_AT,
    ENTRY_MAGIC,
    ENTRY_POS_AT,
    ENTRY_SIZE_AT,
    ENTRY_TERM_AT,
    FILE_END_BYTES,
    FILE_END_MAGIC,
    INDEX_UNIT_BYTES,
    UNIT_INDEX_AT,
    UNIT_POS_AT,
    UNIT_SIZE_AT,
    UNIT_TERM_AT,
)
from rmq_formats.codecs.layout import BLANK_BYTES, FLAG_TRANSACTION_COMMIT
from rmq_formats.codecs.record_frame import DamageCode
from rmq_formats.codecs.record_layout import RECORD_PHYSICAL_OFFSET_AT, RECORD_PREPARED_OFFSET_AT, RECORD_SYS_FLAG_AT
from rmq_formats.codecs.topics import HALF_TOPIC
from rmq_formats.kernels.bytes import COMPILED, copy_bytes, find_either, read_i32, read_i64, same_bytes, write_i64
from rmq_formats.kernels.scan import (
    BLANK,
    CODE,
    FULL,
    LIMIT,
    NEED_MORE,
    NOT_FOUND,
    POSITION,
    SIZE,
    SOUND,
    TOPIC_AT,
    TOPIC_BYTES,
    check_crc,
    check_frame,
)

# Columns of a table of headers, int64[n, HEAD_COLUMNS].
HEAD_INDEX: Final = 0
HEAD_TERM: Final = 1
HEAD_FAULTS: Final = 2  # bits, see FAULT_*
HEAD_COLUMNS: Final = 3

FAULT_MAGIC: Final = 1
FAULT_SIZE: Final = 2
FAULT_POS: Final = 4
FAULT_BODY_BYTES: Final = 8
FAULT_ZEROS: Final = 16  # channel and the two CRCs, which DLedger leaves 0

_TRUNCATED = int(DamageCode.TRUNCATED)
_MAGIC = int(DamageCode.MAGIC)
_SIZE = int(DamageCode.SIZE)


@njit("int64(uint8[::1], int64, int64, int64, int64, int64, int64[::1])", **COMPILED)
def check_entry(
    data: Any, data_bytes: int, window_at: int, file_offset: int, file_bytes: int, position: int, row: Any
) -> int:
    """Check the entry at ``position``; fill ``row`` where its record is sound. See ``scan.check_frame``."""
    remaining = file_bytes - window_at - position
    if remaining < FILE_END_BYTES:
        return _TRUNCATED
    have = data_bytes - position
    if have < FILE_END_BYTES:
        return NEED_MORE
    is_end = read_i32(data, position) == FILE_END_MAGIC
    if is_end and read_i32(data, position + 4) == remaining:
        return BLANK
    if remaining < ENTRY_HEAD_BYTES + BLANK_BYTES:
        return _SIZE if is_end else _TRUNCATED
    if have < ENTRY_HEAD_BYTES + BLANK_BYTES:
        return NEED_MORE
    code = check_frame(data, data_bytes, window_at, file_offset, file_bytes, position + ENTRY_HEAD_BYTES, row)
    return _MAGIC if code == BLANK else code


@njit(
    "int64(uint8[::1], int64, int64, int64, int64, int64, int64, boolean, int64[:, ::1], int64[::1])",
    **COMPILED,
)
def walk_entries(
    data: Any,
    data_bytes: int,
    window_at: int,
    file_offset: int,
    file_bytes: int,
    position: int,
    limit: int,
    verify_crc: bool,
    frames: Any,
    result: Any,
) -> int:
    """Walk sound entries from ``position`` on, and fill one row of ``frames`` for each. See ``scan.walk_frames``."""
    count = 0
    while True:
        result[0], result[1] = count, position
        if window_at + position == file_bytes:
            return LIMIT
        if count == len(frames):
            return FULL
        code = check_entry(data, data_bytes, window_at, file_offset, file_bytes, position, frames[count])
        if code == BLANK:
            return LIMIT if position >= limit else BLANK
        if code != SOUND:
            return code
        if position >= limit:
            return LIMIT
        if verify_crc:
            frames[count, CODE] = check_crc(data, frames[count])
        position = frames[count, POSITION] + frames[count, SIZE]
        count += 1


@njit("int64(uint8[::1], int64, int64, int64, int64, int64, int64[::1], int64[::1])", **COMPILED)
def find_entry(
    data: Any,
    data_bytes: int,
    window_at: int,
    file_offset: int,
    file_bytes: int,
    position: int,
    row: Any,
    result: Any,
) -> int:
    """Find the first sound entry or end mark at or after ``position``. See ``scan.find_sound``."""
    at = position
    # Both magics of records begin with DA and stand at +4 of a record, an end mark begins with FF.
    while at < data_bytes:
        at = find_either(data, at, data_bytes, np.uint8(0xDA), np.uint8(0xFF))
        if at == data_bytes:
            break
        entry = at if data[at] == 0xFF else at - 4 - ENTRY_HEAD_BYTES
        if entry >= position:
            code = check_entry(data, data_bytes, window_at, file_offset, file_bytes, entry, row)
            is_own = code == BLANK if entry == at else code == SOUND or code == NEED_MORE
            if is_own or (entry == at and code == NEED_MORE and data_bytes - entry < FILE_END_BYTES):
                result[0] = entry
                return code
        at += 1
    # What begins in the last bytes could not be judged yet.
    result[0] = max(position, data_bytes - 4 - ENTRY_HEAD_BYTES)
    return NOT_FOUND


@njit("void(uint8[::1], int64, int64[:, ::1], int64[:, ::1])", **COMPILED)
def check_heads(data: Any, physical_offset: int, frames: Any, heads: Any) -> None:
    """Read the headers of entries into int64[n, HEAD_COLUMNS], and compare them with their records.

    Each header of ``frames``, of ``walk_entries``, is in the window, before its record.
    """
    for row in range(len(frames)):
        at = frames[row, POSITION] - ENTRY_HEAD_BYTES
        faults = np.int64(0)
        if read_i32(data, at) != ENTRY_MAGIC:
            faults |= FAULT_MAGIC
        if read_i32(data, at + ENTRY_SIZE_AT) != ENTRY_HEAD_BYTES + frames[row, SIZE]:
            faults |= FAULT_SIZE
        if read_i64(data, at + ENTRY_POS_AT) != physical_offset + at:
            faults |= FAULT_POS
        if read_i32(data, at + ENTRY_BODY_BYTES_AT) != frames[row, SIZE]:
            faults |= FAULT_BODY_BYTES
        zeros = read_i32(data, at + ENTRY_CHANNEL_AT) | read_i32(data, at + ENTRY_CHAIN_CRC_AT)
        if zeros | read_i32(data, at + ENTRY_BODY_CRC_AT):
            faults |= FAULT_ZEROS
        heads[row, HEAD_INDEX] = read_i64(data, at + ENTRY_INDEX_AT)
        heads[row, HEAD_TERM] = read_i64(data, at + ENTRY_TERM_AT)
        heads[row, HEAD_FAULTS] = faults


@njit("int64(uint8[::1], int64, int64[:, ::1], int64, int64, int64, uint8[::1], int64, int64)", **COMPILED)
def follow_entries(
    data: Any,
    physical_offset: int,
    frames: Any,
    row: int,
    index: int,
    term: int,
    units: Any,
    units_at: int,
    units_end: int,
) -> int:
    """Compare headers and units of entries with their records, as long as all are as they must be.

    Args:
        frames: int64[n, FRAME_COLUMNS], of ``walk_entries``.
        index: of that row's entry; the next rows have the next ones.
        term: of all of them.
        units: uint8[n], a part of DLedger's index.
        units_at: position of that row's unit.
        units_end: one past the last unit.

    Returns:
        The first row that differs in its header or its unit, or whose unit is not among these; ``len(frames)`` if all
        are as they must be.
    """
    while row < len(frames) and units_at + INDEX_UNIT_BYTES <= units_end:
        at = frames[row, POSITION] - ENTRY_HEAD_BYTES
        size, body_bytes, pos = ENTRY_HEAD_BYTES + frames[row, SIZE], frames[row, SIZE], physical_offset + at
        # Differing bits are gathered, so that one branch, never taken, tells of all twelve fields.
        odd = (read_i32(data, at) ^ ENTRY_MAGIC) | (read_i32(data, at + ENTRY_SIZE_AT) ^ size)
        odd |= (read_i64(data, at + ENTRY_INDEX_AT) ^ index) | (read_i64(data, at + ENTRY_TERM_AT) ^ term)
        odd |= (read_i64(data, at + ENTRY_POS_AT) ^ pos) | (read_i32(data, at + ENTRY_BODY_BYTES_AT) ^ body_bytes)
        odd |= read_i32(data, at + ENTRY_CHANNEL_AT) | read_i32(data, at + ENTRY_CHAIN_CRC_AT)
        odd |= read_i32(data, at + ENTRY_BODY_CRC_AT) | (read_i32(units, units_at) ^ ENTRY_MAGIC)
        odd |= (read_i64(units, units_at + UNIT_POS_AT) ^ pos) | (read_i32(units, units_at + UNIT_SIZE_AT) ^ size)
        odd |= (read_i64(units, units_at + UNIT_INDEX_AT) ^ index) | (read_i64(units, units_at + UNIT_TERM_AT) ^ term)
        if odd:
            return row
        row, index, units_at = row + 1, index + 1, units_at + INDEX_UNIT_BYTES
    return row


_HALF = np.frombuffer(HALF_TOPIC.encode(), dtype=np.uint8)


@njit("int64(int64[:, ::1], int64, int64)", **COMPILED)
def _moved(halves: Any, count: int, old: int) -> int:
    """Return the physical offset in the new log of the half message at ``old``; 0 without one."""
    number = np.searchsorted(halves[0, :count], old)
    return int(halves[1, number]) if number < count and halves[0, number] == old else 0


@njit("int64(uint8[::1], int64[:, ::1], int64, int64, int64, uint8[::1], int64[:, ::1], int64[::1])", **COMPILED)
def copy_records(
    data: Any, frames: Any, first: int, physical_offset: int, room: int, out: Any, halves: Any, half_state: Any
) -> int:
    """Copy records end to end, and update the physical offsets in each record to the new log.

    A record has its own physical offset and, in a message that a transaction has committed, that of its half message; 0
    if the half message should be among the records and is not.

    Args:
        physical_offset: of ``out[0]`` in the new log.
        room: bytes of records that its file has room for.
        out: uint8[n], has room for all records of the window.
        halves: int64[2, n], physical offsets of half messages in the old log, ascending, and in the new one; has room
            for all rows of ``frames``.
        half_state: int64[2], the number of half messages so far, and the physical offset at which the records began.

    Returns:
        The row of the first record for which the file has no room; ``len(frames)`` if there is none.
    """
    at = 0
    for row in range(first, len(frames)):
        size = frames[row, SIZE]
        if at + size > room:
            return row
        copy_bytes(np.uint64(out.ctypes.data + at), np.uint64(data.ctypes.data + frames[row, POSITION]), size)
        if frames[row, TOPIC_BYTES] == len(_HALF) and same_bytes(data, frames[row, TOPIC_AT], _HALF, 0, len(_HALF)):
            halves[0, half_state[0]] = read_i64(out, at + RECORD_PHYSICAL_OFFSET_AT)
            halves[1, half_state[0]] = physical_offset + at
            half_state[0] += 1
        elif read_i32(out, at + RECORD_SYS_FLAG_AT) & FLAG_TRANSACTION_COMMIT:
            old = read_i64(out, at + RECORD_PREPARED_OFFSET_AT)
            if old >= half_state[1]:
                write_i64(out, at + RECORD_PREPARED_OFFSET_AT, _moved(halves, half_state[0], old))
        write_i64(out, at + RECORD_PHYSICAL_OFFSET_AT, physical_offset + at)
        at += size
    return len(frames)
