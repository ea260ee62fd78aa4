"""Selects the frames of a window that match a query."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rmq_formats.arrow.rows import FrameRows
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.layout import (
    FLAG_INNER_BATCH,
    FLAG_TRANSACTION_COMMIT,
    FLAG_TRANSACTION_MASK,
    FLAG_TRANSACTION_ROLLBACK,
)
from rmq_formats.codecs.record_frame import Damage
from rmq_formats.kernels import dispatch as dispatch_kernel
from rmq_formats.kernels import scan
from rmq_formats.kernels.columns import select as kernel
from rmq_formats.kernels.columns import text as text_kernel
from rmq_formats.kernels.inner_batches import (
    BATCH_BASE_OFFSET,
    BATCH_COLUMNS,
    BATCH_MESSAGES,
    BATCH_PHYSICAL_OFFSET,
    find_inner_batches,
)
from rmq_formats.kernels.live_dispatch_tables import LIGHT_UNIT
from rmq_formats.read.query import MAX_LONG, Include, Query, QueueBounds
from rmq_formats.read.queue_offset_lookup import UNQUEUED, QueueOffsetLookup
from rmq_formats.scan.dispatch import Dispatcher, QueueTable
from rmq_formats.scan.segment import FrameBatch

_Longs = NDArray[np.int64]


class RowFilter:
    """Filter of rows: evaluates a query on one window after the other, and caches the bounds of queues.

    Without a ``lookup``, the recorded queue offsets count.
    """

    def __init__(self, query: Query, lookup: QueueOffsetLookup | None = None) -> None:
        self._query = query
        self._queues = _WantedQueues(query, lookup)
        names_queues = query.reads_queues or query.topic_values is not None or bool(query.bounds)
        self._checks_queues = names_queues or (lookup is not None and query.included is not Include.LOG)
        self._light_queues = _WantedLightQueues(query, lookup) if query.reads_light_queues else None
        self._bounds_places = query.first_physical_offset > 0 or query.end_physical_offset < MAX_LONG
        self._tags = None if query.tags is None else _Texts(sorted(query.tags))
        self._uniq_key = None if query.uniq_key is None else _Texts([query.uniq_key])
        self._key = None if query.key is None else _bytes_array(query.key.encode("utf-8", "surrogatepass"))

    def select(self, rows: FrameRows) -> FrameRows:
        """Select rows; the cheapest conditions are evaluated first."""
        query = self._query
        keep = np.ones(len(rows), dtype=np.bool_)
        if self._bounds_places:
            keep &= rows.physical_offsets >= query.first_physical_offset
            keep &= rows.physical_offsets < query.end_physical_offset
        if query.has_time:
            first_ms, end_ms = query.time_bounds
            keep &= rows.store_timestamps_ms >= first_ms
            keep &= rows.store_timestamps_ms < end_ms
        if query.reads_queues or query.included is not Include.LOG:
            transaction = rows.sys_flags & FLAG_TRANSACTION_MASK
            keep &= (transaction == 0) | (transaction == FLAG_TRANSACTION_COMMIT)
        elif query.reads_index:
            keep &= rows.sys_flags & FLAG_TRANSACTION_MASK != FLAG_TRANSACTION_ROLLBACK
        if query.msg_id is not None:
            keep &= self._has_message_id(rows, *query.msg_id)
        rows = rows.select(keep)
        if self._checks_queues and len(rows):
            keep = self._queues.wanted(rows)
            if self._light_queues is not None:
                keep |= self._light_queues.wanted(rows)
            rows = rows.select(keep)
        return self._with_properties(rows) if len(rows) else rows

    def _with_properties(self, rows: FrameRows) -> FrameRows:
        if self._tags is not None and len(rows):
            rows = rows.select(self._tags.match(rows, text_kernel.TAGS_AT))
        if self._uniq_key is not None and len(rows):
            rows = rows.select(self._uniq_key.match(rows, text_kernel.UNIQ_KEY_AT))
        if self._key is not None and len(rows):
            well_known = rows.well_known
            keep = np.empty(len(rows), dtype=np.bool_)
            kernel.match_part(rows.data, well_known, text_kernel.KEYS_AT, self._key, keep)
            rows = rows.select(keep)
        return rows

    def _has_message_id(self, rows: FrameRows, host: Host, physical_offset: int) -> NDArray[np.bool_]:
        keep: NDArray[np.bool_] = rows.physical_offsets == physical_offset
        host_bytes = host.to_bytes()
        for row in np.flatnonzero(keep).tolist():
            at, size = rows.hosts(born=False)[row].tolist()
            keep[row] = rows.data[at : at + size].tobytes() == host_bytes
        return keep

    def damage(self, damage: Damage) -> bool:
        """Return whether a damaged range becomes a row."""
        query = self._query
        is_inside = query.first_physical_offset <= damage.physical_offset < query.end_physical_offset
        return is_inside and query.includes_damage


def _bytes_array(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(bytearray(data or b"\0"), dtype=np.uint8)  # writable, as the kernels' signatures demand


class _Texts:
    """Set of byte strings to compare with, in the form of kernel arguments."""

    def __init__(self, texts: Sequence[str]) -> None:
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        self._pool = _bytes_array(b"".join(encoded))
        ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
        sizes = np.array([len(text) for text in encoded], dtype=np.int64)
        self._spans = np.stack([ends - sizes, sizes], axis=1)

    def match(self, rows: FrameRows, column: int) -> NDArray[np.bool_]:
        well_known = rows.well_known
        keep = np.empty(len(rows), dtype=np.bool_)
        kernel.match_any(rows.data, well_known, column, self._pool, self._spans, keep)
        return keep


class _BoundsTable:
    """Bounds of the queues of a table; the query is evaluated once for each queue."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._bounds: list[QueueBounds] = []
        self._arrays: list[NDArray[np.int64]] = []

    def within(self, queues: QueueTable, numbers: _Longs, offsets: _Longs, times_ms: _Longs) -> NDArray[np.bool_]:
        """Return whether queue offsets and store timestamps are within the bounds of their queues, bool[n]."""
        self._add_new_queues(queues)
        keep = np.ones(len(numbers), dtype=np.bool_)
        if len(numbers):
            kernel.within_bounds(numbers, offsets, self._arrays[0], self._arrays[1], keep)
            if self._query.bounds:
                kernel.within_bounds(numbers, times_ms, self._arrays[2], self._arrays[3], keep)
        return keep

    def wanted(self, queues: QueueTable, numbers: _Longs) -> NDArray[np.bool_]:
        """Return whether any queue offset of the rows' queues is selected, bool[n]."""
        self._add_new_queues(queues)
        if not len(numbers):
            return np.ones(0, dtype=np.bool_)
        has_places: NDArray[np.bool_] = self._arrays[0] < self._arrays[1]
        return has_places[numbers]

    def _add_new_queues(self, queues: QueueTable) -> None:
        known_count = len(self._bounds)
        if known_count < queues.queue_count:
            self._bounds += [self._query.queue_bounds(*name) for name in queues.queue_names(known_count)]
            names = ("first_offset", "end_offset", "first_ms", "end_ms")
            self._arrays = [
                np.array([getattr(bounds, name) for bounds in self._bounds], dtype=np.int64) for name in names
            ]

    def overlap(self, numbers: _Longs, batches: _Longs, times_ms: _Longs) -> NDArray[np.bool_]:
        """Return whether a message of inner batches, int64[n, BATCH_COLUMNS], is selected, after a ``within`` call."""
        first, end, first_ms, end_ms = (bounds[numbers] for bounds in self._arrays)
        bases, counts = batches[:, BATCH_BASE_OFFSET], batches[:, BATCH_MESSAGES]
        overlaps: NDArray[np.bool_] = (
            (bases < end) & (bases + counts > first) & (times_ms >= first_ms) & (times_ms < end_ms)
        )
        return overlaps


