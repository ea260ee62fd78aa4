"""Kernel that renders records as lines of JSON, a window at a time: ten times as fast as Python, record by record.

The text is that of ``json_lines.message_line``, which is the oracle. Topics and properties must be valid
UTF-8 here (``FrameRows.repair`` sees to that).
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
from numba import njit

from rmq_formats.codecs.hosts import V4_ADDRESS_BYTES
from rmq_formats.codecs.record_layout import (
    HEAD,
    HOST_FLAGS,
    HOST_V4_BYTES,
    RECORD_PHYSICAL_OFFSET_AT,
    RECORD_STORE_HOST_AT,
    RECORD_SYS_FLAG_AT,
)
from rmq_formats.kernels import drop_stale_code
from rmq_formats.kernels.bytes import COMPILED, read_i32, read_i64, same_bytes, write_i32
from rmq_formats.kernels.columns.hosts import append_hex, write_v4
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
from rmq_formats.kernels.text import put_decimal

drop_stale_code(Path(__file__).parent, [Path(__file__)])

# Return values of ``render_records``.
DONE: Final = 0
FULL: Final = 1  # the output has no room for one more
BY_HAND: Final = 2  # the record at result[0] has an IPv6 host, or more properties than MAX_PROPERTIES

MAX_PROPERTIES: Final = 256
ENTRY_COLUMNS: Final = 4  # name at, name bytes, value at, value bytes
_FIXED_TEXT_BYTES: Final = 1024  # more than the names, numbers, hosts and ids of one line

# The text before each field of a line, and the field of a record's head that is its value.
FIELDS: Final = (
    ('{"physical_offset":', "physical_offset"),
    (',"size":', "size"),
    (',"magic":', "magic"),
    (',"body_crc":', "body_crc"),
    (',"queue_id":', "queue_id"),
    (',"flag":', "flag"),
    (',"queue_offset":', "queue_offset"),
    (',"recorded_physical_offset":', "physical_offset"),
    (',"sys_flag":', "sys_flag"),
    (',"born_timestamp":', "born_timestamp"),
    (',"born_host":"', "born_host"),
    ('","store_timestamp":', "store_timestamp"),
    (',"store_host":"', "store_host"),
    ('","reconsume_times":', "reconsume_times"),
    (',"prepared_transaction_offset":', "prepared_transaction_offset"),
)
_HOST: Final = 0  # in place of a number's width
LITERALS: Final = (
    *(text for text, _ in FIELDS),
    ',"topic":"',
    '","body_base64":"',
    '","properties":{',
    '},"msg_id":"',
    '"}\n',
)
_TOPIC, _BODY, _PROPERTIES, _MSG_ID, _END = range(len(FIELDS), len(LITERALS))

_TEXT = np.frombuffer("".join(LITERALS).encode(), dtype=np.uint8)
_ENDS = np.cumsum([0] + [len(text) for text in LITERALS]).astype(np.int64)
_HEAD = [HEAD[name] for _, name in FIELDS]
_SOURCES = np.array([(at, _HOST if code.endswith("s") else width) for at, width, code in _HEAD], dtype=np.int64)
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8)
_BASE64_PAIRS = (_BASE64.astype(np.int32)[:, None] << 8 | _BASE64).reshape(-1)  # by twelve bits
_LOWER_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_SHORT_ESCAPES = np.zeros(256, dtype=np.uint8)
for _character, _letter in {'"': '"', "\\": "\\", "\b": "b", "\t": "t", "\n": "n", "\f": "f", "\r": "r"}.items():
    _SHORT_ESCAPES[ord(_character)] = ord(_letter)


@njit("int64(uint8[::1], int64, int64)", **COMPILED)
def _put_literal(out: Any, at: int, number: int) -> int:
    for index in range(_ENDS[number], _ENDS[number + 1]):
        out[at] = _TEXT[index]
        at += 1
    return at


@njit("int64(uint8[::1], int64, uint8[::1], int64, int64)", **COMPILED)
def _put_base64(out: Any, at: int, data: Any, start: int, byte_count: int) -> int:
    whole = byte_count - byte_count % 3
    for index in range(start, start + whole, 3):
        bits = read_i32(data, index) >> 8 & 0xFFFFFF  # one byte more than is used: a record does not end with its body
        write_i32(out, at, _BASE64_PAIRS[bits >> 12] << 16 | _BASE64_PAIRS[bits & 0xFFF])
        at += 4
    if whole < byte_count:
        bits = int(data[start + whole]) << 16
        if byte_count - whole == 2:
            bits |= int(data[start + whole + 1]) << 8
        out[at] = _BASE64[bits >> 18]
        out[at + 1] = _BASE64[bits >> 12 & 63]
        out[at + 2] = _BASE64[bits >> 6 & 63] if byte_count - whole == 2 else 61
        out[at + 3] = 61
        at += 4
    return at


@njit("int64(uint8[::1], int64, uint8[::1], int64, int64)", **COMPILED)
def _put_text(out: Any, at: int, data: Any, start: int, byte_count: int) -> int:
    """Write text within quotes: quotes, the backslash and control characters are escaped, and nothing else."""
    for index in range(start, start + byte_count):
        value = data[index]
        if value >= 32 and value != 34 and value != 92:  # noqa: PLR1714 # numba has no sets
            out[at] = value
            at += 1
            continue
        out[at] = 92
        if _SHORT_ESCAPES[value]:
            out[at + 1] = _SHORT_ESCAPES[value]
            at += 2
            continue
        out[at + 1], out[at + 2], out[at + 3] = 117, 48, 48
        out[at + 4], out[at + 5] = _LOWER_HEX[value >> 4], _LOWER_HEX[value & 15]
        at += 6
    return at


@njit("int64(uint8[::1], int64, int64, int64, int64)", **COMPILED)
def _compare(data: Any, first: int, first_bytes: int, second: int, second_bytes: int) -> int:
    """Compare two names as Java's ``String#compareTo`` does, by UTF-16 code units."""
    for index in range(min(first_bytes, second_bytes)):
        unit, other_unit = data[first + index], data[second + index]
        if unit != other_unit:
            # Code points from U+10000 on (bytes from F0 on) are surrogates there, which are below U+E000 (EE).
            if unit >= 0xEE and other_unit >= 0xEE and (unit >= 0xF0) != (other_unit >= 0xF0):
                return -1 if unit >= 0xF0 else 1
            return -1 if unit < other_unit else 1
    return first_bytes - second_bytes


