"""Codec of ConsumeQueueExt: units of variable size with tags code, store time and filter bit map.

With ``enableConsumeQueueExt`` a ConsumeQueue unit holds the address of such a unit in place of its
tags code. Units follow each other; a file ends with a short -1 once the next unit and
four more bytes do not fit.
"""

from dataclasses import dataclass
from struct import Struct

from rmq_formats.codecs.layout import (
    EXT_MAX_ADDRESS,
    EXT_UNIT_MAX_BYTES,
    EXT_UNIT_MIN_BYTES,
    pack_fields,
)
from rmq_formats.errors import LengthError, TruncatedError

_SIZE = Struct(">h")
UNIT = Struct(">hqqh")  # size, tags code, store timestamp, size of the bit map
assert UNIT.size == EXT_UNIT_MIN_BYTES

_MIN_LONG = -(1 << 63)
MAX_EXT_OFFSET = EXT_MAX_ADDRESS - _MIN_LONG


@dataclass(frozen=True, slots=True)
class ExtUnit:
    """One ConsumeQueueExt unit.

    Attributes:
        tags_code: the tags code that the address has replaced.
        bit_map: Bloom filter of the SQL92 subscriptions that match; empty unless
            ``enableCalcFilterBitMap``.
    """

    tags_code: int
    store_timestamp_ms: int
    bit_map: bytes = b""

    @property
    def size(self) -> int:
        """Size on disk in bytes."""
        return EXT_UNIT_MIN_BYTES + len(self.bit_map)

    def encode(self) -> bytes:
        """Encode the unit's bytes.

        Raises:
            LengthError: the bit map is too long, or a number does not fit into its field.

        Source: ``ConsumeQueueExt.CqExtUnit#write``.
        """
        if self.size > EXT_UNIT_MAX_BYTES:
            raise LengthError("ConsumeQueueExt unit too large", expected=EXT_UNIT_MAX_BYTES, actual=self.size)
        head = pack_fields(UNIT, self.size, self.tags_code, self.store_timestamp_ms, len(self.bit_map))
        return head + self.bit_map

    @classmethod
    def decode(cls, buffer: bytes | bytearray | memoryview, position: int = 0) -> "ExtUnit | None":
        """Decode the unit at a position; None where a file's units end (a size of 0, or the end mark).

        Raises:
            TruncatedError: the buffer ends within the unit.
            LengthError: the two sizes in it do not fit each other.

        Source: ``ConsumeQueueExt.CqExtUnit#read``.
        """
        available_bytes = len(buffer) - position
        if position < 0 or available_bytes < _SIZE.size:
            raise TruncatedError("the bytes end within a ConsumeQueueExt unit", physical_offset=position)
        size = _SIZE.unpack_from(buffer, position)[0]
        if size <= 0:
            return None
        if available_bytes < max(size, EXT_UNIT_MIN_BYTES):
            raise TruncatedError("the bytes end within a ConsumeQueueExt unit", physical_offset=position)
        _, tags_code, store_timestamp_ms, bit_map_bytes = UNIT.unpack_from(buffer, position)
        if max(bit_map_bytes, 0) != size - EXT_UNIT_MIN_BYTES:
            raise LengthError(
                "size of a ConsumeQueueExt unit",
                physical_offset=position,
                expected=EXT_UNIT_MIN_BYTES + max(bit_map_bytes, 0),
                actual=size,
            )
        bit_map = bytes(buffer[position + EXT_UNIT_MIN_BYTES : position + size])
        return cls(tags_code, store_timestamp_ms, bit_map)


def is_ext_address(tags_code: int) -> bool:
    """Return whether a ConsumeQueue unit's tags code is an ext address. Source: ``ConsumeQueueExt#isExtAddr``."""
    return tags_code <= EXT_MAX_ADDRESS


def encode_ext_address(ext_offset: int) -> int:
    """Encode a unit's offset in the queue's ext files, in bytes, as an ext address.

    Raises:
        LengthError: an offset that no address can have.

    Source: ``ConsumeQueueExt#decorate``.
    """
    if not 0 <= ext_offset <= MAX_EXT_OFFSET:
        raise LengthError("ConsumeQueueExt offset", expected=f"0..{MAX_EXT_OFFSET}", actual=ext_offset)
    return ext_offset + _MIN_LONG


def decode_ext_address(address: int) -> int:
    """Decode an ext address to the offset in the queue's ext files, in bytes.

    Raises:
        LengthError: not an address.

    Source: ``ConsumeQueueExt#unDecorate``.
    """
    if not _MIN_LONG <= address <= EXT_MAX_ADDRESS:
        raise LengthError("not a ConsumeQueueExt address", expected=f"at most {EXT_MAX_ADDRESS}", actual=address)
    return address - _MIN_LONG
