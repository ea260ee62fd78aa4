"""Write-ahead log of a RocksDB: whether all of its bytes can be read.

RocksDB itself ends at the first record that it cannot read, and opens without a word as if nothing came after it.

Source: RocksDB's db/log_format.h and db/log_reader.cc. Blocks of 32 KiB; a record lies in one block: CRC-32C (masked),
length and type, in recycled files the log's number as well, then the payload. A batch that crosses a block's end is
several records: a first one, middle ones, a last one.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

BLOCK_BYTES: Final = 32768
_HEAD: Final = struct.Struct("<IHB")
_NUMBER: Final = struct.Struct("<I")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_RECYCLED: Final = frozenset({5, 6, 7, 8, 11, 131})
_TYPES: Final = frozenset({1, 2, 3, 4, 9, 10, 130}) | _RECYCLED
_MASK_DELTA: Final = 0xA282EAD8
_SECTOR_BYTES: Final = 512  # what a loss of power leaves unwritten is zeros, whole sectors

Checksum = Callable[[bytes], int]
"""CRC-32C of bytes."""
Kind = Literal["end", "torn", "damage"]


@dataclass(frozen=True, slots=True)
class LogEnd:
    """End of the readable part of a log: one past the last batch that can be read.

    A last batch that was cut off, as by a kill, has the kind ``torn``.
    """

    position: int
    kind: Kind


def find_log_end(blocks: Iterable[bytes], number: int, checksum: Checksum) -> LogEnd:
    """Walk a log up to the first record that cannot be read.

    Args:
        blocks: of the file, each of 32 KiB but for the last one.
        number: of the log, which is its name.
    """
    start, batch, is_in_batch = 0, 0, False
    walk = iter(blocks)
    for block in walk:
        at = 0
        while at + _HEAD.size <= len(block):
            length = _record_bytes(block, at, number, checksum)
            if not length:
                kind = _unreadable_kind(block, at, walk, number, checksum)
                return LogEnd(batch if is_in_batch else start + at, "torn" if is_in_batch and kind == "end" else kind)
            part = block[at + _HEAD.size - 1]
            part -= 4 if _LAST < part <= 2 * _LAST else 0
            if part <= _LAST:
                if is_in_batch != (part in {_MIDDLE, _LAST}):
                    return LogEnd(batch if is_in_batch else start + at, "damage")
                batch = batch if is_in_batch else start + at
                is_in_batch = part in {_FIRST, _MIDDLE}
            at += length
        if len(block) < BLOCK_BYTES and any(block[at:]):  # of a head that was cut off
            return LogEnd(batch if is_in_batch else start + at, "torn")
        start += len(block)
    return LogEnd(batch, "torn") if is_in_batch else LogEnd(start, "end")


def _record_bytes(block: bytes, at: int, number: int, checksum: Checksum) -> int:
    """Return the size of the record at a place of a block; 0 if there is no sound record."""
    crc, length, kind = _HEAD.unpack_from(block, at)
    head = _HEAD.size + (_NUMBER.size if kind in _RECYCLED else 0)
    end = at + head + length
    if kind not in _TYPES or end > len(block):
        return 0
    if kind in _RECYCLED and _NUMBER.unpack_from(block, at + _HEAD.size) != (number & 0xFFFFFFFF,):
        return 0
    return end - at if _masked(checksum(block[at + _HEAD.size - 1 : end])) == crc else 0


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def _has_flipped_head(rest: bytes, checksum: Checksum) -> bool:
    """Return whether bytes are a record but for its length, which no checksum has, or for its type."""
    crc, length, sent = _HEAD.unpack_from(rest)
    length += _NUMBER.size if sent in _RECYCLED else 0
    end = _HEAD.size + length
    if sent in _RECYCLED and end <= len(rest) and _masked(checksum(rest[_HEAD.size - 1 : end])) == crc:
        return False  # sound, of a recycled file's former life
    payloads = {rest[_HEAD.size : end], rest[_HEAD.size :]}
    return any(_masked(checksum(bytes([kind]) + payload)) == crc for kind in _TYPES for payload in payloads)


def _unreadable_kind(block: bytes, at: int, later: Iterator[bytes], number: int, checksum: Checksum) -> Kind:
    """Classify bytes that are no record: a cut is followed by nothing, damage by more records."""
    rest = block[at:]
    starts = range(at + 1, len(block) - _HEAD.size + 1)
    if any(
        _record_bytes(block, start, number, checksum) for start in starts if block[start + _HEAD.size - 1] in _TYPES
    ):
        return "damage"
    is_last = True
    for following in later:
        is_last = is_last and not any(following)
        if len(following) >= _HEAD.size and _record_bytes(following, 0, number, checksum):
            return "damage"
    if not any(rest) and is_last:
        return "end"  # of a file that was made longer before it was written
    if not is_last or _has_flipped_head(rest, checksum):
        return "damage"
    _, length, kind = _HEAD.unpack_from(block, at)
    if kind in _RECYCLED and rest[_HEAD.size :][: _NUMBER.size] != _NUMBER.pack(number & 0xFFFFFFFF):
        return "end"  # where records of the file's former life begin
    is_cut = len(block) < BLOCK_BYTES and _HEAD.size + length > len(rest)
    is_unwritten = len(rest) - len(rest.rstrip(b"\0")) >= _SECTOR_BYTES
    return "torn" if is_cut or is_unwritten else "damage"
