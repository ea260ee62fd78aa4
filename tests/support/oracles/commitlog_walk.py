"""Walks the frames of a CommitLog segment, in plain Python.

This is the oracle that the kernels of ``rmq_formats.kernels.scan`` are compared with, and the place to
read the rules: a sound frame says where it stands, and its lengths add up; what is not sound is skipped up
to the next frame or BLANK that is, and reported; a walk of a part of a file owns what begins in it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from rmq_formats.codecs.layout import BLANK_BYTES, MAGIC_BLANK, RECORD_VERSIONS
from rmq_formats.codecs.record import StoredMessage, decode_record
from rmq_formats.codecs.record_frame import (
    Damage,
    DamageCode,
    FrameShape,
    crc_fault,
    frame_shape,
    is_crc_property_valid,
)
from rmq_formats.codecs.record_layout import RECORD_MAGIC_AT, SIZE_AND_MAGIC

_ANY_MAGIC = re.compile(
    b"|".join(re.escape(magic.to_bytes(4, "big", signed=True)) for magic in (*RECORD_VERSIONS, MAGIC_BLANK))
)
_TAIL_PIECE_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Frame:
    """A sound frame: its lengths hold, and, if they were verified, its checksums.

    Attributes:
        position: in the segment file, in bytes.
        size: of the record, in bytes.
        physical_offset: in the log, in bytes.
        data: the segment file.
    """

    position: int
    size: int
    physical_offset: int
    data: memoryview = field(repr=False, compare=False)

    def decode(self) -> StoredMessage:
        """Decode the record; its checksums have been verified by the walk, or were not asked for."""
        return decode_record(self.data, self.position, physical_offset=self.physical_offset, verify_crc=False)


@dataclass(frozen=True, slots=True)
class Blank:
    """The BLANK record that fills a segment to its end.

    Attributes:
        physical_offset: in the log, in bytes.
        size: up to the end of the file, in bytes.
    """

    physical_offset: int
    size: int


def walk(
    data: bytes | bytearray | memoryview,
    file_offset: int,
    *,
    start: int = 0,
    limit: int | None = None,
    verify_crc: bool = True,
) -> Iterator[Frame | Damage | Blank]:
    """Walk the frames that begin in ``[start, limit)`` of a segment.

    Neighbouring walks that share a boundary report each frame and each damaged stretch exactly once: a
    walk from a ``start`` above 0 begins silently at the first sound frame, and the one before it goes on
    over damage past its ``limit`` until it stands on that frame.

    Args:
        data: the bytes of one whole segment file.
        file_offset: physical offset of its first byte.
        start: first byte of the part, in the file.
        limit: end of the part, in the file; None is the file's end.
        verify_crc: check the CRC of bodies, and of records that have their own; a frame that fails is
            reported as damage.

    Yields:
        Frames and damaged stretches in log order, disjoint; a BLANK as the last, where there is one. Zeros
        up to the end of the file are not damage: nothing was written there yet.
    """
    view = memoryview(data)
    file_bytes = len(view)
    limit = file_bytes if limit is None else min(limit, file_bytes)
    position = 0 if start <= 0 else _next_sound(view, file_offset, start)
    while position is not None and position < file_bytes:
        if is_blank(view, position):
            if position < limit:
                yield Blank(file_offset + position, file_bytes - position)
            return
        shape = frame_shape(view, position, file_offset + position)
        if isinstance(shape, FrameShape):
            if position >= limit:
                return
            yield _judge(view, shape, file_offset, verify_crc)
            position = shape.end
            continue
        next_sound = _next_sound(view, file_offset, position + 1)
        end = _used_end(view, position) if next_sound is None else next_sound
        if end > position:
            yield Damage(file_offset + position, end - position, shape)
        position = next_sound


def _judge(view: memoryview, shape: FrameShape, file_offset: int, verify_crc: bool) -> Frame | Damage:
    physical_offset = file_offset + shape.position
    code: DamageCode | None = crc_fault(view, shape) if verify_crc else None
    if code is not None:
        return Damage(physical_offset, shape.size, code)
    return Frame(shape.position, shape.size, physical_offset, view)


def _next_sound(view: memoryview, file_offset: int, position: int) -> int | None:
    """Find the first sound frame or BLANK at or after a position."""
    # Magic numbers cannot overlap each other, so the search misses none.
    for match in _ANY_MAGIC.finditer(view, position + RECORD_MAGIC_AT):
        candidate = match.start() - RECORD_MAGIC_AT
        if is_blank(view, candidate):
            return candidate
        if isinstance(frame_shape(view, candidate, file_offset + candidate), FrameShape):
            return candidate
    return None


def _used_end(view: memoryview, position: int) -> int:
    """Find the end of the data from a position on, without the zeros at the end of the file."""
    end = len(view)
    while end > position:
        piece_at = max(position, end - _TAIL_PIECE_BYTES)
        used = len(bytes(view[piece_at:end]).rstrip(b"\0"))
        if used:
            return piece_at + used
        end = piece_at
    return position


def is_blank(view: memoryview, position: int) -> bool:
    """Return whether a BLANK record stands at a position of a segment file and fills it to its end."""
    left = len(view) - position
    return left >= BLANK_BYTES and SIZE_AND_MAGIC.unpack_from(view, position) == (left, MAGIC_BLANK)


def verify_crc_property(record: bytes | bytearray | memoryview) -> bool | None:
    """Return whether a record's ``__CRC32#`` property matches its bytes; None if it does not end in one."""
    view = memoryview(record)
    shape = frame_shape(view, 0, None)
    assert isinstance(shape, FrameShape)
    return is_crc_property_valid(view, shape)
