"""Encodes column rows as CommitLog records, without their offsets in the log yet; see `rmq_formats.arrow.encode`.

A *text* is a pair of an address and a length in bytes; a negative length stands for null. Addresses are those
of Arrow's buffers, which the caller keeps alive. What depends on a record's place (physical offset, queue offset,
the sum of ``__CRC32#``) is left to ``rmq_formats.kernels.encode.offsets``.
"""

from typing import Any, Final

import numpy as np
from numba import njit

from rmq_formats.codecs.layout import (
    CRC_PROPERTY_BYTES,
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    FLAG_TRANSACTION_COMMIT,
    FLAG_TRANSACTION_MASK,
    MAGIC_V1,
    MAGIC_V2,
    MAX_FRAME_BYTES,
    MAX_PROPERTIES_BYTES,
    PROPERTY_CRC,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
)
from rmq_formats.codecs.record_layout import (
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAX_TOPIC_BYTES_V1,
    MAX_TOPIC_BYTES_V2,
    RECORD_BODY_BYTES_AT,
    RECORD_BODY_CRC_AT,
    RECORD_BORN_HOST_AT,
    RECORD_BORN_TIMESTAMP_AT,
    RECORD_FIXED_BYTES_V2,
    RECORD_FLAG_AT,
    RECORD_HEAD_BYTES,
    RECORD_MAGIC_AT,
    RECORD_PHYSICAL_OFFSET_AT,
    RECORD_PREPARED_OFFSET_AT,
    RECORD_QUEUE_ID_AT,
    RECORD_QUEUE_OFFSET_AT,
    RECORD_RECONSUME_TIMES_AT,
    RECORD_SIZE_AT,
    RECORD_SYS_FLAG_AT,
)
from rmq_formats.kernels.bytes import (
    COMPILED,
    INLINED,
    copy_bytes,
    find_byte,
    find_either,
    same_bytes,
    write_i32,
    write_i64,
)
from rmq_formats.kernels.crc import crc32
from rmq_formats.kernels.dispatch import find_queue
from rmq_formats.kernels.text import java_hash

# Columns of the numbers of a row, int64[rows, NUMBER_COLUMNS].
QUEUE_ID: Final = 0
FLAG: Final = 1
SYS_FLAG: Final = 2
BORN_TIMESTAMP: Final = 3  # ms
STORE_TIMESTAMP: Final = 4  # ms
RECONSUME_TIMES: Final = 5
PREPARED_TRANSACTION_OFFSET: Final = 6
QUEUE_OFFSET: Final = 7  # written as it is; a record without a kept offset gets its own later
ORDER: Final = 8  # rows are ordered in the log by it
VERSION: Final = 9  # 2 keeps a record with a short topic in version 2
WANTED_BYTES: Final = 10  # wanted record size: properties are padded up to it; 0 is any
NUMBER_COLUMNS: Final = 11

# Texts of a row, int64[rows, 2 * TEXTS].
TOPIC: Final = 0
BODY: Final = 2
TAGS: Final = 4
UNIQ_KEY: Final = 6
BORN_HOST: Final = 8  # 8 or 20 bytes as in a record
STORE_HOST: Final = 10
TEXT_COLUMNS: Final = 12

# Columns of an encoded row, int64[rows, ENCODED_COLUMNS].
SIZE: Final = 0  # bytes of the record
QUEUE: Final = 1  # row in the queue table
ORDER_KEY: Final = 2
MARKS: Final = 3
ENCODED_COLUMNS: Final = 4

MARK_COUNTS: Final = 1  # it takes a queue offset: not a prepared or rolled-back transaction message
MARK_CRC: Final = 2  # it ends with __CRC32#, whose value is computed later

CRC_AS_GIVEN: Final = 0  # rows whose properties hold __CRC32# get a new one
CRC_ALWAYS: Final = 1
CRC_NEVER: Final = 2

