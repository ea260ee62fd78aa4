"""What makes a stretch of bytes a record: its lengths, its place and its checksums.

``message`` decodes what stands in a sound frame, ``commitlog`` walks from one to the next; the numba
kernel ``kernels.scan.check_frame`` follows the same rules.
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final

from isal import isal_zlib

from rmq_formats.damage import DamageCode
from rmq_formats.layout import (
    BLANK_BYTES,
    CRC_PROPERTY_BYTES,
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MAX_FRAME_BYTES,
    NAME_VALUE_SEPARATOR,
    PROPERTY_CRC,
    PROPERTY_SEPARATOR,
    RECORD_BODY_CRC_AT,
    RECORD_FIXED_BYTES_V1,
    RECORD_FIXED_BYTES_V2,
    RECORD_PHYSICAL_OFFSET_AT,
    RECORD_SYS_FLAG_AT,
)

CRC_MASK: Final = 0x7FFFFFFF  # UtilAll#crc32 keeps the sum a positive Java int
CRC_PROPERTY_START: Final = PROPERTY_CRC.encode() + bytes([NAME_VALUE_SEPARATOR])

_HOST_V6_EXTRA = HOST_V6_BYTES - HOST_V4_BYTES
_SIZE_AND_MAGIC = Struct(">ii")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_TOPIC_LENGTH = {MAGIC_V1: Struct(">b"), MAGIC_V2: _INT16}
_V4_LENGTHS = Struct(">4xi28xi44xi")  # magic, sys_flag and length of the body, of a record with IPv4 hosts
_V4_BODY_AT: Final = _V4_LENGTHS.size
_V6_FLAGS: Final = FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6
_MAX_TOPIC_BYTES_V1: Final = 127
_TOPIC_AND_INT16_BYTES: Final = 3  # lengths of a topic of version 1, and of properties
_FIXED_BYTES = {MAGIC_V1: RECORD_FIXED_BYTES_V1, MAGIC_V2: RECORD_FIXED_BYTES_V2}


@dataclass(frozen=True, slots=True)
class FrameShape:
    """Where the parts of a sound frame stand; positions are in the buffer, sizes in bytes."""

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
        """Position of the first byte behind the frame."""
        return self.position + self.size


def body_crc(body: bytes | bytearray | memoryview) -> int:
    """CRC-32 of a stored body without its highest bit; 0 for an empty one. Source: ``UtilAll#crc32``."""
    return int(isal_zlib.crc32(body)) & CRC_MASK


def fixed_bytes(magic: int, sys_flag: int) -> int:
    """Size of a record with that magic and those host flags before body, topic and properties are added."""
    v6_hosts = bool(sys_flag & FLAG_BORN_HOST_V6) + bool(sys_flag & FLAG_STORE_HOST_V6)
    return _FIXED_BYTES[magic] + v6_hosts * _HOST_V6_EXTRA


def is_blank(view: memoryview, position: int) -> bool:
    """Whether a BLANK record stands at a position of a segment file and fills it to its end."""
    left = len(view) - position
    return left >= BLANK_BYTES and _SIZE_AND_MAGIC.unpack_from(view, position) == (left, MAGIC_BLANK)


