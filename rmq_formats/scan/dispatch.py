"""Dispatches scanned records: collects ConsumeQueue units and Index keys, batch by batch.

The broker's dispatch and the rebuild of a store at rest both go through here. Units of light queues (LMQ) are chosen by
the queues of their records' own units.
"""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.index import NO_TAGS
from rmq_formats.kernels import dispatch as kernel
from rmq_formats.kernels.columns.select import number_queues
from rmq_formats.kernels.inner_batches import BATCH_COLUMNS, find_inner_batches
from rmq_formats.kernels.live_dispatch_tables import LIGHT_UNIT
from rmq_formats.scan.segment import FrameBatch

_FIRST_QUEUES = 256
_FIRST_POOL_BYTES = 8192
_FIRST_ROWS = 1 << 16
_MAX_FIRST_ROWS = 1 << 19  # the log's size may be that of a damaged file
_USUAL_RECORD_BYTES = 512
Units = NDArray[np.int64]


class QueueTable:
    """Hash table of the queues in dispatched records, filled by ``kernels.dispatch.find_queue``."""

    def __init__(self) -> None:
        self._queues = np.zeros((_FIRST_QUEUES, kernel.QUEUE_COLUMNS), dtype=np.int64)
        self._slots = np.full(4 * _FIRST_QUEUES, -1, dtype=np.int32)
        self._pool = np.zeros(_FIRST_POOL_BYTES, dtype=np.uint8)
        self._used = np.zeros(2, dtype=np.int64)

    def _grow_queues(self) -> None:
        capacity = 2 * len(self._queues)
        queues = np.zeros((capacity, kernel.QUEUE_COLUMNS), dtype=np.int64)
        pool = np.zeros(2 * len(self._pool), dtype=np.uint8)
        slots = np.full(4 * capacity, -1, dtype=np.int32)
        used = np.zeros(2, dtype=np.int64)
        for row in self._queues[: self._used[0]]:
            fresh = kernel.find_queue(
                self._pool,
                row[kernel.QUEUE_TOPIC_AT],
                row[kernel.QUEUE_TOPIC_BYTES],
                int(row[kernel.QUEUE_TOPIC_HASH]),
                row[kernel.QUEUE_ID],
                queues,
                slots,
                pool,
                used,
            )
            queues[fresh, kernel.QUEUE_MARKS] = row[kernel.QUEUE_MARKS]
        self._queues, self._pool, self._slots, self._used = queues, pool, slots, used

    def number(
        self, data: NDArray[np.uint8], frames: NDArray[np.int64], queue_ids: NDArray[np.int32]
    ) -> NDArray[np.int64]:
        """Return the row of each frame's queue in this table, int64[n]; new queues are added."""
        numbers = np.empty(len(frames), dtype=np.int64)
        start = 0
        while True:
            start = number_queues(
                data, frames, queue_ids, start, self._queues, self._slots, self._pool, self._used, numbers
            )
            if start == len(frames):
                return numbers
            self._grow_queues()

    @property
    def queue_count(self) -> int:
        """Rows of the queue table."""
        return int(self._used[0])

    def queue_names(self, first: int = 0) -> list[tuple[str, int]]:
        """Topic and queue id of each row of the queue table, from row ``first`` on."""
        rows = self._queues[first : self._used[0]]
        if not len(rows):
            return []
        begins, sizes = rows[:, kernel.QUEUE_TOPIC_AT], rows[:, kernel.QUEUE_TOPIC_BYTES]
        low = int(begins.min())
        pool = self._pool[low : int((begins + sizes).max())].tobytes()
        places = zip((begins - low).tolist(), sizes.tolist(), rows[:, kernel.QUEUE_ID].tolist(), strict=True)
        return [(pool[at : at + size].decode("utf-8", "replace"), queue_id) for at, size, queue_id in places]

    def marked_topics(self, mark: int) -> tuple[str, ...]:
        """Topics with a record that has a mark: MARK_LIGHT or MARK_BATCH."""
        marks = self._queues[: self._used[0], kernel.QUEUE_MARKS].tolist()
        named = zip(self.queue_names(), marks, strict=True)
        return tuple(sorted({topic for (topic, _), queue_mark in named if queue_mark & mark}))


