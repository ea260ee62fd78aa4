"""Choice of the ConsumeQueue to read in a store that has both queue files and a RocksDB.

A broker may write both, and then each has all that the other has. But ``storeType`` may have been changed as well: the
layout from before stays in the store, as it was, and its units end somewhere in the middle of the log.
"""

from dataclasses import dataclass
from typing import Final

from rmq_formats.codecs import paths
from rmq_formats.errors import FormatError, StoreError, StoreLockedError, StoreNotFoundError
from rmq_formats.read.queues import last_unit
from rmq_formats.read.ranges import log_bounds
from rmq_formats.read.variants.rocksdb_queues import opened_queues
from rmq_formats.storage import store_variants
from rmq_formats.storage.commitlog import commitlog_segments
from rmq_formats.storage.queue_files import named_topics, walk_queues
from rmq_formats.storage.segments import Storage
from rmq_formats.storage.store_variants import StoreVariants, Variant

_LIVE_LAG_BYTES: Final = 64 << 20  # a broker that runs dispatches a second's messages at once, if not the last ones


@dataclass(frozen=True, slots=True)
class QueueChoice:
    """Choice of the files or the databases from which a store's queues are read.

    Attributes:
        database: directory of the RocksDB that has them; None where files have them.
        light_database: directory of a RocksDB beside files, which has the light queues (LMQ) that files lack; a broker
            with ``combineCQUseRocksdbForLmq=true`` writes them there alone.
    """

    database: str | None = None
    light_database: str | None = None


def choose_queues(storage: Storage, root: str, variants: StoreVariants, *, wants_light: bool = False) -> QueueChoice:
    """Choose the ConsumeQueue whose units go further in the log, files where both go as far.

    Files that go to the log's end lack nothing: then the database is not opened, so that neither its library is needed
    nor that its broker is down, unless light queues are wanted. A store with one of both costs no look into either.

    Args:
        storage: where the store is.
        root: its root.
        variants: its layouts.
        wants_light: whether light queues are to be read.

    Raises:
        StoreNotFoundError: there are both, and no CommitLog.
        StoreError: the database has to be asked, and its library is missing, or a broker has it open whose files, if it
            writes any, are far behind the log.
        FormatError: it is damaged.
    """
    path = store_variants.queue_database(root, variants)
    if path is None or not variants.has_queue_files:
        return QueueChoice(path)
    log_end = log_bounds(storage, commitlog_segments(storage, root))[1]
    files_end = min(dispatched_end(storage, root, log_end), log_end)
    # nothing else tells of light queues where they have no files; see ``store_variants.detect_layouts``
    asks_for_light = wants_light and (Variant.LIGHT_QUEUES in variants or Variant.ROCKSDB_CONFIG in variants)
    if files_end == log_end and not asks_for_light:
        return QueueChoice()
    try:
        with opened_queues(storage, path) as database:
            dispatched = min(database.checkpoint(), log_end)
    except StoreLockedError:
        if asks_for_light or log_end - files_end > _LIVE_LAG_BYTES:
            raise
        return QueueChoice()  # its broker runs, and has not dispatched the log's end to files yet
    if dispatched > files_end:
        return QueueChoice(path)
    return QueueChoice(light_database=path if dispatched == files_end and asks_for_light else None)


def queue_file_topics(storage: Storage, root: str) -> list[str]:
    """List the topics with a directory of queue files; empty if a RocksDB goes further or cannot be opened.

    Raises:
        StoreNotFoundError: there are both, and no CommitLog.
    """
    try:
        choice = choose_queues(storage, root, store_variants.detect_layouts(storage, root))
    except StoreNotFoundError:
        raise
    except (StoreError, FormatError):
        return []
    return named_topics(storage, root) if choice.database is None else []


def dispatched_end(storage: Storage, root: str, enough: int) -> int:
    """Find the physical offset up to which all records are dispatched to files: the end of the last one in a queue.

    Args:
        storage: where the store is.
        root: its root.
        enough: queues are looked at until one goes so far.
    """
    end = 0
    for queue in walk_queues(storage, paths.consumequeue_dir(root)):
        last = last_unit(storage, queue)
        if last is not None and not last[1].is_pre_blank:
            end = max(end, last[1].physical_offset + last[1].size)
        if end >= enough:
            break
    return end
