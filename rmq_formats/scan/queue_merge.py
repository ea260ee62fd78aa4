"""Merges what stands in a queue's files with the queue's records in the log: pure functions.

The log is not the whole truth of a queue. A queue knows its end after its messages have expired, which life of a
topic is the live one, and where a gap between queue offsets was closed. So a unit that names a sound record of its
queue, in the order of the log, is right where it stands::

    places          0    1    2    3    4    5    6
    units           a    b    ?    d    -    f
    log        z    a    b    c    d    e    f    g

``z`` stands in the log before the queue's first unit, so a former life of the topic had it. The bad unit between ``b``
and ``d`` is that of ``c``. ``e`` is between ``d`` and ``f``, which are neighbours: a broker passed it over, and never
dispatches it again. ``g`` is behind the last unit: a broker appends it when it starts.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.layout import LOST_UNIT_SIZE, MAX_RECORD_BYTES, PRE_BLANK_SIZE
from rmq_formats.kernels import units as kernel
from rmq_formats.scan.derived_images import NOTHING_LOST, LostRanges, Rows, place_units

Mask = NDArray[np.bool_]
NOT_PLACED: Final = -1


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Bounds of the log, and its unreadable ranges.

    Attributes:
        start: physical offset of its first byte; older records were deleted.
        end: one past its last record.
        lost: damaged ranges: begins and ends, int64[m] each, ascending.
    """

    start: int
    end: int
    lost: LostRanges = NOTHING_LOST
    largest_record_bytes: int = MAX_RECORD_BYTES


@dataclass(frozen=True, slots=True)
class MergedQueue:
    """Expected content of a queue's files, and the differences of its units and records.

    Attributes:
        rows: int64[n, ROW_COLUMNS], ascending by place, which stands in QUEUE_OFFSET. Places between them without a
            row are pre-blanks. Units whose records have expired are as they stand.
        end: one past the last place; the queue's largest offset.
        is_right: bool[m], which of the standing units are right where they stand.
        places: int64[k], the place of each record of the log, or NOT_PLACED.
        lost: int64[l, ROW_COLUMNS], units of lost messages, see ``lost_units``, at places without a row.
        is_former: bool[k], which records are of a former life: they stand in the log before the queue's first unit.
    """

    rows: Rows
    end: int
    is_right: Mask
    places: Rows
    lost: Rows
    is_former: Mask


def merge_queue(first_place: int, units: Rows, rows: Rows, log: LogBounds) -> MergedQueue:
    """Merge a queue's units with its records.

    Args:
        first_place: of the queue's first file: the end of a queue without a unit.
        units: int64[m, ROW_COLUMNS], what stands in its files, ascending by place in QUEUE_OFFSET; zeros at the end may
            be left out. Addresses in ConsumeQueueExt are resolved; of other units STORE_TIMESTAMP is 0.
        rows: int64[k, ROW_COLUMNS], the queue's records, ascending by physical offset, with their own queue offsets.
    """
    physical, size = units[:, kernel.PHYSICAL_OFFSET], units[:, kernel.SIZE]
    names = np.empty(len(units), dtype=np.int64)
    kernel.name_records(units, rows, names)
    is_lost_unit = are_lost_units(units, log.end)
    no_record = ((physical == 0) & ((size == 0) | (size == PRE_BLANK_SIZE))) | is_lost_unit
    names[no_record] = kernel.NO_RECORD
    limit = max(MAX_RECORD_BYTES, log.largest_record_bytes)
    is_old = (names < 0) & (physical >= 0) & (size > 0) & (size <= limit) & (physical + size <= log.start)
    at = units[:, kernel.QUEUE_OFFSET]
    is_right = _right_units(units, rows, names, is_old)
    places = np.full(len(rows), NOT_PLACED, dtype=np.int64)
    right = np.flatnonzero(is_right)
    named = right[names[right] >= 0]
    places[names[named]] = at[named]
    is_blank = (physical == 0) & (size == PRE_BLANK_SIZE) & (units[:, kernel.TAGS_CODE] == 0)
    is_left = _left_units(units, names, right, is_old & ~is_right, len(rows))
    is_lost = is_lost_unit | (~is_right & _in_ranges(log.lost, physical) & (size > 0))
    if not len(rows):  # its messages are lost or quarantined: the next ones must not get their offsets
        is_lost |= ~is_right & ~is_blank & (physical >= 0) & (size > 0) & (physical < log.end)
    retained = np.flatnonzero(is_right | is_left | is_blank | is_lost)
    end = int(at[retained[-1]]) + 1 if len(retained) else first_place
    if not len(right) and (~is_blank & (physical + size != 0)).any():
        _place_alone(rows, log, places)
    else:
        _fill_front(at, right, names, rows, log, places)
        _fill_between(at, right, names, rows, places)
        _append(at, right, names, rows, log, places, end)
    is_old, is_right = (is_right & is_old) | is_left, is_right | is_left
    return _merged(units, rows, places, lost_units(units[is_lost & ~is_right]), is_old, is_right, end)


