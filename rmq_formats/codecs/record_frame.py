"""Validates one record frame: its lengths, its recorded offset and its checksums; damage is data, with a code.

``record`` decodes what stands in a sound frame, ``scan.segment`` walks from one to the next; the numba
kernel ``kernels.scan.check_frame`` follows the same rules.
"""

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final

from isal import isal_zlib

from rmq_formats.codecs.layout import (
    BLANK_BYTES,
    CRC_PROPERTY_BYTES,
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    MAGIC_BLANK,
    MAGIC_V1,
    MAX_FRAME_BYTES,
    NAME_VALUE_SEPARATOR,
    PROPERTY_CRC,
    PROPERTY_SEPARATOR,
)
from rmq_formats.codecs.record_layout import (
    HOST_FLAGS,
    HOST_V6_EXTRA_BYTES,
    MAX_TOPIC_BYTES_V1,
    PROPERTIES_LENGTH,
    RECORD_FIXED_BYTES_V1,
    RECORD_HEAD_BYTES,
    SIZE_AND_MAGIC,
    SYS_FLAG,
    TOPIC_LENGTH,
    head_struct,
)

CRC_MASK: Final = 0x7FFFFFFF  # UtilAll#crc32 keeps the CRC a positive Java int
CRC_PROPERTY_START: Final = PROPERTY_CRC.encode() + bytes([NAME_VALUE_SEPARATOR])

_INT32 = Struct(">i")
_PHYSICAL_OFFSET = head_struct("physical_offset")
_BODY_CRC = head_struct("body_crc")
_V4_LENGTHS = head_struct("magic", "sys_flag", "body_bytes")
_LENGTHS_BYTES_V1: Final = RECORD_FIXED_BYTES_V1 - RECORD_HEAD_BYTES  # lengths of topic and properties
_FIXED_BYTES: Final = {
    magic: RECORD_HEAD_BYTES + length.size + PROPERTIES_LENGTH.size for magic, length in TOPIC_LENGTH.items()
}


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
    """Range of the CommitLog without a sound record; ``code`` is that of the check that failed at its first byte."""

    physical_offset: int
    size: int
    code: DamageCode

    def __str__(self) -> str:
        return f"{self.code.text} at offset {self.physical_offset} ({self.size} bytes)"


@dataclass(frozen=True, slots=True)
class FrameShape:
    """Positions and sizes of the parts of a sound frame; positions are in the buffer, sizes in bytes."""

    position: int
    size: int
    body_at: int
    body_bytes: int
    topic_at: int
    topic_bytes: int
    properties_at: int
    properties_bytes: int

    @property
    def end(self) -> int:
        """Position of the first byte after the frame."""
        return self.position + self.size


def body_crc(body: bytes | bytearray | memoryview) -> int:
    """Compute the CRC-32 of a stored body without its highest bit; 0 if empty. Source: ``UtilAll#crc32``."""
    return int(isal_zlib.crc32(body)) & CRC_MASK


def fixed_bytes(magic: int, sys_flag: int) -> int:
    """Return the size of a record with that magic and those host flags, without body, topic and properties."""
    v6_hosts = bool(sys_flag & FLAG_BORN_HOST_V6) + bool(sys_flag & FLAG_STORE_HOST_V6)
    return _FIXED_BYTES[magic] + v6_hosts * HOST_V6_EXTRA_BYTES


