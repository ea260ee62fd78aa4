"""Builds ConsumeQueue and IndexFile bytes from dispatched units and keys: pure functions.

The broker appends what they build; the rebuild of a store at rest writes whole files.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.consumequeue import MAX_GAP_UNITS, MAX_QUEUE_OFFSET, PRE_BLANK
from rmq_formats.codecs.index import IndexBound
from rmq_formats.codecs.layout import (
    EXT_END_BYTES,
    EXT_UNIT_MIN_BYTES,
    INDEX_ENTRY_BYTES,
    UNIT_BYTES,
)
from rmq_formats.kernels import index as index_kernel
from rmq_formats.kernels import units as unit_kernel
from rmq_formats.kernels.live_dispatch_tables import LIGHT_UNIT

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Placement:
    """Units of one queue ordered by queue offset, and the rows that were left out.

    Attributes:
        rows: int64[n, ROW_COLUMNS], ascending by queue offset, none twice.
        repeated: rows whose queue offset an earlier record had; left out.
        displaced: rows whose queue offset is far from all others', or one that no queue can have; left out.
        gap_units: places between the first and the last unit that no record claims.
    """

    rows: Rows
    repeated: Rows
    displaced: Rows
    gap_units: int


def place_units(rows: Rows, max_gap_units: int = MAX_GAP_UNITS) -> Placement:
    """Order one queue's units, given in log order, by queue offset.

    Of records with the same queue offset the first in the log has it, as in ``ConsumeQueue``. A few offsets
    far from the rest come from damaged headers, which no checksum covers; they must not make a queue of a billion
    units, so the largest run of near offsets is kept.
    """
    none = rows[:0]
    offsets = rows[:, unit_kernel.QUEUE_OFFSET]
    possible = (offsets >= 0) & (offsets <= MAX_QUEUE_OFFSET)
    if possible.all() and unit_kernel.contiguous_count(rows) == len(rows):
        return Placement(rows, none, none, 0)
    impossible, rows = rows[~possible], rows[possible]
    if not len(rows):
        return Placement(rows, none, impossible, 0)
    rows = rows[np.argsort(rows[:, unit_kernel.QUEUE_OFFSET], kind="stable")]
    steps = np.diff(rows[:, unit_kernel.QUEUE_OFFSET])
    first = np.concatenate([[True], steps != 0])
    repeated, rows = rows[~first], rows[first]
    steps = np.diff(rows[:, unit_kernel.QUEUE_OFFSET])
    bounds = [0, *(np.flatnonzero(steps > max_gap_units) + 1).tolist(), len(rows)]
    begin, end = max(pairwise(bounds), key=lambda run: run[1] - run[0])
    kept = np.ascontiguousarray(rows[begin:end])
    displaced = np.concatenate([rows[:begin], rows[end:], impossible])
    span = int(kept[-1, unit_kernel.QUEUE_OFFSET] - kept[0, unit_kernel.QUEUE_OFFSET]) + 1
    return Placement(kept, repeated, displaced, span - len(kept))


def place_last(rows: Rows) -> Placement:
    """Order one queue's units as ``place_units``, but for a queue in RocksDB: the last record has a queue offset.

    A key is put again there, without a look at what was. Source: ``RocksDBConsumeQueueTable``.
    """
    if unit_kernel.contiguous_count(rows) == len(rows):
        return place_units(rows)
    return place_units(np.ascontiguousarray(rows[::-1]))


def consumequeue_images(rows: Rows, file_bytes: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Build the files of one queue: start offset in bytes, and the used bytes from the file's start on.

    Args:
        rows: placed rows, see ``Placement``.
        file_bytes: size of a whole file, a multiple of UNIT_BYTES; bytes behind an image are zeros.
    """
    if not len(rows):
        return
    units_per_file = file_bytes // UNIT_BYTES
    first = int(rows[0, unit_kernel.QUEUE_OFFSET]) // units_per_file
    last = int(rows[-1, unit_kernel.QUEUE_OFFSET]) // units_per_file
    starts = np.arange(first, last + 2, dtype=np.int64) * units_per_file
    bounds = np.searchsorted(rows[:, unit_kernel.QUEUE_OFFSET], starts)
    for number in range(first, last + 1):
        own = rows[bounds[number - first] : bounds[number - first + 1]]
        start = number * units_per_file
        # All files but the last are full: what no record claims is pre-blank up to the end.
        used = units_per_file if number < last else int(own[-1, unit_kernel.QUEUE_OFFSET]) - start + 1
        image = np.empty(used * UNIT_BYTES, dtype=np.uint8)
        unit_kernel.encode_units(own, start, image)
        written = int(own[-1, unit_kernel.QUEUE_OFFSET]) - start + 1 if len(own) else 0
        image[written * UNIT_BYTES :].reshape(-1, UNIT_BYTES)[:] = np.frombuffer(PRE_BLANK, dtype=np.uint8)
        yield start * UNIT_BYTES, image


def ext_images(rows: Rows, file_bytes: int) -> tuple[Rows, list[bytes]]:
    """Build the ConsumeQueueExt files of one queue, for a broker with ``enableConsumeQueueExt``.

    Each unit is put there without a bit map (``enableCalcFilterBitMap`` is off), so all have one size. Those that come
    from a record of another queue, for a light one, are not (``ConsumeQueue#doDispatchLmqQueue``).

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
        """Start an empty IndexFile.

        Args:
            slots: size of its slot table.
            previous_end: the last message of the file before; None if first.
        """
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
