"""Reads ConsumeQueue units and IndexFile entries as they are stored, split into tasks, for their data sources."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from rmq_formats.arrow.schema import CONSUMEQUEUE, INDEX, Mode, schema_of
from rmq_formats.arrow.units import index_batch, unit_batch
from rmq_formats.codecs import paths
from rmq_formats.codecs.layout import BATCH_UNIT_BYTES, INDEX_ENTRY_BYTES, PRE_BLANK_SIZE, UNIT_BYTES
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.codecs.variants.batch_consumequeue import is_end
from rmq_formats.codecs.variants.rocksdb_queue import UNIT_VALUE_BYTES
from rmq_formats.errors import FormatError
from rmq_formats.read.broker_config import stored_batch_topics
from rmq_formats.read.index_keys import index_paths
from rmq_formats.read.index_lookup import IndexFile
from rmq_formats.read.query import Query
from rmq_formats.read.queues import message_units, read_units
from rmq_formats.read.variants.batch_queues import read_batch_units
from rmq_formats.read.variants.queue_choice import choose_queues
from rmq_formats.read.variants.rocksdb_queues import opened_queues
from rmq_formats.storage import store_variants
from rmq_formats.storage.commitlog import check_store
from rmq_formats.storage.queue_files import QueueFiles, queue_topics, topic_queues
from rmq_formats.storage.segments import Segment, Storage, open_storage, opened, read_range


@dataclass(frozen=True, slots=True)
class UnitRange:
    """Range ``[low, high)`` of units in one file of a queue."""

    topic: str
    queue_id: int
    segment: Segment
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Range ``[low, high)`` of units in one file of a batch queue (BatchConsumeQueue).

    Attributes:
        topic: of the queue.
        queue_id: of the queue.
        segment: the file.
        low: the first unit.
        high: one past the last.
        first_offset: units whose messages are all before this queue offset are not wanted.
        end_offset: nor are those whose messages begin at this one, or behind it.
    """

    topic: str
    queue_id: int
    segment: Segment
    low: int
    high: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class StoredRange:
    """Range ``[low, high)`` of queue offsets of a queue in RocksDB.

    Attributes:
        topic: of the queue.
        queue_id: of the queue.
        path: of the database.
        low: the first queue offset.
        high: one past the last.
    """

    topic: str
    queue_id: int
    path: str
    low: int
    high: int


