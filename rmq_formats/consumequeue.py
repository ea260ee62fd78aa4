"""ConsumeQueue: one 20-byte unit a message, at its queue offset; and what dispatch puts into it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from rmq_formats.errors import LengthError, OptionError, TruncatedError
from rmq_formats.hashing import tags_code
from rmq_formats.layout import (
    FLAG_TRANSACTION_COMMIT,
    FLAG_TRANSACTION_MASK,
    PRE_BLANK_SIZE,
    PROPERTY_DELAY,
    PROPERTY_TAGS,
    SCHEDULE_TOPIC,
    UNIT_BYTES,
)
from rmq_formats.message import StoredMessage
from rmq_formats.packing import pack_fields

_UNIT = Struct(">qiq")
assert _UNIT.size == UNIT_BYTES

PRE_BLANK: Final = _UNIT.pack(0, PRE_BLANK_SIZE, 0)  # fills a place whose message is not in the log
MAX_BUILT_BYTES: Final = 1 << 30  # of one queue in memory; a wild queue offset must not ask for more
# A gap between queue offsets is filled up to this many units; more is a damaged offset, not a gap.
MAX_GAP_UNITS: Final = 300_000
# Beyond it a unit's place in bytes, and the end of the file that holds it, are no 64-bit numbers.
MAX_QUEUE_OFFSET: Final = ((1 << 63) - (1 << 32)) // UNIT_BYTES

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"([0-9]{1,18})([smhd])", re.ASCII)
_JAVA_INT = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Unit:
    """One place in a queue.

    Attributes:
        physical_offset: of the record, in bytes.
        size: of the record, in bytes.
        tags_code: hash of the tags, delivery time of a delayed message, or ConsumeQueueExt address.
    """

    physical_offset: int
    size: int
    tags_code: int

    def encode(self) -> bytes:
        """The 20 bytes on disk.

        Raises:
            LengthError: a number does not fit into its field.
        """
        return pack_fields(_UNIT, self.physical_offset, self.size, self.tags_code)

    @classmethod
    def decode(cls, buffer: bytes | bytearray | memoryview, position: int = 0) -> "Unit":
        """Read the unit at a position.

        Raises:
            TruncatedError: fewer than 20 bytes are left.
        """
        if not 0 <= position <= len(buffer) - UNIT_BYTES:
            raise TruncatedError("the bytes end within a ConsumeQueue unit", physical_offset=position)
        return cls(*_UNIT.unpack_from(buffer, position))

    @property
    def is_written(self) -> bool:
        """Whether a scan goes on here: the first unit that is not ends a queue (``ConsumeQueue#recover``)."""
        return self.physical_offset >= 0 and self.size > 0

    @property
    def is_pre_blank(self) -> bool:
        """Whether it stands for no message. No record is that large."""
        return self.size == PRE_BLANK_SIZE and self.physical_offset == 0


def delay_levels_ms(text: str) -> tuple[int, ...]:
    """The delays, in milliseconds, of a ``messageDelayLevel`` setting; level 1 is the first.

    Raises:
        OptionError: not numbers with a unit of s, m, h or d, separated by one space each.

    Source: ``DefaultMessageStore#parseDelayLevel``, ``ScheduleMessageService#parseDelayLevel``.
    """
    levels = []
    for level in text.rstrip(" ").split(" "):
        match = _LEVEL.fullmatch(level)
        delay_ms = int(match[1]) * _UNIT_MS[match[2]] if match else 1 << 63
        if delay_ms >= 1 << 63:
            raise OptionError(f"not a delay level: {level!r} in {text!r}")
        levels.append(delay_ms)
    return tuple(levels)


def dispatch_tags_code(message: StoredMessage, delay_levels_ms: Sequence[int]) -> int:
    """The tags code that dispatch gives a message; see ``tags_code_of``."""
    return tags_code_of(message.topic, message.properties, message.store_timestamp_ms, delay_levels_ms=delay_levels_ms)


def tags_code_of(
    topic: str, properties: Mapping[str, str], store_timestamp_ms: int, *, delay_levels_ms: Sequence[int]
) -> int:
    """The tags code of a unit: hash of TAGS, or the time, in milliseconds, when to deliver a delayed one.

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
    """Whether a record gets a unit: all but half messages and rollbacks of transactions.

    Source: ``CommitLogDispatcherBuildConsumeQueue#dispatch``.
    """
    return sys_flag & FLAG_TRANSACTION_MASK in {0, FLAG_TRANSACTION_COMMIT}


def build_consumequeue(units: Iterable[tuple[int, Unit]], file_bytes: int) -> dict[int, bytes]:
    """The files of one queue, by their start offset in bytes.

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
