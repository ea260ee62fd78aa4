"""Dispatch kernel: extracts ConsumeQueue units and Index keys from records, some fifty bytes of a thousand.

Source: ``CommitLog#checkMessageAndReturnSize``, ``IndexService#buildIndex``. The plain-Python oracles
are ``tests.support.oracles.consumequeue`` and ``tests.support.oracles.index``.
"""

from typing import Any, Final

import numpy as np
from numba import njit

from rmq_formats.codecs.layout import (
    FLAG_BORN_HOST_V6,
    FLAG_INNER_BATCH,
    FLAG_TRANSACTION_COMMIT,
    FLAG_TRANSACTION_MASK,
    FLAG_TRANSACTION_ROLLBACK,
    SCHEDULE_TOPIC,
)
from rmq_formats.codecs.record_layout import (
    HOST_V6_EXTRA_BYTES,
    RECORD_QUEUE_ID_AT,
    RECORD_QUEUE_OFFSET_AT,
    RECORD_STORE_TIMESTAMP_AT,
    RECORD_SYS_FLAG_AT,
)
from rmq_formats.kernels.bytes import ALLOCATING, COMPILED, INLINED, read_i32, read_i64, same_bytes
from rmq_formats.kernels.light_queues import (
    goes_to_light_queues,
    has_slash,
    is_blank,
    is_light_queue,
    list_end,
    parse_long,
    part_count,
    part_end,
)
from rmq_formats.kernels.live_dispatch_tables import LIGHT_UNIT
from rmq_formats.kernels.scan import CODE, POSITION, PROPERTIES_AT, PROPERTIES_BYTES, SIZE, SOUND, TOPIC_AT, TOPIC_BYTES
from rmq_formats.kernels.text import (
    DELAY,
    INNER_BASE,
    KEYS,
    LIGHT_NAMES,
    LIGHT_OFFSETS,
    PROPERTY_ROWS,
    TAGS,
    UNIQ_KEY,
    find_properties,
    java_hash,
    parse_decimal,
)

# Columns of a unit table, int64[n, UNIT_COLUMNS].
UNIT_QUEUE: Final = 0  # row in the queue table
UNIT_QUEUE_OFFSET: Final = 1
UNIT_PHYSICAL_OFFSET: Final = 2
UNIT_SIZE: Final = 3
UNIT_TAGS_CODE: Final = 4
UNIT_STORE_TIMESTAMP: Final = 5  # ms; LIGHT_UNIT in a light queue
UNIT_COLUMNS: Final = 6

# Columns of a key table, int64[n, KEY_COLUMNS].
KEY_HASH: Final = 0
KEY_PHYSICAL_OFFSET: Final = 1
KEY_STORE_TIMESTAMP: Final = 2
KEY_QUEUE: Final = 3  # row in the queue table
KEY_COLUMNS: Final = 4

# Columns of a queue table, int64[capacity, QUEUE_COLUMNS]; the names stand in a byte pool beside it.
QUEUE_TOPIC_AT: Final = 0
QUEUE_TOPIC_BYTES: Final = 1
QUEUE_ID: Final = 2
QUEUE_TOPIC_HASH: Final = 3
QUEUE_MARKS: Final = 4  # of its records: MARK_LIGHT, MARK_BATCH
QUEUE_LAST_UNIT: Final = 5  # row of its last unit in a unit table, which may have been filled anew since
QUEUE_COLUMNS: Final = 6

MARK_LIGHT: Final = 1  # one that has places in light queues (LMQ)
MARK_BATCH: Final = 2  # an inner batch, as only topics with a BatchConsumeQueue have them
MARK_ROLLBACK: Final = 4  # a record of a rolled back transaction, which no queue gets

# Result of a run, int64[RESULT_COLUMNS].
NEXT_FRAME: Final = 0  # the frame row to continue at
UNIT_COUNT: Final = 1
KEY_COUNT: Final = 2
MESSAGE_COUNT: Final = 3  # sound records, including those that give neither unit nor key
MESSAGE_BYTES: Final = 4  # bytes of these records
LAST_OFFSET: Final = 5  # physical offset of the last of these
MARKS: Final = 6  # of these: MARK_LIGHT, MARK_BATCH, MARK_ROLLBACK
RESULT_COLUMNS: Final = 7

DONE: Final = 0
QUEUES_FULL: Final = 1  # grow the queue table or its pool, then continue at the frame in NEXT_FRAME
UNITS_FULL: Final = 2
KEYS_FULL: Final = 3

_SCHEDULE = np.frombuffer(SCHEDULE_TOPIC.encode(), dtype=np.uint8)
_NO_QUEUE = -1


