"""Readers of values in Avro's binary encoding: functions from bytes and position to value and next position.

A reader raises ``CorruptBytesError`` or UnicodeDecodeError, and IndexError or struct.error where the bytes end.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

Read = Callable[[bytes, int], tuple[Any, int]]
ReadItems = Callable[[bytes, int, int], tuple[list[Any], int]]
"""Reads a number of items from a position on."""

_MAX_BITS: Final = 64
_SHIFTS: Final = tuple(range(7, _MAX_BITS, 7))  # of the bytes of a number after the first
_MIN_VECTOR: Final = 32  # limit: fewer numbers are faster one by one
_INT_BOUND: Final = 1 << 31
_MAX_EMPTY_ITEMS: Final = 1024  # limit of an array whose items have no bytes: a body of 6 bytes may claim 2 ** 40
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


class CorruptBytesError(ValueError):
    """Bytes that do not follow their schema."""


BYTES_FAULTS: Final = (CorruptBytesError, UnicodeDecodeError, IndexError, struct.error)
"""Errors of readers."""


def fault_reason(error: Exception) -> str:
    """Return the reason of an error of a reader."""
    if isinstance(error, UnicodeDecodeError):
        return f"bytes that are no UTF-8 ({error.reason})"
    return str(error) if isinstance(error, CorruptBytesError) else "the body ends before the value does"


def read_null(_body: bytes, position: int) -> tuple[None, int]:
    """Read no bytes."""
    return None, position


def read_boolean(body: bytes, position: int) -> tuple[bool, int]:
    """Read a byte 0 or 1."""
    byte = body[position]
    if byte > 1:
        raise CorruptBytesError(f"byte {byte:02x} is no boolean")
    return byte == 1, position + 1


def read_long(body: bytes, position: int) -> tuple[int, int]:
    """Read a number of at most 64 bits."""
    number = body[position]
    if number < 0x80:
        return (number >> 1) ^ -(number & 1), position + 1
    number &= 0x7F
    for shift in _SHIFTS:
        position += 1
        byte = body[position]
        if byte < 0x80:
            number |= byte << shift
            if number >> _MAX_BITS:
                break
            return (number >> 1) ^ -(number & 1), position + 1
        number |= (byte & 0x7F) << shift
    raise CorruptBytesError("a number has more than 64 bits")


def int_reader(check: Callable[[int], object]) -> Read:
    """Return a reader of numbers of 32 bits; ``check`` raises for a longer number."""

    def read(body: bytes, position: int) -> tuple[int, int]:
        number = body[position]
        if number < 0x80:
            return (number >> 1) ^ -(number & 1), position + 1
        number, position = read_long(body, position)
        if number < -_INT_BOUND or number >= _INT_BOUND:
            check(number)
        return number, position

    return read


def read_float(body: bytes, position: int) -> tuple[float, int]:
    """Read 4 bytes."""
    return _FLOAT.unpack_from(body, position)[0], position + 4


def read_double(body: bytes, position: int) -> tuple[float, int]:
    """Read 8 bytes."""
    return _DOUBLE.unpack_from(body, position)[0], position + 8


def read_bytes(body: bytes, position: int) -> tuple[bytes, int]:
    """Read a length and as many bytes."""
    start, end = _span(body, position)
    return body[start:end], end


def read_string(body: bytes, position: int) -> tuple[str, int]:
    """Read a length in bytes and a text in UTF-8."""
    length = body[position]
    if length > 0x7F or length & 1:
        start, end = _span(body, position)
        return body[start:end].decode(), end
    start = position + 1
    end = start + (length >> 1)
    if end > len(body):
        raise _beyond_end(length >> 1, len(body) - start)
    return body[start:end].decode(), end


def _span(body: bytes, position: int) -> tuple[int, int]:
    length, start = read_long(body, position)
    if length < 0:
        raise CorruptBytesError(f"length {length}")
    if start + length > len(body):
        raise _beyond_end(length, len(body) - start)
    return start, start + length


def _beyond_end(length: int, rest: int) -> CorruptBytesError:
    return CorruptBytesError(f"length {length}, and the body has {rest} more bytes")


def fixed_reader(size: int) -> Read:
    """Return a reader of ``size`` bytes."""

    def read(body: bytes, position: int) -> tuple[bytes, int]:
        end = position + size
        if end > len(body):
            raise _beyond_end(size, len(body) - position)
        return body[position:end], end

    return read


def index_reader(count: int, kind: str) -> Read:
    """Return a reader of an index below ``count``; ``kind`` names the index in reasons."""

    def read(body: bytes, position: int) -> tuple[int, int]:
        index, position = read_long(body, position)
        if not 0 <= index < count:
            raise CorruptBytesError(f"{kind} index {index}, wanted 0 to {count - 1}")
        return index, position

    return read


def enum_reader(symbols: Sequence[Any]) -> Read:
    """Return a reader of the index of a symbol."""
    read_index = index_reader(len(symbols), "enum")

    def read(body: bytes, position: int) -> tuple[Any, int]:
        index, position = read_index(body, position)
        return symbols[index], position

    return read


def union_reader(branches: Sequence[Read]) -> Read:
    """Return a reader of a union's index and of its value."""
    read_index = index_reader(len(branches), "union")
    by_byte = {index << 1: branch for index, branch in enumerate(branches[:64])}

    def read(body: bytes, position: int) -> tuple[Any, int]:
        branch = by_byte.get(body[position])
        if branch is not None:
            return branch(body, position + 1)
        index, position = read_index(body, position)
        return branches[index](body, position)

    return read


