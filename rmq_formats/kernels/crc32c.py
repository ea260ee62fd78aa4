"""Computes CRC-32C (Castagnoli), the checksum of RocksDB's records."""

from typing import Any

import numpy as np
from numba import njit

from rmq_formats.kernels.bytes import COMPILED

POLYNOMIAL = 0x82F63B78  # reflected


def _table() -> np.ndarray[Any, np.dtype[np.uint32]]:
    table = np.zeros(256, dtype=np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
        table[byte] = crc
    return table


_TABLE = _table()


@njit("int64(uint8[::1])", **COMPILED)
def _crc32c(data: Any) -> int:
    crc = np.uint32(0xFFFFFFFF)
    for byte in data:
        crc = (crc >> np.uint32(8)) ^ _TABLE[(crc ^ byte) & np.uint32(0xFF)]
    return np.int64(crc ^ np.uint32(0xFFFFFFFF))


def crc32c(data: bytes) -> int:
    """Compute the CRC-32C of bytes, unsigned."""
    return int(_crc32c(np.frombuffer(bytearray(data), np.uint8)))
