"""Damage of a CommitLog as data: a scan reports each unreadable range and continues."""

from dataclasses import dataclass
from enum import IntEnum


class DamageCode(IntEnum):
    """Code of the first check that failed where a frame should begin; checks run in this order."""

    TRUNCATED = 1
    MAGIC = 2
    SIZE = 3
    PHYSICAL_OFFSET = 4
    BODY_LENGTH = 5
    TOPIC_LENGTH = 6
    PROPERTIES_LENGTH = 7
    TOTAL = 8
    BODY_CRC = 9
    PROPERTIES_CRC = 10

    @property
    def text(self) -> str:
        """The fault in words, for messages and reports."""
        return _TEXTS[self]


_TEXTS = {
    DamageCode.TRUNCATED: "fewer bytes left than a record's first eight",
    DamageCode.MAGIC: "no record's magic number",
    DamageCode.SIZE: "record size out of bounds",
    DamageCode.PHYSICAL_OFFSET: "the record names another physical offset than where it stands",
    DamageCode.BODY_LENGTH: "body length out of bounds",
    DamageCode.TOPIC_LENGTH: "topic length out of bounds",
    DamageCode.PROPERTIES_LENGTH: "properties length out of bounds",
    DamageCode.TOTAL: "lengths do not add up to the record's size",
    DamageCode.BODY_CRC: "body CRC does not match",
    DamageCode.PROPERTIES_CRC: "record CRC (__CRC32#) does not match",
}


@dataclass(frozen=True, slots=True, order=True)
class Damage:
    """Range of the CommitLog without a sound record.

    Attributes:
        code: the first check that failed at its first byte.
    """

    physical_offset: int
    size: int
    code: DamageCode

    def __str__(self) -> str:
        return f"{self.code.text} at offset {self.physical_offset} ({self.size} bytes)"
