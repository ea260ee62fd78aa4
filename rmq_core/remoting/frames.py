"""Frames of the remoting protocol: parser of a stream of bytes into commands, and encoder of commands.

::

     0          4                   8              8+h          4+size
    +----------+------------+------+--------------+------------+
    | size     | type, 1 B  | h, 3 | header       | body       |
    +----------+------------+------+--------------+------------+
    size counts the bytes after it; h is the header's size; big-endian; type 0 is a JSON header, 1 a binary one

Source: ``NettyDecoder``, ``RemotingCommand#decode``.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final

from rmq_core.remoting.codes import JSON, ROCKETMQ
from rmq_core.remoting.header import (
    Body,
    RemotingCommand,
    decode_binary_header,
    decode_json_header,
    encode_binary_header,
    encode_json_header,
)
from rmq_formats.errors import DecodeError, LengthError, TruncatedError

MAX_FRAME_BYTES: Final = 16 << 20  # size field included, as in Java
_PREFIX = Struct(">iI")  # the header's type is the highest byte of the second number, its size the others
_SIZE = Struct(">i")
_PREFIX_BYTES: Final = _PREFIX.size
_SIZE_BYTES: Final = _SIZE.size
_MIN_SIZE: Final = _PREFIX_BYTES - _SIZE_BYTES
_TYPE_SHIFT: Final = 24
_MAX_HEADER_BYTES: Final = (1 << _TYPE_SHIFT) - 1
_MAX_SIZE: Final = MAX_FRAME_BYTES - _SIZE_BYTES  # so a header cannot exceed _MAX_HEADER_BYTES


class FrameParser:
    """Parser of a stream of bytes into commands.

    It buffers only the received bytes of an unfinished frame, and allocates nothing for a claimed size.
    """

    __slots__ = ("_max_frame_bytes", "_max_header_bytes", "_needed_bytes", "_unfinished_frame")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES, max_header_bytes: int = _MAX_HEADER_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._max_header_bytes = max_header_bytes
        self._unfinished_frame = bytearray()
        self._needed_bytes = 0

    @property
    def buffered_bytes(self) -> int:
        """Number of buffered bytes of an unfinished frame."""
        return len(self._unfinished_frame)

    def clear(self) -> None:
        """Discard an unfinished frame after the end of the stream."""
        self._unfinished_frame = bytearray()

    def feed(self, data: bytes) -> Iterator[RemotingCommand]:
        """Yield the commands whose last bytes are in ``data``; exhaust the iterator before the next call.

        A command's body is a view into the data, so the data lives as long as the body.

        Raises:
            LengthError: a frame or header has an impossible size. After any error the parser cannot go on.
            DecodeError: a header cannot be decoded, or has an unknown type.
        """
        stream: bytes | bytearray = data
        if self._unfinished_frame:
            self._unfinished_frame += data
            if len(self._unfinished_frame) < self._needed_bytes:
                return
            stream, self._unfinished_frame = self._unfinished_frame, bytearray()
        view = memoryview(stream)
        offset, end, limit, header_limit = 0, len(stream), self._max_frame_bytes - _SIZE_BYTES, self._max_header_bytes
        while (header_begin := offset + _PREFIX_BYTES) <= end:
            size, kind = _PREFIX.unpack_from(stream, offset)
            if not _MIN_SIZE <= size <= limit:
                raise _bad_size(size, limit)
            header_bytes = kind & _MAX_HEADER_BYTES
            kind >>= _TYPE_SHIFT
            body_begin, frame_end = header_begin + header_bytes, offset + _SIZE_BYTES + size
            if body_begin > frame_end:
                raise LengthError("a header that is longer than its frame", expected=size, actual=header_bytes)
            if header_bytes > header_limit:
                raise LengthError("a header of too many bytes", expected=header_limit, actual=header_bytes)
            if frame_end > end:
                break
            header = view[header_begin:body_begin]
            if kind == JSON:
                command = decode_json_header(header)
            elif kind == ROCKETMQ:
                command = decode_binary_header(header)
            else:
                raise DecodeError("an unknown type of header", actual=kind)
            if body_begin < frame_end:
                command.body = view[body_begin:frame_end]
            offset = frame_end
            yield command
        if offset < end:
            self._buffer(view[offset:], limit)

    def _buffer(self, frame_begin: memoryview, limit: int) -> None:
        self._needed_bytes = _SIZE_BYTES
        if len(frame_begin) >= _SIZE_BYTES:
            (size,) = _SIZE.unpack_from(frame_begin)
            if not _MIN_SIZE <= size <= limit:  # ``feed`` checks it only in a complete prefix
                raise _bad_size(size, limit)
            self._needed_bytes += size
        self._unfinished_frame += frame_begin


def _bad_size(size: int, limit: int) -> LengthError:
    return LengthError("a frame of impossible size", expected=f"{_MIN_SIZE} to {limit}", actual=size)


def frame_head(command: RemotingCommand) -> bytes:
    """Encode a frame up to its body. Raises as ``encode_binary_header``, or LengthError over the frame's limit."""
    binary = command.serialize_type == ROCKETMQ
    header = encode_binary_header(command) if binary else encode_json_header(command)
    header_bytes = len(header)
    size = _MIN_SIZE + header_bytes + len(command.body)
    if size > _MAX_SIZE:
        raise LengthError(f"frame too large: peers accept at most {MAX_FRAME_BYTES} bytes", actual=size + _SIZE_BYTES)
    return _PREFIX.pack(size, binary << _TYPE_SHIFT | header_bytes) + header


def encode_frame(command: RemotingCommand) -> bytes:
    """Encode a whole frame; raises as ``frame_head``."""
    return b"".join((frame_head(command), command.body))


def decode_frame(data: bytes) -> RemotingCommand:
    """Decode exactly one frame. Raises TruncatedError, LengthError, DecodeError."""
    commands = list((parser := FrameParser()).feed(data))
    if not commands:
        raise TruncatedError("the bytes end within a frame", actual=len(data))
    if len(commands) > 1 or parser.buffered_bytes:
        raise LengthError("more bytes than one frame")
    return commands[0]


__all__ = ["MAX_FRAME_BYTES", "Body", "FrameParser", "decode_frame", "encode_frame", "frame_head"]
