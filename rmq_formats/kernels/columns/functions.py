"""Hashes and CRCs of whole columns of byte strings.

``data`` is uint8[n], ``spans`` int64[rows, 2] as in ``gather``, and ``out`` has a value for each row, written.
"""

from typing import Any

import numpy as np
from numba import njit

from rmq_formats.kernels.bytes import COMPILED
from rmq_formats.kernels.crc import crc32
from rmq_formats.kernels.dispatch import index_hash
from rmq_formats.kernels.text import java_hash


@njit("void(uint8[::1], int64[:, ::1], int64[::1])", **COMPILED)
def tags_codes(data: Any, spans: Any, out: Any) -> None:
    """Compute Java's hash of each UTF-8 text with its sign; 0 without a text."""
    for row in range(len(spans)):
        at = spans[row, 0]
        out[row] = np.int64(np.int32(java_hash(data, at, at + spans[row, 1], np.uint32(0)))) if at >= 0 else 0


@njit("void(uint8[::1], int64[:, ::1], uint8[::1], int64[:, ::1], int32[::1])", **COMPILED)
def key_hashes(topic_data: Any, topics: Any, key_data: Any, keys: Any, out: Any) -> None:
    """Compute the hash of ``topic#key``, both UTF-8, in an IndexFile; 0 if either is missing."""
    for row in range(len(keys)):
        out[row] = 0
        topic_at, key_at = topics[row, 0], keys[row, 0]
        if topic_at >= 0 and key_at >= 0:
            hashed = java_hash(topic_data, topic_at, topic_at + topics[row, 1], np.uint32(0))
            hashed = np.uint32(hashed * np.uint32(31) + np.uint32(35))  # '#'
            out[row] = index_hash(java_hash(key_data, key_at, key_at + keys[row, 1], hashed))


@njit("void(uint8[::1], int64[:, ::1], int32[::1])", **COMPILED)
def body_crcs(data: Any, spans: Any, out: Any) -> None:
    """Compute CRC-32 of each byte string, without the highest bit; 0 for an empty or missing byte string."""
    for row in range(len(spans)):
        at, byte_count = spans[row, 0], spans[row, 1]
        out[row] = crc32(data, at, at + byte_count) & 0x7FFFFFFF if byte_count > 0 else 0
