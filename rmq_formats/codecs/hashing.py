"""Java's string hash, the two codes that RocketMQ derives from it, and the hash that chooses a queue by it.

Source: ``String#hashCode``, ``MessageExtBrokerInner#tagsString2tagsCode``, ``IndexService#buildIndex``, ``#buildKey``,
``IndexFile#indexKeyHashMethod``; Guava's ``Hashing#consistentHash``.
"""

import struct

_MASK_32 = 0xFFFFFFFF
_MIN_INT_32 = -(1 << 31)
_MASK_64 = (1 << 64) - 1


def java_string_hash(text: str) -> int:
    """Compute the hash of a text as Java's ``String#hashCode`` does, signed 32 bits.

    The sum runs over UTF-16 code units, so a character outside the BMP counts as its two surrogates,
    and a lone surrogate as itself.
    """
    encoded = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for unit in struct.unpack(f">{len(encoded) // 2}H", encoded):
        code = (31 * code + unit) & _MASK_32
    return code - (1 << 32) if code >> 31 else code


def tags_code(tags: str | None) -> int:
    """Compute the tags code of TAGS, one tag for any filter type: the hash with its sign; 0 without tags."""
    return java_string_hash(tags) if tags else 0


def index_tags_key(tags: str) -> str:
    """Return the key of a message's TAGS in the Index of brokers from 5.4 on: all tags are one text."""
    return f"T#{tags}"


def index_key_hash(topic: str, key: str) -> int:
    """Compute the hash of a topic's key in an IndexFile, 0 to 2^31 - 1."""
    code = java_string_hash(f"{topic}#{key}")
    # Java's Math.abs returns the smallest int unchanged, which has no positive counterpart.
    return 0 if code == _MIN_INT_32 else abs(code)


def consistent_hash(number: int, buckets: int) -> int:
    """Choose one of so many buckets, so that few numbers move if buckets are added."""
    state, candidate = number & _MASK_64, 0
    while True:
        state = (2862933555777941757 * state + 1) & _MASK_64
        following = int((candidate + 1) / (((state >> 33) + 1) / (1 << 31)))
        if following >= buckets:
            return candidate
        candidate = following
