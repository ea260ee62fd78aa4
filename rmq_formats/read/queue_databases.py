"""ConsumeQueues in databases: the table of their layouts, and RocksDB."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import rocksdb_queue as codec
from rmq_formats.codecs.index import MAX_LONG
from rmq_formats.codecs.rocksdb_queue import QueueBound
from rmq_formats.errors import DecodeError, FormatError
from rmq_formats.read.query import Query
from rmq_formats.read.queue_units import QueueDatabase, QueueUnit, records_within
from rmq_formats.storage.rocksdb import RocksDb, open_rocksdb
from rmq_formats.storage.segments import Storage
from rmq_formats.storage.store_layouts import StoreLayout, queue_database_layout

_LAST_OFFSET: Final = b"\xff" * 8
_Value = TypeVar("_Value")


class RocksDbQueues(QueueDatabase):
    """A ConsumeQueue in RocksDB, open for reading."""

    def __init__(self, database: RocksDb) -> None:
        self.path = database.path
        self._database = database

    def queues(self, only_topic: str | None = None) -> Iterator[tuple[str, int]]:
        key_prefix = b"" if only_topic is None else codec.topic_prefix(only_topic)
        pair = self._database.first_from(codec.UNITS_FAMILY, key_prefix)
        while pair is not None and pair[0].startswith(key_prefix):
            topic, queue_id, prefix = self._decode(codec.split_unit_key, pair[0])
            yield topic, queue_id
            pair = self._database.first_from(codec.UNITS_FAMILY, codec.key_after_queue(prefix))

    def all_queues(self) -> set[tuple[str, int]]:
        queues = set(self.queues())
        for keys, _ in self._database.chunks(codec.OFFSETS_FAMILY):
            bounds = (codec.split_bound_key(key) for key in keys if key != codec.CHECKPOINT_KEY)
            queues |= {(topic, queue_id) for topic, queue_id, _ in filter(None, bounds)}
        return queues

    def units(
        self, topic: str, queue_id: int, first_offset: int = 0, end_offset: int | None = None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.void]]]:
        prefix = codec.queue_prefix(topic, queue_id)
        end = codec.key_after_queue(prefix)
        if end_offset is not None and end_offset <= MAX_LONG:
            end = codec.unit_key(topic, queue_id, end_offset)
        begin = codec.unit_key(topic, queue_id, first_offset)
        for keys, values in self._database.chunks(codec.UNITS_FAMILY, begin, end):
            yield self._decode(codec.decode_units, prefix, keys, values)

    def first_offset(self, topic: str, queue_id: int, since: int = 0) -> int | None:
        pair = self._database.first_from(codec.UNITS_FAMILY, codec.unit_key(topic, queue_id, since))
        return self._offset(codec.queue_prefix(topic, queue_id), pair)

    def last_offset(self, topic: str, queue_id: int) -> int | None:
        prefix = codec.queue_prefix(topic, queue_id)
        return self._offset(prefix, self._database.last_until(codec.UNITS_FAMILY, prefix + _LAST_OFFSET))

    def _offset(self, prefix: bytes, pair: tuple[bytes, bytes] | None) -> int | None:
        if pair is None or not pair[0].startswith(prefix):
            return None
        return int(self._decode(codec.decode_units, prefix, [pair[0]], [pair[1]])[0][0])

    def bound(self, topic: str, queue_id: int) -> QueueBound | None:
        value = self._database.get(codec.OFFSETS_FAMILY, codec.bound_key(topic, queue_id))
        return None if value is None else self._decode(QueueBound.decode, value)

    def unknown_pairs(self) -> Iterator[tuple[bytes, bytes]]:
        for keys, values in self._database.chunks(codec.OFFSETS_FAMILY):
            for key, value in zip(keys, values, strict=True):
                if key != codec.CHECKPOINT_KEY and codec.split_bound_key(key) is None:
                    yield key, value

    def checkpoint(self) -> int:
        """Source: ``RocksDBConsumeQueueOffsetTable#getMaxPhyOffset``."""
        value = self._database.get(codec.OFFSETS_FAMILY, codec.CHECKPOINT_KEY)
        return 0 if value is None else self._decode(codec.decode_checkpoint, value)

    def _decode(self, decode: Callable[..., _Value], *arguments: object) -> _Value:
        try:
            return decode(*arguments)
        except DecodeError as error:
            raise FormatError(str(error), path=self.path) from error


