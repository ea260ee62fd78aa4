"""The scan of a segment against the plain-Python walk."""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rmq_formats.codecs.layout import MAGIC_BLANK, MAX_FRAME_BYTES
from rmq_formats.codecs.paths import parse_segment_name
from rmq_formats.codecs.record_frame import DamageCode
from rmq_formats.errors import TruncatedError
from rmq_formats.kernels import scan as kernel
from rmq_formats.scan.segment import scan_segment
from tests.kernels.guarded_memory import guarded
from tests.kernels.scanned_segments import (
    FILE_OFFSET,
    WINDOWS,
    Damaging,
    batches,
    damaged,
    damagings,
    scanned,
    segments,
    walked,
    windows,
)
from tests.support.stores.record_strategies import encode_segment, plain_message
from tests.support.stores.store_files import InMemory


@cache
def golden_files(store: Path) -> list[tuple[int, bytes]]:
    files = sorted((store / "commitlog").iterdir())
    return [(parse_segment_name(path.name) or 0, path.read_bytes()) for path in files]


@pytest.mark.parametrize("window_bytes", WINDOWS)
def test_golden_segments_are_scanned_as_they_are_walked(
    golden: Callable[[str], Path], golden_name: str, window_bytes: int
) -> None:
    for file_offset, data in golden_files(golden(golden_name) / "store"):
        found = scanned(data, file_offset, window_bytes=window_bytes)
        assert found == walked(data, file_offset)
        assert all(kind != "Damage" for kind, *_ in found)


@settings(deadline=None, max_examples=25)
@given(number=st.integers(0, 3), damagings=damagings, window_bytes=windows, cuts=st.lists(st.integers(0, 70_000)))
def test_damaged_golden_segments_are_scanned_as_they_are_walked(
    golden: Callable[[str], Path], number: int, damagings: list[Damaging], window_bytes: int, cuts: list[int]
) -> None:
    file_offset, data = golden_files(golden("exotic_crc") / "store")[number]
    check_against_the_walk(damaged(data, damagings), cuts, window_bytes, file_offset)


@settings(deadline=None, max_examples=50)
@given(segments(), st.lists(st.integers(0, 60_000), max_size=5), windows)
def test_any_segment_is_scanned_as_it_is_walked(data: bytes, cuts: list[int], window_bytes: int) -> None:
    check_against_the_walk(data, cuts, window_bytes)


@settings(deadline=None, max_examples=80)
@given(segments(), damagings, st.lists(st.integers(0, 60_000), max_size=5), windows)
@pytest.mark.long
def test_any_damaged_segment_is_scanned_as_it_is_walked(
    data: bytes, damagings: list[Damaging], cuts: list[int], window_bytes: int
) -> None:
    check_against_the_walk(damaged(data, damagings), cuts, window_bytes)


def check_against_the_walk(data: bytes, cuts: list[int], window_bytes: int, file_offset: int = FILE_OFFSET) -> None:
    """Whole and in parts, with and without sums; the parts together report each item exactly once."""
    bounds = [0, *sorted(cut % (len(data) + 5) for cut in cuts), None]
    for verify_crc in (True, False):
        options: dict[str, Any] = {"verify_crc": verify_crc}
        whole = walked(data, file_offset, **options)
        assert scanned(data, file_offset, window_bytes=window_bytes, **options) == whole
        parts = []
        for start, limit in pairwise(bounds):
            if start != limit:
                part = scanned(data, file_offset, window_bytes=window_bytes, start=start, limit=limit, **options)
                assert part == walked(data, file_offset, start=start or 0, limit=limit, **options)
                parts += part
        assert parts == whole


@settings(deadline=None, max_examples=50)
@given(segments(), st.one_of(st.just([]), damagings), windows, st.data())
def test_a_scan_with_a_bound_is_that_of_what_stands_before_it(
    data: bytes, damagings: list[Damaging], window_bytes: int, draw: st.DataObject
) -> None:
    data = damaged(data, damagings)
    whole = walked(data)
    begins = [position for kind, position, _, _ in whole if kind == "Frame"]
    bound = draw.draw(st.sampled_from([*begins, len(data.rstrip(b"\0"))]))
    found = scanned(data, data_end=bound, window_bytes=window_bytes)
    assert found == [item for item in whole if item[1] < bound]


def test_damage_that_ends_where_a_bound_stands_is_reported() -> None:
    data, places = encode_segment([plain_message() for _ in range(4)], FILE_OFFSET, 50, blank=False)
    position, size = places[2]
    for width in (4, size):
        torn = data[:position] + bytes(width) + data[position + width :]
        found = scanned(torn, data_end=position + size)
        assert found[-1] == ("Damage", position, size, DamageCode.MAGIC if width > 4 else DamageCode.SIZE)
        assert found[:-1] == [("Frame", *place, 0) for place in places[:2]]


