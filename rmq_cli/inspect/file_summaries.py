"""Facts of the files beside the CommitLog for ``rmq inspect``: queues, IndexFiles, checkpoint, config."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from rmq_cli.dump.rows import batch_unit_arrays, entry_index, ext_units
from rmq_cli.store_path import ClassifiedPath, QueueSegments, entry_index_files, index_files, queues
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.consumequeue import UNIT_DTYPE
from rmq_formats.codecs.layout import PRE_BLANK_SIZE, UNIT_BYTES
from rmq_formats.errors import FormatError
from rmq_formats.read import broker_config
from rmq_formats.read.index_lookup import IndexFile
from rmq_formats.read.queue_databases import open_queues
from rmq_formats.read.queue_units import QueueDatabase
from rmq_formats.storage.queue_logs import QUEUE_LOGS, QueueLog, TieredLogs, tiered_brokers
from rmq_formats.storage.rocksdb import open_rocksdb
from rmq_formats.storage.segments import Segment, Storage, read_range

_BLOCK_BYTES = 65536 * UNIT_BYTES


@dataclass(frozen=True, slots=True)
class QueueFileFacts:
    """The ConsumeQueue files of one queue; topic or queue id is None if the path does not have that directory.

    Attributes:
        files: 0 for a queue in RocksDB.
        units: max offset minus min offset.
        min_offset: queue offset of the first unit that is no pre-blank.
        max_offset: queue offset one past the last unit.
        first_physical_offset, last_physical_offset: of the first and last unit's records; None without a unit.
    """

    topic: str | None
    queue_id: int | None
    files: int
    size_bytes: int
    units: int
    min_offset: int
    max_offset: int
    first_physical_offset: int | None
    last_physical_offset: int | None


@dataclass(frozen=True, slots=True)
class ExtFacts:
    """The ConsumeQueueExt files of one queue."""

    topic: str | None
    queue_id: int | None
    files: int
    size_bytes: int
    units: int


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """One IndexFile; the values from ``slots_used`` on are those of its header, times in ms.

    Attributes:
        slots, max_entries: ``maxHashSlotNum`` and ``maxIndexNum``, inferred; None for a file that is damaged or empty.
        entries: number of used entries.
        begin_physical_offset, end_physical_offset: of the first and last entry's messages.
        error: the file's fault; None if it is sound.
    """

    path: str
    size_bytes: int
    slots: int | None
    max_entries: int | None
    entries: int
    slots_used: int
    begin_timestamp: int
    end_timestamp: int
    begin_physical_offset: int
    end_physical_offset: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ConfigFacts:
    """Numbers of rows in the tables of config in RocksDB.

    Attributes:
        topics: v2 lacks those that the broker creates by itself.
        groups: consumer groups with settings.
        group_topics: pairs of a topic and a group with offsets in it.
    """

    topics: int
    groups: int
    group_topics: int


def config_facts(place: ClassifiedPath) -> ConfigFacts:
    """Count the rows of a store's config. Raises FormatError, StoreError."""
    store = place.files
    return ConfigFacts(
        len(broker_config.stored_topics(store) or ()),
        len(broker_config.stored_groups(store)),
        len(broker_config.stored_offsets(store)),
    )


OWN_ROCKSDB: Final = "rocksdbstore"  # each broker 5.4 or later makes it, empty unless switched on
_KEPT_THERE: Final = {  # by column family, with the broker's setting
    "default": "Index (indexRocksDBEnable)", "timer": "timers (timerRocksDBEnable)",
    "trans": "half messages (transRocksDBEnable)",
}  # fmt: skip


def rocksdbstore_facts(place: ClassifiedPath) -> dict[str, int] | None:
    """Count the entries of a broker's ``rocksdbstore`` by kind; None without such a database, or entries.

    Raises FormatError for a damaged database, and StoreError if it cannot be opened.
    """
    directory = f"{place.path}/{OWN_ROCKSDB}"
    files = place.storage.entries(directory)
    if not any(entry.size_bytes for entry in files if entry.name.endswith((".sst", ".log"))):
        return None
    with open_rocksdb(place.storage, directory, place.path) as database:
        counts = {
            _KEPT_THERE.get(family, family): sum(len(keys) for keys, _ in database.chunks(family))
            for family in database.families
        }
    return {what: count for what, count in counts.items() if count} or None


