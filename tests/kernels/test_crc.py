"""The CRC kernel against zlib."""

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_formats.kernels import crc
from tests.kernels.guarded_memory import guarded

DATA = np.random.default_rng(1).integers(0, 256, 4096, dtype=np.uint8)


def by_table(data: np.ndarray, start: int, stop: int) -> int:
    """The way of processors without carry-less multiplication."""
    state = crc._update_by_table(data, start, stop, np.uint64(0xFFFFFFFF))
    return int(state) ^ 0xFFFFFFFF


@pytest.mark.parametrize("kernel", [crc.crc32, by_table], ids=["crc32", "table"])
def test_each_length_at_odd_starts_is_as_in_zlib(kernel: object) -> None:
    for length in range(301):
        for start in (0, 1, 3, 7, 13, 61):
            stop = start + length
            assert kernel(DATA, start, stop) == zlib.crc32(DATA[start:stop].tobytes()), (start, length)  # type: ignore[operator]


@pytest.mark.parametrize("fill", [0x00, 0xFF])
def test_runs_of_one_byte_are_as_in_zlib(fill: int) -> None:
    data = np.full(1000, fill, dtype=np.uint8)
    for length in (0, 1, 63, 64, 65, 127, 128, 129, 1000):
        assert crc.crc32(data, 0, length) == by_table(data, 0, length) == zlib.crc32(data[:length].tobytes())


def test_known_sums() -> None:
    for text, masked in ((b"hello", 907060870), (b"Hello RocketMQ", 1774740973), (b"123456789", 1274296614)):
        data = np.frombuffer(text, dtype=np.uint8).copy()
        assert crc.crc32(data, 0, len(data)) & 0x7FFFFFFF == masked


@settings(deadline=None)
@given(st.binary(max_size=2000), st.integers(0, 200))
def test_any_bytes_are_as_in_zlib(data: bytes, start: int) -> None:
    start = min(start, len(data))
    array = np.frombuffer(data, dtype=np.uint8).copy()
    assert crc.crc32(array, start, len(data)) == zlib.crc32(data[start:])


def test_no_byte_outside_is_read() -> None:
    for length in (*range(140), 4095, 4096, 4097):
        data = DATA[:length].tobytes() if length <= 4096 else bytes(length)
        for at_end in (True, False):
            with guarded(data, at_end=at_end) as array:
                assert crc.crc32(array, 0, length) == zlib.crc32(data)