class _WantedLightQueues:
    """Selection of rows by the light queues (LMQ) to which dispatch assigns them."""

    def __init__(self, query: Query, lookup: QueueOffsetLookup | None) -> None:
        self._lookup = _IncludedQueueOffsets(query.included, lookup)
        self._dispatcher = Dispatcher((), to_light_queues=True)
        self._bounds = _BoundsTable(query)
        self._own_topics = None
        if query.topic_values is not None:
            self._own_topics = _WantedQueues(Query(topic_values=query.topic_values), None)

    def wanted(self, rows: FrameRows) -> NDArray[np.bool_]:
        """Return whether a row's queue offset in a light queue is selected, bool[rows]."""
        rows.repair(scan.TOPIC_AT)
        self._dispatcher.dispatch_units(FrameBatch(rows.data, 0, rows.frames, (), None, 0, 0))
        units, _ = self._dispatcher.drain()
        row_of_unit = np.cumsum(units[:, dispatch_kernel.UNIT_STORE_TIMESTAMP] != LIGHT_UNIT) - 1
        has_unit = np.isin(rows.frames[:, scan.POSITION], units[:, dispatch_kernel.UNIT_PHYSICAL_OFFSET])
        light = units[:, dispatch_kernel.UNIT_STORE_TIMESTAMP] == LIGHT_UNIT
        places, unit_rows = units[light], np.flatnonzero(has_unit)[row_of_unit[light]]
        queues = np.ascontiguousarray(places[:, dispatch_kernel.UNIT_QUEUE])
        offsets, included = self._lookup.find_wanted(
            self._bounds,
            self._dispatcher,
            queues,
            rows.physical_offsets[unit_rows],
            np.ascontiguousarray(places[:, dispatch_kernel.UNIT_QUEUE_OFFSET]),
        )
        within = self._bounds.within(self._dispatcher, queues, offsets, rows.store_timestamps_ms[unit_rows]) & included
        keep = np.zeros(len(rows), dtype=np.bool_)
        keep[unit_rows[within]] = True
        return keep if self._own_topics is None else keep & self._own_topics.wanted(rows)