def queue_facts(place: ClassifiedPath) -> tuple[QueueFileFacts, ...]:
    """Facts of each queue under a path of ``consumequeue``."""
    return tuple(_queue_facts(place.storage, queue) for queue in queues(place))


def database_facts(storage: Storage, path: str) -> tuple[QueueFileFacts, ...]:
    """Facts of each queue of a ConsumeQueue in a database, by its directory. Raises FormatError, StoreError."""
    with open_queues(storage, path) as database:
        return tuple(_database_queue_facts(database, *queue) for queue in sorted(database.queues()))


def _database_queue_facts(database: QueueDatabase, topic: str, queue_id: int) -> QueueFileFacts:
    low, last = database.first_offset(topic, queue_id) or 0, database.last_offset(topic, queue_id) or 0
    first_unit, last_unit = (next(database.units(topic, queue_id, at, at + 1))[1] for at in (low, last))
    physical = [int(units["physical_offset"][0]) for units in (first_unit, last_unit)]
    return QueueFileFacts(topic, queue_id, 0, 0, last + 1 - low, low, last + 1, *physical)


def _queue_facts(storage: Storage, queue: QueueSegments) -> QueueFileFacts:
    first = last = None
    for segment in queue.segments:
        first = _edge_unit(storage, segment, last=False)
        if first is not None:
            break
    for segment in reversed(queue.segments):
        last = _edge_unit(storage, segment, last=True)
        if last is not None:
            break
    size_bytes = sum(segment.size_bytes for segment in queue.segments)
    empty_at = queue.segments[0].start_offset // UNIT_BYTES
    low, high = (first[0], last[0] + 1) if first and last else (empty_at, empty_at)
    return QueueFileFacts(
        queue.topic,
        queue.queue_id,
        len(queue.segments),
        size_bytes,
        high - low,
        low,
        high,
        first[1] if first else None,
        last[1] if last else None,
    )


def batch_queue_facts(place: ClassifiedPath) -> tuple[QueueFileFacts, ...]:
    """Facts of each queue with units of 46 bytes under a path: a batch queue, or that of a compacted topic."""
    return tuple(_batch_facts(place.storage, queue) for queue in queues(place))


def _batch_facts(storage: Storage, queue: QueueSegments) -> QueueFileFacts:
    count = low = high = 0
    first = last = None
    for units in batch_unit_arrays(storage, queue, lambda text: None):  # noqa: ARG005 # faults are verify's to tell
        if len(units):
            if first is None:
                first, low = int(units[0]["physical_offset"]), int(units[0]["base_offset"])
            last, high = int(units[-1]["physical_offset"]), int(units[-1]["base_offset"]) + int(units[-1]["batch_size"])
            count += len(units)
    size_bytes = sum(segment.size_bytes for segment in queue.segments)
    return QueueFileFacts(queue.topic, queue.queue_id, len(queue.segments), size_bytes, count, low, high, first, last)


@dataclass(frozen=True, slots=True)
class QueueLogFacts:
    """The log of one queue in tiered storage, with the broker and its cluster, or of a compacted topic.

    Attributes:
        unit_files: number of files of units.
        min_place: first offset in the log, in bytes.
        max_place: one past the last offset in the log, in bytes.
    """

    cluster: str | None
    broker: str | None
    topic: str
    queue_id: int
    files: int
    size_bytes: int
    unit_files: int
    min_place: int
    max_place: int


def tier_facts(place: ClassifiedPath) -> tuple[QueueLogFacts, ...]:
    """Facts of each queue in a tiered storage. Raises StoreSizeError."""
    return tuple(
        _log_facts(cluster, broker, log)
        for (cluster, broker), path in sorted(tiered_brokers(place.storage, place.path).items())
        for log in TieredLogs(place.storage, path).existing()
    )


def store_log_facts(place: ClassifiedPath) -> dict[str, tuple[QueueLogFacts, ...]]:
    """Facts of the logs of single queues in a store, by the kind of the logs. Raises StoreSizeError."""
    return {
        kind: tuple(_log_facts(None, None, log) for log in logs.open(place.files, None).existing())
        for kind, logs in QUEUE_LOGS.items()
        if logs.is_in_store and logs.layout in place.files.layouts
    }


