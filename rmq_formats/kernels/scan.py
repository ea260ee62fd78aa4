"""Walks the frames of a CommitLog segment, window by window.

A window is a range of one segment file in memory: ``data[:data_bytes]`` has the file's bytes from ``window_at`` on.
``file_offset`` is the physical offset of the file's first byte. Positions are relative to the window.
``tests.support.oracles.commitlog_walk`` is the plain-Python oracle of the same rules. The array behind ``data`` belongs
to the caller.
"""

from typing import Any, Final

import numpy as np
from numba import njit

from rmq_formats.codecs.layout import (
    BLANK_BYTES,
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MAX_FRAME_BYTES,
)
from rmq_formats.codecs.record_frame import DamageCode
from rmq_formats.codecs.record_layout import (
    HOST_V6_EXTRA_BYTES,
    RECORD_BODY_CRC_AT,
    RECORD_HEAD_BYTES,
    RECORD_MAGIC_AT,
    RECORD_PHYSICAL_OFFSET_AT,
    RECORD_SYS_FLAG_AT,
)
from rmq_formats.kernels.bytes import COMPILED, find_either, read_i16, read_i32, read_i64
from rmq_formats.kernels.crc import crc32

# Columns of a frame table, int64[n, FRAME_COLUMNS]; positions are in the window.
POSITION: Final = 0
SIZE: Final = 1
BODY_AT: Final = 2
BODY_BYTES: Final = 3
TOPIC_AT: Final = 4
TOPIC_BYTES: Final = 5
PROPERTIES_AT: Final = 6
PROPERTIES_BYTES: Final = 7
CODE: Final = 8  # 0, or the DamageCode of a checksum that does not match
FRAME_COLUMNS: Final = 9

# Results of a check or a walk besides the DamageCodes (which are positive).
SOUND: Final = 0
NEED_MORE: Final = -1  # the window ends before the frame does; the file does not
BLANK: Final = -2
FULL: Final = -3  # the frame table has no free row
LIMIT: Final = -4  # a sound frame at or past the limit, or the end of the file
NOT_FOUND: Final = -5

_TRUNCATED = int(DamageCode.TRUNCATED)
_MAGIC = int(DamageCode.MAGIC)
_SIZE = int(DamageCode.SIZE)
_PHYSICAL_OFFSET = int(DamageCode.PHYSICAL_OFFSET)
_BODY_LENGTH = int(DamageCode.BODY_LENGTH)
_TOPIC_LENGTH = int(DamageCode.TOPIC_LENGTH)
_PROPERTIES_LENGTH = int(DamageCode.PROPERTIES_LENGTH)
_TOTAL = int(DamageCode.TOTAL)
_BODY_CRC = int(DamageCode.BODY_CRC)
_PROPERTIES_CRC = int(DamageCode.PROPERTIES_CRC)
_CRC_PROPERTY = np.frombuffer(b"__CRC32#\x01", dtype=np.uint8)


@njit("int64(uint8[::1], int64, int64, int64, int64, int64, int64[::1])", **COMPILED)
def check_frame(
    data: Any, data_bytes: int, window_at: int, file_offset: int, file_bytes: int, position: int, row: Any
) -> int:
    """Check the frame at ``position``, and fill ``row``, int64[FRAME_COLUMNS], if the frame is sound.

    Returns:
        SOUND, BLANK, NEED_MORE or a DamageCode.
    """
    remaining = file_bytes - window_at - position
    if remaining < BLANK_BYTES:
        return _TRUNCATED
    have = data_bytes - position
    if have < BLANK_BYTES:
        return NEED_MORE
    size = read_i32(data, position)
    magic = read_i32(data, position + RECORD_MAGIC_AT)
    if magic == MAGIC_BLANK:
        return BLANK if size == remaining else _SIZE
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return _MAGIC
    topic_width = 1 if magic == MAGIC_V1 else 2
    fixed = RECORD_HEAD_BYTES + topic_width + 2
    if remaining < fixed:
        return _SIZE
    if have < fixed:
        return NEED_MORE
    sys_flag = read_i32(data, position + RECORD_SYS_FLAG_AT)
    if sys_flag & FLAG_BORN_HOST_V6:
        fixed += HOST_V6_EXTRA_BYTES
    if sys_flag & FLAG_STORE_HOST_V6:
        fixed += HOST_V6_EXTRA_BYTES
    if have < fixed and remaining >= fixed:
        return NEED_MORE
    if size < fixed or size > remaining or size > MAX_FRAME_BYTES:
        return _SIZE
    if read_i64(data, position + RECORD_PHYSICAL_OFFSET_AT) != file_offset + window_at + position:
        return _PHYSICAL_OFFSET
    body_at = position + fixed - topic_width - 2
    body_bytes = read_i32(data, body_at - 4)
    if body_bytes < 0 or body_bytes > size - fixed:
        return _BODY_LENGTH
    if have < size:
        return NEED_MORE
    topic_at = body_at + body_bytes + topic_width
    topic_bytes = np.int64(np.int8(data[topic_at - 1])) if topic_width == 1 else read_i16(data, topic_at - 2)
    if topic_bytes < 0 or topic_bytes > size - fixed - body_bytes:
        return _TOPIC_LENGTH
    properties_at = topic_at + topic_bytes + 2
    properties_bytes = read_i16(data, properties_at - 2)
    if properties_bytes < 0 or properties_bytes > size - fixed - body_bytes - topic_bytes:
        return _PROPERTIES_LENGTH
    if fixed + body_bytes + topic_bytes + properties_bytes != size:
        return _TOTAL
    row[POSITION], row[SIZE] = position, size
    row[BODY_AT], row[BODY_BYTES] = body_at, body_bytes
    row[TOPIC_AT], row[TOPIC_BYTES] = topic_at, topic_bytes
    row[PROPERTIES_AT], row[PROPERTIES_BYTES] = properties_at, properties_bytes
    row[CODE] = SOUND
    return SOUND