def lost_units(units: Rows) -> Rows:
    """Return the units of lost messages: the first bytes of each lost record, too few for a record.

    Java's broker reads and skips them, but not pre-blanks: after a last pre-blank it drops each new message below 2 GiB
    (``ConsumeQueue#recover``, ``#putMessagePositionInfo``), and ``TimerMessageStore#enqueue`` stops before one.
    """
    lost = units.copy()
    lost[:, kernel.SIZE] = LOST_UNIT_SIZE
    lost[:, kernel.TAGS_CODE] = 0
    return lost


def are_lost_units(units: Rows, log_end: int) -> Mask:
    """Return which units are those of lost messages, as ``lost_units`` makes them."""
    physical = units[:, kernel.PHYSICAL_OFFSET]
    is_alike: Mask = (units[:, kernel.SIZE] == LOST_UNIT_SIZE) & (units[:, kernel.TAGS_CODE] == 0)
    is_alike &= (physical >= 0) & (physical < log_end)
    return is_alike


def _in_ranges(ranges: LostRanges, offsets: Rows) -> Mask:
    begins, ends = ranges
    if not len(begins):
        return np.zeros(len(offsets), dtype=bool)
    at = np.searchsorted(begins, offsets, side="right") - 1
    return (at >= 0) & (offsets < ends[at])


# --- which units are right ------------------------------------------------------------------


def _right_units(units: Rows, rows: Rows, names: Rows, is_old: Mask) -> Mask:
    """Find the units that name an old record, or one of the queue, in the order of the log.

    Old units after a live one are those of ``_left_units``.
    """
    is_right = (names >= 0) | is_old
    physical = units[:, kernel.PHYSICAL_OFFSET]
    if is_right.any() and not (np.diff(physical[is_right]) > 0).all():
        is_right = names >= 0
        live = np.flatnonzero(is_right)
        in_order = np.zeros(len(live), dtype=np.bool_)
        kernel.longest_rise(np.ascontiguousarray(physical[live]), in_order)
        is_right[live] = in_order
        _drop_strays(units[:, kernel.QUEUE_OFFSET], rows, names, is_right)
        first_live = int(is_right.argmax()) if is_right.any() else len(units)
        is_right[:first_live] = is_old[:first_live]  # in any order: what a cut left counts again after newer units
    return is_right


def _left_units(units: Rows, names: Rows, right: Rows, is_old: Mask, row_count: int) -> Mask:
    """Find expired units that a cut in memory left after units of the log: bool[m].

    They count again after the next start of a broker. A place between two units whose records follow each other, or
    after the unit of the last record, is that of no other record.
    """
    is_left = np.zeros(len(units), dtype=np.bool_)
    old = np.flatnonzero(is_old & (units[:, kernel.PHYSICAL_OFFSET] > 0))
    live = right[names[right] >= 0]
    if not len(old) or not len(live):
        return is_left
    after = np.searchsorted(live, old)
    following = np.append(names[live], row_count)[after]
    is_left[old] = (after > 0) & (following == names[live[after - 1]] + 1)
    return is_left


def _drop_strays(at: Rows, rows: Rows, names: Rows, is_right: Mask) -> None:
    """Drop short runs of units that rise in the log by chance, beside units that are wrong.

    Of two units that were swapped, one rises. Its distance from its record's queue offset is that of neither
    neighbour, or the run passes over records for which it has no room.
    """
    right = np.flatnonzero(is_right)
    right = right[names[right] >= 0]
    if not len(right):
        return
    offsets = rows[names[right], kernel.QUEUE_OFFSET]
    shifts = at[right] - offsets
    cuts = np.flatnonzero(np.diff(shifts) != 0) + 1
    bounds = np.concatenate([[0], cuts, [len(right)]]).tolist()
    for number in range(len(bounds) - 1):
        begin, stop = bounds[number], bounds[number + 1]
        before = int(right[begin - 1]) if begin else -1
        after = int(right[stop]) if stop < len(right) else len(is_right)
        bad = max(int(right[begin]) - before - 1, after - int(right[stop - 1]) - 1)
        room = int(at[right[begin]] - at[before]) - 1 if begin else 0
        if not 0 < stop - begin <= bad:
            continue
        is_edge = begin == 0 or stop == len(right)
        is_alone = len(bounds) > 2 and (is_edge or shifts[begin - 1] == shifts[stop])
        passed = int(names[right[begin]] - names[before]) - 1 if begin else 0
        if is_alone or passed > room:
            is_right[right[begin:stop]] = False


# --- which places records have ----------------------------------------------------------------