def test_neighbouring_scans_meet_at_one_position() -> None:
    data, places = encode_segment([plain_message(body=b"b" * 50 * n) for n in range(40)], FILE_OFFSET, 500, blank=False)
    position, size = places[7]
    data = damaged(data, [("zero", position, bytes(size + 300))])
    used = len(data.rstrip(b"\0"))
    for cut in range(1, places[-1][0], 97):
        first = list(batches(data, limit=cut, data_end=used))
        second = list(batches(data, start=cut, data_end=used))
        assert first[0].begin_physical_offset == FILE_OFFSET
        assert first[-1].next_physical_offset == second[0].begin_physical_offset


def test_a_scan_that_is_told_where_to_begin_does_not_search() -> None:
    inner, _ = encode_segment([plain_message(body=b"inner")], FILE_OFFSET + 88, 0, blank=False)
    data, places = encode_segment([plain_message(body=inner), plain_message()], FILE_OFFSET, 50, blank=False)
    assert scanned(data, start=1)[0] == ("Frame", 88, len(inner), 0), "a body may hold a record by malice"
    assert scanned(data, start=places[1][0], search=False) == [("Frame", *places[1], 0)]


@pytest.mark.parametrize("data", [b"", b"\1", bytes(7), bytes(8), bytes(9000), b"\xda" * 9000, b"\xcb" * 4097])
def test_files_without_a_record_are_scanned_as_they_are_walked(data: bytes) -> None:
    for start in (0, 1, 5000):
        assert scanned(data, start=start, window_bytes=4096) == walked(data, start=start)


def test_a_record_larger_than_the_window_is_read_whole() -> None:
    stored = [plain_message(body=bytes([n]) * (1 << n)) for n in range(20)]
    data, places = encode_segment(stored, FILE_OFFSET, 100, blank=True)
    assert scanned(data, window_bytes=4096)[:-1] == [("Frame", *place, 0) for place in places]
    assert scanned(data, window_bytes=4096, start=places[10][0] + 1) == walked(data, start=places[10][0] + 1)


@pytest.mark.parametrize("size", [-1, 0, 7, 90, 1 << 30, MAX_FRAME_BYTES + 1, 0x7FFFFFFF])
def test_a_wild_size_does_not_enlarge_the_window(size: int) -> None:
    data, places = encode_segment([plain_message(body=b"b" * 600) for _ in range(20)], FILE_OFFSET, 0, blank=False)
    at = places[5][0]
    data = data[:at] + (size & 0xFFFFFFFF).to_bytes(4, "big") + data[at + 4 :]
    largest = max(len(batch.data) for batch in batches(data, window_bytes=4096))
    assert largest == 4096
    assert scanned(data, window_bytes=4096) == walked(data)


def test_candidates_at_every_byte_do_not_mislead_the_search() -> None:
    garbage = b"\xda\xa3\x20\xa7" * 1500 + b"\xda\xda\xa3\x20\xab" * 50 + MAGIC_BLANK.to_bytes(4, "big", signed=True)
    data, places = encode_segment([plain_message()] * 3, FILE_OFFSET + len(garbage), 10, blank=False)
    data = garbage + data
    assert scanned(data, window_bytes=4096) == walked(data)
    assert scanned(data, window_bytes=4096)[1:] == [("Frame", at + len(garbage), size, 0) for at, size in places]


def test_a_file_that_shrinks_while_it_is_read_is_an_error() -> None:
    data, _ = encode_segment([plain_message(body=b"b" * 3000)] * 5, FILE_OFFSET, 0, blank=False)
    with pytest.raises(TruncatedError, match="ended while it was read"):
        list(scan_segment(InMemory(data[:5000]), FILE_OFFSET, len(data), window_bytes=4096))


@settings(deadline=None, max_examples=50)
@given(segments(), st.one_of(st.just([]), damagings), st.data())
def test_no_byte_outside_of_the_window_is_read(data: bytes, damagings: list[Damaging], draw: st.DataObject) -> None:
    data = damaged(data, damagings)
    begin = draw.draw(st.integers(0, len(data)))
    end = draw.draw(st.integers(begin, len(data)))
    frames = np.empty((len(data) // 91 + 1, kernel.FRAME_COLUMNS), dtype=np.int64)
    result = np.zeros(2, dtype=np.int64)
    with guarded(data[begin:end]) as window:
        size = end - begin
        position = 0
        while position < size:
            kernel.walk_frames(
                window,
                size,
                begin,
                FILE_OFFSET,
                len(data),
                position,
                1 << 62,
                True,
                frames,
                result,
            )
            position = int(result[1]) + 1
            kernel.find_sound(window, size, begin, FILE_OFFSET, len(data), position, frames[0], result)
            assert result[0] >= position or position > size - 8
            position = max(position, int(result[0]))
        used = kernel.used_bytes(window, size)
        assert used == len(data[begin:end].rstrip(b"\0"))


@example(b"", 8)
@given(st.binary(max_size=60), st.integers(0, 60))
def test_used_bytes_are_those_before_the_zeros(data: bytes, zeros: int) -> None:
    array = np.frombuffer(data + bytes(zeros) + b"x", dtype=np.uint8).copy()
    assert kernel.used_bytes(array, len(data) + zeros) == len(data.rstrip(b"\0"))
