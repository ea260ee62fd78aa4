"""ConsumeQueue in RocksDB, made of the queue files of a rebuild, before these are published.

A unit in RocksDB also has the store timestamp of its record, which is read from the CommitLog.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import rocksdb_queue as codec
from rmq_formats.codecs.layout import FLAG_BORN_HOST_V6, UNIT_BYTES
from rmq_formats.codecs.record_layout import RECORD_SYS_FLAG_AT, store_timestamp_at
from rmq_formats.errors import FormatError, StoreError, StoreLockedError
from rmq_formats.read.queue_units import QueueDatabase
from rmq_formats.read.queues import message_units, read_units
from rmq_formats.storage.queue_files import QueueFiles, walk_queues
from rmq_formats.storage.rocksdb import Pairs, make_rocksdb
from rmq_formats.storage.segments import LocalStorage, Segment
from rmq_formats.storage.store_layouts import is_rocksdb
from rmq_formats.storage.store_lock import is_locked
from rmq_offline.rebuild.existing_database import Units, expired_units, list_database_queues

_FILES: Final = "queue-files"  # of the work area: what the database is made of
_DATABASE: Final = "database"
Bound = tuple[bytes, bytes]
_Maps = dict[str, NDArray[np.uint8]]


def make_queue_database(
    work: Path, segments: Sequence[Segment], log_end: int, existing: QueueDatabase | None = None
) -> None:
    """Replace the queue files in ``new/consumequeue`` of a work directory by a RocksDB of the same units.

    After a kill the next run resumes. The database is written under another name, and renamed when it is complete.

    Args:
        segments: of the CommitLog, on this machine: they are mapped.
        log_end: physical offset one past the last record.
        existing: the store's database, from which units of expired records and unknown pairs are copied.

    Raises:
        StoreError: the library is not installed, or the disk does not take the database.
    """
    new, files, database = work / "new" / "consumequeue", work / _FILES, work / _DATABASE
    storage = LocalStorage()
    if is_rocksdb(storage, str(new)):
        return
    if not files.exists():
        new.rename(files)
    shutil.rmtree(database, ignore_errors=True)
    bounds: list[Bound] = []
    if existing is not None:
        with suppress(FormatError):
            bounds += existing.unknown_pairs()
    units = _encode_units(storage, str(files), segments, bounds, existing)
    make_rocksdb(database, {codec.UNITS_FAMILY: units, codec.OFFSETS_FAMILY: _encode_bounds(bounds, log_end)})
    shutil.rmtree(new, ignore_errors=True)
    database.rename(new)
    shutil.rmtree(files)


def refuse_open_database(directory: str) -> None:
    """Refuse to replace a database that a broker has open. Raises StoreLockedError."""
    if is_locked(f"{directory}/LOCK"):
        raise StoreLockedError(f"{directory}: a running broker has this RocksDB open")


def _encode_units(
    storage: LocalStorage, tree: str, segments: Sequence[Segment], bounds: list[Bound], existing: QueueDatabase | None
) -> Iterator[Pairs]:
    """Encode all units in the order of the keys; bounds of the queues are added to a list."""
    queues = {(queue.topic, queue.queue_id): queue for queue in walk_queues(storage, tree)}
    names = set(queues)
    names.update(list_database_queues(existing))
    maps: _Maps = {}
    for topic, queue_id in sorted(names, key=_key_order):
        prefix = codec.queue_prefix(topic, queue_id)
        queue = queues.get((topic, queue_id))
        new = [] if queue is None else _queue_units(storage, queue, segments, maps)
        last: codec.QueueBound | None = None
        for offsets, values in _with_expired_units(existing, topic, queue_id, iter(new), segments[0].start_offset):
            keys, encoded = codec.encode_units(prefix, offsets, values)
            yield Pairs(keys, len(prefix) + 8, encoded, codec.UNIT_VALUE_BYTES)
            last = codec.QueueBound(int(values[-1]["physical_offset"]), int(offsets[-1]))
        end = 0 if queue is None else _queue_end(storage, queue)
        if end > (0 if last is None else last.queue_offset + 1):
            last = codec.QueueBound(0 if last is None else last.physical_offset, end - 1)
        if last is None and existing is not None:
            with suppress(FormatError):
                last = existing.bound(topic, queue_id)
        if last is not None:
            bounds.append((codec.bound_key(topic, queue_id), last.encode()))


def _with_expired_units(
    existing: QueueDatabase | None, topic: str, queue_id: int, new: Iterator[Units], log_start: int
) -> Iterator[Units]:
    """Yield a queue's units in the order of their queue offsets, those of expired records first."""
    first = next(new, None)
    if existing is not None:
        with suppress(FormatError):  # of damage there, the log tells what it can
            expired = expired_units(existing, topic, queue_id, None if first is None else int(first[0][0]), log_start)
            if len(expired[0]):
                yield expired
    if first is not None:
        yield first
        yield from new


