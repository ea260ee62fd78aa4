"""What a queue's files and its records in the log give together."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rmq_formats.codecs.layout import LOST_UNIT_SIZE, PRE_BLANK_SIZE
from rmq_formats.kernels import units as kernel
from rmq_formats.scan.derived_images import place_units
from rmq_formats.scan.queue_merge import LogBounds, MergedQueue, merge_queue

SIZE = 100
Longs = NDArray[np.int64]


def table(rows: Sequence[Sequence[int]]) -> Longs:
    return np.array(rows, dtype=np.int64).reshape(-1, kernel.ROW_COLUMNS)


@dataclass
class Life:
    """Plays the life of one queue as a broker leaves it: records in the log, and units in files."""

    records: list[list[int]] = field(default_factory=list)
    units: dict[int, list[int]] = field(default_factory=dict)
    end: int | None = None
    at: int = 0
    least: int = 0

    def store(self, queue_offset: int, *, is_dispatched: bool = True) -> None:
        record = [queue_offset, self.at, SIZE, 7, 0]
        self.records.append(record)
        self.at += SIZE
        if not is_dispatched:
            return
        if self.end is None:
            self.least = self.end = queue_offset
        elif 0 != queue_offset < self.end:
            return
        self.units[self.end] = [self.end, *record[1:]]
        self.end += 1

    def store_all(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            self.store(offset)

    def delete(self) -> None:
        self.units, self.end = {}, None

    def bounds(self, start: int = 0) -> LogBounds:
        return LogBounds(start, self.at)

    def standing(self, first_place: int) -> Longs:
        blank = [0, 0, PRE_BLANK_SIZE, 0, 0]
        found = [[place, *self.units.get(place, blank)[1:]] for place in range(first_place, self.end or first_place)]
        return table(found)

    def merged(self, units: Longs | None = None, *, start: int = 0, file_units: int = 10) -> MergedQueue:
        first_place = self.first_place(file_units)
        rows = table([record for record in self.records if record[1] >= start])
        return merge_queue(
            first_place, self.standing(first_place) if units is None else units, rows, self.bounds(start)
        )

    def first_place(self, file_units: int = 10) -> int:
        return min(self.units, default=self.end or 0) // file_units * file_units


def image(merged: MergedQueue, first_place: int) -> list[list[int]]:
    """Physical offset, size and tags code by place; pre-blanks where no row is."""
    found = [[0, PRE_BLANK_SIZE, 0] for _ in range(first_place, merged.end)]
    for row in merged.rows.tolist():
        found[row[kernel.QUEUE_OFFSET] - first_place] = row[1:4]
    return found


def check_stays(life: Life, start: int = 0) -> MergedQueue:
    """All units are right, and the merged queue is what stands."""
    first_place = life.first_place()
    units = life.standing(first_place)
    merged = life.merged(start=start)
    assert image(merged, first_place) == units[:, 1:4].tolist()
    assert merged.end == first_place + len(units)
    assert merged.is_right.sum() == (units[:, kernel.SIZE] != PRE_BLANK_SIZE).sum()
    return merged


def passed_over(merged: MergedQueue) -> int:
    """Count the records that have no unit, though they are of the topic's present life."""
    return int(((merged.places < 0) & ~merged.is_former).sum())


def test_the_queue_of_a_topic_that_was_made_again_has_its_second_life() -> None:
    life = Life()
    life.store_all(range(40))
    life.delete()
    life.store_all(range(25))
    merged = check_stays(life)
    assert (merged.is_former.sum(), passed_over(merged)) == (40, 0)
    life.delete()
    life.store_all(range(3))
    assert check_stays(life).is_former.sum() == 65


def test_a_gap_that_was_closed_stays_closed() -> None:
    life = Life()
    life.store_all([*range(50), *range(52, 100), *range(98, 110)])
    merged = check_stays(life)
    assert merged.end == 110
    assert not merged.is_former.any()
    assert not passed_over(merged)