DONE: Final = 0
OUT_FULL: Final = 1  # continue at row result[0] with an empty buffer of at least result[2] bytes
QUEUES_FULL: Final = 2  # grow the queue table, then continue at row result[0]
NO_TOPIC: Final = 3  # this code and those below: row result[0] cannot be stored
NO_BODY: Final = 4
TOPIC_TOO_LONG: Final = 5
PROPERTIES_TOO_LONG: Final = 6
RECORD_TOO_LONG: Final = 7
BAD_PROPERTY: Final = 8  # a separator byte in a name or a value

_NAME_END = np.uint8(1)
_VALUE_END = np.uint8(2)
_SPACE = np.uint8(32)
# TAGS, KEYS and UNIQ_KEY with their separators, and __CRC32#.
_MAX_ADDED_BYTES = 6 + 6 + 10 + CRC_PROPERTY_BYTES
TEXT_ROOM = 64  # bytes of scratch that the kernel may write
_MAX_TEXT_BYTES = 21  # 255.255.255.255:65535


def _constant(name: str) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    return np.frombuffer(name.encode(), dtype=np.uint8)


_TAGS_NAME, _KEYS_NAME = _constant(PROPERTY_TAGS), _constant(PROPERTY_KEYS)
_UNIQ_KEY_NAME, _CRC_NAME = _constant(PROPERTY_UNIQ_KEY), _constant(PROPERTY_CRC)


@njit(**INLINED)  # no signature: numba types global arrays as read-only
def _is_name(out: Any, at: int, size: int, name: Any) -> bool:
    return size == name.size and same_bytes(out, at, name, 0, size)


@njit("int64(uint8[::1], int64, int64, int64)", **INLINED)
def put_text(out: Any, at: int, address: int, size: int) -> int:
    """Copy a text to ``out[at]``; return the position after the text."""
    copy_bytes(np.uint64(out.ctypes.data + at), np.uint64(address), size)
    return at + size


@njit(**INLINED)
def _put_name(out: Any, at: int, name: Any) -> int:
    for index in range(name.size):
        out[at + index] = name[index]
    out[at + name.size] = _NAME_END
    return at + name.size + 1


@njit(**INLINED)
def _put_property(out: Any, at: int, name: Any, address: int, size: int) -> int:
    end = put_text(out, _put_name(out, at, name), address, size)
    out[end] = _VALUE_END
    return end + 1


@njit("int64(int64[::1], int64[:, ::1], int64, int64, int64[:, ::1], int64, int64)", **COMPILED)
def _most_bytes(
    texts: Any, entries: Any, first_entry: int, last_entry: int, parts: Any, first_part: int, last_part: int
) -> int:
    """Compute an upper bound of the bytes of a row's record."""
    size = RECORD_FIXED_BYTES_V2 + 2 * (HOST_V6_BYTES - HOST_V4_BYTES) + _MAX_ADDED_BYTES
    for column in (TOPIC, BODY, TAGS, UNIQ_KEY):
        size += max(texts[column + 1], 0)
    for entry in range(first_entry, last_entry):
        size += entries[entry, 1] + max(entries[entry, 3], 0) + 2
    for part in range(first_part, last_part):
        size += max(parts[part, 1], 0) + 1
    return size


