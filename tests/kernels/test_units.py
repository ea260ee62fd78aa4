"""Units and ConsumeQueue files out of columns against the codecs."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_formats.codecs.consumequeue import Unit
from rmq_formats.kernels import dispatch as dispatch_kernel
from rmq_formats.kernels import units as kernel
from rmq_formats.kernels.live_dispatch_tables import LIGHT_UNIT
from rmq_formats.scan import derived_images
from tests.consumequeue_oracle import build_consumequeue, build_consumequeue_ext

int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
units = st.builds(Unit, int64, int32, int64)
file_sizes = st.sampled_from([20, 40, 100, 400, 2000])


def rows_of(found: list[tuple[int, Unit]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    rows = [
        (offset, unit.physical_offset, unit.size, unit.tags_code, number) for number, (offset, unit) in enumerate(found)
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, kernel.ROW_COLUMNS)


def files(rows: Any, file_bytes: int) -> dict[int, bytes]:
    images = derived_images.consumequeue_images(rows, file_bytes)
    return {start: image.tobytes().ljust(file_bytes, b"\0") for start, image in images}


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), units), max_size=40), st.sampled_from([0, 7, 1000, 1 << 40]), file_sizes)
def test_files_hold_each_unit_at_its_place(found: list[tuple[int, Unit]], first: int, file_bytes: int) -> None:
    found = [(first + offset, unit) for offset, unit in found]
    placement = derived_images.place_units(rows_of(found))
    built = files(placement.rows, file_bytes)
    assert built == build_consumequeue(found, file_bytes)
    offsets = {offset for offset, _ in found}
    assert len(placement.rows) == len(offsets)
    assert len(placement.repeated) == len(found) - len(offsets)
    assert placement.gap_units == (max(offsets) - min(offsets) + 1 - len(offsets) if offsets else 0)
    assert len(placement.displaced) == 0


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), units), max_size=40))
def test_the_first_in_the_log_has_a_repeated_place(found: list[tuple[int, Unit]]) -> None:
    placement = derived_images.place_units(rows_of(found))
    first: dict[int, int] = {}
    for number, (offset, _) in enumerate(found):
        first.setdefault(offset, number)
    assert dict(placement.rows[:, [kernel.QUEUE_OFFSET, kernel.STORE_TIMESTAMP]].tolist()) == first
    repeated = placement.repeated[:, kernel.STORE_TIMESTAMP].tolist()
    assert sorted(repeated) == sorted(set(range(len(found))) - set(first.values()))


def placed(offsets: list[int]) -> tuple[list[int], list[int], list[int]]:
    placement = derived_images.place_units(rows_of([(offset, Unit(offset, 1, 0)) for offset in offsets]))
    columns = (
        part[:, kernel.QUEUE_OFFSET].tolist() for part in (placement.rows, placement.repeated, placement.displaced)
    )
    kept, repeated, displaced = columns
    return kept, repeated, displaced


def test_an_offset_far_from_the_others_is_left_out() -> None:
    assert placed([5, 6, 1 << 40, 7]) == ([5, 6, 7], [], [1 << 40])
    assert placed([1 << 40, (1 << 40) + 1, 3]) == ([1 << 40, (1 << 40) + 1], [], [3])
    assert placed([0, 1, (1 << 63) - 1]) == ([0, 1], [], [(1 << 63) - 1])
    far = derived_images.MAX_GAP_UNITS
    assert placed([0, far]) == ([0, far], [], [])
    assert placed([0, 1, far + 2]) == ([0, 1], [], [far + 2])


def test_an_offset_that_no_queue_can_have_is_left_out() -> None:
    assert placed([4, -1, 5]) == ([4, 5], [], [-1])
    assert placed([-(1 << 63)]) == ([], [], [-(1 << 63)])
    assert placed([-3, -2]) == ([], [], [-3, -2])
    for offset in ((1 << 63) - 1, (1 << 62) + 5, (1 << 63) // 20):
        assert placed([offset]) == ([], [], [offset]), "its place in bytes is no 64-bit number"
        assert placed([offset - 1, offset]) == ([], [], [offset - 1, offset])
        assert files(derived_images.place_units(rows_of([(offset, Unit(0, 1, 0))])).rows, 400) == {}


def test_the_last_offset_that_a_queue_can_have_is_written() -> None:
    offset = derived_images.MAX_QUEUE_OFFSET
    built = files(derived_images.place_units(rows_of([(offset, Unit(7, 1, 0))])).rows, 6_000_000)
    assert [image[offset * 20 - start :][:20] for start, image in built.items()] == [Unit(7, 1, 0).encode()]


@settings(deadline=None)
@given(
    st.lists(st.tuples(units, int64.filter(lambda time: time != LIGHT_UNIT)), max_size=60),
    st.sampled_from([40, 44, 60, 1000]),
)
def test_ext_files_are_those_of_the_codec(found: list[tuple[Unit, int]], file_bytes: int) -> None:
    rows = rows_of([(number, unit) for number, (unit, _) in enumerate(found)])
    rows[:, kernel.STORE_TIMESTAMP] = [time for _, time in found]
    addressed, images = derived_images.ext_images(rows, file_bytes)
    expected, addresses = build_consumequeue_ext([(unit.tags_code, time) for unit, time in found], file_bytes)
    assert addressed[:, kernel.TAGS_CODE].tolist() == addresses
    starts = range(0, file_bytes * len(images), file_bytes)
    assert dict(zip(starts, (image.ljust(file_bytes, b"\0") for image in images), strict=True)) == expected


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), int64), max_size=60), st.permutations(range(6)))
def test_units_are_grouped_by_queue_in_log_order(found: list[tuple[int, int]], rank: list[int]) -> None:
    table = np.zeros((len(found), dispatch_kernel.UNIT_COLUMNS), dtype=np.int64)
    for row, (queue, value) in enumerate(found):
        table[row] = (queue, row, value, row + 1, row + 2, row + 3)
    starts, rows = np.empty(7, dtype=np.int64), np.empty((len(found), kernel.ROW_COLUMNS), dtype=np.int64)
    kernel.group_by_queue(table, np.array(rank, dtype=np.int64), starts, rows)
    for queue, place in enumerate(rank):
        own = [[row, value, row + 1, row + 2, row + 3] for row, (other, value) in enumerate(found) if other == queue]
        assert rows[starts[place] : starts[place + 1]].tolist() == own


@settings(deadline=None)
@given(st.lists(units, max_size=20))
def test_units_are_decoded_as_by_the_codec(found: list[Unit]) -> None:
    data = np.frombuffer(b"".join(unit.encode() for unit in found) or b"\0", dtype=np.uint8).copy()
    rows = np.full((len(found), kernel.ROW_COLUMNS), 99, dtype=np.int64)
    kernel.decode_units(data, rows)
    assert [Unit(*row[1:4]) for row in rows.tolist()] == found
    assert (rows[:, [kernel.QUEUE_OFFSET, kernel.STORE_TIMESTAMP]] == 99).all()


def test_contiguous_rows_are_counted_up_to_the_first_gap() -> None:
    for offsets, count in (([], 0), ([5], 1), ([5, 6, 7], 3), ([5, 6, 8], 2), ([5, 5], 1), ([5, 4], 1)):
        rows = rows_of([(offset, Unit(0, 1, 0)) for offset in offsets])
        assert kernel.contiguous_count(rows) == count
