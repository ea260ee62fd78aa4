"""The dispatch kernel: writes units and keys of a batch of records, without a step of Python for each record.

Units go straight to their addresses in mapped ConsumeQueue files, keys into the mapped IndexFile. At a new queue, a
full file or a gap the kernel returns, and Python handles that.
"""

from typing import Any, Final

from llvmlite import ir
from numba import njit, types

from rmq_formats.codecs.layout import (
    INDEX_COUNT_AT,
    UNIT_BYTES,
    UNIT_PHYSICAL_OFFSET_AT,
    UNIT_SIZE_AT,
    UNIT_TAGS_CODE_AT,
)
from rmq_formats.codecs.record_frame import DamageCode
from rmq_formats.kernels import live_dispatch_tables as tables
from rmq_formats.kernels.bytes import COMPILED, emitted, find_byte, read_i32
from rmq_formats.kernels.dispatch import (
    DONE,
    KEY_COUNT,
    KEY_PHYSICAL_OFFSET,
    UNIT_COUNT,
    UNIT_PHYSICAL_OFFSET,
    UNIT_QUEUE,
    UNIT_QUEUE_OFFSET,
    UNIT_SIZE,
    UNIT_STORE_TIMESTAMP,
    UNIT_TAGS_CODE,
    dispatch_frames,
)
from rmq_formats.kernels.index import append_in_place
from rmq_formats.kernels.scan import (
    CODE,
    POSITION,
    PROPERTIES_AT,
    PROPERTIES_BYTES,
    SIZE,
    TOPIC_AT,
    TOPIC_BYTES,
    walk_frames,
)

SECTOR_BYTES: Final = 512  # what a disk writes whole, or not at all
_UNIT_OFFSETS: Final = (UNIT_PHYSICAL_OFFSET_AT, UNIT_SIZE_AT, UNIT_TAGS_CODE_AT)
_HOLDING: Final[dict[str, Any]] = {**COMPILED, "nogil": False}  # the interpreter's lock: what others see is whole
_TORN: Final = int(DamageCode.PROPERTIES_CRC)


@emitted(types.void(types.int64, types.int64, types.int64, types.int64))
def _store_unit(context: Any, builder: Any, address: Any, physical_offset: Any, size: Any, tags_code: Any) -> Any:
    """Write a unit's 20 bytes, big-endian, at a memory address."""
    for offset, bits, value in zip(_UNIT_OFFSETS, (64, 32, 64), (physical_offset, size, tags_code), strict=True):
        word = ir.IntType(bits)
        target = builder.inttoptr(builder.add(address, ir.IntType(64)(offset)), word.as_pointer())
        narrowed = value if bits == 64 else builder.trunc(value, word)
        builder.store(builder.bswap(narrowed), target, align=1)


@njit("int64(int64[:, ::1], int64, int64, int64[:, ::1], int64[::1])", **_HOLDING)
def write_units(units: Any, begin: int, end: int, targets: Any, numbers: Any) -> int:
    """Write units to the mapped places of their queues.

    Args:
        units: int64[n, UNIT_COLUMNS]; rows ``begin`` to ``end``.
        targets: int64[queues, TARGET_COLUMNS], by UNIT_QUEUE; updated. A row with ROOM has an ADDRESS at
            which as many units may be written.
        numbers: int64[RUN_NUMBERS]; RUN_WRITTEN is added to.

    Returns:
        The first row that could not be placed, or ``end``. Passed over are units of records that their queue has
        already, and those below its end, but for 0: ``units.append_rows`` has the whole rule. A slave's are not: its
        topic may have been made anew at the master, with older queue offsets.
    """
    for row in range(begin, end):
        queue = units[row, UNIT_QUEUE]
        if queue >= len(targets):
            return row
        record_end = units[row, UNIT_PHYSICAL_OFFSET] + units[row, UNIT_SIZE]
        if record_end <= targets[queue, tables.TARGET_RECORD_END]:
            continue
        queue_offset = units[row, UNIT_QUEUE_OFFSET]
        next_offset = targets[queue, tables.TARGET_NEXT]
        if 0 != queue_offset < next_offset and targets[queue, tables.TARGET_BOUND] == tables.BOUND_TO_ONE_TOPIC:
            continue
        if queue_offset != next_offset or targets[queue, tables.TARGET_ROOM] == 0:
            return row
        address = targets[queue, tables.TARGET_ADDRESS]
        _store_unit(address, units[row, UNIT_PHYSICAL_OFFSET], units[row, UNIT_SIZE], units[row, UNIT_TAGS_CODE])
        targets[queue, tables.TARGET_ADDRESS] = address + UNIT_BYTES
        targets[queue, tables.TARGET_NEXT] += 1
        targets[queue, tables.TARGET_RECORD_END] = record_end
        targets[queue, tables.TARGET_ROOM] -= 1
        targets[queue, tables.TARGET_DIRTY] = 1
        numbers[tables.RUN_WRITTEN] += 1
    return end