def frame_shape(view: memoryview, position: int, physical_offset: int | None) -> FrameShape | DamageCode:
    """Check the frame at a position: return the shape of a sound frame, or the code of the first check that failed.

    The checks run in the order of ``DamageCode``, up to TOTAL; checksums are apart, see ``crc_fault``.

    Args:
        view: bytes up to where a record may reach, of a segment file its end.
        physical_offset: what the record must say about its own place; None takes what it says.

    Source: ``CommitLog#checkMessageAndReturnSize``, which accepts negative lengths of bodies and
    properties and does not look at the physical offset.
    """
    available_bytes = len(view) - position
    if position < 0 or available_bytes < BLANK_BYTES:
        return DamageCode.TRUNCATED
    size, magic = SIZE_AND_MAGIC.unpack_from(view, position)
    if magic not in _FIXED_BYTES:
        return DamageCode.SIZE if magic == MAGIC_BLANK else DamageCode.MAGIC
    if not _FIXED_BYTES[magic] <= size <= min(available_bytes, MAX_FRAME_BYTES):
        return DamageCode.SIZE
    fixed = fixed_bytes(magic, SYS_FLAG.unpack_from(view, position)[0])
    room = size - fixed  # for body, topic and properties
    if room < 0:
        return DamageCode.SIZE
    recorded_offset = _PHYSICAL_OFFSET.unpack_from(view, position)[0]
    if physical_offset is not None and recorded_offset != physical_offset:
        return DamageCode.PHYSICAL_OFFSET
    topic_length = TOPIC_LENGTH[magic]
    body_at = position + fixed - topic_length.size - PROPERTIES_LENGTH.size
    body_bytes = _INT32.unpack_from(view, body_at - _INT32.size)[0]
    if not 0 <= body_bytes <= room:
        return DamageCode.BODY_LENGTH
    room -= body_bytes
    topic_at = body_at + body_bytes + topic_length.size
    topic_bytes = topic_length.unpack_from(view, topic_at - topic_length.size)[0]
    if not 0 <= topic_bytes <= room:
        return DamageCode.TOPIC_LENGTH
    room -= topic_bytes
    properties_at = topic_at + topic_bytes + PROPERTIES_LENGTH.size
    properties_bytes = PROPERTIES_LENGTH.unpack_from(view, properties_at - PROPERTIES_LENGTH.size)[0]
    if not 0 <= properties_bytes <= room:
        return DamageCode.PROPERTIES_LENGTH
    if properties_bytes != room:
        return DamageCode.TOTAL
    return FrameShape(position, size, body_at, body_bytes, topic_at, topic_bytes, properties_at, properties_bytes)


def record_properties(record: memoryview) -> bytes | None:
    """Return the encoded properties of one record; None where its lengths do not add up.

    The commonest kind, version 1 with IPv4 hosts, has a fast path: this runs for each message of a pull.
    """
    size = len(record)
    if size >= RECORD_FIXED_BYTES_V1:
        magic, sys_flag, body_bytes = _V4_LENGTHS.unpack_from(record)
        topic_at = RECORD_HEAD_BYTES + body_bytes
        if magic == MAGIC_V1 and not sys_flag & HOST_FLAGS and RECORD_HEAD_BYTES <= topic_at < size:
            topic_bytes = record[topic_at]
            at = topic_at + _LENGTHS_BYTES_V1 + topic_bytes
            if (
                topic_bytes <= MAX_TOPIC_BYTES_V1
                and at <= size
                and PROPERTIES_LENGTH.unpack_from(record, at - 2)[0] == size - at
            ):
                return record[at:].tobytes()
    shape = frame_shape(record, 0, None)
    return None if isinstance(shape, DamageCode) else bytes(record[shape.properties_at : shape.end])


def crc_fault(view: memoryview, shape: FrameShape) -> DamageCode | None:
    """Return the first checksum of a sound frame that does not match: the body's, then the record's; else None."""
    body = view[shape.body_at : shape.body_at + shape.body_bytes]
    if _BODY_CRC.unpack_from(view, shape.position)[0] != body_crc(body):
        return DamageCode.BODY_CRC
    return DamageCode.PROPERTIES_CRC if is_crc_property_valid(view, shape) is False else None


def is_crc_property_valid(view: memoryview, shape: FrameShape) -> bool | None:
    """Return whether the record's ``__CRC32#`` matches; None if its properties do not end in one.

    The sum is over all bytes before it (``enabledAppendPropCRC``).
    """
    if shape.properties_bytes < CRC_PROPERTY_BYTES:
        return None
    covered_end = shape.end - CRC_PROPERTY_BYTES
    if bytes(view[covered_end : covered_end + len(CRC_PROPERTY_START)]) != CRC_PROPERTY_START:
        return None
    return bytes(view[covered_end : shape.end]) == crc_property(view[shape.position : covered_end])


def crc_property(covered: bytes | bytearray | memoryview) -> bytes:
    """Encode the 20-byte CRC property that ends a record: its sum in ten digits, the least significant first.

    Source: ``MessageDecoder#createCrc32``.
    """
    digits = f"{body_crc(covered):010d}"[::-1]
    return CRC_PROPERTY_START + digits.encode() + bytes([PROPERTY_SEPARATOR])
