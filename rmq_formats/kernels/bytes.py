"""Big-endian reads and byte searches that the other kernels inline.

None checks bounds: the caller has checked them. Arrays are uint8[n], C-contiguous, borrowed.
"""

from collections.abc import Callable
from functools import update_wrapper
from inspect import Signature
from inspect import signature as inspect_signature
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

# Options of kernels. They only borrow their arrays, and count no references: numba does not always prune the counts out
# of loops that call helpers. Appending short strings takes six times as long with them, the dispatch of a record twice.
COMPILED: Final[dict[str, Any]] = {"cache": True, "nogil": True, "_nrt": False}
INLINED: Final[dict[str, Any]] = {**COMPILED, "forceinline": True}  # of those that others are made of
ALLOCATING: Final[dict[str, Any]] = {**COMPILED, "_nrt": True}  # of those that make arrays of their own


def emitted(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make an intrinsic out of a function that emits LLVM code, from numba's context, the builder and arguments."""

    def make(emit: Callable[..., Any]) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            value = emit(context, builder, *arguments)
            return context.get_dummy_value() if value is None else value

        def define(_typing_context: Any, *_types: Any) -> Any:
            return signature, generate

        update_wrapper(define, emit)
        # Numba reads the arguments' names: those behind a typing context, for which the builder stands here.
        define.__signature__ = Signature(list(inspect_signature(emit).parameters.values())[1:])  # type: ignore[attr-defined]
        return intrinsic(define)

    return make


def _big_endian_load(bits: int) -> Any:
    """Return an intrinsic that loads ``bits`` bits at an address and swaps them: one instruction or two."""

    @emitted(types.int64(types.uint64))
    def load(context: Any, builder: Any, address: Any) -> Any:
        word = ir.IntType(bits)
        value = builder.load(builder.inttoptr(address, word.as_pointer()), align=1)
        swapped = builder.bswap(value)
        return swapped if bits == 64 else builder.sext(swapped, ir.IntType(64))

    return load


def _big_endian_store(bits: int) -> Any:
    @emitted(types.void(types.uint64, types.int64))
    def store(context: Any, builder: Any, address: Any, value: Any) -> Any:
        word = ir.IntType(bits)
        target = builder.inttoptr(address, word.as_pointer())
        narrowed = value if bits == 64 else builder.trunc(value, word)
        builder.store(builder.bswap(narrowed), target, align=1)

    return store


_load_16, _load_32, _load_64 = (_big_endian_load(bits) for bits in (16, 32, 64))
_store_32, _store_64 = (_big_endian_store(bits) for bits in (32, 64))


def _equal_lanes(builder: Any, address: Any, value: Any, lane_count: int) -> Any:
    """IR of ``lane_count`` bits: which bytes at ``address`` equal ``value``."""
    vector, index = ir.VectorType(ir.IntType(8), lane_count), ir.VectorType(ir.IntType(32), lane_count)
    undefined = ir.Constant(vector, ir.Undefined)
    loaded = builder.load(builder.inttoptr(address, vector.as_pointer()), align=1)
    single = builder.insert_element(undefined, value, ir.IntType(32)(0))
    repeated = builder.shuffle_vector(single, undefined, ir.Constant(index, [0] * lane_count))
    return builder.icmp_unsigned("==", loaded, repeated)


def _match_mask(lane_count: int) -> Any:
    """Return an intrinsic that compares ``lane_count`` bytes at an address with a uint8: bit i of a uint64 each."""

    @emitted(types.uint64(types.uint64, types.uint8))
    def match(context: Any, builder: Any, address: Any, value: Any) -> Any:
        lanes = _equal_lanes(builder, address, value, lane_count)
        return builder.zext(builder.bitcast(lanes, ir.IntType(lane_count)), ir.IntType(64))

    return match


match_mask_16, match_mask_32 = _match_mask(16), _match_mask(32)


@emitted(types.int64(types.uint64))
def trailing_zeros(context: Any, builder: Any, mask: Any) -> Any:
    """Count (int64) of the zero bits below the lowest set bit of a uint64 that is not 0."""
    return builder.cttz(mask, ir.IntType(1)(1))


@emitted(types.void(types.uint64, types.uint64, types.int64))
def copy_bytes(context: Any, builder: Any, target: Any, source: Any, byte_count: Any) -> Any:
    """``memcpy`` of ``byte_count`` bytes between two addresses (uint64) that do not overlap."""
    pointer = ir.IntType(8).as_pointer()
    target_pointer, source_pointer = (builder.inttoptr(value, pointer) for value in (target, source))
    cgutils.raw_memcpy(builder, target_pointer, source_pointer, byte_count, 1)


@njit(**INLINED)
def read_i16(data: Any, at: int) -> int:
    """Read the signed 16-bit big-endian integer at ``data[at]``."""
    return _load_16(np.uint64(data.ctypes.data + at))


@njit(**INLINED)
def read_i32(data: Any, at: int) -> int:
    """Read the signed 32-bit big-endian integer at ``data[at]``."""
    return _load_32(np.uint64(data.ctypes.data + at))


@njit(**INLINED)
def read_i64(data: Any, at: int) -> int:
    """Read the signed 64-bit big-endian integer at ``data[at]``."""
    return _load_64(np.uint64(data.ctypes.data + at))


@njit(**INLINED)
def write_i32(data: Any, at: int, value: int) -> None:
    """Write the low 32 bits of ``value`` at ``data[at]``, big-endian."""
    _store_32(np.uint64(data.ctypes.data + at), np.int64(value))


@njit(**INLINED)
def write_i64(data: Any, at: int, value: int) -> None:
    """Write ``value`` at ``data[at]``, big-endian."""
    _store_64(np.uint64(data.ctypes.data + at), np.int64(value))


@njit(**INLINED)  # no signature: numba types global arrays as read-only, arguments not
def same_bytes(data: Any, at: int, other: Any, other_at: int, byte_count: int) -> bool:
    """Return whether ``data`` and ``other`` have the same ``byte_count`` bytes at their positions."""
    for index in range(byte_count):
        if data[at + index] != other[other_at + index]:
            return False
    return True


@njit("int64(uint8[::1], int64, int64, uint8)", **INLINED)
def find_byte(data: Any, start: int, stop: int, value: int) -> int:
    """Find the position of the first ``value`` in ``data[start:stop]``, or ``stop``."""
    position = start
    while position + 16 <= stop:
        mask = match_mask_16(np.uint64(data.ctypes.data + position), value)
        if mask != 0:
            return position + trailing_zeros(mask)
        position += 16
    while position < stop and data[position] != value:
        position += 1
    return position


@njit("int64(uint8[::1], int64, int64, uint8, uint8)", **INLINED)
def find_either(data: Any, start: int, stop: int, first: int, second: int) -> int:
    """Find the first byte of ``data[start:stop]`` that is ``first`` or ``second``; return its position, or ``stop``."""
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


@emitted(types.void(types.uint64))
def prefetch(context: Any, builder: Any, address: Any) -> Any:
    """Prefetch the cache line at ``address`` (uint64), to be read and written soon."""
    pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    function_type = ir.FunctionType(ir.VoidType(), [pointer, word, word, word])
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
    builder.call(function, [builder.inttoptr(address, pointer), word(1), word(3), word(1)])
