"""Codec of ConsumeQueueExt: units of variable size with tags code, store time and filter bit map.

With ``enableConsumeQueueExt`` a ConsumeQueue unit holds the address of such a unit in place of its
tags code. Units follow each other; a file ends with a short -1 once the next unit and
four more bytes do not fit.

The bit map is a Bloom filter: which consumer groups' SQL92 subscriptions the message fulfils. The bits of a group are
those of ``group#topic``, and a group whose bits are not all set does not want the message.

Source: ``ConsumeQueueExt.CqExtUnit#read``, ``#write``; ``ConsumeQueueExt#isExtAddr``, ``#decorate``, ``#unDecorate``;
``BloomFilter``, ``BitsArray``; Guava's ``Hashing#murmur3_128``.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct, unpack_from
from typing import Final

from rmq_formats.codecs.layout import EXT_MAX_ADDRESS, EXT_UNIT_MAX_BYTES, EXT_UNIT_MIN_BYTES, pack_fields
from rmq_formats.errors import LengthError, TruncatedError

_SIZE = Struct(">h")
UNIT = Struct(">hqqh")  # size, tags code, store timestamp, size of the bit map
assert UNIT.size == EXT_UNIT_MIN_BYTES

_MIN_LONG = -(1 << 63)
MAX_EXT_OFFSET = EXT_MAX_ADDRESS - _MIN_LONG
_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F
_BLOCK_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class ExtUnit:
    """One ConsumeQueueExt unit.

    Attributes:
        tags_code: the tags code that the address has replaced.
        bit_map: Bloom filter of the SQL92 subscriptions that match; empty unless ``enableCalcFilterBitMap``.
    """

    tags_code: int
    store_timestamp_ms: int
    bit_map: bytes = b""

    @property
    def size(self) -> int:
        """Size on disk in bytes."""
        return EXT_UNIT_MIN_BYTES + len(self.bit_map)

    def encode(self) -> bytes:
        """Encode the unit's bytes. Raises LengthError if the bit map is too long, or a number does not fit."""
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
    """Return whether a ConsumeQueue unit's tags code is an ext address."""
    return tags_code <= EXT_MAX_ADDRESS


def encode_ext_address(ext_offset: int) -> int:
    """Encode a unit's offset in the queue's ext files, in bytes, as an ext address. Raises LengthError."""
    if not 0 <= ext_offset <= MAX_EXT_OFFSET:
        raise LengthError("ConsumeQueueExt offset", expected=f"0..{MAX_EXT_OFFSET}", actual=ext_offset)
    return ext_offset + _MIN_LONG


def decode_ext_address(address: int) -> int:
    """Decode an ext address to the offset in the queue's ext files, in bytes. Raises LengthError for a tags code."""
    if not _MIN_LONG <= address <= EXT_MAX_ADDRESS:
        raise LengthError("not a ConsumeQueueExt address", expected=f"at most {EXT_MAX_ADDRESS}", actual=address)
    return address - _MIN_LONG


def _rotate_left(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _mix(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33


def murmur3_low(data: bytes) -> int:
    """Compute the low 64 bits of the 128-bit MurmurHash3 (x64, seed 0) of some bytes."""
    h1 = h2 = 0
    blocks = len(data) // _BLOCK_BYTES * _BLOCK_BYTES
    for at in range(0, blocks, _BLOCK_BYTES):
        low, high = unpack_from("<QQ", data, at)
        h1 ^= _rotate_left(low * _C1 & _MASK, 31) * _C2 & _MASK
        h1 = ((_rotate_left(h1, 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 ^= _rotate_left(high * _C2 & _MASK, 33) * _C1 & _MASK
        h2 = ((_rotate_left(h2, 31) + h1) * 5 + 0x38495AB5) & _MASK
    low, high = unpack_from("<QQ", data[blocks:].ljust(_BLOCK_BYTES, b"\0"))
    h2 ^= _rotate_left(high * _C2 & _MASK, 33) * _C1 & _MASK
    h1 ^= _rotate_left(low * _C1 & _MASK, 31) * _C2 & _MASK
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_mix(h1) + _mix(h2)) & _MASK


class BloomFilter:
    """Computes bit positions of consumer groups, and bit maps of them.

    Attributes:
        hash_count: bits of a group.
        bit_count: bits of a map, a multiple of 8.
    """

    def __init__(self, error_percent: int = 20, group_count: int = 32) -> None:
        """Size a filter.

        Args:
            error_percent: rate of false positives, 1 to 99 (``maxErrorRateOfBloomFilter``).
            group_count: groups of a topic with expressions (``expectConsumerNumUseFilter``).
        """
        error = error_percent / 100
        self.hash_count = math.ceil(math.log(error) / math.log(0.5))
        bits = math.ceil(group_count * (math.log(1 / error) / math.log(2)) * (math.log(math.e) / math.log(2)))
        self.bit_count = 8 * math.ceil(bits / 8)

    def positions(self, group: str, topic: str) -> list[int]:
        """Compute the bit positions of a group that subscribes a topic; some may be the same."""
        hashed = murmur3_low(f"{group}#{topic}".encode("utf-8", "replace"))
        low, high = hashed & 0xFFFFFFFF, hashed >> 32
        positions = []
        for number in range(1, self.hash_count + 1):
            combined = (low + number * high) & 0xFFFFFFFF
            positions.append((combined if combined < 1 << 31 else combined ^ 0xFFFFFFFF) % self.bit_count)
        return positions

    def bit_map(self, positions: Iterable[int]) -> bytes:
        """Build a bit map with these bits set."""
        return _bit_map(self.bit_count, tuple(positions))

    @staticmethod
    def may_contain(bit_map: bytes, bits: bytes) -> bool:
        """Return whether all bits of one bit map, as ``bit_map`` makes it, are set in another one of the same size."""
        mask = int.from_bytes(bits)
        return int.from_bytes(bit_map) & mask == mask


@lru_cache(maxsize=1024)  # cached: a topic's messages have few different maps
def _bit_map(bit_count: int, positions: tuple[int, ...]) -> bytes:
    bits = bytearray(bit_count // 8)
    for position in positions:
        bits[position // 8] |= 1 << position % 8
    return bytes(bits)