class DatabaseQueue:
    """One queue of a ConsumeQueue in a database; see ``QueueUnits``.

    The database may have units after the end of a log that was cut: units from ``log_end`` on do not count.
    """

    def __init__(self, database: QueueDatabase, topic: str, queue_id: int, log_end: int) -> None:
        self._database = database
        self._name = topic, queue_id
        self._log_end = log_end

    def first_since(self, physical_offset: int) -> QueueUnit | None:
        for offsets, units in self._database.units(*self._name):
            records = units["physical_offset"].astype(np.int64)
            rows = np.flatnonzero((records >= physical_offset) & (records < self._log_end))
            if len(rows):
                return _queue_unit(int(offsets[rows[0]]), units[rows[0]])
        return None

    def last_unit(self) -> QueueUnit | None:
        last = self._database.last_offset(*self._name)
        return None if last is None else self.first_message(last, last + 1)

    def max_offset(self, log_end: int | None = None) -> int:
        end, log_end = 0, self._log_end if log_end is None else min(log_end, self._log_end)
        for offsets, units in self._database.units(*self._name):
            in_log = offsets[units["physical_offset"].astype(np.int64) < log_end]
            end = int(in_log[-1]) + 1 if len(in_log) else end
        return end

    def first_message(self, first_offset: int, end_offset: int) -> QueueUnit | None:
        offset = self._database.first_offset(*self._name, first_offset)
        if offset is None or offset >= end_offset:
            return None
        ((_, units),) = self._database.units(*self._name, offset, offset + 1)
        return _queue_unit(offset, units[0])

    def named_records(self, begin: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        pieces = self._database.units(*self._name)
        parts = [(units["physical_offset"].astype(np.int64), queue_offsets) for queue_offsets, units in pieces]
        return records_within(parts, begin, end)


def _queue_unit(offset: int, unit: np.void) -> QueueUnit:
    return QueueUnit(offset, offset + 1, int(unit["physical_offset"]), int(unit["size"]), int(unit["store_timestamp"]))


@contextmanager
def _opened_rocksdb_queues(storage: Storage, path: str) -> Iterator[QueueDatabase]:
    """Open a ConsumeQueue in RocksDB by its directory in a store; see ``open_rocksdb``."""
    with open_rocksdb(storage, path, path.rpartition("/")[0]) as database:
        yield RocksDbQueues(database)


OpenQueues = Callable[[Storage, str], AbstractContextManager[QueueDatabase]]
QUEUE_DATABASES: Final[Mapping[StoreLayout, OpenQueues]] = {StoreLayout.ROCKSDB_QUEUES: _opened_rocksdb_queues}


def open_queues(storage: Storage, path: str) -> AbstractContextManager[QueueDatabase]:
    """Open a ConsumeQueue in a database by its directory in a store; without a sign of a layout it is a RocksDB.

    Raises:
        FormatError: the database is damaged.
        StoreError: a library is missing.
        StoreLockedError: a broker has the database open.
    """
    layout = queue_database_layout(storage, path) or StoreLayout.ROCKSDB_QUEUES
    return QUEUE_DATABASES[layout](storage, path)


@dataclass(frozen=True, slots=True)
class UnitRecords:
    """Records that units name; ``dispatched`` is one past the last dispatched record of any topic."""

    physical_offsets: list[int]  # ascending
    size_bytes: int
    dispatched: int


def find_unit_records(
    storage: Storage, path: str, query: Query, topics: frozenset[str], most: int
) -> UnitRecords | None:
    """Look up the records of some topics' units within a query's queue offsets; None for more than ``most`` units.

    Raises FormatError: a damaged database; StoreError: the database cannot be opened.
    """
    offset_arrays = [np.empty(0, dtype=np.int64)]
    size_bytes = count = 0
    with open_queues(storage, path) as database:
        for topic in sorted(topics):
            for _, queue_id in database.queues(topic):
                bounds = query.queue_bounds(topic, queue_id)
                first, end = max(0, bounds.first_offset), bounds.end_offset
                if first >= end:
                    continue
                for _, units in database.units(topic, queue_id, first, end):
                    offset_arrays.append(units["physical_offset"].astype(np.int64))
                    size_bytes += int(units["size"].astype(np.int64).sum())
                    count += len(units)
                    if count > most:
                        return None
        dispatched = database.checkpoint()
    return UnitRecords(np.unique(np.concatenate(offset_arrays)).tolist(), size_bytes, dispatched)