class _IncludedQueueOffsets:
    """Queue offsets of records, and whether a query includes the records."""

    def __init__(self, include: Include, lookup: QueueOffsetLookup | None) -> None:
        self._wants_queued = include is Include.LIVE
        self._lookup = None if include is Include.LOG else lookup

    def find_wanted(
        self, bounds: _BoundsTable, queues: QueueTable, numbers: _Longs, physical_offsets: _Longs, queue_offsets: _Longs
    ) -> tuple[_Longs, NDArray[np.bool_]]:
        """Find the queue offsets that consumers count, int64[n], and whether records of wanted queues are included.

        Queues without any selected offset are not looked up. ``numbers`` has the number of each record's queue.
        """
        included = bounds.wanted(queues, numbers)
        if self._lookup is None or not included.any():
            return queue_offsets, included
        at = np.flatnonzero(included)
        looked_up = self._lookup.find_queue_offsets(
            queues.queue_names(0), numbers[at], physical_offsets[at], queue_offsets[at]
        )
        offsets = queue_offsets.copy()
        offsets[at] = np.where(looked_up < 0, queue_offsets[at], looked_up)
        included[at] = (looked_up != UNQUEUED) == self._wants_queued
        return offsets, included


class _WantedQueues(QueueTable):
    """Selection of rows by their own queues."""

    def __init__(self, query: Query, lookup: QueueOffsetLookup | None) -> None:
        super().__init__()
        self._lookup = _IncludedQueueOffsets(query.included, lookup)
        self._bounds = _BoundsTable(query)
        self._has_bounds = bool(query.bounds)

    def wanted(self, rows: FrameRows) -> NDArray[np.bool_]:
        """Return whether a row's queue offset is selected, bool[rows]; of an inner batch, any queue offset."""
        rows.repair(scan.TOPIC_AT)
        numbers = self.number(rows.data, rows.frames, rows.queue_ids)
        offsets, included = self._lookup.find_wanted(
            self._bounds, self, numbers, rows.physical_offsets, rows.queue_offsets
        )
        keep = self._bounds.within(self, numbers, offsets, rows.store_timestamps_ms)
        if self._has_bounds and (rows.sys_flags & FLAG_INNER_BATCH).any():
            batches = np.empty((len(rows), BATCH_COLUMNS), dtype=np.int64)
            batches = batches[: find_inner_batches(rows.data, 0, rows.frames, batches)]
            at = np.flatnonzero(np.isin(rows.frames[:, scan.POSITION], batches[:, BATCH_PHYSICAL_OFFSET]))
            keep[at] = self._bounds.overlap(numbers[at], batches, rows.store_timestamps_ms[at])
        return keep & included