def frame_shape(view: memoryview, position: int, physical_offset: int | None) -> FrameShape | DamageCode:
    """Judge what stands at a position: the shape of a sound frame, or the first check that failed.

    The checks run in the order of ``DamageCode``, up to TOTAL; checksums are apart, see ``crc_fault``.

    Args:
        view: bytes up to where a record may reach, of a segment file its end.
        position: where to look.
        physical_offset: what the record must say about its own place; None takes what it says.

    Source: ``CommitLog#checkMessageAndReturnSize``, which accepts negative lengths of bodies and
    properties and does not look at the physical offset.
    """
    left = len(view) - position
    if position < 0 or left < BLANK_BYTES:
        return DamageCode.TRUNCATED
    size, magic = _SIZE_AND_MAGIC.unpack_from(view, position)
    if magic not in _FIXED_BYTES:
        return DamageCode.SIZE if magic == MAGIC_BLANK else DamageCode.MAGIC
    if not _FIXED_BYTES[magic] <= size <= min(left, MAX_FRAME_BYTES):
        return DamageCode.SIZE
    fixed = fixed_bytes(magic, _INT32.unpack_from(view, position + RECORD_SYS_FLAG_AT)[0])
    room = size - fixed  # for body, topic and properties
    if room < 0:
        return DamageCode.SIZE
    recorded_offset = _INT64.unpack_from(view, position + RECORD_PHYSICAL_OFFSET_AT)[0]
    if physical_offset is not None and recorded_offset != physical_offset:
        return DamageCode.PHYSICAL_OFFSET
    topic_length = _TOPIC_LENGTH[magic]
    body_at = position + fixed - topic_length.size - _INT16.size
    body_bytes = _INT32.unpack_from(view, body_at - _INT32.size)[0]
    if not 0 <= body_bytes <= room:
        return DamageCode.BODY_LENGTH
    room -= body_bytes
    topic_at = body_at + body_bytes + topic_length.size
    topic_bytes = topic_length.unpack_from(view, topic_at - topic_length.size)[0]
    if not 0 <= topic_bytes <= room:
        return DamageCode.TOPIC_LENGTH
    room -= topic_bytes
    properties_at = topic_at + topic_bytes + _INT16.size
    properties_bytes = _INT16.unpack_from(view, properties_at - _INT16.size)[0]
    if not 0 <= properties_bytes <= room:
        return DamageCode.PROPERTIES_LENGTH
    if properties_bytes != room:
        return DamageCode.TOTAL
    return FrameShape(position, size, body_at, body_bytes, topic_at, topic_bytes, properties_at, properties_bytes)


def record_properties(record: memoryview) -> bytes | None:
    """The encoded properties of one record; None where its lengths do not add up.

    The commonest kind, version 1 with IPv4 hosts, is read here: this is asked for each message of a pull.
    """
    size = len(record)
    if size >= RECORD_FIXED_BYTES_V1:
        magic, sys_flag, body_bytes = _V4_LENGTHS.unpack_from(record)
        topic_at = _V4_BODY_AT + body_bytes
        if magic == MAGIC_V1 and not sys_flag & _V6_FLAGS and _V4_BODY_AT <= topic_at < size:
            topic_bytes = record[topic_at]
            at = topic_at + _TOPIC_AND_INT16_BYTES + topic_bytes
            if topic_bytes <= _MAX_TOPIC_BYTES_V1 and at <= size and _INT16.unpack_from(record, at - 2)[0] == size - at:
                return record[at:].tobytes()
    shape = frame_shape(record, 0, None)
    return None if isinstance(shape, DamageCode) else bytes(record[shape.properties_at : shape.end])


def crc_fault(view: memoryview, shape: FrameShape) -> DamageCode | None:
    """The checksum of a sound frame that does not match: that of the body, then that of the record."""
    body = view[shape.body_at : shape.body_at + shape.body_bytes]
    if _INT32.unpack_from(view, shape.position + RECORD_BODY_CRC_AT)[0] != body_crc(body):
        return DamageCode.BODY_CRC
    return DamageCode.PROPERTIES_CRC if crc_property_holds(view, shape) is False else None


def crc_property_holds(view: memoryview, shape: FrameShape) -> bool | None:
    """Whether the record's own sum matches; None if its properties do not end in one.

    The sum is over all bytes before it (``enabledAppendPropCRC``).
    """
    if shape.properties_bytes < CRC_PROPERTY_BYTES:
        return None
    covered_end = shape.end - CRC_PROPERTY_BYTES
    if bytes(view[covered_end : covered_end + len(CRC_PROPERTY_START)]) != CRC_PROPERTY_START:
        return None
    return bytes(view[covered_end : shape.end]) == crc_property(view[shape.position : covered_end])


def crc_property(covered: bytes | bytearray | memoryview) -> bytes:
    """The 20-byte property that ends a record: its sum in ten digits, the least significant first.

    Source: ``MessageDecoder#createCrc32``.
    """
    digits = f"{body_crc(covered):010d}"[::-1]
    return CRC_PROPERTY_START + digits.encode() + bytes([PROPERTY_SEPARATOR])
