"""Reads the lists of light queues (LMQ) in a record's properties: names, and the places in their queues.

Source: ``MultiDispatchUtils#checkMultiDispatchQueue``, ``ConsumeQueue#multiDispatchLmqQueue``. The plain-Python oracle
is ``tests.support.oracles.light_queues``.
"""

from typing import Any, Final

import numpy as np
from numba import njit

from rmq_formats.codecs.layout import SCHEDULE_TOPIC
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX, RETRY_PREFIX, SYSTEM_TOPIC_PREFIX
from rmq_formats.kernels.bytes import COMPILED, find_byte, same_bytes

_COMMA: Final = 44
_SLASH: Final = 47
_MAX_DIGITS: Final = 19  # of a long
_PREFIX = np.frombuffer(LIGHT_QUEUE_PREFIX.encode(), dtype=np.uint8)
_RETRY = np.frombuffer(RETRY_PREFIX.encode(), dtype=np.uint8)
_SYSTEM = np.frombuffer(SYSTEM_TOPIC_PREFIX.encode(), dtype=np.uint8)
_SCHEDULE = np.frombuffer(SCHEDULE_TOPIC.encode(), dtype=np.uint8)


@njit(**COMPILED)  # no signature: numba types global arrays as read-only, arguments not
def _begins_with(data: Any, at: int, byte_count: int, name: Any) -> bool:
    return byte_count >= len(name) and same_bytes(data, at, name, 0, len(name))


@njit("boolean(uint8[::1], int64, int64)", **COMPILED)
def goes_to_light_queues(data: Any, topic_at: int, topic_bytes: int) -> bool:
    """Return whether dispatch puts messages of a topic into light queues: not retries, ``rmq_sys_`` and delays."""
    if _begins_with(data, topic_at, topic_bytes, _RETRY) or _begins_with(data, topic_at, topic_bytes, _SYSTEM):
        return False
    return topic_bytes != len(_SCHEDULE) or not same_bytes(data, topic_at, _SCHEDULE, 0, topic_bytes)


@njit("boolean(uint8[::1], int64, int64)", **COMPILED)
def is_light_queue(data: Any, at: int, byte_count: int) -> bool:
    """Return whether a name is that of a light queue, whose queue id is 0 whatever the record's is."""
    return _begins_with(data, at, byte_count, _PREFIX)


@njit("boolean(uint8[::1], int64, int64)", **COMPILED)
def has_slash(data: Any, at: int, end: int) -> bool:
    """Return whether a name has a slash: Java skips such a name."""
    return find_byte(data, at, end, _SLASH) < end


@njit("boolean(uint8[::1], int64, int64)", **COMPILED)
def is_blank(data: Any, at: int, byte_count: int) -> bool:
    """Return whether a text is white space of ASCII and nothing else (``StringUtils#isBlank``)."""
    for index in range(at, at + byte_count):
        byte = data[index]
        if not (9 <= byte <= 13 or 28 <= byte <= 32):
            return False
    return True


@njit("int64(uint8[::1], int64, int64)", **COMPILED)
def list_end(data: Any, at: int, byte_count: int) -> int:
    """Find where a list ends, one past its last part: ``String#split`` drops empty parts at the end."""
    end = at + byte_count
    while end > at and data[end - 1] == _COMMA:
        end -= 1
    return end


@njit("int64(uint8[::1], int64, int64)", **COMPILED)
def part_count(data: Any, at: int, end: int) -> int:
    """Count the parts of the list ``data[at:end]``, whose end is by ``list_end``; those within may be empty."""
    if at == end:
        return 0
    count = 1
    for index in range(at, end):
        count += data[index] == _COMMA
    return count


@njit("int64(uint8[::1], int64, int64)", **COMPILED)
def part_end(data: Any, at: int, end: int) -> int:
    """Find the end of the part of a list that begins at ``at``; the next part begins one byte later."""
    return find_byte(data, at, end, _COMMA)


@njit("UniTuple(int64, 2)(uint8[::1], int64, int64)", **COMPILED)
def parse_long(data: Any, start: int, stop: int) -> tuple[int, int]:
    """Parse a decimal as ``Long#parseLong`` does: (1, value), or (0, 0) where the text is none of ASCII's digits."""
    is_negative = start < stop and data[start] == 45
    first = start + 1 if start < stop and (is_negative or data[start] == 43) else start
    if first >= stop:
        return 0, 0
    while stop - first > _MAX_DIGITS and data[first] == 48:
        first += 1
    if stop - first > _MAX_DIGITS:
        return 0, 0
    value = np.uint64(0)
    for at in range(first, stop):
        digit = np.int64(data[at]) - 48
        if digit < 0 or digit > 9:
            return 0, 0
        value = value * np.uint64(10) + np.uint64(digit)
    if value > np.uint64(0x7FFFFFFFFFFFFFFF) + np.uint64(is_negative):
        return 0, 0
    return 1, -np.int64(value) if is_negative else np.int64(value)
