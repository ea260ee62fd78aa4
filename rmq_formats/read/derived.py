"""Reads ConsumeQueue units and IndexFile entries as they are stored, split into tasks, for their data sources."""

import functools
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_formats.arrow.batches import index_batch, unit_batch
from rmq_formats.arrow.schema import CONSUMEQUEUE, INDEX, Mode, schema_of
from rmq_formats.codecs.batch_consumequeue import is_end
from rmq_formats.codecs.layout import BATCH_UNIT_BYTES, INDEX_ENTRY_BYTES, PRE_BLANK_SIZE, UNIT_BYTES
from rmq_formats.codecs.rocksdb_queue import UNIT_VALUE_BYTES
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.errors import FormatError
from rmq_formats.read.batch_queues import BatchQueue, read_batch_units
from rmq_formats.read.broker_config import stored_batch_topics
from rmq_formats.read.index_lookup import IndexFile, index_paths
from rmq_formats.read.query import EVERYTHING, Query, QueueBounds
from rmq_formats.read.queue_choice import FileQueue, choose_queues
from rmq_formats.read.queue_databases import DatabaseQueue, open_queues
from rmq_formats.read.queues import ConsumeQueue, message_units, read_units
from rmq_formats.storage.queue_files import QueueFiles, queue_topics, topic_queues
from rmq_formats.storage.segments import Storage, open_storage, read_range
from rmq_formats.storage.store_files import StoreFiles