class Dispatcher(QueueTable):
    """Dispatches frames to units and keys, and numbers the queues that occur."""

    def __init__(
        self,
        delay_levels_ms: Sequence[int],
        log_bytes: int = 0,
        *,
        tags_from: int = NO_TAGS,
        to_light_queues: bool = False,
    ) -> None:
        """Create a dispatcher with empty tables.

        Args:
            log_bytes: expected bytes of the log, if known: tables that have their final size from the start are
                not copied when they grow, and unused memory costs nothing.
            tags_from: physical offset of the first record whose TAGS are a key of the Index.
            to_light_queues: give units to light queues (LMQ) too, as the records' properties demand.
        """
        super().__init__()
        self._delay_levels_ms = np.array(delay_levels_ms, dtype=np.int64)
        self._tags_from = tags_from
        self._to_light_queues = to_light_queues
        rows = min(max(_FIRST_ROWS, log_bytes // _USUAL_RECORD_BYTES), _MAX_FIRST_ROWS)
        self._units = np.empty((rows, kernel.UNIT_COLUMNS), dtype=np.int64)
        self._keys = np.empty((2 * rows, kernel.KEY_COLUMNS), dtype=np.int64)
        self._result = np.zeros(kernel.RESULT_COLUMNS, dtype=np.int64)
        self._result[kernel.LAST_OFFSET] = -1
        self._batches: list[NDArray[np.int64]] = []

    @property
    def message_count(self) -> int:
        """Number of sound records dispatched, including records without unit and key."""
        return int(self._result[kernel.MESSAGE_COUNT])

    @property
    def record_bytes(self) -> int:
        """Bytes of the records dispatched."""
        return int(self._result[kernel.MESSAGE_BYTES])

    @property
    def last_physical_offset(self) -> int:
        """Physical offset of the last record dispatched; -1 if there is none."""
        return int(self._result[kernel.LAST_OFFSET])

    def dispatch(self, batch: FrameBatch) -> None:
        """Append the units and keys of the sound frames in a batch, and collect its inner batches."""
        self.dispatch_units(batch)
        if self._result[kernel.MARKS] & kernel.MARK_BATCH:
            batches = np.empty((len(batch.frames), BATCH_COLUMNS), dtype=np.int64)
            count = find_inner_batches(batch.data, batch.physical_offset, batch.frames, batches)
            self._batches.append(batches[:count].copy())

    def dispatch_units(self, batch: FrameBatch) -> None:
        """Append the units and keys of the sound frames in a batch."""
        result = self._result
        result[kernel.NEXT_FRAME] = 0
        while True:
            status = kernel.dispatch_frames(
                batch.data,
                batch.physical_offset,
                batch.frames,
                int(result[kernel.NEXT_FRAME]),
                self._delay_levels_ms,
                self._tags_from,
                self._to_light_queues,
                self._queues,
                self._slots,
                self._pool,
                self._used,
                self._units,
                self._keys,
                result,
            )
            if status == kernel.DONE:
                break
            if status == kernel.QUEUES_FULL:
                self._grow_queues()
            elif status == kernel.UNITS_FULL:
                self._units = _grown(self._units)
            else:
                self._keys = _grown(self._keys)

    def inner_batches(self) -> NDArray[np.int64]:
        """Return the inner batches dispatched, int64[n, BATCH_COLUMNS], in log order."""
        return np.concatenate([np.empty((0, BATCH_COLUMNS), dtype=np.int64), *self._batches])

    def drain(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the units and keys appended since the last call, in log order; valid until the next ``dispatch``.

        Units are int64[n, UNIT_COLUMNS], where UNIT_QUEUE is a row of ``queue_names``; keys are int64[m, KEY_COLUMNS].
        """
        tables = self._units[: self._result[kernel.UNIT_COUNT]], self._keys[: self._result[kernel.KEY_COUNT]]
        self._result[[kernel.UNIT_COUNT, kernel.KEY_COUNT]] = 0
        return tables


def _grown(table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Double the rows of a table; no table is smaller than the 16,000 keys that a record may have."""
    grown = np.empty((2 * len(table), table.shape[1]), dtype=np.int64)
    grown[: len(table)] = table
    return grown


def own_queues(units: Units) -> Units:
    """Return the queue number of each record's own topic, int64[n]: its own unit precedes those of light queues.

    ``units`` are int64[n, UNIT_COLUMNS], in log order, with all units of each record.
    """
    return _values_of_own_units(units, kernel.UNIT_QUEUE)


def _values_of_own_units(units: Units, column: int) -> Units:
    is_own = units[:, kernel.UNIT_STORE_TIMESTAMP] != LIGHT_UNIT
    values: Units = units[is_own, column][np.cumsum(is_own) - 1]
    return values


def with_store_times(units: Units) -> Units:
    """Set the store time of LMQ units to their record's, as units in RocksDB have store times."""
    if not (units[:, kernel.UNIT_STORE_TIMESTAMP] == LIGHT_UNIT).any():
        return units
    timed = units.copy()
    timed[:, kernel.UNIT_STORE_TIMESTAMP] = _values_of_own_units(units, kernel.UNIT_STORE_TIMESTAMP)
    return timed


def drop_light_units(units: Units, names: Sequence[tuple[str, int]], batch_topics: Collection[str]) -> Units:
    """Drop the LMQ units of records in batch queues, as only Java's ``ConsumeQueue`` writes LMQ units.

    ``units`` are as in ``own_queues``; ``names`` are topic and queue id of each queue number in them.
    """
    if not batch_topics:
        return units
    is_batch = np.array([topic in batch_topics for topic, _ in names], dtype=bool)
    is_light = units[:, kernel.UNIT_STORE_TIMESTAMP] == LIGHT_UNIT
    plain_units: Units = units[~(is_light & is_batch[own_queues(units)])]
    return plain_units