def _log_facts(cluster: str | None, broker: str | None, log: QueueLog) -> QueueLogFacts:
    size_bytes = sum(segment.size_bytes for segment in log.segments)
    return QueueLogFacts(
        cluster,
        broker,
        log.topic,
        log.queue_id,
        len(log.segments),
        size_bytes,
        len(log.units),
        log.segments[0].start_offset,
        log.segments[-1].end_offset,
    )


def _edge_unit(storage: Storage, segment: Segment, *, last: bool) -> tuple[int, int] | None:
    """Return queue offset and physical offset of a file's first or last unit that stands for a message."""
    with storage.open(segment.path) as file:
        end = -(-file.data_end() // UNIT_BYTES) * UNIT_BYTES
        blocks = range(0, end, _BLOCK_BYTES)
        for at in reversed(blocks) if last else blocks:
            data = read_range(file, at, min(_BLOCK_BYTES, end - at))
            units = np.frombuffer(data[: len(data) // UNIT_BYTES * UNIT_BYTES], dtype=UNIT_DTYPE)
            message_rows = np.flatnonzero((units["size"] > 0) & (units["size"] != PRE_BLANK_SIZE))
            if len(message_rows):
                row = int(message_rows[-1 if last else 0])
                return (segment.start_offset + at) // UNIT_BYTES + row, int(units["physical_offset"][row])
    return None


def ext_facts(place: ClassifiedPath) -> tuple[ExtFacts, ...]:
    """Facts of each queue under a path of ``consumequeue_ext``."""
    counts: dict[tuple[str | None, int | None], int] = {}
    for unit in ext_units(place, None, 0, lambda text: None):  # noqa: ARG005 # faults are verify's to tell
        counts[unit.topic, unit.queue_id] = counts.get((unit.topic, unit.queue_id), 0) + 1
    return tuple(
        ExtFacts(
            queue.topic,
            queue.queue_id,
            len(queue.segments),
            sum(segment.size_bytes for segment in queue.segments),
            counts.get((queue.topic, queue.queue_id), 0),
        )
        for queue in queues(place)
    )


@dataclass(frozen=True, slots=True)
class EntryIndexFacts:
    """The index of a DLedger CommitLog.

    Attributes:
        size_bytes: size of the files together; most of it is a hole.
        units: number of entries with a unit; without one, indexes and terms are None.
        end_position: one past the last entry in the log, in bytes.
        faults: number of indexes without a unit before the last unit.
    """

    files: int
    size_bytes: int
    units: int
    first_index: int | None
    last_index: int | None
    first_term: int | None
    last_term: int | None
    end_position: int
    faults: int


def entry_index_facts(place: ClassifiedPath) -> EntryIndexFacts:
    """Facts of a DLedger CommitLog's index, a directory or one file."""
    files = entry_index_files(place)
    faults: list[str] = []
    rows = entry_index(place, None, 0, faults.append)
    size_bytes = sum(file.size_bytes for file in files)
    first = next(rows, None)
    if first is None:
        return EntryIndexFacts(len(files), size_bytes, 0, None, None, None, None, 0, len(faults))
    last, count = first, 1
    for row in rows:
        last, count = row, count + 1
    return EntryIndexFacts(
        len(files), size_bytes, count, first.index, last.index, first.term, last.term, last.pos + last.size, len(faults)
    )


def index_facts(place: ClassifiedPath) -> tuple[IndexFacts, ...]:
    """Facts of each IndexFile of a directory, oldest first, or of one."""
    return tuple(_index_facts(place.storage, path) for path in index_files(place))


def _index_facts(storage: Storage, path: str) -> IndexFacts:
    with storage.open(path) as file:
        try:
            index = IndexFile.read(file, path)
        except FormatError as error:
            return IndexFacts(path, file.size_bytes, None, None, 0, 0, 0, 0, 0, 0, error.reason)
        header = index.header
        return IndexFacts(
            path,
            file.size_bytes,
            index.slots or None,
            index.entries or None,
            index.entry_count,
            header.slot_count,
            header.begin_timestamp_ms,
            header.end_timestamp_ms,
            header.begin_physical_offset,
            header.end_physical_offset,
        )


def checkpoint(place: ClassifiedPath) -> Checkpoint | None:
    """Return the checkpoint, if there is one. Raises FormatError."""
    if not place.storage.exists(place.path):
        return None
    return Checkpoint.decode(place.storage.read_bytes(place.path))