@njit("int64(uint8[::1], int64, int64)", **INLINED)
def store_timestamp(data: Any, position: int, sys_flag: int) -> int:
    """Store timestamp, in ms, of the record at ``position``."""
    extra = HOST_V6_EXTRA_BYTES if sys_flag & FLAG_BORN_HOST_V6 else 0
    return read_i64(data, position + RECORD_STORE_TIMESTAMP_AT + extra)


@njit(
    "int64(uint8[::1], int64, int64, uint32, int64, int64[:, ::1], int32[::1], uint8[::1], int64[::1])",
    **INLINED,
)
def find_queue(
    data: Any,
    topic_at: int,
    topic_bytes: int,
    topic_hash: int,
    queue_id: int,
    queues: Any,
    slots: Any,
    pool: Any,
    used: Any,
) -> int:
    """Find the row of a queue in the queue table, added if it is new; -1 if there is no room.

    Args:
        data: uint8[n], holds the topic.
        topic_hash: its ``java_hash``.
        queues: int64[capacity, QUEUE_COLUMNS].
        slots: int32[power of two], open addressing, -1 where empty; at least twice the capacity.
        pool: uint8[n], topic names.
        used: int64[2]: rows of ``queues`` and bytes of ``pool`` in use.
    """
    mask = len(slots) - 1
    slot = np.int64((topic_hash * np.uint32(31) + np.uint32(queue_id)) * np.uint32(2654435769) >> np.uint32(7)) & mask
    while slots[slot] >= 0:
        row = np.int64(slots[slot])
        if (
            queues[row, QUEUE_ID] == queue_id
            and queues[row, QUEUE_TOPIC_HASH] == np.int64(topic_hash)
            and queues[row, QUEUE_TOPIC_BYTES] == topic_bytes
            and same_bytes(data, topic_at, pool, queues[row, QUEUE_TOPIC_AT], topic_bytes)
        ):
            return row
        slot = (slot + 1) & mask
    row = used[0]
    if row == len(queues) or used[1] + topic_bytes > len(pool):
        return _NO_QUEUE
    for index in range(topic_bytes):
        pool[used[1] + index] = data[topic_at + index]
    queues[row, QUEUE_TOPIC_AT], queues[row, QUEUE_TOPIC_BYTES] = used[1], topic_bytes
    queues[row, QUEUE_ID], queues[row, QUEUE_TOPIC_HASH] = queue_id, np.int64(topic_hash)
    slots[slot] = row
    used[0] += 1
    used[1] += topic_bytes
    return row


@njit("int64(uint32)", **INLINED)
def index_hash(hashed: int) -> int:
    """Compute the key hash of an Index entry: the absolute value, and 0 for the one that has none."""
    signed = np.int64(np.int32(hashed))
    if signed == -2147483648:
        return 0
    return -signed if signed < 0 else signed


@njit("int64(int64[:, ::1], int64, uint32, int64, int64, int64)", **INLINED)
def _append_key(keys: Any, count: int, hashed: int, physical_offset: int, timestamp: int, queue: int) -> int:
    keys[count, KEY_HASH] = index_hash(hashed)
    keys[count, KEY_PHYSICAL_OFFSET] = physical_offset
    keys[count, KEY_STORE_TIMESTAMP] = timestamp
    keys[count, KEY_QUEUE] = queue
    return count + 1


@njit("void(int64[:, ::1], int64, int64, int64[::1])", **INLINED)
def _count(frames: Any, row: int, physical_offset: int, result: Any) -> None:
    result[MESSAGE_COUNT] += 1
    result[MESSAGE_BYTES] += frames[row, SIZE]
    result[LAST_OFFSET] = physical_offset + frames[row, POSITION]


