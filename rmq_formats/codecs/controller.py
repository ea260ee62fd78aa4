"""Codec of the controller mode's text files: ``epochFileCheckpoint`` and ``brokerIdentity``.

::

    epochFileCheckpoint        2             number of entries
                               1906541172    CRC-32 of the lines that follow, without its sign bit; 0 is not checked
                               1-0           epoch - physical offset of its first byte
                               5-93229
    brokerIdentity             cluster#broker#brokerId

Source: ``CheckpointFile``, ``EpochFileCache.EpochEntrySerializer``, ``BrokerMetadata``. docs/formats/controller.md
"""

import re
import zlib
from dataclasses import dataclass
from typing import Final

from rmq_formats.errors import ChecksumError, DecodeError

NOT_CHECKED_CRC: Final = 0
MAX_EPOCH: Final = (1 << 31) - 1
_MAX_LONG: Final = (1 << 63) - 1
_CRC_MASK: Final = 0x7FFFFFFF
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")  # as Java's parsers take it


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch: the time of one master. Numbers rise; its part of the log begins at ``start_offset``, in bytes."""

    number: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """Identity of a broker at a controller, which assigns the broker's id in its group."""

    cluster: str
    broker: str
    broker_id: int


def decode_epochs(text: str) -> tuple[Epoch, ...]:
    """Decode an ``epochFileCheckpoint``, in the order of its lines.

    Raises:
        DecodeError: a bad number, or another number of entries than in the first line.
        ChecksumError: the second line is not the sum of those that follow.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")
    if len(lines) < 2:  # the count and the sum
        raise DecodeError("no count and checksum in the first two lines")
    count, crc = (_number(line, MAX_EPOCH) for line in lines[:2])
    pairs = [parts for parts in map(_parts, lines[2:]) if len(parts) == 2]  # other lines are passed over
    epochs = tuple(Epoch(_number(number, MAX_EPOCH), _number(offset, _MAX_LONG)) for number, offset in pairs)
    actual = zlib.crc32("".join(f"{line}\n" for line in lines[2:]).encode()) & _CRC_MASK
    if crc not in (NOT_CHECKED_CRC, actual):
        raise ChecksumError("the checksum of the epochs does not match", expected=actual, actual=crc)
    if count != len(epochs):
        raise DecodeError("another number of epochs than the first line says", expected=count, actual=len(epochs))
    return epochs


def encode_epochs(epochs: tuple[Epoch, ...]) -> str:
    """Encode an ``epochFileCheckpoint``, as the original writes it on Unix."""
    lines = "".join(f"{epoch.number}-{epoch.start_offset}\n" for epoch in epochs)
    return f"{len(epochs)}\n{zlib.crc32(lines.encode()) & _CRC_MASK}\n{lines}"


def decode_identity(text: str) -> BrokerIdentity:
    """Decode a ``brokerIdentity``. Raises DecodeError if a part is missing, empty or no number."""
    parts = text.split("#")
    if len(parts) < 3 or not parts[0] or not parts[1]:
        raise DecodeError("not cluster#broker#brokerId", actual=repr(text[:80]))
    return BrokerIdentity(parts[0], parts[1], _number(parts[2], _MAX_LONG))


def _parts(line: str) -> list[str]:
    """Return the parts between dashes, without empty ones at the end. Source: ``String#split``."""
    parts = line.split("-")
    while parts and not parts[-1]:
        parts.pop()
    return parts


def _number(text: str, largest: int) -> int:
    if _NUMBER.fullmatch(text) is None or abs(int(text)) > largest:
        raise DecodeError("no number", actual=repr(text[:40]))
    return int(text)
