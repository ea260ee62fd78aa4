"""Big-endian reads and byte searches that the other kernels inline.

None checks bounds: the caller has done so. Arrays are uint8[n], C-contiguous, borrowed.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic


def _big_endian_load(bits: int) -> Any:
    """An intrinsic that loads ``bits`` bits at an address and swaps them: one instruction or two."""

    @intrinsic  # type: ignore[untyped-decorator] # numba ships no types
    def load(typing_context: Any, address: Any) -> Any:
        signature = types.int64(types.uint64)

        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            word = ir.IntType(bits)
            value = builder.load(builder.inttoptr(arguments[0], word.as_pointer()), align=1)
            swapped = builder.bswap(value)
            return swapped if bits == 64 else builder.sext(swapped, ir.IntType(64))

        return signature, generate

    return load


def _big_endian_store(bits: int) -> Any:
    @intrinsic  # type: ignore[untyped-decorator] # numba ships no types
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        signature = types.void(types.uint64, types.int64)

        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            word = ir.IntType(bits)
            target = builder.inttoptr(arguments[0], word.as_pointer())
            narrowed = arguments[1] if bits == 64 else builder.trunc(arguments[1], word)
            builder.store(builder.bswap(narrowed), target, align=1)
            return context.get_dummy_value()

        return signature, generate

    return store


_load_16, _load_32, _load_64 = (_big_endian_load(bits) for bits in (16, 32, 64))
_store_32, _store_64 = (_big_endian_store(bits) for bits in (32, 64))


def _equal_lanes(builder: Any, address: Any, value: Any, lane_count: int) -> Any:
    """IR of ``lane_count`` bits: which bytes at ``address`` equal ``value``."""
    vector, index = ir.VectorType(ir.IntType(8), lane_count), ir.VectorType(ir.IntType(32), lane_count)
    undefined = ir.Constant(vector, ir.Undefined)
    loaded = builder.load(builder.inttoptr(address, vector.as_pointer()), align=1)
    single = builder.insert_element(undefined, value, ir.IntType(32)(0))
    wanted = builder.shuffle_vector(single, undefined, ir.Constant(index, [0] * lane_count))
    return builder.icmp_unsigned("==", loaded, wanted)


@intrinsic  # type: ignore[untyped-decorator] # numba ships no types
def match_mask_16(typing_context: Any, address: Any, value: Any) -> Any:
    """Bit i (uint64) is set where byte i of the 16 at ``address`` equals ``value`` (uint8)."""
    signature = types.uint64(types.uint64, types.uint8)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(_equal_lanes(builder, arguments[0], arguments[1], 16), ir.IntType(16))
        return builder.zext(bits, ir.IntType(64))

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator] # numba ships no types
def match_mask_32(typing_context: Any, address: Any, value: Any) -> Any:
    """Bit i (uint64) is set where byte i of the 32 at ``address`` equals ``value`` (uint8)."""
    signature = types.uint64(types.uint64, types.uint8)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(_equal_lanes(builder, arguments[0], arguments[1], 32), ir.IntType(32))
        return builder.zext(bits, ir.IntType(64))

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator] # numba ships no types
def trailing_zeros(typing_context: Any, mask: Any) -> Any:
    """Count (int64) of the zero bits below the lowest set bit of a uint64 that is not 0."""
    signature = types.int64(types.uint64)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator] # numba ships no types
def copy_bytes(typing_context: Any, target: Any, source: Any, byte_count: Any) -> Any:
    """``memcpy`` of ``byte_count`` bytes between two addresses (uint64) that do not overlap."""
    signature = types.void(types.uint64, types.uint64, types.int64)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        target_pointer, source_pointer = (builder.inttoptr(value, pointer) for value in arguments[:2])
        cgutils.raw_memcpy(builder, target_pointer, source_pointer, arguments[2], 1)
        return context.get_dummy_value()

    return signature, generate


@njit(cache=True, nogil=True, forceinline=True)
def read_i16(data: Any, at: int) -> int:
    """Signed 16-bit big-endian integer at ``data[at]``."""
    return _load_16(np.uint64(data.ctypes.data + at))


@njit(cache=True, nogil=True, forceinline=True)
def read_i32(data: Any, at: int) -> int:
    """Signed 32-bit big-endian integer at ``data[at]``."""
    return _load_32(np.uint64(data.ctypes.data + at))


@njit(cache=True, nogil=True, forceinline=True)
def read_i64(data: Any, at: int) -> int:
    """Signed 64-bit big-endian integer at ``data[at]``."""
    return _load_64(np.uint64(data.ctypes.data + at))


@njit(cache=True, nogil=True, forceinline=True)
def write_i32(data: Any, at: int, value: int) -> None:
    """Write the low 32 bits of ``value`` at ``data[at]``, big-endian."""
    _store_32(np.uint64(data.ctypes.data + at), np.int64(value))


@njit(cache=True, nogil=True, forceinline=True)
def write_i64(data: Any, at: int, value: int) -> None:
    """Write ``value`` at ``data[at]``, big-endian."""
    _store_64(np.uint64(data.ctypes.data + at), np.int64(value))


@njit("int64(uint8[::1], int64, int64, uint8)", cache=True, nogil=True, forceinline=True)
def find_byte(data: Any, start: int, stop: int, value: int) -> int:
    """Position of the first ``value`` in ``data[start:stop]``, or ``stop``."""
    position = start
    while position + 16 <= stop:
        mask = match_mask_16(np.uint64(data.ctypes.data + position), value)
        if mask != 0:
            return position + trailing_zeros(mask)
        position += 16
    while position < stop and data[position] != value:
        position += 1
    return position


@njit("int64(uint8[::1], int64, int64, uint8, uint8)", cache=True, nogil=True, forceinline=True)
def find_either(data: Any, start: int, stop: int, first: int, second: int) -> int:
    """Position of the first byte of ``data[start:stop]`` that is ``first`` or ``second``, or ``stop``."""
    position = start
    while position + 16 <= stop:
        address = np.uint64(data.ctypes.data + position)
        mask = match_mask_16(address, first) | match_mask_16(address, second)
        if mask != 0:
            return position + trailing_zeros(mask)
        position += 16
    while position < stop and data[position] != first and data[position] != second:
        position += 1
    return position


@intrinsic  # type: ignore[untyped-decorator] # numba ships no types
def prefetch(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at ``address`` (uint64), to be read and written soon."""
    signature = types.void(types.uint64)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [pointer, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        builder.call(function, [builder.inttoptr(arguments[0], pointer), word(1), word(3), word(1)])
        return context.get_dummy_value()

    return signature, generate