def _place_alone(rows: Rows, log: LogBounds, places: Rows) -> None:
    """Place all records by the log alone."""
    placement = place_units(rows, log.lost)
    at = np.searchsorted(rows[:, kernel.PHYSICAL_OFFSET], placement.rows[:, kernel.PHYSICAL_OFFSET])
    places[at] = placement.rows[:, kernel.QUEUE_OFFSET]


def _fill_front(at: Rows, right: Rows, names: Rows, rows: Rows, log: LogBounds, places: Rows) -> None:
    """Place the records before the queue's first unit whose places it leaves free."""
    if not len(right) or names[right[0]] <= 0:
        return
    place, first = int(at[right[0]]), int(names[right[0]])
    alone = np.full(len(rows), NOT_PLACED, dtype=np.int64)
    _place_alone(rows[: first + 1], log, alone[: first + 1])
    if alone[first] == place:
        places[:first] = alone[:first]
        return
    offsets = rows[: first + 1, kernel.QUEUE_OFFSET]
    steps = offsets - np.arange(first + 1) == offsets[first] - first
    gaps = np.flatnonzero(~steps)
    begin = max(int(gaps[-1]) + 1 if len(gaps) else 0, first - place)
    places[begin:first] = np.arange(place - (first - begin), place)


def _fill_between(at: Rows, right: Rows, names: Rows, rows: Rows, places: Rows) -> None:
    """Fill each range between two correct units with the records between the two units' records."""
    for number in np.flatnonzero(np.diff(at[right]) > 1).tolist():
        low, high = int(right[number]), int(right[number + 1])
        begin, stop = int(names[low]) + 1, int(names[high])  # behind an old unit are all records: NO_RECORD + 1
        if stop <= begin:
            continue
        first, last = int(at[low]) + 1, int(at[high])
        if stop - begin == last - first:
            places[begin:stop] = np.arange(first, last)
            continue
        offsets = rows[begin:stop, kernel.QUEUE_OFFSET]
        targets = offsets + last - rows[stop, kernel.QUEUE_OFFSET]
        if begin:
            by_last = offsets + first - 1 - rows[begin - 1, kernel.QUEUE_OFFSET]
            targets = np.where((by_last >= first) & (by_last < last), by_last, targets)
        targets = np.where((targets >= first) & (targets < last), targets, NOT_PLACED)
        highest = np.maximum.accumulate(np.concatenate([[NOT_PLACED], targets[:-1]]))
        places[begin:stop] = np.where(targets > highest, targets, NOT_PLACED)


def _append(at: Rows, right: Rows, names: Rows, rows: Rows, log: LogBounds, places: Rows, kept_end: int) -> None:
    """Assign offsets to the records after the queue's last unit: first in pre-blanks, then like a starting broker."""
    begin, end_physical_offset = 0, -1
    if len(right):
        last = int(right[-1])
        end = int(at[last]) + 1
        if names[last] >= 0:
            begin = int(names[last]) + 1
            end_physical_offset = int(rows[begin - 1, [kernel.PHYSICAL_OFFSET, kernel.SIZE]].sum())
        if begin and end < kept_end:
            shift = end - 1 - int(rows[begin - 1, kernel.QUEUE_OFFSET])
            targets = rows[begin:, kernel.QUEUE_OFFSET] + shift
            fits = np.flatnonzero((targets >= end) & (targets < kept_end))
            if len(fits) and (np.diff(targets[fits]) > 0).all():
                places[begin + fits] = targets[fits]
                begin += int(fits[-1]) + 1
                end_physical_offset = -1
    if begin < len(rows):
        kernel.append_rows(rows[begin:], kept_end, end_physical_offset, *log.lost, places[begin:])
        np.maximum(places[begin:], NOT_PLACED, out=places[begin:])


def _merged(units: Rows, rows: Rows, places: Rows, lost: Rows, is_old: Mask, is_right: Mask, end: int) -> MergedQueue:
    placed = np.flatnonzero(places >= 0)
    merged = rows[placed].copy()
    merged[:, kernel.QUEUE_OFFSET] = places[placed]
    old = units[is_old].copy()
    merged = np.concatenate([old, merged])
    merged = np.ascontiguousarray(merged[np.argsort(merged[:, kernel.QUEUE_OFFSET], kind="stable")])
    end = max(end, int(merged[-1, kernel.QUEUE_OFFSET]) + 1 if len(merged) else end)
    is_before = np.arange(len(rows)) < (int(placed[0]) if len(placed) else len(rows))
    first_place = int(places[placed[0]]) if len(placed) else end
    is_former = is_before & (places < 0) & (not (old[:, kernel.QUEUE_OFFSET] < first_place).any())
    lost = lost[~np.isin(lost[:, kernel.QUEUE_OFFSET], merged[:, kernel.QUEUE_OFFSET])]
    return MergedQueue(merged, end, is_right, places, lost, is_former)