AnyRange = UnitRange | BatchRange | StoredRange


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Range ``[low, high)`` of entries in one IndexFile."""

    path: str
    low: int
    high: int


def plan_units(
    storage: Storage, root: str, query: Query, split_bytes: int, min_tasks: int
) -> list[tuple[AnyRange, ...]]:
    """Plan tasks that read the units of a query's queues, each some ranges.

    Raises:
        StoreNotFoundError: no such store.
        StoreError: queues in RocksDB, without its library, or a broker has it open.
        FormatError: a damaged RocksDB.
    """
    check_store(storage, root)
    variants = store_variants.detect_layouts(storage, root)
    batch_topics = stored_batch_topics(storage, root)
    directory = paths.consumequeue_dir(root)
    topics = [topic for topic in queue_topics(storage, directory) if query.wants_topic(topic)]
    batch = [
        batch_range
        for topic in sorted(filter(query.wants_topic, batch_topics))
        for queue in topic_queues(storage, paths.batch_consumequeue_dir(root), topic)
        for batch_range in _batch_ranges(storage, queue, query)
    ]
    choice = choose_queues(storage, root, variants, wants_light=query.named_topics is None or query.reads_light_queues)
    if choice.database is not None:
        stored: list[AnyRange] = [*batch, *_stored_ranges(storage, choice.database, query)]
        return _group(stored, split_bytes // UNIT_VALUE_BYTES, min_tasks)
    ranges: list[AnyRange] = [
        unit_range
        for topic in topics
        if topic not in batch_topics  # whose files here some tool left that knows no batch queues
        for queue in topic_queues(storage, directory, topic)
        for unit_range in _unit_ranges(storage, queue, query)
    ]
    if choice.light_database is not None:
        file_topics = {unit_range.topic for unit_range in ranges}
        light = _stored_ranges(storage, choice.light_database, query)
        ranges += [
            unit_range for unit_range in light
            if unit_range.topic.startswith(LIGHT_QUEUE_PREFIX) and unit_range.topic not in file_topics
        ]  # fmt: skip
    return _group([*batch, *ranges], split_bytes // UNIT_BYTES, min_tasks)


def _stored_ranges(storage: Storage, path: str, query: Query) -> Iterator[StoredRange]:
    with opened_queues(storage, path) as database:
        for topic, queue_id in database.queues():
            bounds = query.queue_bounds(topic, queue_id)
            first, last = database.first_offset(topic, queue_id), database.last_offset(topic, queue_id)
            if first is not None and last is not None:
                low, high = max(first, bounds.first_offset), min(last + 1, bounds.end_offset)
                if low < high:
                    yield StoredRange(topic, queue_id, path, low, high)


def _unit_ranges(storage: Storage, queue: QueueFiles, query: Query) -> Iterator[UnitRange]:
    bounds = query.queue_bounds(queue.topic, queue.queue_id)
    for segment in queue.segments:
        base = segment.start_offset // UNIT_BYTES
        with opened(storage, segment.path) as file:
            written = -(-min(file.data_end(), segment.size_bytes) // UNIT_BYTES)
        low, high = max(0, bounds.first_offset - base), min(written, bounds.end_offset - base)
        if low < high:
            yield UnitRange(queue.topic, queue.queue_id, segment, low, high)


def _batch_ranges(storage: Storage, queue: QueueFiles, query: Query) -> Iterator[BatchRange]:
    bounds = query.queue_bounds(queue.topic, queue.queue_id)
    for segment in queue.segments:
        with opened(storage, segment.path) as file:
            written = -(-min(file.data_end(), segment.size_bytes) // BATCH_UNIT_BYTES)
        if written:
            yield BatchRange(
                queue.topic, queue.queue_id, segment, 0, written, bounds.first_offset, bounds.end_offset
            )  # fmt: skip


def _group(ranges: list[AnyRange], most: int, min_tasks: int) -> list[tuple[AnyRange, ...]]:
    """Group ranges into tasks of about so many units: large ranges are cut, small ones combined.

    Files of batch queues stay whole: a unit in them ends the file for the task that meets it, and for no other one.
    """
    total = sum(unit_range.high - unit_range.low for unit_range in ranges)
    step = max(1, min(most, -(-total // min_tasks)))
    tasks: list[tuple[AnyRange, ...]] = []
    task: list[AnyRange] = []
    free = step
    for whole in ranges:
        low = whole.low
        while low < whole.high:
            high = whole.high if isinstance(whole, BatchRange) else min(whole.high, low + free)
            task.append(replace(whole, low=low, high=high))
            free -= high - low
            low = high
            if free <= 0:
                tasks.append(tuple(task))
                task, free = [], step
    return [*tasks, tuple(task)] if task else tasks


def read_unit_ranges(
    root: str, ranges: tuple[AnyRange, ...], columns: tuple[str, ...], mode: Mode
) -> Iterator[pa.RecordBatch]:
    """Read units as they are stored, without pre-blanks and places that nothing was written to.

    A unit that no dispatch writes (a negative offset, a size of 0 or less) is a row in PERMISSIVE.

    Raises:
        FormatError: in FAILFAST, at the first such unit.
    """
    storage, _ = open_storage(root)
    schema = schema_of(columns, CONSUMEQUEUE)
    yield from _stored_batches(
        storage, [unit_range for unit_range in ranges if isinstance(unit_range, StoredRange)], schema
    )
    for unit_range in ranges:
        if isinstance(unit_range, StoredRange):
            continue
        if isinstance(unit_range, BatchRange):
            yield from _batch_batches(storage, unit_range, schema, mode)
            continue
        base = unit_range.segment.start_offset // UNIT_BYTES
        with opened(storage, unit_range.segment.path) as file:
            for first, units in read_units(file, base, unit_range.low, unit_range.high):
                sound = message_units(units)
                pre_blank = (units["physical_offset"] == 0) & (units["size"] == PRE_BLANK_SIZE)
                unwritten = (units["physical_offset"] == 0) & (units["size"] == 0) & (units["tags_code"] == 0)
                damaged = ~(sound | pre_blank | unwritten)
                if mode is Mode.FAILFAST and damaged.any():
                    at = (first - base + int(np.flatnonzero(damaged)[0])) * UNIT_BYTES
                    raise FormatError("not a ConsumeQueue unit", at, unit_range.segment.path)
                keep = sound | damaged if mode is Mode.PERMISSIVE else sound
                if keep.any():
                    offsets = first + np.flatnonzero(keep).astype(np.int64)
                    yield unit_batch(unit_range.topic, unit_range.queue_id, offsets, units[keep], schema)


def _batch_batches(
    storage: Storage, batch_range: BatchRange, schema: pa.Schema, mode: Mode
) -> Iterator[pa.RecordBatch]:
    """Read units of a batch queue; the first that is none ends the file, as for a broker."""
    with opened(storage, batch_range.segment.path) as file:
        end = batch_range.low
        for first, units in read_batch_units(file, batch_range.low, batch_range.high):
            end = first + len(units)
            begins = units["base_offset"].astype(np.int64)
            keep = (begins + units["batch_size"] > batch_range.first_offset) & (begins < batch_range.end_offset)
            if keep.any():
                yield unit_batch(batch_range.topic, batch_range.queue_id, begins[keep], units[keep], schema)
        if mode is Mode.FAILFAST and end < batch_range.high:
            at = end * BATCH_UNIT_BYTES
            if not is_end(
                np.frombuffer(read_range(file, at, batch_range.high * BATCH_UNIT_BYTES - at), dtype=np.uint8)
            ):
                raise FormatError("not a BatchConsumeQueue unit", at, batch_range.segment.path)


def _stored_batches(storage: Storage, ranges: Sequence[StoredRange], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read units out of RocksDB; there is none that is not written."""
    if not ranges:
        return
    with opened_queues(storage, ranges[0].path) as database:
        for stored_range in ranges:
            for offsets, units in database.units(
                stored_range.topic, stored_range.queue_id, stored_range.low, stored_range.high
            ):
                yield unit_batch(stored_range.topic, stored_range.queue_id, offsets, units, schema)


def plan_entries(storage: Storage, root: str, split_bytes: int, min_tasks: int) -> list[EntryRange]:
    """Plan tasks that read all entries of all IndexFiles.

    Raises:
        StoreNotFoundError: no such store.
    """
    check_store(storage, root)
    counts = {}
    for path in index_paths(storage, root):
        with opened(storage, path) as file:
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
    with opened(storage, entry_range.path) as file:
        index = IndexFile.read(file, entry_range.path)
        for first, entries in index.chunks(entry_range.low):
            if first >= entry_range.high:
                break
            entries_in_range = entries[: entry_range.high - first]
            yield index_batch(name, first, index.header.begin_timestamp_ms, index.slots, entries_in_range, schema)
