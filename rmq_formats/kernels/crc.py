"""Computes CRC-32 (that of zlib) over a range of bytes, and CRC-32C (Castagnoli), the checksum of RocksDB's records.

Other kernels call CRC-32. On x86-64 processors with carry-less multiplication the body of a long range is folded 64
bytes at a time (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel 2009); the folding
constants are powers of x modulo the polynomial. Elsewhere, and for short ranges and tails, eight tables take eight
bytes a step.
"""

from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from rmq_formats.kernels.bytes import COMPILED, emitted

POLYNOMIAL = 0xEDB88320  # reflected
HAS_CLMUL = bool(llvm.get_host_cpu_features().get("pclmul", False))
FOLD_BYTES = 64
# x^(512+64), x^512, x^(128+64), x^128 modulo the polynomial, reflected and shifted by one.
_FOLD_512 = (0x0154442BD4, 0x01C6E41596)
_FOLD_128 = (0x01751997D0, 0x00CCAA009E)
_TWO_WORDS = types.UniTuple(types.uint64, 2)
_CASTAGNOLI = 0x82F63B78  # reflected


def _byte_table(polynomial: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Compute the CRC of each byte."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> 1) ^ np.where(table & 1, np.uint32(polynomial), np.uint32(0))
    return table


_TABLES = np.zeros((8, 256), dtype=np.uint32)
_TABLES[0] = _byte_table(POLYNOMIAL)
for _step in range(1, 8):
    _TABLES[_step] = (_TABLES[_step - 1] >> 8) ^ _TABLES[0][_TABLES[_step - 1] & 0xFF]


@emitted(_TWO_WORDS(types.uint64, types.int64, types.uint64))
def _fold_64(context: Any, builder: Any, base: Any, count: Any, crc_value: Any) -> Any:
    """Fold ``count`` >= 1 blocks of 64 bytes at ``base`` into 128 bits with the same CRC."""
    i64, vector = ir.IntType(64), ir.VectorType(ir.IntType(64), 2)
    clmul_type = ir.FunctionType(vector, [vector, vector, ir.IntType(8)])
    clmul = cgutils.get_or_insert_function(builder.module, clmul_type, "llvm.x86.pclmulqdq")

    def load(address_value: Any, offset: int) -> Any:
        pointer = builder.inttoptr(builder.add(address_value, i64(offset)), vector.as_pointer())
        return builder.load(pointer, align=1)

    def fold(accumulator: Any, constants: tuple[int, int], incoming: Any) -> Any:
        keys = ir.Constant(vector, list(constants))
        low = builder.call(clmul, [accumulator, keys, ir.Constant(ir.IntType(8), 0x00)])
        high = builder.call(clmul, [accumulator, keys, ir.Constant(ir.IntType(8), 0x11)])
        return builder.xor(builder.xor(low, high), incoming)

    lanes = [load(base, 16 * lane) for lane in range(4)]
    seeded = builder.insert_element(ir.Constant(vector, [0, 0]), crc_value, ir.Constant(ir.IntType(32), 0))
    lanes[0] = builder.xor(lanes[0], seeded)
    entry = builder.block
    loop, body, done = (builder.append_basic_block(f"fold.{name}") for name in ("loop", "body", "done"))
    builder.branch(loop)

    builder.position_at_end(loop)
    index = builder.phi(i64)
    index.add_incoming(i64(1), entry)
    states = [builder.phi(vector) for _ in range(4)]
    for state, lane in zip(states, lanes, strict=True):
        state.add_incoming(lane, entry)
    builder.cbranch(builder.icmp_signed("<", index, count), body, done)

    builder.position_at_end(body)
    address_value = builder.add(base, builder.mul(index, i64(FOLD_BYTES)))
    for lane_index, state in enumerate(states):
        state.add_incoming(fold(state, _FOLD_512, load(address_value, 16 * lane_index)), body)
    index.add_incoming(builder.add(index, i64(1)), body)
    builder.branch(loop)

    builder.position_at_end(done)
    folded = states[0]
    for state in states[1:]:
        folded = fold(folded, _FOLD_128, state)
    words = [builder.extract_element(folded, ir.Constant(ir.IntType(32), lane)) for lane in range(2)]
    return context.make_tuple(builder, _TWO_WORDS, words)


@njit("uint64(uint64, uint64)", **COMPILED)
def _update_word(crc: int, word: int) -> int:
    """Update the CRC state (inverted, 32 bits) by eight more bytes, read as a little-endian word."""
    word ^= crc
    return np.uint64(
        _TABLES[7, word & 0xFF]
        ^ _TABLES[6, (word >> 8) & 0xFF]
        ^ _TABLES[5, (word >> 16) & 0xFF]
        ^ _TABLES[4, (word >> 24) & 0xFF]
        ^ _TABLES[3, (word >> 32) & 0xFF]
        ^ _TABLES[2, (word >> 40) & 0xFF]
        ^ _TABLES[1, (word >> 48) & 0xFF]
        ^ _TABLES[0, (word >> 56) & 0xFF]
    )


@njit("uint64(uint8[::1], int64, int64, uint64)", **COMPILED)
def _update_by_table(data: Any, start: int, stop: int, crc: int) -> int:
    position = start
    while position + 8 <= stop:
        word = np.uint64(0)
        for step in range(8):
            word |= np.uint64(data[position + step]) << np.uint64(8 * step)
        crc = _update_word(crc, word)
        position += 8
    while position < stop:
        crc = np.uint64(_TABLES[0, (crc ^ np.uint64(data[position])) & 0xFF]) ^ (crc >> np.uint64(8))
        position += 1
    return crc


if HAS_CLMUL:

    @njit("uint64(uint8[::1], int64, int64, uint64)", **COMPILED)
    def _update(data: Any, start: int, stop: int, crc: int) -> int:
        block_count = (stop - start) // FOLD_BYTES
        if block_count > 0:
            words = _fold_64(np.uint64(data.ctypes.data + start), block_count, crc)
            crc = _update_word(_update_word(np.uint64(0), words[0]), words[1])
            start += block_count * FOLD_BYTES
        return _update_by_table(data, start, stop, crc)

else:
    _update = _update_by_table


@njit("int64(uint8[::1], int64, int64)", **COMPILED)
def crc32(data: Any, start: int, stop: int) -> int:
    """Compute the CRC-32 of ``data[start:stop]``, unsigned, as ``zlib.crc32``; RocketMQ stores it & 0x7FFFFFFF.

    The caller guarantees the bounds.
    """
    return np.int64(_update(data, start, stop, np.uint64(0xFFFFFFFF)) ^ np.uint64(0xFFFFFFFF))


_TABLE = _byte_table(_CASTAGNOLI)


@njit("int64(uint8[::1])", **COMPILED)
def _crc32c(data: Any) -> int:
    crc = np.uint32(0xFFFFFFFF)
    for byte in data:
        crc = (crc >> np.uint32(8)) ^ _TABLE[(crc ^ byte) & np.uint32(0xFF)]
    return np.int64(crc ^ np.uint32(0xFFFFFFFF))


def crc32c(data: bytes) -> int:
    """Compute the CRC-32C of bytes, unsigned."""
    return int(_crc32c(np.frombuffer(bytearray(data), np.uint8)))