@dataclass(frozen=True, slots=True)
class UnitRange:
    """Range ``[low, high)`` of units in one file of a queue, or of queue offsets of a queue in a database."""

    topic: str
    queue_id: int
    layout: type[FileQueue | DatabaseQueue]
    path: str  # of the file or the database
    low: int
    high: int
    base: int = 0  # queue offset of a ConsumeQueue file's first unit
    bounds: QueueBounds = EVERYTHING  # of a batch queue, in which a unit's number does not tell the queue offset


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Range ``[low, high)`` of entries in one IndexFile."""

    path: str
    low: int
    high: int


def plan_units(store: StoreFiles, query: Query, split_bytes: int, min_tasks: int) -> list[tuple[UnitRange, ...]]:
    """Plan tasks of ranges that read the units of a query's queues.

    Raises:
        StoreNotFoundError: no such store.
        StoreError: queues in RocksDB, without its library, or a broker has it open.
        FormatError: a damaged RocksDB.
    """
    store.require_readable()
    batch_topics = stored_batch_topics(store)
    topics: list[tuple[type[FileQueue], str]] = [(BatchQueue, topic) for topic in sorted(batch_topics)]
    choice = choose_queues(store, wants_light=query.named_topics is None or query.reads_light_queues)
    if choice.database is None:
        names = queue_topics(store.storage, ConsumeQueue.directory(store.root))
        # a tool that knows no batch queues may have left files of such topics here
        topics += [(ConsumeQueue, topic) for topic in names if topic not in batch_topics]
    ranges = [
        unit_range
        for layout, topic in topics
        if query.wants_topic(topic)
        for queue in topic_queues(store.storage, layout.directory(store.root), topic)
        for unit_range in _file_ranges(store.storage, layout, queue, query)
    ]
    if choice.database is not None:
        ranges += _stored_ranges(store.storage, choice.database, query)
    elif choice.light_database is not None:
        file_topics = {unit_range.topic for unit_range in ranges}
        ranges += [
            unit_range
            for unit_range in _stored_ranges(store.storage, choice.light_database, query)
            if unit_range.topic.startswith(LIGHT_QUEUE_PREFIX) and unit_range.topic not in file_topics
        ]
    unit_bytes = UNIT_BYTES if choice.database is None else UNIT_VALUE_BYTES
    return _group(ranges, split_bytes // unit_bytes, min_tasks)


def _stored_ranges(storage: Storage, path: str, query: Query) -> Iterator[UnitRange]:
    with open_queues(storage, path) as database:
        for topic, queue_id in database.queues():
            bounds = query.queue_bounds(topic, queue_id)
            first, last = database.first_offset(topic, queue_id), database.last_offset(topic, queue_id)
            if first is None or last is None:
                continue
            low, high = max(first, bounds.first_offset), min(last + 1, bounds.end_offset)
            if low < high:
                yield UnitRange(topic, queue_id, DatabaseQueue, path, low, high)


def _file_ranges(storage: Storage, layout: type[FileQueue], queue: QueueFiles, query: Query) -> Iterator[UnitRange]:
    bounds = query.queue_bounds(queue.topic, queue.queue_id)
    for segment in queue.segments:
        base = segment.start_offset // layout.unit_bytes
        with storage.open(segment.path) as file:
            low, high = 0, -(-min(file.data_end(), segment.size_bytes) // layout.unit_bytes)
        if layout is ConsumeQueue:
            low, high = max(low, bounds.first_offset - base), min(high, bounds.end_offset - base)
        if low < high:
            yield UnitRange(queue.topic, queue.queue_id, layout, segment.path, low, high, base, bounds)


def _group(ranges: list[UnitRange], most: int, min_tasks: int) -> list[tuple[UnitRange, ...]]:
    """Cut large ranges and combine small ranges to tasks of at most about ``most`` units.

    Files of batch queues stay whole: only the task that reads the end of a file's units knows the end.
    """
    total = sum(unit_range.high - unit_range.low for unit_range in ranges)
    step = max(1, min(most, -(-total // min_tasks)))
    tasks: list[tuple[UnitRange, ...]] = []
    task: list[UnitRange] = []
    free = step
    for whole in ranges:
        low = whole.low
        while low < whole.high:
            high = whole.high if whole.layout is BatchQueue else min(whole.high, low + free)
            task.append(replace(whole, low=low, high=high))
            free -= high - low
            low = high
            if free <= 0:
                tasks.append(tuple(task))
                task, free = [], step
    return [*tasks, tuple(task)] if task else tasks


def read_unit_ranges(
    root: str, ranges: tuple[UnitRange, ...], columns: tuple[str, ...], mode: Mode
) -> Iterator[pa.RecordBatch]:
    """Read units as they are stored, without pre-blanks and unwritten units.

    A damaged unit (a negative offset, a size of 0 or less) is a row in PERMISSIVE, a FormatError in FAILFAST.
    """
    storage, _ = open_storage(root)
    schema = schema_of(columns, CONSUMEQUEUE)
    with ExitStack() as stack:
        open_database = functools.cache(lambda path: stack.enter_context(open_queues(storage, path)))
        for unit_range in ranges:
            topic, queue_id = unit_range.topic, unit_range.queue_id
            if unit_range.layout is DatabaseQueue:
                pieces = open_database(unit_range.path).units(topic, queue_id, unit_range.low, unit_range.high)
            elif unit_range.layout is BatchQueue:
                pieces = _batch_pieces(storage, unit_range, mode)
            else:
                pieces = _file_pieces(storage, unit_range, mode)
            for offsets, units in pieces:
                yield unit_batch(topic, queue_id, offsets, units, schema)


def _file_pieces(
    storage: Storage, unit_range: UnitRange, mode: Mode
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.void]]]:
    base = unit_range.base
    with storage.open(unit_range.path) as file:
        for first, units in read_units(file, base, unit_range.low, unit_range.high):
            sound = message_units(units)
            pre_blank = (units["physical_offset"] == 0) & (units["size"] == PRE_BLANK_SIZE)
            unwritten = (units["physical_offset"] == 0) & (units["size"] == 0) & (units["tags_code"] == 0)
            damaged = ~(sound | pre_blank | unwritten)
            if mode is Mode.FAILFAST and damaged.any():
                at = (first - base + int(np.flatnonzero(damaged)[0])) * UNIT_BYTES
                raise FormatError("not a ConsumeQueue unit", at, unit_range.path)
            keep = sound | damaged if mode is Mode.PERMISSIVE else sound
            if keep.any():
                yield first + np.flatnonzero(keep).astype(np.int64), units[keep]


def _batch_pieces(
    storage: Storage, unit_range: UnitRange, mode: Mode
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.void]]]:
    """Read units of a batch queue up to the first damaged unit, which ends the file for a broker, too."""
    bounds = unit_range.bounds
    with storage.open(unit_range.path) as file:
        end = unit_range.low
        for first, units in read_batch_units(file, unit_range.low, unit_range.high):
            end = first + len(units)
            begins = units["base_offset"].astype(np.int64)
            keep = (begins + units["batch_size"] > bounds.first_offset) & (begins < bounds.end_offset)
            if keep.any():
                yield begins[keep], units[keep]
        if mode is Mode.FAILFAST and end < unit_range.high:
            at = end * BATCH_UNIT_BYTES
            remaining = read_range(file, at, unit_range.high * BATCH_UNIT_BYTES - at)
            if not is_end(np.frombuffer(remaining, dtype=np.uint8)):
                raise FormatError("not a BatchConsumeQueue unit", at, unit_range.path)


def plan_entries(store: StoreFiles, split_bytes: int, min_tasks: int) -> list[EntryRange]:
    """Plan tasks that read all entries of all IndexFiles. Raises StoreNotFoundError."""
    store.require_readable()
    counts = {}
    for path in index_paths(store):
        with store.storage.open(path) as file:
            counts[path] = IndexFile.read(file, path).header.index_count
    total = sum(counts.values())
    step = max(1, min(split_bytes // INDEX_ENTRY_BYTES, -(-total // min_tasks)))
    return [
        EntryRange(path, low, min(low + step, count)) for path, count in counts.items() for low in range(1, count, step)
    ]


def read_entry_range(root: str, entry_range: EntryRange, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Read entries of an IndexFile in order."""
    storage, _ = open_storage(root)
    schema = schema_of(columns, INDEX)
    name = entry_range.path.rsplit("/", 1)[-1]
    with storage.open(entry_range.path) as file:
        index = IndexFile.read(file, entry_range.path)
        for first, entries in index.chunks(entry_range.low):
            if first >= entry_range.high:
                break
            entries_in_range = entries[: entry_range.high - first]
            yield index_batch(name, first, index.header.begin_timestamp_ms, index.slots, entries_in_range, schema)