def _queue_units(storage: LocalStorage, queue: QueueFiles, segments: Sequence[Segment], maps: _Maps) -> Iterator[Units]:
    for segment in queue.segments:
        with storage.open(segment.path) as file:
            used = -(-file.data_end() // UNIT_BYTES)  # most files are holes but for their begin
            for first, units in read_units(file, segment.start_offset // UNIT_BYTES, 0, used):
                is_message = message_units(units)
                offsets = first + np.flatnonzero(is_message)
                if len(offsets):
                    yield offsets, _encode_values(units[is_message], segments, maps)


def _queue_end(storage: LocalStorage, queue: QueueFiles) -> int:
    """Return the queue offset one past the last unit, pre-blanks included; at least the start of the last file."""
    segment = queue.segments[-1]
    with storage.open(segment.path) as file:
        return segment.start_offset // UNIT_BYTES + -(-file.data_end() // UNIT_BYTES)


def _key_order(queue: tuple[str, int]) -> tuple[int, bytes, int]:
    topic = queue[0].encode()
    return len(topic), topic, queue[1] & 0xFFFFFFFF


def _encode_values(units: NDArray[np.void], segments: Sequence[Segment], maps: _Maps) -> NDArray[np.void]:
    """Encode the values of units; each file of the log is mapped once, since each queue has records in all files."""
    values = np.empty(len(units), dtype=codec.UNIT_VALUE_DTYPE)
    for name in ("physical_offset", "size", "tags_code"):
        values[name] = units[name]
    offsets = units["physical_offset"].astype(np.int64)
    begins = np.array([segment.start_offset for segment in segments], dtype=np.int64)
    numbers = np.searchsorted(begins, offsets, side="right") - 1
    times = np.zeros(len(units), dtype=np.int64)  # of an expired record, nothing tells the time
    for number in np.unique(numbers[numbers >= 0]).tolist():
        in_segment = numbers == number
        segment = segments[number]
        if segment.path not in maps:
            maps[segment.path] = np.asarray(np.memmap(segment.path, dtype=np.uint8, mode="r"))
        times[in_segment] = _store_times(maps[segment.path], offsets[in_segment] - segment.start_offset, segment)
    values["store_timestamp"] = times
    return values


def _store_times(data: NDArray[np.uint8], at: NDArray[np.int64], segment: Segment) -> NDArray[np.int64]:
    """Read the store timestamps of records at file positions, int64[m]. Raises StoreError for a file that shrank."""
    there = min(len(data), Path(segment.path).stat().st_size)
    if len(at) and int(at.max()) + store_timestamp_at(FLAG_BORN_HOST_V6) + 8 > there:
        raise StoreError(f"{segment.path}: was cut off while the queues were made")
    flags = data[at + RECORD_SYS_FLAG_AT + 3]  # the lowest byte of the sys_flag has the host's kind
    timestamps_at = at + np.where(
        flags & FLAG_BORN_HOST_V6, store_timestamp_at(FLAG_BORN_HOST_V6), store_timestamp_at(0)
    )
    return np.ascontiguousarray(data[timestamps_at[:, None] + np.arange(8)]).view(">i8").ravel().astype(np.int64)


def _encode_bounds(bounds: list[Bound], log_end: int) -> Iterator[Pairs]:
    """Encode the family of bounds: keys differ in length, so that each pair is a chunk."""
    checkpoint = codec.CHECKPOINT_KEY, codec.encode_checkpoint(log_end)
    for key, value in sorted([*bounds, checkpoint]):
        yield Pairs(key, len(key), value, len(value))
