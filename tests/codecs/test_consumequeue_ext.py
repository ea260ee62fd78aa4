import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.codecs.consumequeue_ext import (
    MAX_EXT_OFFSET,
    ExtUnit,
    decode_ext_address,
    encode_ext_address,
    is_ext_address,
)
from rmq_formats.errors import FormatError, LengthError, OptionError, TruncatedError
from tests.support.oracles.consumequeue import build_consumequeue_ext
from tests.support.stores.record_strategies import int64


def test_a_unit_is_size_tags_code_time_and_an_empty_bit_map() -> None:
    assert ExtUnit(2598919, 1).encode().hex() == "0014" + "000000000027a807" + "0000000000000001" + "0000"
    assert ExtUnit(0, 0, b"\x05\x06").encode().hex() == "0016" + "00" * 16 + "0002" + "0506"


@given(int64, int64, st.binary(max_size=50), st.binary(max_size=9))
def test_a_unit_comes_back(tags_code: int, timestamp_ms: int, bit_map: bytes, before: bytes) -> None:
    unit = ExtUnit(tags_code, timestamp_ms, bit_map)
    data = unit.encode()
    assert len(data) == unit.size
    assert ExtUnit.decode(before + data + b"\xff\xff", len(before)) == unit
    for size in range(len(data)):
        with pytest.raises(TruncatedError):
            ExtUnit.decode(data[:size])


@given(st.binary(max_size=60), st.integers(-5, 60))
def test_garbage_is_a_unit_an_end_or_a_typed_error(data: bytes, position: int) -> None:
    try:
        unit = ExtUnit.decode(data, position)
    except FormatError:
        return
    assert unit is None or unit.encode() == data[position : position + unit.size]


def test_units_end_at_zeros_or_at_the_end_mark() -> None:
    assert ExtUnit.decode(bytes(20)) is None
    assert ExtUnit.decode(b"\xff\xff") is None


def test_sizes_that_do_not_fit_each_other_are_refused() -> None:
    with pytest.raises(LengthError):
        ExtUnit.decode(b"\x00\x14" + bytes(16) + b"\x00\x01" + bytes(9))
    with pytest.raises(LengthError):
        ExtUnit.decode(b"\x00\x05" + bytes(30))


def test_a_bit_map_has_a_limit() -> None:
    assert ExtUnit(0, 0, bytes(32747)).size == 32767
    assert len(ExtUnit(0, 0, bytes(32747)).encode()) == 32767
    with pytest.raises(LengthError):
        ExtUnit(0, 0, bytes(32748)).encode()
    with pytest.raises(LengthError):
        ExtUnit(1 << 63, 0).encode()


def test_addresses_are_offsets_far_below_zero() -> None:
    assert encode_ext_address(0) == -(1 << 63)
    assert encode_ext_address(20).to_bytes(8, "big", signed=True).hex() == "8000000000000014"
    assert decode_ext_address(-(1 << 63) + 20) == 20
    assert encode_ext_address(MAX_EXT_OFFSET) == -(1 << 31) - 1


@pytest.mark.parametrize("code", [0, 2598919, -1826110392, -(1 << 31)])
def test_hashes_of_tags_are_not_addresses(code: int) -> None:
    assert not is_ext_address(code)
    with pytest.raises(LengthError):
        decode_ext_address(code)


@pytest.mark.parametrize("offset", [-1, MAX_EXT_OFFSET + 1])
def test_an_offset_without_an_address_is_refused(offset: int) -> None:
    with pytest.raises(LengthError):
        encode_ext_address(offset)


@given(st.integers(0, MAX_EXT_OFFSET))
def test_an_offset_comes_back_from_its_address(offset: int) -> None:
    assert is_ext_address(encode_ext_address(offset))
    assert decode_ext_address(encode_ext_address(offset)) == offset


def test_a_file_ends_with_a_mark_where_four_more_bytes_would_not_fit() -> None:
    files, addresses = build_consumequeue_ext([(1, 2), (3, 4), (5, 6)], 44)
    assert files == {
        0: ExtUnit(1, 2).encode() + ExtUnit(3, 4).encode() + b"\xff\xff\0\0",
        44: ExtUnit(5, 6).encode() + bytes(24),
    }
    assert [decode_ext_address(address) for address in addresses] == [0, 20, 44]


def test_a_file_that_nothing_follows_has_no_mark() -> None:
    files, _ = build_consumequeue_ext([(1, 2), (3, 4)], 44)
    assert files == {0: ExtUnit(1, 2).encode() + ExtUnit(3, 4).encode() + bytes(4)}


def test_a_queue_without_messages_has_no_ext_files() -> None:
    assert build_consumequeue_ext([], 65536) == ({}, [])


def test_a_file_without_room_for_a_unit_is_refused() -> None:
    assert len(build_consumequeue_ext([(1, 2)] * 2, 24)[0]) == 2
    with pytest.raises(OptionError):
        build_consumequeue_ext([(1, 2)], 23)


@given(st.lists(st.tuples(int64, int64), max_size=30), st.integers(24, 150))
def test_each_unit_can_be_found_at_its_address(values: list[tuple[int, int]], file_bytes: int) -> None:
    files, addresses = build_consumequeue_ext(values, file_bytes)
    assert all(len(image) == file_bytes for image in files.values())
    assert list(files) == list(range(0, len(files) * file_bytes, file_bytes))
    for (tags_code, timestamp_ms), address in zip(values, addresses, strict=True):
        start, position = divmod(decode_ext_address(address), file_bytes)
        assert ExtUnit.decode(files[start * file_bytes], position) == ExtUnit(tags_code, timestamp_ms)