def test_records_that_were_never_dispatched_are_passed_over() -> None:
    life = Life()
    life.store_all(range(30))
    for offset in range(30, 40):
        life.store(offset, is_dispatched=False)
    life.store_all(range(30, 45))
    assert passed_over(check_stays(life)) == 10
    life = Life()
    life.store_all(range(30))
    for offset in range(30, 40):
        life.store(offset, is_dispatched=False)
    life.store_all(range(40, 45))
    assert passed_over(check_stays(life)) == 10


def test_units_whose_records_have_expired_stay() -> None:
    life = Life()
    life.store_all(range(120))
    assert check_stays(life, start=55 * SIZE).rows[0, kernel.QUEUE_OFFSET] == 0
    merged = check_stays(life, start=120 * SIZE)
    assert merged.end == 120
    assert len(merged.places) == 0


def test_a_queue_of_zeros_ends_where_its_file_begins() -> None:
    life = Life()
    life.store_all(range(4))
    zeros = np.zeros((10, kernel.ROW_COLUMNS), dtype=np.int64)
    rows = table(life.records)
    merged = merge_queue(100, zeros, rows[:0], life.bounds())
    assert (merged.end, len(merged.rows)) == (100, 0)
    merged = merge_queue(0, zeros, rows, life.bounds())
    assert merged.rows[:, kernel.QUEUE_OFFSET].tolist() == [0, 1, 2, 3]
    merged = merge_queue(100, zeros, rows, life.bounds())
    assert merged.rows[:, [kernel.QUEUE_OFFSET, kernel.PHYSICAL_OFFSET]].tolist() == [[100, 0]], "0 is always appended"


def test_what_is_behind_the_last_unit_is_appended() -> None:
    life = Life()
    life.store_all([*range(20), *range(25, 40)])
    units = life.standing(0)
    merged = life.merged(units[:-5])
    assert image(merged, 0) == units[:, 1:4].tolist()
    assert not passed_over(merged)


def test_units_of_lost_messages_retain_the_end_and_stay_so_in_the_next_merge() -> None:
    life = Life()
    life.store_all(range(20))
    units = life.standing(0)
    lost = (np.array([5 * SIZE, 15 * SIZE]), np.array([8 * SIZE, 20 * SIZE]))
    records = [record for record in life.records if not (500 <= record[1] < 800 or record[1] >= 1500)]
    merged = merge_queue(0, units, table(records), LogBounds(0, life.at, lost))
    expected = [[place, place * SIZE, LOST_UNIT_SIZE, 0, 0] for place in (5, 6, 7, *range(15, 20))]
    assert (merged.end, merged.lost.tolist(), len(merged.rows)) == (20, expected, 12)
    standing = np.concatenate([merged.rows, merged.lost])
    standing = standing[np.argsort(standing[:, kernel.QUEUE_OFFSET])]
    again = merge_queue(0, standing, table(records), LogBounds(0, life.at))
    assert (again.end, again.lost.tolist(), again.rows.tolist()) == (20, expected, merged.rows.tolist())
    life.store(20, is_dispatched=False)
    later = merge_queue(0, standing, table([*records, life.records[-1]]), life.bounds())
    assert later.rows[-1, :2].tolist() == [20, 20 * SIZE]


@pytest.mark.parametrize("count", [3, 8, 23])
def test_records_before_a_late_begin_are_brought_back(count: int) -> None:
    life = Life()
    life.store_all(range(40))
    units = life.standing(0)
    units[:count, 1:] = [0, PRE_BLANK_SIZE, 0, 0]
    assert image(life.merged(units), 0) == life.standing(0)[:, 1:4].tolist()
    first = count // 10 * 10
    merged = merge_queue(first, units[first:], table(life.records), life.bounds())
    assert image(merged, 0) == life.standing(0)[:, 1:4].tolist()


