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
from rmq_formats.errors import LengthError, OptionError

MAX_BUILT_BYTES: Final = 1 << 30  # of one queue in memory; a wild queue offset must not ask for more
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


def build_consumequeue(units: Iterable[tuple[int, Unit]], file_bytes: int) -> dict[int, bytes]:
    """Build the files of one queue, by their start offset in bytes.

    Each unit stands at its own queue offset. Places of the first file before the first unit, and gaps
    between units, hold PRE_BLANK. (Java fills the former so, and closes a gap by appending what follows,
    out of its place.)

    Args:
        units: queue offset and unit, in log order; of a repeated queue offset the first counts.
        file_bytes: size of a file, a multiple of 20 (``mappedFileSizeConsumeQueue``).

    Raises:
        OptionError: ``file_bytes`` is not a positive multiple of 20.
        LengthError: a negative queue offset, or a queue that takes more than 1 GiB.

    Source: ``ConsumeQueue#putMessagePositionInfo``, ``#fillPreBlank``.
    """
    if file_bytes <= 0 or file_bytes % UNIT_BYTES:
        raise OptionError(f"size of a ConsumeQueue file must be a multiple of {UNIT_BYTES}, not {file_bytes}")
    placed: dict[int, Unit] = {}
    for queue_offset, unit in units:
        placed.setdefault(queue_offset, unit)
    if not placed:
        return {}
    first, last = min(placed), max(placed)
    if first < 0:
        raise LengthError("negative queue offset", actual=first)
    first_file = first * UNIT_BYTES // file_bytes * file_bytes
    built_bytes = (last + 1) * UNIT_BYTES - first_file
    if built_bytes > MAX_BUILT_BYTES:
        raise LengthError("queue offsets too far apart", expected=f"within {MAX_BUILT_BYTES} bytes", actual=built_bytes)
    image = bytearray(PRE_BLANK * (built_bytes // UNIT_BYTES))
    for queue_offset, unit in placed.items():
        at = queue_offset * UNIT_BYTES - first_file
        image[at : at + UNIT_BYTES] = unit.encode()
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
