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

from rmq_formats.codecs.layout import MAX_RECORD_BYTES, PRE_BLANK_SIZE
from rmq_formats.kernels import units as unit_kernel
from rmq_formats.kernels import witness as kernel
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
        largest_record_bytes: no record is larger.
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
        is_former: bool[k], which records are of a former life: they stand in the log before the queue's first unit.
        is_passed_over: bool[k], which other records have no place: a broker passed them over, or would.
    """

    rows: Rows
    end: int
    is_right: Mask
    places: Rows
    is_former: Mask
    is_passed_over: Mask


def merge_queue(first_place: int, units: Rows, rows: Rows, log: LogBounds) -> MergedQueue:
    """Merge a queue's units with its records.

    Args:
        first_place: of the queue's first file: the end of a queue without a unit.
        units: int64[m, ROW_COLUMNS], what stands in its files, ascending by place in QUEUE_OFFSET; zeros at the end may
            be left out. Addresses in ConsumeQueueExt are resolved; of other units STORE_TIMESTAMP is 0.
        rows: int64[k, ROW_COLUMNS], the queue's records, ascending by physical offset, with their own queue offsets.
        log: bounds of the log.
    """
    physical, size = units[:, unit_kernel.PHYSICAL_OFFSET], units[:, unit_kernel.SIZE]
    names = np.empty(len(units), dtype=np.int64)
    kernel.name_records(units, rows, names)
    names[(physical == 0) & ((size == 0) | (size == PRE_BLANK_SIZE))] = kernel.NO_RECORD  # zeros and pre-blanks
    limit = max(MAX_RECORD_BYTES, log.largest_record_bytes)
    is_old = (names < 0) & (physical >= 0) & (size > 0) & (size <= limit) & (physical + size <= log.start)
    at = units[:, unit_kernel.QUEUE_OFFSET]
    is_right = _right_units(units, rows, names, is_old)
    places = np.full(len(rows), NOT_PLACED, dtype=np.int64)
    right = np.flatnonzero(is_right)
    named = right[names[right] >= 0]
    places[names[named]] = at[named]
    is_blank = (physical == 0) & (size == PRE_BLANK_SIZE) & (units[:, unit_kernel.TAGS_CODE] == 0)
    keeps_end = is_right | is_blank | (~is_right & _in_ranges(log.lost, physical) & (size > 0))
    if not len(rows):  # its messages are lost or quarantined: the next ones must not get their offsets
        keeps_end |= (physical >= 0) & (size > 0) & (physical < log.end)
    kept = np.flatnonzero(keeps_end)
    end = int(at[kept[-1]]) + 1 if len(kept) else first_place
    if not len(right) and (~is_blank & (physical + size != 0)).any():
        _place_alone(rows, log, places)
    else:
        _fill_front(at, right, names, rows, log, places)
        _fill_between(at, right, names, rows, places)
        _append(at, right, names, rows, log, places, end)
    return _merged(units, rows, places, is_right & is_old, is_right, end)


def _in_ranges(ranges: LostRanges, offsets: Rows) -> Mask:
    begins, ends = ranges
    if not len(begins):
        return np.zeros(len(offsets), dtype=bool)
    at = np.searchsorted(begins, offsets, side="right") - 1
    return (at >= 0) & (offsets < ends[at])


# --- which units are right ------------------------------------------------------------------


def _right_units(units: Rows, rows: Rows, names: Rows, is_old: Mask) -> Mask:
    """Find the units that name an old record, or one of the queue, in the order of the log."""
    is_right = (names >= 0) | is_old
    candidates = np.flatnonzero(is_right)
    physical = units[candidates, unit_kernel.PHYSICAL_OFFSET]
    if len(candidates) and not (np.diff(physical) > 0).all():
        in_order = np.zeros(len(candidates), dtype=np.bool_)
        kernel.longest_rise(np.ascontiguousarray(physical), in_order)
        live = np.flatnonzero(in_order & (names[candidates] >= 0))
        first_live = int(live[0]) if len(live) else len(candidates)
        old = np.flatnonzero(is_old[candidates[:first_live]])
        in_order[old] = ~out_of_order(physical[old])
        is_right[candidates] = in_order
        _drop_strays(units[:, unit_kernel.QUEUE_OFFSET], rows, names, is_right)
    return is_right


def out_of_order(physical_offsets: Rows) -> Mask:
    """Find single units that do not rise between two neighbours that do: bool[n].

    A run of units that begins anew is right. A broker that was killed cuts a queue in memory only: what stood after
    the cut counts again after the next start, behind the units written since.

    Args:
        physical_offsets: int64[n], of units whose records have expired, by place.
    """
    before = np.concatenate([[-1], physical_offsets[:-1]])
    after = np.concatenate([physical_offsets[1:], [np.iinfo(np.int64).max]])
    return (before < after) & ((physical_offsets <= before) | (physical_offsets >= after))


def _drop_strays(at: Rows, rows: Rows, names: Rows, is_right: Mask) -> None:
    """Drop short runs of units that rise in the log by chance, beside units that are wrong.

    Of two units that were swapped, one rises. Its distance from its record's queue offset is that of neither
    neighbour, or the run passes over records for which it has no room.
    """
    right = np.flatnonzero(is_right)
    right = right[names[right] >= 0]
    if not len(right):
        return
    offsets = rows[names[right], unit_kernel.QUEUE_OFFSET]
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
    at = np.searchsorted(rows[:, unit_kernel.PHYSICAL_OFFSET], placement.rows[:, unit_kernel.PHYSICAL_OFFSET])
    places[at] = placement.rows[:, unit_kernel.QUEUE_OFFSET]


def _fill_front(
    at: Rows, right: Rows, names: Rows, rows: Rows, log: LogBounds, places: Rows
) -> None:  # fmt: skip
    """Place the records before the queue's first unit whose places it leaves free."""
    if not len(right) or names[right[0]] <= 0:
        return
    place, first = int(at[right[0]]), int(names[right[0]])
    alone = np.full(len(rows), NOT_PLACED, dtype=np.int64)
    _place_alone(rows[: first + 1], log, alone[: first + 1])
    if alone[first] == place:
        places[:first] = alone[:first]
        return
    offsets = rows[: first + 1, unit_kernel.QUEUE_OFFSET]
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
        offsets = rows[begin:stop, unit_kernel.QUEUE_OFFSET]
        targets = offsets + last - rows[stop, unit_kernel.QUEUE_OFFSET]
        if begin:
            by_last = offsets + first - 1 - rows[begin - 1, unit_kernel.QUEUE_OFFSET]
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
            end_physical_offset = int(rows[begin - 1, [unit_kernel.PHYSICAL_OFFSET, unit_kernel.SIZE]].sum())
        if begin and end < kept_end:
            shift = end - 1 - int(rows[begin - 1, unit_kernel.QUEUE_OFFSET])
            targets = rows[begin:, unit_kernel.QUEUE_OFFSET] + shift
            fits = np.flatnonzero((targets >= end) & (targets < kept_end))
            if len(fits) and (np.diff(targets[fits]) > 0).all():
                places[begin + fits] = targets[fits]
                begin += int(fits[-1]) + 1
                end_physical_offset = -1
    if begin < len(rows):
        unit_kernel.append_rows(rows[begin:], kept_end, end_physical_offset, *log.lost, places[begin:])
        np.maximum(places[begin:], NOT_PLACED, out=places[begin:])


def _merged(units: Rows, rows: Rows, places: Rows, is_old: Mask, is_right: Mask, end: int) -> MergedQueue:
    placed = np.flatnonzero(places >= 0)
    merged = rows[placed].copy()
    merged[:, unit_kernel.QUEUE_OFFSET] = places[placed]
    old = units[is_old].copy()
    merged = np.ascontiguousarray(np.concatenate([old, merged]))
    end = max(end, int(merged[-1, unit_kernel.QUEUE_OFFSET]) + 1 if len(merged) else end)
    is_before = np.arange(len(rows)) < (int(placed[0]) if len(placed) else len(rows))
    is_former = is_before & (places < 0) & (not is_old.any())
    return MergedQueue(merged, end, is_right, places, is_former, (places < 0) & ~is_former)
