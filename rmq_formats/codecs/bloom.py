"""Bloom filter of a ConsumeQueueExt bit map: which consumer groups' SQL92 subscriptions a message fulfils.

The bits of a group are those of ``group#topic``. A message's bit map, in its ConsumeQueueExt unit, has the bits of
all groups whose expression it fulfils: a group whose bits are not all set does not want it.

Source: ``BloomFilter``, ``BitsArray``; Guava's ``Hashing#murmur3_128``.
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from struct import unpack_from
from typing import Final

_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F
_BLOCK_BYTES: Final = 16


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _mixed(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33


def murmur3_low(data: bytes) -> int:
    """Compute the low 64 bits of the 128-bit MurmurHash3 (x64, seed 0) of some bytes."""
    h1 = h2 = 0
    blocks = len(data) // _BLOCK_BYTES * _BLOCK_BYTES
    for at in range(0, blocks, _BLOCK_BYTES):
        low, high = unpack_from("<QQ", data, at)
        h1 ^= _rotated(low * _C1 & _MASK, 31) * _C2 & _MASK
        h1 = ((_rotated(h1, 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 ^= _rotated(high * _C2 & _MASK, 33) * _C1 & _MASK
        h2 = ((_rotated(h2, 31) + h1) * 5 + 0x38495AB5) & _MASK
    low, high = unpack_from("<QQ", data[blocks:].ljust(_BLOCK_BYTES, b"\0"))
    h2 ^= _rotated(high * _C2 & _MASK, 33) * _C1 & _MASK
    h1 ^= _rotated(low * _C1 & _MASK, 31) * _C2 & _MASK
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_mixed(h1) + _mixed(h2)) & _MASK


class BloomFilter:
    """Computes bit positions of consumer groups, and bit maps of them.

    Attributes:
        hash_count: bits of a group.
        bit_count: bits of a map, a multiple of 8.
    """

    def __init__(self, error_percent: int = 20, group_count: int = 32) -> None:
        """Size a filter for an error rate and a number of groups.

        Args:
            error_percent: rate of false positives: unwanted messages that seem wanted, 1 to 99
                (``maxErrorRateOfBloomFilter``).
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