@njit("int64(uint8[::1], int64[::1])", **COMPILED)
def check_crc(data: Any, row: Any) -> int:
    """Check the CRCs of a sound frame: that of the body, and that of the whole record if it has one.

    The record's own sum (``enabledAppendPropCRC``) is its last property, twenty bytes: the decimal
    digits stand least significant first. Source: ``MessageDecoder#createCrc32``.

    Returns:
        SOUND, or DamageCode BODY_CRC or PROPERTIES_CRC.
    """
    body_at, body_bytes = row[BODY_AT], row[BODY_BYTES]
    stored = read_i32(data, row[POSITION] + RECORD_BODY_CRC_AT)
    if body_bytes == 0:
        if stored != 0:
            return _BODY_CRC
    elif stored != crc32(data, body_at, body_at + body_bytes) & 0x7FFFFFFF:
        return _BODY_CRC
    if row[PROPERTIES_BYTES] < 20:
        return SOUND
    end = row[POSITION] + row[SIZE]
    name_at = end - 20
    for index in range(9):
        if data[name_at + index] != _CRC_PROPERTY[index]:
            return SOUND
    total, weight = 0, 1
    for index in range(10):
        digit = np.int64(data[name_at + 9 + index]) - 48
        if digit < 0 or digit > 9:
            return _PROPERTIES_CRC
        total += digit * weight
        weight *= 10
    if data[end - 1] != 2 or total != crc32(data, row[POSITION], name_at) & 0x7FFFFFFF:
        return _PROPERTIES_CRC
    return SOUND


@njit(
    "int64(uint8[::1], int64, int64, int64, int64, int64, int64, boolean, int64[:, ::1], int64[::1])",
    **COMPILED,
)
def walk_frames(
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
    """Walk sound frames from ``position`` on, and fill one row of ``frames`` for each.

    A frame whose checksum fails has its row too, with CODE set: its lengths hold, so the walk goes on.

    Args:
        limit: the walk ends at the first sound frame at or past this position in the window.
        frames: int64[capacity, FRAME_COLUMNS], rows from 0 on are written.
        result: int64[2], written: count of rows, position where the walk stopped.

    Returns:
        LIMIT, BLANK, FULL, NEED_MORE, or the DamageCode at the position.
    """
    count = 0
    while True:
        result[0], result[1] = count, position
        if window_at + position == file_bytes:
            return LIMIT
        if count == len(frames):
            return FULL
        code = check_frame(data, data_bytes, window_at, file_offset, file_bytes, position, frames[count])
        if code == BLANK:
            return LIMIT if position >= limit else BLANK
        if code != SOUND:
            return code
        if position >= limit:
            return LIMIT
        if verify_crc:
            frames[count, CODE] = check_crc(data, frames[count])
        position += frames[count, SIZE]
        count += 1


@njit("int64(uint8[::1], int64, int64, int64, int64, int64, int64[::1], int64[::1])", **COMPILED)
def find_sound(
    data: Any,
    data_bytes: int,
    window_at: int,
    file_offset: int,
    file_bytes: int,
    position: int,
    row: Any,
    result: Any,
) -> int:
    """Find the first sound frame or BLANK record at or after ``position``.

    Arguments are those of ``check_frame``; ``row`` is scratch; ``result[0]`` is where the search ended.

    Returns:
        SOUND or BLANK (found), NEED_MORE (a candidate the window cuts off), NOT_FOUND in this window:
        go on at the position, which is the first one that was not checked.
    """
    while position + BLANK_BYTES <= data_bytes:
        # Both magics of records begin with DA, that of a blank with CB: look for either at +4.
        stop = data_bytes - 3
        at = find_either(data, position + 4, stop, np.uint8(0xDA), np.uint8(0xCB))
        position = at - 4
        if at >= stop:
            break
        code = check_frame(data, data_bytes, window_at, file_offset, file_bytes, position, row)
        if code <= SOUND:
            result[0] = position
            return code
        position += 1
    result[0] = position
    return NOT_FOUND


@njit("int64(uint8[::1], int64)", **COMPILED)
def used_bytes(data: Any, data_bytes: int) -> int:
    """Compute the length of ``data[:data_bytes]`` without the zeros at its end."""
    while data_bytes >= 8 and read_i64(data, data_bytes - 8) == 0:
        data_bytes -= 8
    while data_bytes > 0 and data[data_bytes - 1] == 0:
        data_bytes -= 1
    return data_bytes