@njit(
    "int64(uint8[::1], int64[::1], int64[:, ::1], int64[::1], int64[:, ::1], int32[::1], uint8[::1], int64[::1],"
    " int64[:, ::1], int64[:, ::1], int64[::1], int64[:, ::1], uint8[::1])",
    **_HOLDING,
)
def dispatch_log(
    data: Any,
    numbers: Any,
    frames: Any,
    delay_levels_ms: Any,
    queues: Any,
    slots: Any,
    pool: Any,
    used: Any,
    units: Any,
    keys: Any,
    result: Any,
    targets: Any,
    image: Any,
) -> int:
    """Dispatch the records of a log file from a position on.

    Holds the interpreter's lock, so that other threads see each batch whole.

    Args:
        data: uint8[n], the mapped file.
        numbers: int64[RUN_NUMBERS].
        frames: int64[capacity, FRAME_COLUMNS], scratch; at most so many records are taken.
        delay_levels_ms, queues, slots, pool, used, units, keys: see ``dispatch_frames``.
        result: int64[RESULT_COLUMNS], scratch.
        targets: see ``write_units``.
        image: uint8[m], the newest IndexFile, mapped; not touched where RUN_INDEX_LIMIT is -1.

    Returns:
        DONE, or what ``dispatch_frames`` lacks: nothing is written then, and RUN_POSITION not moved.
    """
    file_offset = numbers[tables.RUN_FILE_OFFSET]
    start = numbers[tables.RUN_POSITION]
    status = walk_frames(
        data,
        numbers[tables.RUN_DATA_BYTES],
        0,
        file_offset,
        numbers[tables.RUN_FILE_BYTES],
        start,
        numbers[tables.RUN_DATA_BYTES],
        False,
        frames,
        result,
    )
    count, end = result[0], result[1]
    numbers[tables.RUN_FRAMES] = count
    numbers[tables.RUN_LAST_OFFSET] = -1
    if count > 0:
        numbers[tables.RUN_LAST_OFFSET] = file_offset + frames[count - 1, POSITION]
    result[:] = 0
    lacking = dispatch_frames(
        data,
        file_offset,
        frames[:count],
        0,
        delay_levels_ms,
        numbers[tables.RUN_TAGS_FROM],
        numbers[tables.RUN_LIGHT] != 0,
        queues,
        slots,
        pool,
        used,
        units,
        keys,
        result,
    )
    if lacking != DONE:
        return lacking
    unit_count, key_count = result[UNIT_COUNT], result[KEY_COUNT]
    numbers[tables.RUN_POSITION], numbers[tables.RUN_WALK_STATUS] = end, status
    numbers[tables.RUN_UNITS], numbers[tables.RUN_KEYS] = unit_count, key_count
    if unit_count > 0:
        own_row = unit_count - 1  # those in light queues stand behind the record's own, and have no time
        while units[own_row, UNIT_STORE_TIMESTAMP] == tables.LIGHT_UNIT:
            own_row -= 1
        numbers[tables.RUN_TIMESTAMP] = units[own_row, UNIT_STORE_TIMESTAMP]
    numbers[tables.RUN_WRITTEN] = numbers[tables.RUN_INDEXED] = 0
    placed = write_units(units, 0, unit_count, targets, numbers)
    numbers[tables.RUN_PLACED] = placed
    if placed == unit_count and numbers[tables.RUN_INDEX_LIMIT] >= 0:
        index_count = max(read_i32(image, INDEX_COUNT_AT), 1)
        after = index_count + key_count
        last_key = keys[key_count - 1, KEY_PHYSICAL_OFFSET] if key_count > 0 else -1
        # A message without a key behind the one that fills the file has a new one made, which is not done here.
        fits = after < numbers[tables.RUN_INDEX_ENTRIES] or last_key == numbers[tables.RUN_LAST_OFFSET]
        if index_count < numbers[tables.RUN_INDEX_ENTRIES] and after <= numbers[tables.RUN_INDEX_LIMIT] and fits:
            append_in_place(image, numbers[tables.RUN_INDEX_SLOTS], keys[:key_count])
            numbers[tables.RUN_INDEXED] = 1
    return DONE


@njit("boolean(uint8[::1], int64, int64)", **COMPILED)
def _is_zero(data: Any, begin: int, end: int) -> bool:
    for at in range(begin, end):
        if data[at] != 0:
            return False
    return True


@njit("boolean(uint8[::1], int64, int64)", **COMPILED)
def _has_zero(data: Any, begin: int, end: int) -> bool:
    return find_byte(data, begin, end, 0) < end


@njit("void(uint8[::1], int64, int64[:, ::1], int64, boolean)", **COMPILED)
def mark_torn(data: Any, window_at: int, frames: Any, first: int, follows: bool) -> None:
    """Set the CODE of frames of which a sector's topic or properties end in zeros that go on to the sector's end.

    A sector that was not written is zeros, or zeros from the place on to which the log was forced before: in the
    middle of a record, where a slave's push ended. What that takes of the body shows in its sum, what it takes of the
    lengths in the frame. Topic and properties have no sum, but they are text: no zero ends their share of a sector.

    In a slave's log (``follows``) any zero in them counts: a push that a full disk refused in the middle of a record is
    undone by zeros, and where the disk refuses those as well, bytes of the push stand behind them. What is cut for a
    zero that a client has sent comes from the master again. ``window_at`` is where the window starts in its file.
    """
    for row in range(first, len(frames)):
        if frames[row, CODE] != 0:
            continue
        topic_at, properties_at = frames[row, TOPIC_AT], frames[row, PROPERTIES_AT]
        topic_end = topic_at + frames[row, TOPIC_BYTES]
        properties_end = properties_at + frames[row, PROPERTIES_BYTES]
        if follows and (_has_zero(data, topic_at, topic_end) or _has_zero(data, properties_at, properties_end)):
            frames[row, CODE] = _TORN
            continue
        end = frames[row, POSITION] + frames[row, SIZE]
        sector = (topic_at + window_at) // SECTOR_BYTES * SECTOR_BYTES - window_at
        while sector < end:
            stop = sector + SECTOR_BYTES
            text_end = min(stop, properties_end)
            if text_end <= max(sector, properties_at):
                text_end = min(stop, topic_end)
            if text_end > max(sector, topic_at) and _is_zero(data, text_end - 1, min(stop, len(data))):
                frames[row, CODE] = _TORN
                break
            sector = stop
