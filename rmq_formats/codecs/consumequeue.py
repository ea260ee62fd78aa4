"""Codec of ConsumeQueue units, 20 bytes a message at its queue offset, and of delay levels."""

import re
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.layout import LOST_UNIT_SIZE, PRE_BLANK_SIZE, UNIT_BYTES, pack_fields
from rmq_formats.errors import OptionError, TruncatedError

UNIT: Final = Struct(">qiq")
UNIT_DTYPE: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert UNIT.size == UNIT_DTYPE.itemsize == UNIT_BYTES

PRE_BLANK: Final = UNIT.pack(0, PRE_BLANK_SIZE, 0)  # fills a place whose message is not in the log
# A gap between queue offsets is filled up to this many units; more is a damaged offset, not a gap.
MAX_GAP_UNITS: Final = 300_000
# Largest queue offset: beyond it byte positions of the unit and of its file's end overflow 64 bits.
MAX_QUEUE_OFFSET: Final = ((1 << 63) - (1 << 32)) // UNIT_BYTES

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"([0-9]{1,18})([smhd])", re.ASCII)


@dataclass(frozen=True, slots=True)
class Unit:
    """One ConsumeQueue unit: physical offset and size of a record, both in bytes, and its tags code.

    Attributes:
        tags_code: hash of the tags, delivery time of a delayed message, or ConsumeQueueExt address.
    """

    physical_offset: int
    size: int
    tags_code: int

    def encode(self) -> bytes:
        """Encode the unit's 20 bytes. Raises LengthError if a number does not fit into its field."""
        return pack_fields(UNIT, self.physical_offset, self.size, self.tags_code)

    @classmethod
    def decode(cls, buffer: bytes | bytearray | memoryview, position: int = 0) -> "Unit":
        """Decode the unit at a position. Raises TruncatedError if fewer than 20 bytes are left."""
        if not 0 <= position <= len(buffer) - UNIT_BYTES:
            raise TruncatedError("the bytes end within a ConsumeQueue unit", physical_offset=position)
        return cls(*UNIT.unpack_from(buffer, position))

    @property
    def is_written(self) -> bool:
        """True if the unit is written; a scan of the queue ends at the first other unit (``ConsumeQueue#recover``)."""
        return self.physical_offset >= 0 and self.size > 0

    @property
    def names_no_record(self) -> bool:
        """True for a unit without a message: a pre-blank, or the unit of a lost message. No record has such a size."""
        return self.size == LOST_UNIT_SIZE or (self.size == PRE_BLANK_SIZE and self.physical_offset == 0)


def is_pre_blank(units: NDArray[Any]) -> NDArray[np.bool_]:
    """Which units of an array of UNIT_DTYPE are Java's pre-blanks."""
    blank: NDArray[np.bool_] = (units["physical_offset"] == 0) & (units["size"] == PRE_BLANK_SIZE)
    return blank


def names_no_record(units: NDArray[Any]) -> NDArray[np.bool_]:
    """Which units of an array of UNIT_DTYPE have no message: pre-blanks, and units of lost messages."""
    without_record: NDArray[np.bool_] = is_pre_blank(units) | (units["size"] == LOST_UNIT_SIZE)
    return without_record


def is_unwritten(units: NDArray[Any]) -> NDArray[np.bool_]:
    """Which units of an array of UNIT_DTYPE were never written. Source: ``ConsumeQueue#recover``."""
    unwritten: NDArray[np.bool_] = (units["physical_offset"] < 0) | (units["size"] <= 0)
    return unwritten


def delay_levels_ms(text: str) -> tuple[int, ...]:
    """Parse a ``messageDelayLevel`` setting to delays in ms; level 1 is the first. Raises OptionError.

    Numbers have a unit of s, m, h or d, and one space between them. Source: ``parseDelayLevel`` of
    ``DefaultMessageStore`` and ``ScheduleMessageService``.
    """
    levels = []
    for level in text.rstrip(" ").split(" "):
        match = _LEVEL.fullmatch(level)
        delay_ms = int(match[1]) * _UNIT_MS[match[2]] if match else 1 << 63
        if delay_ms >= 1 << 63:
            raise OptionError(f"not a delay level: {level!r} in {text!r}")
        levels.append(delay_ms)
    return tuple(levels)
