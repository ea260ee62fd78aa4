"""Frames of the remoting protocol: cuts a stream of bytes into commands, and encodes commands.

::

     0          4                   8              8+h          4+size
    +----------+------------+------+--------------+------------+
    | size     | type, 1 B  | h, 3 | header       | body       |
    +----------+------------+------+--------------+------------+
    size counts what follows it; big-endian; type 0 is a JSON header, 1 a binary one

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

MAX_FRAME_BYTES: Final = 16 << 20  # with its size field, as Java counts it
_PREFIX = Struct(">iI")  # the header's type is the highest byte of the second number, its size the others
_SIZE = Struct(">i")
_PREFIX_BYTES: Final = _PREFIX.size
_SIZE_BYTES: Final = _SIZE.size
_MIN_SIZE: Final = _PREFIX_BYTES - _SIZE_BYTES
_TYPE_SHIFT: Final = 24
_MAX_HEADER_BYTES: Final = (1 << _TYPE_SHIFT) - 1
_MAX_SIZE: Final = MAX_FRAME_BYTES - _SIZE_BYTES  # and so is a header of at most _MAX_HEADER_BYTES


class FrameParser:
    """Parser of a stream of bytes into commands.

    It holds the bytes of an unfinished frame only as far as they have come: a size that claims 16 MiB
    costs nothing.
    """

    __slots__ = ("_held", "_max_frame_bytes", "_max_header_bytes", "_needed_bytes")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES, max_header_bytes: int = _MAX_HEADER_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._max_header_bytes = max_header_bytes
        self._held = bytearray()
        self._needed_bytes = 0

    @property
    def buffered_bytes(self) -> int:
        """The number of buffered bytes of an unfinished frame."""
        return len(self._held)

    def clear(self) -> None:
        """Let go of an unfinished frame: the stream has ended."""
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[RemotingCommand]:
        """Yield the commands whose last bytes are in ``data``; exhaust the iterator before the next call.

        A command's body is a view into the data, so the data lives as long as the body.

        Raises:
            LengthError: a frame or header of impossible size. The stream cannot be read on after any error.
            DecodeError: a header that does not decode, or of an unknown type.
        """
        whole: bytes | bytearray = data
        if self._held:
            self._held += data
            if len(self._held) < self._needed_bytes:
                return
            whole, self._held = self._held, bytearray()
        view = memoryview(whole)
        at, end, limit, header_limit = 0, len(whole), self._max_frame_bytes - _SIZE_BYTES, self._max_header_bytes
        while (header_at := at + _PREFIX_BYTES) <= end:
            size, kind = _PREFIX.unpack_from(whole, at)
            if not _MIN_SIZE <= size <= limit:
                raise _bad_size(size, limit)
            header_bytes = kind & _MAX_HEADER_BYTES
            kind >>= _TYPE_SHIFT
            body_at, next_at = header_at + header_bytes, at + _SIZE_BYTES + size
            if body_at > next_at:
                raise LengthError("a header that is longer than its frame", expected=size, actual=header_bytes)
            if header_bytes > header_limit:
                raise LengthError("a header of too many bytes", expected=header_limit, actual=header_bytes)
            if next_at > end:
                break
            header = view[header_at:body_at]
            if kind == JSON:
                command = decode_json_header(header)
            elif kind == ROCKETMQ:
                command = decode_binary_header(header)
            else:
                raise DecodeError("an unknown type of header", actual=kind)
            if body_at < next_at:
                command.body = view[body_at:next_at]
            at = next_at
            yield command
        if at < end:
            self._buffer(view[at:], limit)

    def _buffer(self, rest: memoryview, limit: int) -> None:
        self._needed_bytes = _SIZE_BYTES
        if len(rest) >= _SIZE_BYTES:
            (size,) = _SIZE.unpack_from(rest)
            if not _MIN_SIZE <= size <= limit:  # not checked yet where the prefix is not complete
                raise _bad_size(size, limit)
            self._needed_bytes += size
        self._held += rest


def _bad_size(size: int, limit: int) -> LengthError:
    return LengthError("a frame of impossible size", expected=f"{_MIN_SIZE} to {limit}", actual=size)


def frame_head(command: RemotingCommand) -> bytes:
    """Encode a frame without its body, which is sent separately without a copy.

    Raises:
        LengthError: a header or frame over its limit, or what ``encode_binary_header`` raises.
        DecodeError: the command's fields came from a peer and are no JSON object.
    """
    binary = command.serialize_type == ROCKETMQ
    header = encode_binary_header(command) if binary else encode_json_header(command)
    header_bytes = len(header)
    size = _MIN_SIZE + header_bytes + len(command.body)
    if size > _MAX_SIZE:
        raise LengthError("a frame that no peer takes", expected=MAX_FRAME_BYTES, actual=size + _SIZE_BYTES)
    return _PREFIX.pack(size, binary << _TYPE_SHIFT | header_bytes) + header


def encode_frame(command: RemotingCommand) -> bytes:
    """Encode a whole frame; raises as ``frame_head``."""
    return b"".join((frame_head(command), command.body))


def decode_frame(data: bytes) -> RemotingCommand:
    """Decode bytes that are exactly a frame.

    Raises:
        TruncatedError: they end too early.
        LengthError: impossible sizes, or more bytes than the frame.
        DecodeError: a header that does not decode.
    """
    commands = list((parser := FrameParser()).feed(data))
    if not commands:
        raise TruncatedError("the bytes end within a frame", actual=len(data))
    if len(commands) > 1 or parser.buffered_bytes:
        raise LengthError("more bytes than one frame")
    return commands[0]


__all__ = ["MAX_FRAME_BYTES", "Body", "FrameParser", "decode_frame", "encode_frame", "frame_head"]
