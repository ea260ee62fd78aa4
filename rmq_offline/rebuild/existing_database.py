"""ConsumeQueue in RocksDB of a store that is rebuilt: evidence for facts that the log lacks.

Units of expired records are retained, and so is the end of a queue without units. Records of a former life of a topic
get no unit.
"""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.errors import FormatError, RmqError
from rmq_formats.kernels import units as unit_kernel
from rmq_formats.read.queue_databases import open_queues
from rmq_formats.read.queue_units import QueueDatabase
from rmq_formats.scan.derived_images import Placement, Rows, place_last
from rmq_formats.storage.segments import open_storage
from rmq_formats.storage.store_files import StoreFiles
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.tasks.work_files import Area, write_text
from rmq_offline.verify.consumequeue import QueueName
from rmq_offline.verify.findings import FindingList
from rmq_offline.verify.log_facts import LogFacts
from rmq_offline.verify.queue_database import DatabaseQueueCheck, StoredQueue

Units = tuple[NDArray[np.int64], NDArray[np.void]]


_NOTE = "spill/database.txt"


def existing_database_path(store: StoreFiles, options: RebuildOptions) -> str | None:
    """Return the directory of the RocksDB from which queues are rebuilt as a RocksDB; None without one."""
    if not options.consumequeue or options.from_log_alone or not options.queue_database:
        return None
    return store.layouts.queue_database


def write_existing_database_path(area: Area, path: str | None) -> None:
    """Write the directory of the database for the tasks."""
    if path is not None:
        write_text(area, _NOTE, path)


def read_existing_database_path(area: Area) -> str | None:
    """Read what ``write_existing_database_path`` wrote."""
    return area.read_text(_NOTE) if area.exists(_NOTE) else None


@contextmanager
def open_existing_database(path: str | None) -> Iterator[QueueDatabase | None]:
    """Open the RocksDB of the store's queues; None without a readable one."""
    with ExitStack() as stack:
        database = None
        if path is not None:
            with suppress(RmqError):
                database = stack.enter_context(open_queues(open_storage(path)[0], path))
        yield database


def with_existing_light_queues(
    options: RebuildOptions, topics: Collection[str], database: str | None
) -> RebuildOptions:
    """Add the light queues among ``topics`` and in the store's RocksDB, if there is one, to the live topics.

    Deleting a topic removes no message from another queue.
    """
    if options.live_topics is None:
        return options
    with open_existing_database(database) as witness:
        names = {*topics, *(topic for topic, _ in list_database_queues(witness))}
    light = {name for name in names if name.startswith(LIGHT_QUEUE_PREFIX)}
    return replace(options, live_topics=options.live_topics | light)


def list_database_queues(database: QueueDatabase | None) -> set[tuple[str, int]]:
    """List the queues with units or an end in a database, as far as the database can be read."""
    with suppress(FormatError):
        return set() if database is None else database.all_queues()
    return set()


def place_by_database(
    database: QueueDatabase | None, topic: str, queue_id: int, rows: Rows, facts: LogFacts
) -> Placement:
    """Place a queue's records, int64[n, ROW_COLUMNS] in log order, for a RocksDB, by the existing units if readable."""
    if database is not None:
        with suppress(RmqError):
            offsets, units = database.all_units(topic, queue_id)
            is_dispatched = len(rows) and int(rows[-1, unit_kernel.PHYSICAL_OFFSET]) < database.checkpoint()
            if not len(offsets) and is_dispatched and database.bound(topic, queue_id) is None:
                return place_last(rows[:0])  # deleted in order, units and end
            findings = FindingList()
            check = DatabaseQueueCheck(QueueName(topic, queue_id), rows, facts, findings, findings)
            return check.place(StoredQueue(database.path, offsets, units, None, 0))
    return place_last(rows)


def expired_units(database: QueueDatabase, topic: str, queue_id: int, end: int | None, log_start: int) -> Units:
    """Read the units of a queue whose records have expired, before its first record in the log. Raises FormatError.

    Args:
        end: queue offset of the queue's first record in the log; None without a record.
        log_start: physical offset of the log's first byte.
    """
    offsets, units = database.all_units(topic, queue_id)
    physical, sizes = units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
    is_expired = (physical >= 0) & (sizes > 0) & (physical + sizes <= log_start)
    if end is not None:
        is_expired &= offsets < end
    return offsets[is_expired], units[is_expired]