@njit(
    "UniTuple(int64, 3)(uint8[::1], int64, int64[::1], int64[:, ::1], int64, int64, int64[:, ::1], int64, int64)",
    **COMPILED,
)
def _put_properties(
    out: Any,
    at: int,
    texts: Any,
    entries: Any,
    first_entry: int,
    last_entry: int,
    parts: Any,
    first_part: int,
    last_part: int,
) -> tuple[int, int, int]:
    """Write the properties of the map, then the properties that only other columns have.

    Returns:
        Where they end, whether they held ``__CRC32#`` (which is left out), and DONE or BAD_PROPERTY.
    """
    has_tags = has_keys = has_uniq_key = has_crc = False
    for entry in range(first_entry, last_entry):
        value_bytes = entries[entry, 3]
        if value_bytes < 0:
            continue
        name_end = put_text(out, at, entries[entry, 0], entries[entry, 1])
        name_bytes = name_end - at
        if find_either(out, at, name_end, _NAME_END, _VALUE_END) < name_end:
            return at, 0, BAD_PROPERTY
        if _is_name(out, at, name_bytes, _CRC_NAME):
            has_crc = True
            continue
        has_tags |= _is_name(out, at, name_bytes, _TAGS_NAME)
        has_keys |= _is_name(out, at, name_bytes, _KEYS_NAME)
        has_uniq_key |= _is_name(out, at, name_bytes, _UNIQ_KEY_NAME)
        out[name_end] = _NAME_END
        end = put_text(out, name_end + 1, entries[entry, 2], value_bytes)
        if find_byte(out, name_end + 1, end, _VALUE_END) < end:
            return at, 0, BAD_PROPERTY
        out[end] = _VALUE_END
        at = end + 1
    begin = at
    added = 0
    if not has_uniq_key and texts[UNIQ_KEY + 1] > 0:
        at = _put_property(out, at, _UNIQ_KEY_NAME, texts[UNIQ_KEY], texts[UNIQ_KEY + 1])
        added += 1
    if not has_tags and texts[TAGS + 1] > 0:
        at = _put_property(out, at, _TAGS_NAME, texts[TAGS], texts[TAGS + 1])
        added += 1
    if not has_keys and last_part > first_part:
        name_at = at
        at = _put_name(out, at, _KEYS_NAME)
        value_at = at
        for part in range(first_part, last_part):
            if parts[part, 1] > 0:
                at = put_text(out, at, parts[part, 0], parts[part, 1])
                out[at] = _SPACE
                at += 1
        if at > value_at:
            out[at - 1] = _VALUE_END  # overwrites the last space
            added += 1
        else:
            at = name_at  # all of them were empty
    ends = 0
    position = begin
    while position < at:  # a separator in one of the three shows as one terminator too many
        position = find_byte(out, position, at, _VALUE_END) + 1
        ends += 1
    return at, int(has_crc), DONE if ends == added else BAD_PROPERTY


