import gzip
import os
import zlib
from contextlib import suppress

import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_formats.codecs.compression import Compression, compress, decompress
from rmq_formats.codecs.layout import FLAG_COMPRESSED
from rmq_formats.errors import DecodeError, FormatError, LengthError, OptionError

HELLO = b"hello hello hello hello"
BY_JAVA = {
    Compression.ZLIB: "785ecb48cdc9c957c8402701680308b1",
    Compression.LZ4: "04224d186070730f0000006868656c6c6f2006005068656c6c6f00000000",
    Compression.ZSTD: "28b52ffd00586400003068656c6c6f200100994b11010000",
}
codecs = pytest.mark.parametrize("codec", list(Compression))


@codecs
def test_what_java_compressed_inflates(codec: Compression) -> None:
    assert decompress(bytes.fromhex(BY_JAVA[codec]), codec.sys_flag) == HELLO


def test_zlib_compresses_to_the_bytes_of_java() -> None:
    assert compress(HELLO, Compression.ZLIB).hex() == BY_JAVA[Compression.ZLIB]


def test_sys_flags_name_the_codec() -> None:
    assert [codec.sys_flag for codec in (Compression.ZLIB, Compression.LZ4, Compression.ZSTD)] == [
        0x301,
        0x101,
        0x201,
    ]
    for codec in Compression:
        assert Compression.of_sys_flag(codec.sys_flag | 0x30) is codec
    assert Compression.of_sys_flag(0x300) is None


def test_a_type_of_zero_is_zlib() -> None:
    assert decompress(zlib.compress(HELLO), 0x1) == HELLO


def test_a_body_without_the_flag_stays_as_it_is() -> None:
    assert decompress(b"plain", 0x300) == b"plain"
    assert decompress(b"x" * 100, 0, max_bytes=1) == b"x" * 100


@codecs
def test_an_empty_body_stays_empty(codec: Compression) -> None:
    assert decompress(b"", codec.sys_flag) == b""


@pytest.mark.parametrize("bits", [0x401, 0x501, 0x601, 0x701])
def test_an_unknown_type_is_refused(bits: int) -> None:
    with pytest.raises(DecodeError):
        decompress(b"body", bits)


@codecs
@settings(max_examples=50, deadline=None)
@given(body=st.binary(min_size=1, max_size=2000), level=st.integers(0, 9), times=st.integers(1, 40))
def test_a_body_comes_back(codec: Compression, body: bytes, level: int, times: int) -> None:
    body *= times
    assert decompress(compress(body, codec, level), codec.sys_flag, max_bytes=len(body)) == body


@codecs
@pytest.mark.parametrize("level", [-1, 10])
def test_a_level_out_of_bounds_is_refused(codec: Compression, level: int) -> None:
    with pytest.raises(OptionError):
        compress(b"x", codec, level)


@codecs
def test_a_body_of_exactly_the_limit_is_accepted_and_one_byte_more_is_not(codec: Compression) -> None:
    body = os.urandom(5000) + bytes(5000)
    packed = compress(body, codec)
    assert decompress(packed, codec.sys_flag, max_bytes=10_000) == body
    with pytest.raises(LengthError):
        decompress(packed, codec.sys_flag, max_bytes=9_999)


def test_bombs_stop_at_the_limit() -> None:
    size = 100 << 20
    compressor = zstandard.ZstdCompressor().compressobj()  # one that does not write the size into its header
    bombs = {
        Compression.ZLIB: zlib.compress(bytes(size), 1),
        Compression.LZ4: lz4.frame.compress(bytes(size)),
        Compression.ZSTD: compressor.compress(bytes(size)) + compressor.flush(),
    }
    for codec, bomb in bombs.items():
        with pytest.raises(LengthError):
            decompress(bomb, codec.sys_flag, max_bytes=1 << 20)


@codecs
def test_a_body_cut_at_any_byte_is_refused(codec: Compression) -> None:
    packed = compress(HELLO * 20, codec)
    for size in range(1, len(packed)):
        with pytest.raises(DecodeError):
            decompress(packed[:size], codec.sys_flag)


@codecs
def test_a_flipped_byte_never_raises_another_error(codec: Compression) -> None:
    packed = compress(HELLO * 20 + os.urandom(100), codec)
    for at in range(len(packed)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(packed)
            damaged[at] ^= flip
            with suppress(FormatError):
                decompress(bytes(damaged), codec.sys_flag, max_bytes=1 << 20)


@codecs
@given(data=st.binary(max_size=300))
def test_garbage_never_raises_another_error(codec: Compression, data: bytes) -> None:
    with suppress(FormatError):
        decompress(data, codec.sys_flag, max_bytes=1 << 20)


@pytest.mark.parametrize("codec", [Compression.LZ4, Compression.ZSTD])
def test_frames_that_follow_each_other_are_one_body(codec: Compression) -> None:
    parts = [os.urandom(700), b"", b"b" * 70_000, b"c"]
    packed = b"".join(compress(part, codec) for part in parts)
    assert decompress(packed, codec.sys_flag) == b"".join(parts)
    with pytest.raises(LengthError):
        decompress(packed, codec.sys_flag, max_bytes=70_000)
    with pytest.raises(DecodeError):
        decompress(packed + b"garbage", codec.sys_flag)


def test_a_body_of_gzip_inflates_as_zlib() -> None:
    """A proxy stores what a client of RocketMQ 5 sends as GZIP, marked as compressed without a type."""
    packed = gzip.compress(b"body" * 500)
    assert decompress(packed, FLAG_COMPRESSED) == b"body" * 500
    with pytest.raises(LengthError):
        decompress(packed, FLAG_COMPRESSED, max_bytes=1999)
    with pytest.raises(DecodeError):
        decompress(packed[:-9], FLAG_COMPRESSED)


def test_bytes_behind_a_zlib_stream_are_ignored_as_in_java() -> None:
    assert decompress(compress(HELLO, Compression.ZLIB) + b"garbage", 0x301) == HELLO