def items_reader(read_item: Read) -> ReadItems:
    """Return a reader of items one after the other; numbers have faster ones."""
    if read_item in _ITEM_READERS:
        return _ITEM_READERS[read_item]

    def read_items(body: bytes, position: int, count: int) -> tuple[list[Any], int]:
        items = []
        for _ in range(count):
            item, position = read_item(body, position)
            items.append(item)
        return items, position

    return read_items


def _read_longs(body: bytes, position: int, count: int) -> tuple[list[int], int]:
    if count >= _MIN_VECTOR:
        encoded = np.frombuffer(body, np.uint8, min(count * len(_SHIFTS), len(body) - position), position)
        ends = np.flatnonzero(encoded < 0x80)[:count]
        if len(ends) == count:
            starts = np.concatenate([[0], ends[:-1] + 1])
            longest = int((ends - starts).max()) + 1
            if longest < len(_SHIFTS):  # of less than 64 bits
                return _vector_longs(encoded, starts, ends, longest), position + int(ends[-1]) + 1
    items = []
    for _ in range(count):
        number, position = read_long(body, position)
        items.append(number)
    return items, position


def _vector_longs(encoded: Any, starts: Any, ends: Any, longest: int) -> list[int]:
    numbers = np.zeros(len(starts), np.uint64)
    for index in range(longest):
        positions = starts + index
        parts = encoded[np.minimum(positions, ends)] & 0x7F
        parts[positions > ends] = 0
        numbers |= parts.astype(np.uint64) << np.uint64(7 * index)
    signs = -(numbers & np.uint64(1)).astype(np.int64)
    values: list[int] = ((numbers >> np.uint64(1)).astype(np.int64) ^ signs).tolist()
    return values


def ints_reader(check: Callable[[int], object]) -> ReadItems:
    """Return a reader of numbers as ``int_reader`` reads each."""

    def read_items(body: bytes, position: int, count: int) -> tuple[list[int], int]:
        items, position = _read_longs(body, position, count)
        for number in (min(items), max(items)) if items else ():
            if number < -_INT_BOUND or number >= _INT_BOUND:
                check(number)
        return items, position

    return read_items


def _packed_reader(code: str, size: int) -> ReadItems:
    def read_items(body: bytes, position: int, count: int) -> tuple[list[Any], int]:
        return list(struct.unpack_from(f"<{count}{code}", body, position)), position + count * size

    return read_items


_ITEM_READERS: Final[dict[Read, ReadItems]] = {
    read_long: _read_longs, read_float: _packed_reader("f", 4), read_double: _packed_reader("d", 8),
}  # fmt: skip


def array_reader(read_items: ReadItems, item_bytes: int) -> Read:
    """Return a reader of blocks of items of at least ``item_bytes`` bytes."""

    def read(body: bytes, position: int) -> tuple[list[Any], int]:
        if body[position] == 0:
            return [], position + 1
        items: list[Any] = []
        while True:
            count, position = read_long(body, position)
            if count == 0:
                return items, position
            end = None
            if count < 0:
                count = -count
                size, position = read_long(body, position)
                end = position + size
            room = (len(body) - position) // item_bytes if item_bytes else _MAX_EMPTY_ITEMS - len(items)
            if count > room:
                raise CorruptBytesError(f"a block of {count} items, and the body has room for {room}")
            block, position = read_items(body, position, count)
            if end is not None and position != end:
                raise CorruptBytesError("a block has another size than it says")
            if items:
                items.extend(block)
            else:
                items = block

    return read


def map_reader(read_value: Read, value_bytes: int) -> Read:
    """Return a reader of blocks of keys and values."""

    def read_entries(body: bytes, position: int, count: int) -> tuple[list[tuple[str, Any]], int]:
        entries = []
        for _ in range(count):
            key, position = read_string(body, position)
            value, position = read_value(body, position)
            entries.append((key, value))
        return entries, position

    read_blocks = array_reader(read_entries, 1 + value_bytes)

    def read(body: bytes, position: int) -> tuple[dict[str, Any], int]:
        entries, position = read_blocks(body, position)
        return dict(entries), position

    return read