@njit(
    "int64(int64[:, ::1], int64[:, ::1], int64[:, ::1], int64[::1], int64[:, ::1], int64[::1], int64, int64, int64,"
    " int64[:, ::1], int32[::1], uint8[::1], int64[::1], uint8[::1], int64[:, ::1], int64[::1])",
    **COMPILED,
)
def encode_rows(
    numbers: Any,
    texts: Any,
    entries: Any,
    entry_offsets: Any,
    parts: Any,
    part_offsets: Any,
    first: int,
    crc_way: int,
    max_record_bytes: int,
    queues: Any,
    slots: Any,
    pool: Any,
    used: Any,
    out: Any,
    encoded: Any,
    result: Any,
) -> int:
    """Encode rows from ``first`` on, end to end, until all rows are encoded or ``out`` is full.

    Args:
        numbers: int64[rows, NUMBER_COLUMNS].
        texts: int64[rows, TEXT_COLUMNS].
        entries: int64[n, 4], texts of names and values of the properties of all rows; no name is null.
        entry_offsets: int64[rows + 1], the entries of each row.
        parts: int64[n, 2], texts of the keys of all rows.
        part_offsets: int64[rows + 1], the keys of each row.
        crc_way: CRC_AS_GIVEN, CRC_ALWAYS or CRC_NEVER.
        max_record_bytes: what a file can hold.
        queues, slots, pool, used: the queue table; see ``kernels.dispatch.find_queue``.
        out: uint8[n], written from its start on; the caller owns it.
        encoded: int64[rows, ENCODED_COLUMNS], rows from ``first`` on are written.
        result: int64[3]: row to go on with, bytes written to ``out``, bytes that this row needs at most.

    Returns:
        DONE, OUT_FULL, QUEUES_FULL, or what is wrong with the row.
    """
    start = 0
    for row in range(first, len(numbers)):
        result[0], result[1] = row, start
        row_texts = texts[row]
        if row_texts[TOPIC + 1] <= 0:
            return NO_TOPIC
        if row_texts[BODY + 1] < 0:
            return NO_BODY
        first_entry, last_entry = entry_offsets[row], entry_offsets[row + 1]
        first_part, last_part = part_offsets[row], part_offsets[row + 1]
        most = _most_bytes(row_texts, entries, first_entry, last_entry, parts, first_part, last_part)
        most = max(most, min(numbers[row, WANTED_BYTES], MAX_FRAME_BYTES))
        if row_texts[TOPIC + 1] > MAX_TOPIC_BYTES_V2:
            return TOPIC_TOO_LONG
        if start + most > out.size:
            result[2] = most
            return OUT_FULL

        born_bytes, store_bytes = row_texts[BORN_HOST + 1], row_texts[STORE_HOST + 1]
        sys_flag = numbers[row, SYS_FLAG] & ~np.int64(FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6)
        if born_bytes == HOST_V6_BYTES:
            sys_flag |= FLAG_BORN_HOST_V6
        if store_bytes == HOST_V6_BYTES:
            sys_flag |= FLAG_STORE_HOST_V6
        topic_bytes, body_bytes = row_texts[TOPIC + 1], row_texts[BODY + 1]
        is_v2 = topic_bytes > MAX_TOPIC_BYTES_V1 or numbers[row, VERSION] == 2

        at = put_text(out, start + RECORD_BORN_HOST_AT, row_texts[BORN_HOST], born_bytes)
        write_i64(out, at, numbers[row, STORE_TIMESTAMP])
        behind = put_text(out, at + 8, row_texts[STORE_HOST], store_bytes) - RECORD_RECONSUME_TIMES_AT
        write_i32(out, behind + RECORD_RECONSUME_TIMES_AT, numbers[row, RECONSUME_TIMES])
        write_i64(out, behind + RECORD_PREPARED_OFFSET_AT, numbers[row, PREPARED_TRANSACTION_OFFSET])
        write_i32(out, behind + RECORD_BODY_BYTES_AT, body_bytes)
        body_at = behind + RECORD_HEAD_BYTES
        at = put_text(out, body_at, row_texts[BODY], body_bytes)
        if is_v2:
            out[at] = np.uint8(topic_bytes >> 8)
            at += 1
        out[at] = np.uint8(topic_bytes & 0xFF)
        topic_at = at + 1
        at = put_text(out, topic_at, row_texts[TOPIC], topic_bytes)
        length_at, properties_at = at, at + 2

        at, has_crc, status = _put_properties(
            out, properties_at, row_texts, entries, first_entry, last_entry, parts, first_part, last_part
        )
        if status != DONE:
            return status
        with_crc = crc_way == CRC_ALWAYS or (crc_way == CRC_AS_GIVEN and has_crc != 0)
        wanted_bytes = numbers[row, WANTED_BYTES]
        if wanted_bytes > 0:
            end = start + wanted_bytes - (CRC_PROPERTY_BYTES if with_crc else 0)
            if end == at - 1 and at > properties_at:
                at = end  # the last property had no terminator
            while at < end:  # the record held what a map cannot: empty entries, ignored by readers, pad it
                out[at] = _VALUE_END
                at += 1
        if with_crc:
            _put_name(out, at, _CRC_NAME)
            out[at + CRC_PROPERTY_BYTES - 1] = _VALUE_END
            at += CRC_PROPERTY_BYTES
        properties_bytes, size = at - properties_at, at - start
        if properties_bytes > MAX_PROPERTIES_BYTES:
            return PROPERTIES_TOO_LONG
        if size > max_record_bytes:
            result[2] = size
            return RECORD_TOO_LONG
        out[length_at] = np.uint8(properties_bytes >> 8)
        out[length_at + 1] = np.uint8(properties_bytes & 0xFF)

        topic_hash = java_hash(out, topic_at, topic_at + topic_bytes, np.uint32(0))
        queue = find_queue(out, topic_at, topic_bytes, topic_hash, numbers[row, QUEUE_ID], queues, slots, pool, used)
        if queue < 0:
            return QUEUES_FULL

        write_i32(out, start + RECORD_SIZE_AT, size)
        write_i32(out, start + RECORD_MAGIC_AT, MAGIC_V2 if is_v2 else MAGIC_V1)
        write_i32(out, start + RECORD_BODY_CRC_AT, crc32(out, body_at, body_at + body_bytes) & 0x7FFFFFFF)
        write_i32(out, start + RECORD_QUEUE_ID_AT, numbers[row, QUEUE_ID])
        write_i32(out, start + RECORD_FLAG_AT, numbers[row, FLAG])
        write_i64(out, start + RECORD_QUEUE_OFFSET_AT, numbers[row, QUEUE_OFFSET])
        write_i64(out, start + RECORD_PHYSICAL_OFFSET_AT, 0)
        write_i32(out, start + RECORD_SYS_FLAG_AT, sys_flag)
        write_i64(out, start + RECORD_BORN_TIMESTAMP_AT, numbers[row, BORN_TIMESTAMP])

        transaction = sys_flag & FLAG_TRANSACTION_MASK
        marks = MARK_CRC if with_crc else 0
        if transaction == 0 or transaction == FLAG_TRANSACTION_COMMIT:
            marks |= MARK_COUNTS
        encoded[row, SIZE] = size
        encoded[row, QUEUE] = queue
        encoded[row, ORDER_KEY] = numbers[row, ORDER]
        encoded[row, MARKS] = marks
        start = at
    result[0], result[1] = len(numbers), start
    return DONE


