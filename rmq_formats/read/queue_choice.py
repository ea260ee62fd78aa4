"""Choice of the ConsumeQueue to read in a store that has both queue files and a database.

A broker may write both with equal units. But ``storeType`` may have been changed: then the former layout stays in the
store, and its units end somewhere in the middle of the log.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from rmq_formats.codecs import paths
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.codecs.topics_json import StoredTopicConfig
from rmq_formats.errors import FormatError, OptionError, RmqError, StoreError, StoreLockedError, StoreNotFoundError
from rmq_formats.read.batch_queues import BatchQueue
from rmq_formats.read.broker_config import lists_all_topics, stored_batch_topics, stored_topics
from rmq_formats.read.query import ANY_QUEUE, Include, Query, Queue
from rmq_formats.read.queue_databases import DatabaseQueue, open_queues
from rmq_formats.read.queue_units import QueueDatabase, QueueUnits
from rmq_formats.read.queues import ConsumeQueue
from rmq_formats.read.ranges import log_bounds
from rmq_formats.storage.queue_files import list_queue, named_topics, topic_queues, walk_queues
from rmq_formats.storage.store_files import StoreFiles, open_store
from rmq_formats.storage.store_layouts import StoreLayout

_LIVE_LAG_BYTES: Final = 64 << 20  # that a running broker may still have to dispatch
FileQueue = ConsumeQueue | BatchQueue
_Layout = TypeVar("_Layout", bound=FileQueue)
_LAYOUTS: Final = (ConsumeQueue, BatchQueue)  # of queue files
_log = logging.getLogger("rmq_formats.read")


@dataclass(frozen=True, slots=True)
class QueueChoice:
    """Choice of the files or the databases from which a store's queues are read.

    With ``combineCQUseRocksdbForLmq=true``, a broker with queue files writes light queues (LMQ) only to a RocksDB.
    """

    database: str | None = None  # directory of the RocksDB with the queues; None if files have the queues
    light_database: str | None = None  # directory of a RocksDB beside files, with the light queues


def choose_queues(store: StoreFiles, *, wants_light: bool = False) -> QueueChoice:
    """Choose the ConsumeQueue whose units go further in the log; files if both go as far.

    The database is opened only beside files that end before the log, or for light queues: opening needs a library, and
    that no broker has the database open.

    Raises:
        StoreNotFoundError: a store with both kinds of queues, and without a CommitLog.
        StoreError: the database has to be opened, and cannot be.
        FormatError: the RocksDB is damaged.
    """
    path = store.layouts.queue_database
    if path is None or not store.layouts.has_queue_files:
        return QueueChoice(path)
    log_end = log_bounds(store.storage, store.segments)[1]
    files_end = min(dispatched_end_of_files(store, log_end), log_end)
    # nothing else tells of light queues where they have no files; see ``detect_layouts``
    may_have_light = StoreLayout.LIGHT_QUEUES in store.layouts or StoreLayout.ROCKSDB_CONFIG in store.layouts
    asks_for_light = wants_light and may_have_light
    if files_end == log_end and not asks_for_light:
        return QueueChoice()
    try:
        with open_queues(store.storage, path) as database:
            dispatched = min(database.checkpoint(), log_end)
    except StoreLockedError:
        if asks_for_light or log_end - files_end > _LIVE_LAG_BYTES:
            raise
        return QueueChoice()  # its broker runs, and has not dispatched the log's end to files yet
    if dispatched > files_end:
        return QueueChoice(path)
    return QueueChoice(light_database=path if dispatched == files_end and asks_for_light else None)


def open_queue(layout: type[_Layout], store: StoreFiles, topic: str, queue_id: int) -> _Layout | None:
    """Return a queue in a layout; None if the queue has no files there."""
    files = list_queue(store.storage, layout.directory(store.root), topic, queue_id)
    return None if files is None else layout(store.storage, files)


def file_queue(store: StoreFiles, topic: str, queue_id: int) -> FileQueue | None:
    """Return a queue in the first layout with files of the queue; None without files."""
    queues = (open_queue(layout, store, topic, queue_id) for layout in _LAYOUTS)
    return next((queue for queue in queues if queue is not None), None)


def file_queues(store: StoreFiles, topic: str | None = None) -> Iterator[FileQueue]:
    """Yield the queues with files, of a store or of a topic, by layout, topic and number."""
    for layout in _LAYOUTS:
        tree = layout.directory(store.root)
        files = walk_queues(store.storage, tree) if topic is None else topic_queues(store.storage, tree, topic)
        yield from (layout(store.storage, queue) for queue in files)


class StoreQueues:
    """The queues of a store in all layouts.

    A database may have all queues, or with ``only_light`` the light queues (LMQ) without files.
    """

    def __init__(self, store: StoreFiles, database: QueueDatabase | None, *, only_light: bool) -> None:
        self._store = store
        self._database = database
        self._only_light = only_light
        self._batch_topics = stored_batch_topics(store)

    def units_of(self, topic: str, queue_id: int) -> QueueUnits | None:
        """Return the units of a queue; None for a queue without units."""
        if topic in self._batch_topics:
            return open_queue(BatchQueue, self._store, topic, queue_id)
        files = open_queue(ConsumeQueue, self._store, topic, queue_id)
        if self._only_light and not (files is None and topic.startswith(LIGHT_QUEUE_PREFIX)):
            return files
        if self._database is None:
            return files
        return DatabaseQueue(self._database, topic, queue_id, self._store.segments[-1].end_offset)


@contextmanager
def open_units(store: StoreFiles, choice: QueueChoice) -> Iterator[StoreQueues]:
    """Open the queues of a store in the chosen layouts; see ``open_queues``."""
    path = choice.database or choice.light_database
    with nullcontext() if path is None else open_queues(store.storage, path) as database:
        yield StoreQueues(store, database, only_light=choice.database is None)


def queue_file_topics(store: StoreFiles) -> list[str]:
    """List the topics with a directory of queue files; empty if a database goes further or cannot be opened.

    Raises StoreNotFoundError for a store with both kinds of queues, and without a CommitLog.
    """
    try:
        choice = choose_queues(store)
    except StoreNotFoundError:
        raise
    except (StoreError, FormatError):
        return []
    return named_topics(store) if choice.database is None else []


def dispatched_end_of_files(store: StoreFiles, enough: int) -> int:
    """Find the physical offset up to which all records are dispatched to files; ``enough`` ends the search."""
    end = 0
    for queue in walk_queues(store.storage, paths.consumequeue_dir(store.root)):
        last = ConsumeQueue(store.storage, queue).last_unit()
        if last is not None and not last.names_no_record:
            end = max(end, last.physical_offset + last.size)
        if end >= enough:
            break
    return end


def absent_queues(store: StoreFiles, queues: Iterable[Queue]) -> frozenset[Queue]:
    """Return the queues that are in neither the ConsumeQueues nor the config of a store; see ``_listed_topics``."""
    configs, topics = _listed_topics(store)
    if not (configs or topics):
        return frozenset()
    return frozenset(queue for queue in queues if _is_absent(store, configs.get(queue[0]), queue))


def _listed_topics(store: StoreFiles) -> tuple[dict[str, StoredTopicConfig], frozenset[str]]:
    """Return the topics of the config and of the ConsumeQueues; none for config in RocksDB of v2, which lacks some."""
    configs: dict[str, StoredTopicConfig] = {}
    with suppress(RmqError):  # a damaged table is no reason to refuse a read
        configs = stored_topics(store) or {}
    topics = frozenset(named_topics(store))
    return (configs, topics) if lists_all_topics(store) else ({}, frozenset())


def _is_absent(store: StoreFiles, config: StoredTopicConfig | None, queue: Queue) -> bool:
    topic, queue_id = queue
    if queue_id == ANY_QUEUE or topic.startswith(LIGHT_QUEUE_PREFIX):
        return False
    if config is not None and queue_id < max(config.read_queue_nums, config.write_queue_nums):
        return False
    return all(queue.files.queue_id != queue_id for queue in file_queues(store, topic))


def refuse_absent_queues(queues_by_store: Mapping[str, Collection[Queue]], *, fails: bool) -> None:
    """Refuse bounded queues, by path of the store, that no store has; without ``fails``, log a warning.

    Raises OptionError, which names the queues.
    """
    absent: set[Queue] = set()
    present: set[Queue] = set()
    for path, queues in queues_by_store.items():
        with suppress(StoreNotFoundError):  # which the plan of the read reports
            absent_here = absent_queues(open_store(path), queues) if queues else frozenset()
            absent |= absent_here
            present |= set(queues) - absent_here
    if not absent - present:
        return
    names = ", ".join(f"queue {queue_id} of {topic!r}" for topic, queue_id in sorted(absent - present))
    problem = f"{', '.join(queues_by_store)}: offsets are given for {names}, which is not there"
    if fails:
        raise OptionError(f"{problem}. Leave it out, or give failOnDataLoss=false")
    _log.warning("%s", problem)


def warn_of_absent(queries: Mapping[str, Query]) -> None:
    """Log a warning for topics and queues that reads of live messages, by path of the store, select in vain."""
    selected_names: set[str] = set()
    existing_names: set[str] = set()
    for path, query in queries.items():
        if query.included is not Include.LIVE or not (query.topics or query.queues):
            continue
        with suppress(RmqError):  # which the plan of the read reports
            absent = _absent_selections(open_store(path), query)
            selected_names |= absent.keys()
            existing_names |= {name for name, is_absent in absent.items() if not is_absent}
    for name in sorted(selected_names - existing_names):
        _log.warning("%s: neither the queues nor topics.json have %s, which the read names", ", ".join(queries), name)


def _absent_selections(store: StoreFiles, query: Query) -> dict[str, bool]:
    """Map each topic and queue that a query selects by name to whether it is absent from the store."""
    configs, topics = _listed_topics(store)
    lists_topics = bool(configs or topics)  # a store without both lacks none
    selected = {}
    for topic in query.topics or ():
        is_listed = topic in configs or topic in topics or topic.startswith(LIGHT_QUEUE_PREFIX)
        selected[f"topic {topic!r}"] = lists_topics and not is_listed
    for topic, queue_ids in (query.queues or {}).items():
        for queue_id in queue_ids:
            is_absent = lists_topics and _is_absent(store, configs.get(topic), (topic, queue_id))
            selected[f"queue {queue_id} of {topic!r}"] = is_absent
    return selected