@njit(
    "int64(uint8[::1], int64[:, ::1], int64, int64[:, ::1], int32[::1], uint8[::1], int64[::1], int64[:, ::1], int64)",
    **COMPILED,
)
def _append_light_units(
    data: Any, values: Any, own_queue: int, queues: Any, slots: Any, pool: Any, used: Any, units: Any, own_row: int
) -> int:
    """Append a unit for each light queue of a record: as its own, at another queue offset.

    A name that stands twice in a record has one unit there, as ``ConsumeQueue`` takes each record once. An offset that
    is no number gives none (Java dispatches nothing from such a record on, and no broker writes one).

    Args:
        values: int64[PROPERTY_ROWS, 2], its properties, with LIGHT_NAMES and LIGHT_OFFSETS.
        own_queue: row of its own queue in the queue table; see ``find_queue``.
        own_row: row of its own unit, the last one written.

    Returns:
        One past the last unit; -QUEUES_FULL or -UNITS_FULL where nothing counts that was written.
    """
    name_at, place_at = values[LIGHT_NAMES, 0], values[LIGHT_OFFSETS, 0]
    names_end = list_end(data, name_at, values[LIGHT_NAMES, 1])
    places_end = list_end(data, place_at, values[LIGHT_OFFSETS, 1])
    count = part_count(data, name_at, names_end)
    unit_count = own_row + 1
    if count != part_count(data, place_at, places_end) or is_blank(data, name_at, values[LIGHT_NAMES, 1]):
        return unit_count
    if unit_count + count > len(units):
        return -UNITS_FULL
    queues[own_queue, QUEUE_LAST_UNIT] = own_row
    for _ in range(count):
        name_end, place_end = part_end(data, name_at, names_end), part_end(data, place_at, places_end)
        is_number, queue_offset = parse_long(data, place_at, place_end)
        name_bytes = name_end - name_at
        if is_number and not has_slash(data, name_at, name_end):
            queue_id = 0 if is_light_queue(data, name_at, name_bytes) else queues[own_queue, QUEUE_ID]
            name_hash = java_hash(data, name_at, name_end, np.uint32(0))
            queue = find_queue(data, name_at, name_bytes, name_hash, queue_id, queues, slots, pool, used)
            if queue < 0:
                return -QUEUES_FULL
            last = queues[queue, QUEUE_LAST_UNIT]
            if not (own_row <= last < unit_count and units[last, UNIT_QUEUE] == queue):
                for column in range(UNIT_COLUMNS):
                    units[unit_count, column] = units[own_row, column]
                units[unit_count, UNIT_QUEUE], units[unit_count, UNIT_QUEUE_OFFSET] = queue, queue_offset
                units[unit_count, UNIT_STORE_TIMESTAMP] = LIGHT_UNIT
                queues[queue, QUEUE_LAST_UNIT] = unit_count
                unit_count += 1
        name_at, place_at = name_end + 1, place_end + 1
    return unit_count