@njit("int64(int64[:, ::1], int64, int64, uint8[::1], int64[:, ::1])", **COMPILED)
def parse_v4_hosts(texts: Any, default: int, default_bytes: int, out: Any, hosts: Any) -> int:
    """Parse ``a.b.c.d:port`` into the 8 bytes that a record has of it; return the number of other texts.

    Args:
        texts: int64[rows, 2].
        default: address of the bytes of a host, for null.
        out: uint8[rows * HOST_V4_BYTES + TEXT_ROOM], written; the last TEXT_ROOM bytes are room for a text.
        hosts: int64[rows, 2], written: texts of the hosts, length -1 for other texts.
    """
    refused = 0
    scratch = len(texts) * HOST_V4_BYTES
    for row in range(len(texts)):
        size = texts[row, 1]
        if size < 0:
            hosts[row, 0], hosts[row, 1] = default, default_bytes
            continue
        hosts[row, 0], hosts[row, 1] = out.ctypes.data + row * HOST_V4_BYTES, -1
        refused += 1
        if size > _MAX_TEXT_BYTES:
            continue
        put_text(out, scratch, texts[row, 0], size)
        at, end, place = scratch, scratch + size, row * HOST_V4_BYTES
        groups = 0
        value = digits = 0
        while at < end:
            byte = np.int64(out[at])
            if 48 <= byte <= 57:
                value = value * 10 + byte - 48
                digits += 1
            elif groups < 4 and digits > 0 and value < 256 and byte == (58 if groups == 3 else 46):
                out[place + groups] = np.uint8(value)
                groups += 1
                value = digits = 0
            else:
                break
            at += 1
        if at == end and groups == 4 and digits > 0 and digits < 6 and value < 65536:
            write_i32(out, place + 4, value)
            hosts[row, 1] = HOST_V4_BYTES
            refused -= 1
    return refused
