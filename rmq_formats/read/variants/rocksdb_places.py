"""Physical offsets of a query's records, from the units of a ConsumeQueue in RocksDB."""

from dataclasses import dataclass

import numpy as np

from rmq_formats.errors import FormatError, StoreError
from rmq_formats.read.query import Query
from rmq_formats.read.variants.rocksdb_queues import opened_queues
from rmq_formats.storage.segments import Storage


@dataclass(frozen=True, slots=True)
class StoredPlaces:
    """Records that units name.

    Attributes:
        places: their physical offsets, ascending.
        size_bytes: of all of them.
        dispatched: one past the last record that the database knows of any topic.
    """

    places: list[int]
    size_bytes: int
    dispatched: int


def stored_places(storage: Storage, path: str, query: Query, topics: frozenset[str], most: int) -> StoredPlaces | str:
    """Look up the places of the messages of some topics within a query's queue offsets, or return why not.

    Args:
        most: units that are looked up at most: for more a scan costs less.

    Returns:
        The places; or, in words, that there are too many of them, or why the database cannot be read.
    """
    try:
        return _stored_places(storage, path, query, topics, most)
    except (FormatError, StoreError) as error:
        return str(error)


def _stored_places(storage: Storage, path: str, query: Query, topics: frozenset[str], most: int) -> StoredPlaces | str:
    offset_arrays = [np.empty(0, dtype=np.int64)]
    size_bytes = count = 0
    with opened_queues(storage, path) as database:
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
                        return f"more than {most} records by their places cost more than scanning the log"
        dispatched = database.checkpoint()
    return StoredPlaces(np.unique(np.concatenate(offset_arrays)).tolist(), size_bytes, dispatched)
