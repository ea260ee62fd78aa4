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
from tests.support.oracles.consumequeue import build_consumequeue, build_consumequeue_ext

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


numbers = st.integers(0, 40)
records = st.lists(st.tuples(numbers, st.integers(0, 9), st.integers(1, 300), st.integers(-5, 5)), max_size=40)
"""Of one queue, in log order: queue offset, bytes between it and the one before, size, tags code."""


def in_log(made: list[tuple[int, int, int, int]], first: int) -> list[tuple[int, Unit]]:
    found, at = [], 0
    for offset, space, size, tags_code in made:
        found.append((first + offset if offset else 0, Unit(at + space, size, tags_code)))
        at += space + size
    return found


@settings(deadline=None)
@given(records, st.sampled_from([0, 7, 1000, 1 << 40]), file_sizes)
def test_units_stand_where_a_broker_puts_them(
    made: list[tuple[int, int, int, int]], first: int, file_bytes: int
) -> None:
    found = in_log(made, first if all(offset for offset, *_ in made) else 0)
    placement = derived_images.place_units(rows_of(found))
    assert files(placement.rows, file_bytes) == build_consumequeue(found, file_bytes)
    assert len(placement.rows) + len(placement.repeated) == len(found)
    assert len(placement.displaced) == 0


@settings(deadline=None)
@given(records, st.lists(st.tuples(st.integers(0, 500), st.integers(1, 2000)), max_size=3), file_sizes)
def test_messages_in_damaged_stretches_keep_their_places(
    made: list[tuple[int, int, int, int]], stretches: list[tuple[int, int]], file_bytes: int
) -> None:
    lost, at = [], 0
    for space, size in stretches:
        lost.append((at + space, at + space + size))
        at += space + size
    found = in_log(made, 0)
    begins, ends = (np.array([item[side] for item in lost], dtype=np.int64) for side in (0, 1))
    placement = derived_images.place_units(rows_of(found), (begins, ends))
    assert files(placement.rows, file_bytes) == build_consumequeue(found, file_bytes, lost)


def placed(offsets: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Physical offsets of the units by their order, queue offsets of what was skipped, and of what was left out."""
    placement = derived_images.place_units(
        rows_of([(offset, Unit(10 * number, 10, 0)) for number, offset in enumerate(offsets)])
    )
    first = int(placement.rows[0, kernel.QUEUE_OFFSET]) if len(placement.rows) else 0
    assert placement.rows[:, kernel.QUEUE_OFFSET].tolist() == list(range(first, first + len(placement.rows)))
    kept = [offsets[at // 10] for at in placement.rows[:, kernel.PHYSICAL_OFFSET].tolist()]
    return (
        kept, placement.repeated[:, kernel.QUEUE_OFFSET].tolist(), placement.displaced[:, kernel.QUEUE_OFFSET].tolist()
    )  # fmt: skip


def gaps(offsets: list[int]) -> list[list[int]]:
    rows = rows_of([(offset, Unit(10 * number, 10, 0)) for number, offset in enumerate(offsets)])
    return derived_images.place_units(rows).gaps.tolist()


def test_a_gap_is_closed_a_repeat_is_skipped_and_zero_is_appended() -> None:
    assert placed([5, 6, 9, 10]) == ([5, 6, 9, 10], [], [])
    assert placed([5, 6, 60, 7]) == ([5, 6, 60], [7], [])
    assert placed([5, 6, 60, 8]) == ([5, 6, 60, 8], [], [])
    assert placed([3, 4, 4, 3, 5]) == ([3, 4, 5], [4, 3], [])
    assert placed([3, 4, 0, 1, 6]) == ([3, 4, 0, 6], [1], [])
    assert gaps([0, 1, 4, 5, 4, 5]) == [[2, 4]]
    assert gaps([0, 1, 4, 5, 9, 10]) == [[2, 4], [6, 9]]
    assert gaps([5, 6, 0, 8]) == []


def test_a_first_offset_that_is_far_above_the_next_is_left_out() -> None:
    far = derived_images.MAX_GAP_UNITS
    assert placed([1 << 40, 3, 4]) == ([3, 4], [], [1 << 40])
    assert placed([1 << 40, (1 << 40) + 1, 3]) == ([1 << 40, (1 << 40) + 1], [3], [])
    assert placed([far + 3, 3]) == ([far + 3], [3], [])
    assert placed([far + 4, 3]) == ([3], [], [far + 4])
    assert placed([1 << 40, 0]) == ([1 << 40, 0], [], []), "a queue that was made again"


def test_an_offset_that_is_far_above_those_before_is_told_and_appended() -> None:
    assert placed([5, 6, 1 << 40, 8]) == ([5, 6, 1 << 40, 8], [], [1 << 40])
    assert gaps([5, 6, 1 << 40, 8]) == []


def test_an_offset_that_no_queue_can_have_is_left_out() -> None:
    assert placed([4, -1, 5]) == ([4, 5], [], [-1])
    assert placed([-(1 << 63)]) == ([], [], [-(1 << 63)])
    assert placed([-3, -2]) == ([], [], [-3, -2])
    for offset in ((1 << 63) - 1, (1 << 62) + 5, (1 << 63) // 20):
        assert placed([offset]) == ([], [], [offset]), "its place in bytes is no 64-bit number"
        assert placed([offset - 1, offset]) == ([], [], [offset - 1, offset])
        assert files(derived_images.place_units(rows_of([(offset, Unit(0, 1, 0))])).rows, 400) == {}


def test_the_last_record_with_a_queue_offset_has_it_in_rocksdb() -> None:
    rows = rows_of([(offset, Unit(10 * number, 10, 0)) for number, offset in enumerate([3, 4, 6, 4, -1])])
    placement = derived_images.place_last(rows)
    assert placement.rows[:, [kernel.QUEUE_OFFSET, kernel.PHYSICAL_OFFSET]].tolist() == [[3, 0], [4, 30], [6, 20]]
    assert placement.repeated[:, kernel.PHYSICAL_OFFSET].tolist() == [10]
    assert placement.displaced[:, kernel.QUEUE_OFFSET].tolist() == [-1]
    assert placement.gaps.tolist() == [[5, 6]]


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