@njit("int64(uint8[::1], int64, int64, int64[:, ::1])", **COMPILED)
def _sorted_properties(data: Any, start: int, byte_count: int, entries: Any) -> int:
    """Fill ``entries`` with the properties of a block, by name; returns their number, -1 if there is no room.

    The rules are those of ``rmq_formats.codecs.properties.decode_properties``.
    """
    count, at, stop = 0, start, start + byte_count
    while at < stop:
        name_end, end = -1, at
        while end < stop and data[end] != 2:
            if data[end] == 1 and name_end < 0:
                name_end = end
            end += 1
        if at < name_end < end - 1:
            place, order = count, 1
            while place > 0:
                order = _compare(data, at, name_end - at, entries[place - 1, 0], entries[place - 1, 1])
                if order >= 0:
                    break
                place -= 1
            if place > 0 and order == 0:  # the last value of a name counts
                place -= 1
            else:
                if count == len(entries):
                    return -1
                for row in range(count, place, -1):
                    for column in range(ENTRY_COLUMNS):
                        entries[row, column] = entries[row - 1, column]
                count += 1
            entries[place, 0], entries[place, 1] = at, name_end - at
            entries[place, 2], entries[place, 3] = name_end + 1, end - name_end - 1
        at = end + 1
    return count


@njit(
    "int64(uint8[::1], int64[:, ::1], int64, int64, boolean, uint8[::1], boolean, int64[:, ::1], uint8[::1],"
    " int64[::1])",
    **COMPILED,
)
def render_records(
    data: Any,
    frames: Any,
    start: int,
    limit: int,
    by_topic: bool,
    topic: Any,
    with_body: bool,
    entries: Any,
    out: Any,
    result: Any,
) -> int:
    """Write lines for the sound records of a window, from row ``start`` on.

    Args:
        data: uint8[n], the window.
        frames: int64[rows, FRAME_COLUMNS].
        limit: lines to write at most.
        by_topic: write only the records of ``topic``, uint8[bytes].
        with_body: write ``body_base64``.
        entries: int64[MAX_PROPERTIES, ENTRY_COLUMNS], scratch.
        out: uint8[capacity], written from 0 on.
        result: int64[3], written: next row, bytes of ``out`` in use, lines in it.

    Returns:
        DONE, FULL or BY_HAND.
    """
    at, lines = 0, 0
    for row in range(start, len(frames)):
        result[0], result[1], result[2] = row, at, lines
        topic_at, topic_bytes = frames[row, TOPIC_AT], frames[row, TOPIC_BYTES]
        if frames[row, CODE] != SOUND:
            continue
        if by_topic and (topic_bytes != len(topic) or not same_bytes(data, topic_at, topic, 0, topic_bytes)):
            continue
        if lines == limit:
            return DONE
        body_bytes = frames[row, BODY_BYTES] if with_body else 0
        properties_bytes = frames[row, PROPERTIES_BYTES]
        # A byte of text may become six, and a property of three bytes has six of punctuation.
        room = _FIXED_TEXT_BYTES + body_bytes // 3 * 4 + 4 + 6 * topic_bytes + 8 * properties_bytes
        if at + room > len(out):
            return FULL
        position = frames[row, POSITION]
        sys_flag = read_i32(data, position + RECORD_SYS_FLAG_AT)
        count = _sorted_properties(data, frames[row, PROPERTIES_AT], properties_bytes, entries)
        if count < 0 or sys_flag & HOST_FLAGS:
            return BY_HAND
        for field in range(len(_SOURCES)):
            at = _put_literal(out, at, field)
            source, width = position + _SOURCES[field, 0], _SOURCES[field, 1]
            if width == 8:
                at = put_decimal(out, at, read_i64(data, source))
            elif width == 4:
                at = put_decimal(out, at, read_i32(data, source))
            else:
                at = write_v4(data, source, out, at)
                out[at] = 58
                at = put_decimal(out, at + 1, read_i32(data, source + V4_ADDRESS_BYTES))
        at = _put_literal(out, at, _TOPIC)
        at = _put_text(out, at, data, topic_at, topic_bytes)
        if with_body:
            at = _put_literal(out, at, _BODY)
            at = _put_base64(out, at, data, frames[row, BODY_AT], body_bytes)
        at = _put_literal(out, at, _PROPERTIES)
        for index in range(count):
            if index > 0:
                out[at] = 44
                at += 1
            out[at] = 34
            at = _put_text(out, at + 1, data, entries[index, 0], entries[index, 1])
            out[at], out[at + 1], out[at + 2] = 34, 58, 34
            at = _put_text(out, at + 3, data, entries[index, 2], entries[index, 3])
            out[at] = 34
            at += 1
        at = _put_literal(out, at, _MSG_ID)
        at = append_hex(data, position + RECORD_STORE_HOST_AT, HOST_V4_BYTES, out, at)
        at = append_hex(data, position + RECORD_PHYSICAL_OFFSET_AT, 8, out, at)
        at = _put_literal(out, at, _END)
        lines += 1
    result[0], result[1], result[2] = len(frames), at, lines
    return DONE