@njit(
    "int64(uint8[::1], int64, int64[:, ::1], int64, int64[::1], int64, boolean, int64[:, ::1], int32[::1], uint8[::1],"
    " int64[::1], int64[:, ::1], int64[:, ::1], int64[::1])",
    **ALLOCATING,
)
def dispatch_frames(
    data: Any,
    physical_offset: int,
    frames: Any,
    start: int,
    delay_levels_ms: Any,
    tags_from: int,
    to_light_queues: bool,
    queues: Any,
    slots: Any,
    pool: Any,
    used: Any,
    units: Any,
    keys: Any,
    result: Any,
) -> int:
    """Fill unit and key tables from the sound frames of a window, from row ``start`` on.

    Args:
        data: uint8[n], the window.
        physical_offset: of ``data[0]``.
        frames: int64[n, FRAME_COLUMNS]; rows whose CODE is not 0 give nothing.
        delay_levels_ms: int64[levels], for tags codes of SCHEDULE_TOPIC_XXXX.
        tags_from: physical offset of the first record whose TAGS are a key, too.
        to_light_queues: whether records give units to light queues (LMQ), too.
        queues, slots, pool, used: the queue table; see ``find_queue``.
        units: int64[capacity, UNIT_COLUMNS], rows from UNIT_COUNT on are written.
        keys: int64[capacity, KEY_COLUMNS], rows from KEY_COUNT on are written.
        result: int64[RESULT_COLUMNS], updated.

    Returns:
        DONE, QUEUES_FULL, UNITS_FULL or KEYS_FULL. The units and keys of a frame are written whole or not at all.
    """
    unit_count, key_count = result[UNIT_COUNT], result[KEY_COUNT]
    values = np.empty((PROPERTY_ROWS, 2), dtype=np.int64)
    for row in range(start, len(frames)):
        result[NEXT_FRAME], result[UNIT_COUNT], result[KEY_COUNT] = row, unit_count, key_count
        if frames[row, CODE] != SOUND:
            continue
        position = frames[row, POSITION]
        sys_flag = read_i32(data, position + RECORD_SYS_FLAG_AT)
        transaction = sys_flag & FLAG_TRANSACTION_MASK
        if transaction == FLAG_TRANSACTION_ROLLBACK:
            result[MARKS] |= MARK_ROLLBACK
            _count(frames, row, physical_offset, result)
            continue
        timestamp = store_timestamp(data, position, sys_flag)
        topic_at, topic_bytes = frames[row, TOPIC_AT], frames[row, TOPIC_BYTES]
        topic_hash = java_hash(data, topic_at, topic_at + topic_bytes, np.uint32(0))
        properties_at = frames[row, PROPERTIES_AT]
        find_properties(data, properties_at, properties_at + frames[row, PROPERTIES_BYTES], values)
        # Upper bound of the keys of this record: each part of KEYS takes at least a byte and a space; UNIQ_KEY, TAGS.
        if key_count + 3 + values[KEYS, 1] // 2 > len(keys):
            return KEYS_FULL
        if unit_count == len(units):
            return UNITS_FULL
        queue_id = read_i32(data, position + RECORD_QUEUE_ID_AT)
        queue = find_queue(data, topic_at, topic_bytes, topic_hash, queue_id, queues, slots, pool, used)
        if queue < 0:
            return QUEUES_FULL
        if values[LIGHT_OFFSETS, 1] > 0:
            queues[queue, QUEUE_MARKS] |= MARK_LIGHT
            result[MARKS] |= MARK_LIGHT
        if sys_flag & FLAG_INNER_BATCH and values[INNER_BASE, 1] > 0:  # the filler of a repair has the flag alone
            queues[queue, QUEUE_MARKS] |= MARK_BATCH
            result[MARKS] |= MARK_BATCH
        if transaction == 0 or transaction == FLAG_TRANSACTION_COMMIT:
            tags_at, tags_bytes = values[TAGS, 0], values[TAGS, 1]
            code = np.int64(0)
            if tags_bytes > 0:
                code = np.int64(np.int32(java_hash(data, tags_at, tags_at + tags_bytes, np.uint32(0))))
            if (
                values[DELAY, 1] > 0
                and topic_bytes == len(_SCHEDULE)
                and len(delay_levels_ms) > 0
                and same_bytes(data, topic_at, _SCHEDULE, 0, topic_bytes)
            ):
                level = parse_decimal(data, values[DELAY, 0], values[DELAY, 1])
                if level > 0:
                    code = timestamp + delay_levels_ms[min(level, len(delay_levels_ms)) - 1]
            units[unit_count, UNIT_QUEUE] = queue
            units[unit_count, UNIT_QUEUE_OFFSET] = read_i64(data, position + RECORD_QUEUE_OFFSET_AT)
            units[unit_count, UNIT_PHYSICAL_OFFSET] = physical_offset + position
            units[unit_count, UNIT_SIZE] = frames[row, SIZE]
            units[unit_count, UNIT_TAGS_CODE] = code
            units[unit_count, UNIT_STORE_TIMESTAMP] = timestamp
            unit_count += 1
            if (
                to_light_queues
                and not (sys_flag & FLAG_INNER_BATCH and values[INNER_BASE, 1] > 0)
                and values[LIGHT_OFFSETS, 1] > 0
                and values[LIGHT_NAMES, 1] > 0
                and goes_to_light_queues(data, topic_at, topic_bytes)
            ):
                unit_count = _append_light_units(data, values, queue, queues, slots, pool, used, units, unit_count - 1)
                if unit_count < 0:
                    return -unit_count
        _count(frames, row, physical_offset, result)
        prefix = topic_hash * np.uint32(31) + np.uint32(35)  # the key is topic + '#' + key
        if values[UNIQ_KEY, 1] > 0:
            hashed = java_hash(data, values[UNIQ_KEY, 0], values[UNIQ_KEY, 0] + values[UNIQ_KEY, 1], prefix)
            key_count = _append_key(keys, key_count, hashed, physical_offset + position, timestamp, queue)
        at, end = values[KEYS, 0], values[KEYS, 0] + values[KEYS, 1]
        while 0 <= at < end:
            part_end = at
            while part_end < end and data[part_end] != 32:
                part_end += 1
            if part_end > at:
                hashed = java_hash(data, at, part_end, prefix)
                key_count = _append_key(keys, key_count, hashed, physical_offset + position, timestamp, queue)
            at = part_end + 1
        if values[TAGS, 1] > 0 and physical_offset + position >= tags_from:
            prefix = (prefix * np.uint32(31) + np.uint32(84)) * np.uint32(31) + np.uint32(35)  # topic + '#T#' + TAGS
            hashed = java_hash(data, values[TAGS, 0], values[TAGS, 0] + values[TAGS, 1], prefix)
            key_count = _append_key(keys, key_count, hashed, physical_offset + position, timestamp, queue)
    result[NEXT_FRAME], result[UNIT_COUNT], result[KEY_COUNT] = len(frames), unit_count, key_count
    return DONE
