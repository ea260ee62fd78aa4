"""Looks up records in the queues of a store: whether a ConsumeQueue names a record, and at which queue offset.

A log has records that consumers no longer get: messages of a topic that was deleted and created again, records whose
queue offset was assigned twice. Only the queue tells. A look-up reads queues that occur in the rows, and of their units
those in the task's range of the log. Units ascend by physical offset, so a look-up is a binary search.

Example: topic Orders was deleted after 40 messages and created again. The queue has 25 units, which name the records of
the second life. The 40 records of the former life stand before these in the log, and no unit names them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.layout import UNIT_BYTES
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.errors import FormatError, StoreError
from rmq_formats.read.dirty import dirty_reason
from rmq_formats.read.log_end import dispatched_end, find_leftovers
from rmq_formats.read.query import MAX_LONG, MIN_LONG, Queue
from rmq_formats.read.queue_choice import FileQueue, choose_queues, file_queue, file_queues, open_queue
from rmq_formats.read.queue_databases import DatabaseQueue, open_queues
from rmq_formats.read.queue_units import records_within
from rmq_formats.read.queues import ConsumeQueue, message_units, read_units
from rmq_formats.storage.store_files import StoreFiles

UNQUEUED: Final = -1  # no queue has the record, and none will
UNDISPATCHED: Final = -2  # no queue has the record yet, or nothing tells: the record's own queue offset counts
_EVERYTHING: Final = -1  # a bound before each record

_UNITS_AT_ONCE: Final = 4096

Longs = NDArray[np.int64]
_NO_LONGS: Final = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class _ReadQueue:
    """Units of a queue: physical offsets of their records, and queue offsets, int64[n] each."""

    topic: str
    queue_id: int
    records: Longs
    places: Longs
    dispatched_up_to: int | None = None  # physical offset up to which a record without a unit is in no queue


class QueueOffsetLookup:
    """Look-up of queue offsets, for records that begin in ``[begin, end)`` of the log.

    With ``finds_unqueued``, records after the log's end and records of a topic without queues count as unqueued too.
    """

    def __init__(self, store: StoreFiles, begin: int, end: int, *, finds_unqueued: bool = False) -> None:
        self._store = store
        self._begin = begin
        self._end = end
        self._finds_unqueued = finds_unqueued
        self._queues: list[_ReadQueue] = []
        self._numbers: dict[Queue, int] = {}
        self._keys = self._places = _NO_LONGS

    def find_queue_offsets(
        self, queues: Sequence[Queue], rows: Longs, physical_offsets: Longs, queue_offsets: Longs
    ) -> Longs:
        """Find the queue offsets of records as consumers count, int64[n], or UNQUEUED or UNDISPATCHED.

        Args:
            queues: names by number.
            rows: int64[n], number of each record's queue.
            physical_offsets: int64[n], of the records, ascending.
            queue_offsets: int64[n], as recorded.
        """
        numbers = self._number(queues, rows, queue_offsets)
        places = self._find(numbers, physical_offsets)
        missing = places == UNQUEUED
        if missing.any():
            self._read_queue_ends(np.unique(numbers[missing]).tolist())
            places[missing] = self._find(numbers[missing], physical_offsets[missing])
            dispatched_up_to = np.array([queue.dispatched_up_to or 0 for queue in self._queues], dtype=np.int64)
            places[(places == UNQUEUED) & (physical_offsets > dispatched_up_to[numbers])] = UNDISPATCHED
        if self._finds_unqueued:
            places[physical_offsets >= self._log_end] = UNQUEUED
        return places

    def _find(self, numbers: Longs, physical_offsets: Longs) -> Longs:
        """Find the queue offsets of records that units name, else UNQUEUED."""
        places = np.full(len(numbers), UNQUEUED, dtype=np.int64)
        if len(self._keys):
            keys = self._key(physical_offsets, numbers)
            at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
            named = self._keys[at] == keys
            places[named] = self._places[at[named]]
        return places

    def _number(self, queues: Sequence[Queue], rows: Longs, queue_offsets: Longs) -> Longs:
        """Return this look-up's number of each record's queue, and read the units of new queues."""
        distinct_rows, first = np.unique(rows, return_index=True)
        numbers = np.zeros(len(queues), dtype=np.int64)
        known_count = len(self._queues)
        for number, at in zip(distinct_rows.tolist(), first.tolist(), strict=True):
            queue = queues[number]
            if queue not in self._numbers:
                self._numbers[queue] = len(self._queues)
                topic, queue_id = queue
                records, places = self._units_from(topic, queue_id, int(queue_offsets[at]))
                self._queues.append(_ReadQueue(topic, queue_id, records, places))
            numbers[number] = self._numbers[queue]
        if known_count < len(self._queues):
            self._merge()
        return numbers[rows]

    def _merge(self) -> None:
        records = np.concatenate([queue.records for queue in self._queues])
        owners = np.repeat(np.arange(len(self._queues)), [len(queue.records) for queue in self._queues])
        keys = self._key(records, owners)
        order = np.argsort(keys, kind="stable")
        self._keys = keys[order]
        self._places = np.concatenate([queue.places for queue in self._queues])[order]

    def _key(self, records: Longs, owners: Longs) -> Longs:
        """Return a number for each pair of a record and a queue: several light queues may name the same record."""
        keys: Longs = (records - self._begin) * len(self._queues) + owners
        return keys

    def _read_queue_ends(self, numbers: Sequence[int]) -> None:
        """Read the ends of queues before their units, so that a record dispatched meanwhile is not unqueued."""
        changed = [number for number in numbers if self._queues[number].dispatched_up_to is None]
        for number in changed:
            queue = self._queues[number]
            queue.dispatched_up_to, queue.records, queue.places = self._read(queue.topic, queue.queue_id)
        if changed:
            self._merge()

    def _units_from(self, topic: str, queue_id: int, queue_offset: int) -> tuple[Longs, Longs]:
        """Read the units from a queue offset on, as far as they name records of the range, without a search.

        The first record of a queue in a task stands at its recorded queue offset, as a rule.
        """
        parts: list[tuple[Longs, Longs]] = []
        queue = None if self._has_database else open_queue(ConsumeQueue, self._store, topic, queue_id)
        for segment in () if queue is None else queue.files.segments:
            base = segment.start_offset // UNIT_BYTES
            low, high = max(queue_offset - base, 0), segment.size_bytes // UNIT_BYTES
            if low >= high:
                continue
            with self._store.storage.open(segment.path) as file:
                for begin in range(low, high, _UNITS_AT_ONCE):
                    (first, units), *_ = read_units(file, base, begin, min(begin + _UNITS_AT_ONCE, high))
                    named = message_units(units)
                    offsets = units["physical_offset"][named].astype(np.int64)
                    parts.append((offsets, first + np.flatnonzero(named)))
                    if not len(offsets) or offsets[-1] >= self._end:
                        return records_within(parts, self._begin, self._end)
        return records_within(parts, self._begin, self._end)

    def _read(self, topic: str, queue_id: int) -> tuple[int, Longs, Longs]:
        """Read a queue: ``dispatched_up_to``, ``records`` and ``places`` of ``_ReadQueue``."""
        if self.has_no_queues or (topic.startswith(LIGHT_QUEUE_PREFIX) and self._has_database):
            return _EVERYTHING, _NO_LONGS, _NO_LONGS
        if self._database is not None:
            return self._read_database(self._database, topic, queue_id)
        queue = file_queue(self._store, topic, queue_id)
        if queue is None:
            return self._dispatched_up_to_without_files(topic, queue_id), _NO_LONGS, _NO_LONGS
        dispatched_up_to = self._dispatched_up_to_in_files(queue)
        return dispatched_up_to, *queue.named_records(self._begin, self._end)

    def _dispatched_up_to_in_files(self, queue: FileQueue) -> int:
        if self._is_dirty:  # units at the end may be lost, which a broker's start writes again
            first = queue.first_since(0)
            return _EVERYTHING if first is None else first.physical_offset
        last = queue.last_unit()
        return self._dispatched_end - 1 if last is None else last.physical_offset

    def _dispatched_up_to_without_files(self, topic: str, queue_id: int) -> int:
        if self._is_dirty or not (self._finds_unqueued or self.has_queues(topic)):
            return _EVERYTHING
        dispatched_up_to = self._dispatched_end - 1
        is_new = file_queue(self._store, topic, queue_id) is not None  # a running broker has created the queue
        return _EVERYTHING if is_new else dispatched_up_to

    def has_queues(self, topic: str) -> bool:
        """Return whether a topic has a queue."""
        if self._database is not None:
            with open_queues(self._store.storage, self._database) as database:
                return next(database.queues(topic), None) is not None
        return next(file_queues(self._store, topic), None) is not None

    def _read_database(self, path: str, topic: str, queue_id: int) -> tuple[int, Longs, Longs]:
        """Read a queue in a database; one that a running broker has open counts as without units."""
        try:
            with open_queues(self._store.storage, path) as database:
                dispatched_up_to = database.checkpoint() - 1
                if not self._finds_unqueued and next(database.queues(topic), None) is None:
                    return _EVERYTHING, _NO_LONGS, _NO_LONGS
                queue = DatabaseQueue(database, topic, queue_id, self._end)
                return dispatched_up_to, *queue.named_records(self._begin, self._end)
        except (StoreError, FormatError):
            return _EVERYTHING, _NO_LONGS, _NO_LONGS

    def first_record(self, topic: str, queue_id: int) -> int | None:
        """Find the physical offset of the first record that a queue names; None for an empty queue."""
        if self._database is not None:
            with open_queues(self._store.storage, self._database) as database:
                first = DatabaseQueue(database, topic, queue_id, MAX_LONG).first_since(MIN_LONG)
        else:
            queue = file_queue(self._store, topic, queue_id)
            first = None if queue is None else queue.first_since(0)
        return None if first is None else first.physical_offset

    @cached_property
    def _is_dirty(self) -> bool:
        return dirty_reason(self._store) is not None

    @cached_property
    def _has_database(self) -> bool:
        return self._store.layouts.queue_database is not None

    @cached_property
    def _database(self) -> str | None:
        """The database with the queues; None if files have the queues."""
        if not self._has_database:
            return None
        try:
            return choose_queues(self._store).database
        except (StoreError, FormatError):  # its broker runs, and files are behind it
            return self._store.layouts.queue_database

    @cached_property
    def has_no_queues(self) -> bool:
        """True if the store has a log and no queues."""
        return not self._has_database and next(file_queues(self._store), None) is None

    @cached_property
    def _dispatched_end(self) -> int:
        return dispatched_end(self._store, self._store.segments)

    @cached_property
    def _log_end(self) -> int:
        leftovers = find_leftovers(self._store, self._store.segments)
        return MAX_LONG if leftovers is None else leftovers.log_end
