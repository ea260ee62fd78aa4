"""Queues of a RocksDB whose messages have all expired: their ends in the files of a new store."""

from pathlib import Path

from rmq_formats.codecs import paths
from rmq_formats.codecs.consumequeue import PRE_BLANK, Unit
from rmq_formats.codecs.layout import LOST_UNIT_SIZE, UNIT_BYTES
from rmq_formats.errors import StoreLayoutError
from rmq_formats.read.log_end import readable_segments
from rmq_formats.read.queues import ConsumeQueue
from rmq_formats.read.ranges import log_bounds
from rmq_formats.read.variants.queue_choice import open_queue
from rmq_formats.read.variants.rocksdb_queues import DatabaseQueue, QueueDatabase, opened_queues
from rmq_formats.storage.store_files import StoreFiles, open_store


def write_expired_queues(store: StoreFiles, database_path: str, new: Path, file_bytes: int) -> None:
    """Write a file for each queue that has an end in the RocksDB and no message in the log.

    The file has the queue's last unit, which names an expired record, as a broker leaves it in files.

    Args:
        new: root of the new store, whose other queues are written.

    Raises:
        StoreLayoutError: another queue would end before its end in the RocksDB.
        FormatError: the RocksDB is damaged.
        StoreError: a store cannot be read.
    """
    new_store = open_store(str(new))
    log_begin, log_end = log_bounds(store.storage, readable_segments(store))
    with opened_queues(store.storage, database_path) as database:
        for topic, queue_id in sorted(database.all_queues()):
            last = _last_unit(database, topic, queue_id, log_begin, log_end)
            if last is None or not paths.is_safe_topic(topic):
                continue
            place, unit = last
            queue = open_queue(ConsumeQueue, new_store, topic, queue_id)
            if queue is None:
                directory = paths.queue_dir(paths.consumequeue_dir(str(new)), topic, queue_id)
                _write_file(Path(directory), place, unit, file_bytes)
            elif queue.max_offset() <= place:
                raise StoreLayoutError(
                    f"{store.root}: {topic}/{queue_id} ends at {place + 1:,}, and at {queue.max_offset():,} in the new "
                    "store, whose queues are made of the log: committed offsets would lead to other messages. Convert "
                    "the store when the older messages have expired"
                )


def _last_unit(
    database: QueueDatabase, topic: str, queue_id: int, log_begin: int, log_end: int
) -> tuple[int, Unit] | None:
    """Return the place of a queue's last unit, and the unit; None if the RocksDB tells no end."""
    units = DatabaseQueue(database, topic, queue_id, log_end)
    end = units.max_offset()
    last = units.first_message(end - 1, end) if end else None
    if last is not None:
        size = last.size if last.physical_offset < log_begin else LOST_UNIT_SIZE
        return last.queue_offset, Unit(last.physical_offset, size, 0)
    bound = database.bound(topic, queue_id)
    if bound is None or bound.queue_offset < 0 or not 0 <= bound.physical_offset < log_end:
        return None
    return bound.queue_offset, Unit(bound.physical_offset, LOST_UNIT_SIZE, 0)


def _write_file(directory: Path, place: int, unit: Unit, file_bytes: int) -> None:
    first = place - place % (file_bytes // UNIT_BYTES)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / paths.segment_name(first * UNIT_BYTES)).open("xb") as file:
        file.write(PRE_BLANK * (place - first) + unit.encode())
        file.truncate(file_bytes)