def test_records_before_a_late_begin_are_those_of_its_own_life() -> None:
    life = Life()
    life.store_all(range(40))
    life.delete()
    life.store_all(range(25))
    units = life.standing(0)
    units[:8, 1:] = [0, PRE_BLANK_SIZE, 0, 0]
    merged = life.merged(units)
    assert image(merged, 0) == life.standing(0)[:, 1:4].tolist()
    assert merged.is_former.sum() == 40


def swap(units: Longs, low: int, high: int, count: int = 1) -> None:
    other = units[low : low + count, 1:].copy()
    units[low : low + count, 1:] = units[high : high + count, 1:]
    units[high : high + count, 1:] = other


@pytest.mark.parametrize(
    ("low", "high", "count"), [(3, 4, 1), (0, 1, 1), (38, 39, 1), (3, 9, 1), (5, 25, 4), (10, 30, 7), (0, 35, 5)]
)
def test_units_that_change_places_go_back(low: int, high: int, count: int) -> None:
    life = Life()
    life.store_all(range(40))
    units = life.standing(0)
    swap(units, low, high, count)
    assert image(life.merged(units), 0) == life.standing(0)[:, 1:4].tolist()


@pytest.mark.parametrize(("source", "target", "count"), [(3, 7, 1), (3, 4, 1), (7, 3, 1), (4, 3, 1), (25, 5, 9)])
def test_copies_of_other_units_are_wrong(source: int, target: int, count: int) -> None:
    life = Life()
    life.store_all(range(40))
    units = life.standing(0)
    units[target : target + count, 1:] = units[source : source + count, 1:].copy()
    merged = life.merged(units)
    assert image(merged, 0) == life.standing(0)[:, 1:4].tolist()


steps = st.one_of(
    st.tuples(st.just("store"), st.integers(1, 30)),
    st.tuples(st.just("gap"), st.integers(1, 4)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("delete"), st.just(0)),
    st.tuples(st.just("repeat"), st.integers(1, 5)),
)


def play(script: Sequence[tuple[str, int]]) -> Life:
    """Play a life: the broker counts queue offsets up, and takes them from the queue's end when it starts."""
    life, following = Life(), 0
    for step, count in script:
        if step == "store":
            life.store_all(range(following, following + count))
            following += count
        elif step == "gap":
            following += count if life.end else 0  # the first offset of a queue that is made again is 0
        elif step == "repeat":
            following = max(1, following - count) if following else 0
        elif step == "restart":
            following = life.end or 0
        else:
            life.delete()
            following = 0
    return life


@settings(deadline=None)
@given(st.lists(steps, max_size=12), st.integers(0, 150))
def test_what_a_broker_leaves_stays_as_it_is(script: list[tuple[str, int]], expired: int) -> None:
    life = play(script)
    start = min(expired * SIZE, life.at)
    if life.units:
        check_stays(life, start)


@settings(deadline=None)
@given(st.integers(20, 60), st.sets(st.integers(0, 59), max_size=12), st.randoms(use_true_random=False))
def test_bad_units_are_made_again(count: int, bad: set[int], dice: np.random.Generator) -> None:
    life = Life()
    life.store_all(range(count))
    units = life.standing(0)
    broken = [number for number in sorted(bad) if number < count]
    for number in broken:
        units[number, 1:4] = dice.choice(
            [[5 * SIZE + 1, SIZE, 7], [1 << 40, SIZE, 7], [0, PRE_BLANK_SIZE, 0], [0, 0, 0]]
        )
    merged = life.merged(units)
    if len(broken) < count:
        assert image(merged, 0) == life.standing(0)[:, 1:4].tolist()
    assert not merged.is_former.any()
    assert set(np.flatnonzero(~merged.is_right).tolist()) == set(broken)


@settings(deadline=None)
@given(st.lists(st.integers(0, 40), max_size=60))
def test_without_files_units_stand_where_a_broker_puts_them(offsets: list[int]) -> None:
    life = Life()
    life.store_all(offsets)
    placement = place_units(table(life.records))
    assert dict(placement.rows[:, :2].tolist()) == {place: unit[1] for place, unit in life.units.items()}
