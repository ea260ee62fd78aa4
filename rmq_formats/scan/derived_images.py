"""Builds ConsumeQueue and IndexFile bytes from dispatched units and keys: pure functions.

The broker appends what they build; the rebuild of a store at rest writes whole files.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.consumequeue import MAX_GAP_UNITS, MAX_QUEUE_OFFSET, PRE_BLANK
from rmq_formats.codecs.index import IndexBound
from rmq_formats.codecs.layout import EXT_END_BYTES, EXT_UNIT_MIN_BYTES, INDEX_ENTRY_BYTES, UNIT_BYTES
from rmq_formats.kernels import index as index_kernel
from rmq_formats.kernels import units as unit_kernel
from rmq_formats.kernels.live_dispatch_tables import LIGHT_UNIT

Rows = NDArray[np.int64]
LostRanges: TypeAlias = tuple[Rows, Rows]
NOTHING_LOST: Final[LostRanges] = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Placement:
    """Units of one queue by their places, and the rows without a place.

    Attributes:
        rows: int64[n, ROW_COLUMNS], ascending by place, which stands in QUEUE_OFFSET; none twice.
        repeated: rows that a broker skips, since the queue's end was beyond their queue offset; with that offset.
        displaced: rows with a queue offset that no queue can have, or that is far above those before; with that
            offset. The latter have a unit all the same.
        gaps: int64[m, 2], queue offsets that no record has: the first, and one past the last.
    """

    rows: Rows
    repeated: Rows
    displaced: Rows
    gaps: Rows

    @property
    def gap_units(self) -> int:
        """Number of queue offsets that no record has."""
        return int((self.gaps[:, 1] - self.gaps[:, 0]).sum())


NO_GAPS: Final = np.empty((0, 2), dtype=np.int64)


def place_units(rows: Rows, lost: LostRanges = NOTHING_LOST) -> Placement:
    """Place one queue's units as a broker that dispatches the log into a queue without files.

    The first unit stands at its record's queue offset, and each later one after the one before: a gap between
    queue offsets is closed, a queue offset below the queue's end is skipped, and 0 is always appended
    (``ConsumeQueue#putMessagePositionInfo``). Two things are ours, for logs that no broker would read to their end:
    messages in damaged ranges keep their places, and a first queue offset that is far above the next one is taken
    for damaged, since no checksum covers it; a broker would skip the whole rest of the queue.

    Args:
        rows: int64[n, ROW_COLUMNS], in log order.
        lost: damaged ranges of the log: begins and ends, int64[m] each, ascending.
    """
    none = rows[:0]
    if unit_kernel.are_plain(rows):
        return Placement(rows, none, none, NO_GAPS)
    begin = _first_near(rows[:, unit_kernel.QUEUE_OFFSET])
    places = np.empty(len(rows), dtype=np.int64)
    places[:begin] = unit_kernel.IMPOSSIBLE
    unit_kernel.append_rows(rows[begin:], unit_kernel.NO_FILE, -1, *lost, places[begin:])
    return _placement(rows, places)


def _first_near(offsets: Rows) -> int:
    """Index of the first row that may begin a queue: its queue offset is possible, and not far above the next one."""
    possible = np.flatnonzero((offsets >= 0) & (offsets <= MAX_QUEUE_OFFSET))
    if len(possible) < 2:
        return int(possible[0]) if len(possible) else len(offsets)
    before, after = offsets[possible[:-1]], offsets[possible[1:]]
    near = np.flatnonzero((before - after <= MAX_GAP_UNITS) | (after == 0))
    return int(possible[near[0]]) if len(near) else int(possible[-1])


def _placement(rows: Rows, places: Rows) -> Placement:
    """Sort rows by the result codes of ``append_rows``."""
    placed = rows[places >= 0]
    offsets = placed[:, unit_kernel.QUEUE_OFFSET].copy()
    placed[:, unit_kernel.QUEUE_OFFSET] = places[places >= 0]
    gaps = closed_gaps(offsets, placed[:, unit_kernel.QUEUE_OFFSET])
    gaps = gaps[:, :2]
    is_wide = gaps[:, 1] - gaps[:, 0] > MAX_GAP_UNITS
    own_offsets = rows[:, unit_kernel.QUEUE_OFFSET]
    is_displaced = (own_offsets < 0) | (own_offsets > MAX_QUEUE_OFFSET) | (places == unit_kernel.IMPOSSIBLE)
    is_displaced |= (places >= 0) & np.isin(own_offsets, gaps[is_wide, 1])
    return Placement(placed, rows[(places < 0) & ~is_displaced], rows[is_displaced], gaps[~is_wide])


def closed_gaps(offsets: Rows, places: Rows) -> Rows:
    """Find the queue offsets that no record has, though the units around them are neighbours: closed gaps.

    ``offsets`` are those of the records of a queue's units, in their order.

    Returns:
        int64[m, 3]: the first queue offset of each gap, one past the last, and the index of the unit after it.
    """
    leads = np.maximum(offsets - places, 0)
    missing = np.diff(leads) + np.diff(places) - 1
    at = np.flatnonzero(missing > 0)
    return np.stack([offsets[at + 1] - missing[at], offsets[at + 1], at + 1], axis=1)


def place_by_offset(rows: Rows) -> Placement:
    """Place units, in any order, each at its own queue offset; gaps between them become pre-blanks.

    Of rows with one queue offset the first is placed. The largest run of near offsets is placed; the rest is left out,
    so that no queue has a billion units.
    """
    none = rows[:0]
    offsets = rows[:, unit_kernel.QUEUE_OFFSET]
    possible = (offsets >= 0) & (offsets <= MAX_QUEUE_OFFSET)
    if possible.all() and unit_kernel.contiguous_count(rows) == len(rows):
        return Placement(rows, none, none, NO_GAPS)
    impossible, rows = rows[~possible], rows[possible]
    if not len(rows):
        return Placement(rows, none, impossible, NO_GAPS)
    rows = rows[np.argsort(rows[:, unit_kernel.QUEUE_OFFSET], kind="stable")]
    first = np.concatenate([[True], np.diff(rows[:, unit_kernel.QUEUE_OFFSET]) != 0])
    repeated, rows = rows[~first], rows[first]
    steps = np.diff(rows[:, unit_kernel.QUEUE_OFFSET])
    bounds = [0, *(np.flatnonzero(steps > MAX_GAP_UNITS) + 1).tolist(), len(rows)]
    begin, end = max(pairwise(bounds), key=lambda run: run[1] - run[0])
    kept = np.ascontiguousarray(rows[begin:end])
    displaced = np.concatenate([rows[:begin], rows[end:], impossible])
    offsets = kept[:, unit_kernel.QUEUE_OFFSET]
    at = np.flatnonzero(np.diff(offsets) > 1)
    return Placement(kept, repeated, displaced, np.stack([offsets[at] + 1, offsets[at + 1]], axis=1))


def place_last(rows: Rows, is_named: NDArray[np.bool_] | None = None) -> Placement:
    """Place one queue's units in RocksDB: each at its queue offset, where the last record with that offset wins.

    A key is put again there, without a look at its old value, and of the records of one batch the first is put last. So
    of several records with one queue offset any may win. Source: ``RocksDBConsumeQueueStore#putMessagePosition0``.

    Args:
        rows: int64[n, ROW_COLUMNS], in log order.
        is_named: bool[n], which records a unit at their queue offset names: these win.
    """
    if unit_kernel.contiguous_count(rows) == len(rows):
        return place_by_offset(rows)
    rows = rows[::-1]
    if is_named is not None:
        rows = rows[np.argsort(~is_named[::-1], kind="stable")]
    return place_by_offset(np.ascontiguousarray(rows))


def consumequeue_images(rows: Rows, file_bytes: int, end: int = 0) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Build the files of one queue: start offset in bytes, and the used bytes from the file's start on.

    Args:
        rows: placed rows, see ``Placement``.
        file_bytes: size of a whole file, a multiple of UNIT_BYTES; bytes after an image are zeros.
        end: one past the queue's last place, if that is after the last row: the places between are pre-blanks.
            Of a queue without rows that ends where a file begins, the file is empty.
    """
    units_per_file = file_bytes // UNIT_BYTES
    if not len(rows):
        if end > 0:
            blanks = np.frombuffer(PRE_BLANK * (end % units_per_file), dtype=np.uint8)
            yield end // units_per_file * file_bytes, blanks
        return
    first = int(rows[0, unit_kernel.QUEUE_OFFSET]) // units_per_file
    end = max(end, int(rows[-1, unit_kernel.QUEUE_OFFSET]) + 1)
    last = (end - 1) // units_per_file
    starts = np.arange(first, last + 2, dtype=np.int64) * units_per_file
    bounds = np.searchsorted(rows[:, unit_kernel.QUEUE_OFFSET], starts)
    for number in range(first, last + 1):
        file_rows = rows[bounds[number - first] : bounds[number - first + 1]]
        start = number * units_per_file
        # All files but the last are full: what no record claims is pre-blank up to the end.
        used = units_per_file if number < last else end - start
        image = np.empty(used * UNIT_BYTES, dtype=np.uint8)
        unit_kernel.encode_units(file_rows, start, image)
        written = int(file_rows[-1, unit_kernel.QUEUE_OFFSET]) - start + 1 if len(file_rows) else 0
        image[written * UNIT_BYTES :].reshape(-1, UNIT_BYTES)[:] = np.frombuffer(PRE_BLANK, dtype=np.uint8)
        yield start * UNIT_BYTES, image


def ext_images(rows: Rows, file_bytes: int) -> tuple[Rows, list[bytes]]:
    """Build the ConsumeQueueExt files of one queue, for a broker with ``enableConsumeQueueExt``.

    Each unit is put there without a bit map (``enableCalcFilterBitMap`` is off), so all have one size. Units of light
    queues that come from a record of another queue are not put there (``ConsumeQueue#doDispatchLmqQueue``).

    Returns:
        The rows with ext addresses for tags codes, and the used bytes of each file.
    """
    per_file = (file_bytes - EXT_END_BYTES) // EXT_UNIT_MIN_BYTES
    addressed = rows.copy()
    with_ext = rows[:, unit_kernel.STORE_TIMESTAMP] != LIGHT_UNIT
    rows = rows[with_ext]
    numbers = np.arange(len(rows), dtype=np.int64)
    address = numbers // per_file * file_bytes + numbers % per_file * EXT_UNIT_MIN_BYTES
    addressed[with_ext, unit_kernel.TAGS_CODE] = address + np.iinfo(np.int64).min
    units = np.zeros(len(rows), dtype=[("size", ">i2"), ("tags", ">i8"), ("time", ">i8"), ("bits", ">i2")])
    units["size"] = EXT_UNIT_MIN_BYTES
    units["tags"] = rows[:, unit_kernel.TAGS_CODE]
    units["time"] = rows[:, unit_kernel.STORE_TIMESTAMP]
    images = []
    for begin in range(0, len(rows), per_file):
        image = units[begin : begin + per_file].tobytes()
        if begin + per_file < len(rows):
            image += b"\xff\xff"
        images.append(image)
    return addressed, images


class IndexBuilder:
    """Builds one IndexFile: entries in log order, then header and slot table."""

    def __init__(self, slots: int, previous_end: IndexBound | None = None) -> None:
        """Start an empty IndexFile after the last message of the file before, if there is one."""
        self._slots = np.zeros(slots, dtype=np.int32)
        self._state = np.zeros(index_kernel.STATE_COLUMNS, dtype=np.int64)
        if previous_end is not None:
            self._state[[index_kernel.BEGIN_TIMESTAMP, index_kernel.END_TIMESTAMP]] = previous_end.timestamp_ms
            self._state[[index_kernel.BEGIN_PHYSICAL_OFFSET, index_kernel.END_PHYSICAL_OFFSET]] = (
                previous_end.physical_offset
            )
        self._state[index_kernel.INDEX_COUNT] = 1

    def append(self, hashes: NDArray[np.int32], physical_offsets: Rows, store_timestamps_ms: Rows) -> NDArray[np.uint8]:
        """Append entries for these keys; return their bytes, which follow those appended before."""
        out = np.empty(len(hashes) * INDEX_ENTRY_BYTES, dtype=np.uint8)
        index_kernel.chain_entries(hashes, physical_offsets, store_timestamps_ms, self._slots, self._state, out)
        return out

    def head(self) -> bytes:
        """Encode header and slot table, as they are at this point."""
        state = self._state
        longs = state[: index_kernel.SLOT_COUNT].astype(">i8").tobytes()
        counts = state[index_kernel.SLOT_COUNT :].astype(">i4").tobytes()
        return longs + counts + self._slots.astype(">i4").tobytes()
