"""Builds the files of a ConsumeQueue and of its ConsumeQueueExt, in plain Python.

This is the oracle that the kernels of ``rmq_formats.kernels.dispatch`` and ``units`` and the broker's queues are
compared with, and the place to read the rules of dispatch.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rmq_formats.codecs.consumequeue import PRE_BLANK, Unit
from rmq_formats.codecs.consumequeue_ext import ExtUnit, encode_ext_address
from rmq_formats.codecs.hashing import tags_code
from rmq_formats.codecs.layout import (
    EXT_END_BYTES,
    EXT_MIN_FILE_BYTES,
    FLAG_TRANSACTION_COMMIT,
    FLAG_TRANSACTION_MASK,
    PROPERTY_DELAY,
    PROPERTY_TAGS,
    SCHEDULE_TOPIC,
    UNIT_BYTES,
)
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.codecs.record_layout import RECORD_FIXED_BYTES_V1
from rmq_formats.errors import LengthError, OptionError

_JAVA_INT = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)
_EXT_END_MARK: Final = b"\xff\xff"


def dispatch_tags_code(message: StoredMessage, delay_levels_ms: Sequence[int]) -> int:
    """Return the tags code that dispatch gives a message; see ``tags_code_of``."""
    return tags_code_of(message.topic, message.properties, message.store_timestamp_ms, delay_levels_ms=delay_levels_ms)


def tags_code_of(
    topic: str, properties: Mapping[str, str], store_timestamp_ms: int, *, delay_levels_ms: Sequence[int]
) -> int:
    """Compute a unit's tags code: the hash of TAGS, or the delivery time in milliseconds of a delayed message.

    A level above the highest is the highest. A DELAY that is not an integer counts as none (Java does not
    dispatch such a record at all, and no broker writes one).

    Source: ``CommitLog#checkMessageAndReturnSize``, ``DefaultMessageStore#computeDeliverTimestamp``.
    """
    delay = properties.get(PROPERTY_DELAY)
    if topic == SCHEDULE_TOPIC and delay is not None and _JAVA_INT.fullmatch(delay):
        level = min(int(delay), len(delay_levels_ms))
        if level > 0 and int(delay) < 1 << 31:
            return _wrap_64(store_timestamp_ms + delay_levels_ms[level - 1])
    return tags_code(properties.get(PROPERTY_TAGS))


def _wrap_64(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def goes_to_consumequeue(sys_flag: int) -> bool:
    """Return whether a record gets a unit: all but half messages and rollbacks of transactions.

    Source: ``CommitLogDispatcherBuildConsumeQueue#dispatch``.
    """
    return sys_flag & FLAG_TRANSACTION_MASK in {0, FLAG_TRANSACTION_COMMIT}


def build_consumequeue(
    units: Iterable[tuple[int, Unit]],
    file_bytes: int,
    lost: Sequence[tuple[int, int]] = (),
    *,
    fills_gaps: bool = False,
) -> dict[int, bytes]:
    """Build the files of one queue, by their start offset in bytes.

    The first unit stands at its queue offset, behind PRE_BLANK up to the begin of its file. Each later one is
    appended: a gap is closed, a queue offset below the queue's end is skipped, 0 never is. Places of messages in
    damaged stretches are held by PRE_BLANK.

    Args:
        units: queue offset and unit, in log order.
        file_bytes: size of a file, a multiple of 20 (``mappedFileSizeConsumeQueue``).
        lost: begin and end of each damaged stretch of the log.
        fills_gaps: fill all gaps, as ``rmq_core``'s broker does.

    Raises:
        OptionError: ``file_bytes`` is not a positive multiple of 20.
        LengthError: the first queue offset is negative.

    Source: ``ConsumeQueue#putMessagePositionInfo``, ``#fillPreBlank``.
    """
    if file_bytes <= 0 or file_bytes % UNIT_BYTES:
        raise OptionError(f"size of a ConsumeQueue file must be a multiple of {UNIT_BYTES}, not {file_bytes}")
    image, first_file, end, log_end = bytearray(), 0, None, -1
    for queue_offset, unit in units:
        if unit.physical_offset + unit.size <= log_end:
            continue
        if end is None:
            if queue_offset < 0:
                raise LengthError("negative queue offset", actual=queue_offset)
            first_file = queue_offset * UNIT_BYTES // file_bytes * file_bytes
            end = first_file // UNIT_BYTES
            image += PRE_BLANK * (queue_offset - end)
            end = queue_offset
        elif queue_offset != 0 and _wrap_64(queue_offset * UNIT_BYTES) < end * UNIT_BYTES:
            continue
        else:
            gap = queue_offset - end
            damaged = sum(max(0, min(high, unit.physical_offset) - max(low, log_end)) for low, high in lost)
            if gap > 0 and (fills_gaps or gap <= damaged // RECORD_FIXED_BYTES_V1):
                image += PRE_BLANK * gap
                end = queue_offset
        image += unit.encode()
        end, log_end = end + 1, unit.physical_offset + unit.size
    return {
        first_file + at: bytes(image[at : at + file_bytes]).ljust(file_bytes, b"\0")
        for at in range(0, len(image), file_bytes)
    }


def build_consumequeue_ext(units: Iterable[tuple[int, int]], file_bytes: int) -> tuple[dict[int, bytes], list[int]]:
    """Build the ext files of one queue, by their start offset in bytes, and the address of each unit.

    Args:
        units: tags code and store timestamp (ms) of each message of the queue, in log order.
        file_bytes: size of a file (``mappedFileSizeConsumeQueueExt``).

    Raises:
        OptionError: a file of that size has no room for a unit.

    Source: ``ConsumeQueueExt#put``, ``#fullFillToEnd``.
    """
    if file_bytes < EXT_MIN_FILE_BYTES:
        raise OptionError(f"a ConsumeQueueExt file of {file_bytes} bytes has no room for a unit")
    files: dict[int, bytes] = {}
    addresses: list[int] = []
    start = 0
    image = bytearray()
    for code, store_timestamp_ms in units:
        unit = ExtUnit(code, store_timestamp_ms).encode()
        if len(unit) > file_bytes - len(image) - EXT_END_BYTES:
            files[start] = bytes(image + _EXT_END_MARK).ljust(file_bytes, b"\0")
            start += file_bytes
            image.clear()
        addresses.append(encode_ext_address(start + len(image)))
        image += unit
    if image:
        files[start] = bytes(image).ljust(file_bytes, b"\0")
    return files, addresses
