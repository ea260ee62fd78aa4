"""Compresses and inflates message bodies: zlib, LZ4 frame or Zstandard, according to the sys_flag.

Inflating has a hard limit that holds while it goes on: a body of 4 MiB can stand for many gigabytes.
"""

import zlib
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import lz4.frame
import zstandard
from isal import isal_zlib

from rmq_formats.codecs.layout import (
    FLAG_COMPRESSED,
    FLAG_COMPRESSION_LZ4,
    FLAG_COMPRESSION_MASK,
    FLAG_COMPRESSION_ZLIB,
    FLAG_COMPRESSION_ZSTD,
)
from rmq_formats.errors import DecodeError, LengthError, OptionError

DEFAULT_LEVEL: Final = 5  # default level of Java's producer: DefaultMQProducerImpl, compressLevel
MAX_INFLATED_BYTES: Final = 64 << 20  # 16 times the largest body that a broker accepts by default
_ZLIB_OR_GZIP: Final = 32 + zlib.MAX_WBITS  # clients of RocketMQ 5 send GZIP, under the same flag
_ZLIB_ERROR: Final[type[Exception]] = isal_zlib.error  # type: ignore[assignment] # its stub has an instance


class Compression(Enum):
    """Compression type of a body, as encoded in a sys_flag. Source: ``CompressionType``, ``MessageSysFlag``."""

    ZLIB = FLAG_COMPRESSION_ZLIB
    LZ4 = FLAG_COMPRESSION_LZ4
    ZSTD = FLAG_COMPRESSION_ZSTD

    @property
    def sys_flag(self) -> int:
        """Bits of the sys_flag of a message with such a body: the type, and "is compressed"."""
        return FLAG_COMPRESSED | self.value

    @classmethod
    def of_sys_flag(cls, sys_flag: int) -> "Compression | None":
        """Return the compression type in a sys_flag; None if the body is plain. Raises DecodeError for an unknown type.

        Source: ``CompressionType#findByValue``: type 0 is zlib, from clients that had no other.
        """
        if not sys_flag & FLAG_COMPRESSED:
            return None
        bits = sys_flag & FLAG_COMPRESSION_MASK
        if bits == 0:
            return cls.ZLIB
        try:
            return cls(bits)
        except ValueError:
            raise DecodeError("unknown compression type", expected="0..3", actual=bits >> 8) from None


# Fed whole, a stream would inflate whole before its size could be seen. LZ4 makes at most 255 bytes of
# one; Zstandard makes 128 KiB of 4, so that a piece overshoots the limit by 8 MiB at most.
_PIECE_BYTES: Final = {Compression.LZ4: 4096, Compression.ZSTD: 256}


def compress(body: bytes, codec: Compression, level: int = DEFAULT_LEVEL) -> bytes:
    """Compress a body so that Java's consumers can decompress it; the bytes need not be those of Java.

    Args:
        level: 0 (fast) to 9 (small); LZ4 has one speed, as in Java. Raises OptionError for another level.
    """
    if not 0 <= level <= 9:
        raise OptionError(f"compression level must be 0 to 9, not {level}")
    if codec is Compression.ZLIB:
        return zlib.compress(body, level)  # isal has levels 0 to 3 only
    if codec is Compression.LZ4:
        return bytes(lz4.frame.compress(body))
    return zstandard.ZstdCompressor(level=level).compress(body)


def decompress(body: bytes, sys_flag: int, *, max_bytes: int = MAX_INFLATED_BYTES) -> bytes:
    """Return the plain body: inflated if the sys_flag marks it as compressed, else unchanged.

    An empty body stays empty, whatever the flags (``MessageDecoder#decode`` does not inflate it).

    Raises:
        DecodeError: the bytes are not what the flag says, or they end too early.
        LengthError: the plain body is larger than ``max_bytes``.
    """
    codec = Compression.of_sys_flag(sys_flag)
    if codec is None or not body:
        return body
    try:
        if codec is Compression.ZLIB:
            return _inflate_zlib(body, max_bytes)
        return _inflate_frames(body, codec, max_bytes)
    except (_ZLIB_ERROR, zstandard.ZstdError, RuntimeError) as error:  # lz4 raises RuntimeError
        raise DecodeError(f"body does not decompress as {codec.name.lower()}: {error}") from error


def _inflate_zlib(body: bytes, max_bytes: int) -> bytes:
    inflater = isal_zlib.decompressobj(_ZLIB_OR_GZIP)
    plain = bytes(inflater.decompress(body, max_bytes + 1))
    _check_limit(len(plain), max_bytes)
    if not inflater.eof:
        raise DecodeError("body ends within its zlib stream")
    return plain  # what follows the stream is ignored, as java.util.zip.InflaterInputStream does


def _inflate_frames(body: bytes, codec: Compression, max_bytes: int) -> bytes:
    """Inflate one frame or several that follow each other, as Java's streams of both codecs do."""
    new_inflater: Callable[[], Any] = lz4.frame.LZ4FrameDecompressor
    if codec is Compression.ZSTD:
        new_inflater = zstandard.ZstdDecompressor().decompressobj
    parts: list[bytes] = []
    inflated_bytes = 0
    inflater = None
    position = 0
    while position < len(body):
        if inflater is None:
            inflater = new_inflater()
        piece = body[position : position + _PIECE_BYTES[codec]]
        parts.append(inflater.decompress(piece))
        position += len(piece)
        inflated_bytes += len(parts[-1])
        _check_limit(inflated_bytes, max_bytes)
        if inflater.eof:
            position -= len(inflater.unused_data or b"")
            inflater = None
    if inflater is not None:
        raise DecodeError(f"body ends within its {codec.name.lower()} frame")
    return b"".join(parts)


def _check_limit(inflated_bytes: int, max_bytes: int) -> None:
    if inflated_bytes > max_bytes:
        raise LengthError("body inflates to more than the limit", expected=f"at most {max_bytes}")
