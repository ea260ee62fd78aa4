"""The ways of conversion: a classic store, whose queues and config are files, and one that has them in RocksDB.

Each is made of any store. Queues and Index are rebuilt from the new store's log. Queues whose messages have all
expired keep their ends.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rmq_formats.arrow.schema import Mode
from rmq_formats.codecs import paths
from rmq_formats.codecs.consumequeue import PRE_BLANK, Unit
from rmq_formats.codecs.layout import LOST_UNIT_SIZE, UNIT_BYTES
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.errors import StoreLayoutError
from rmq_formats.read.broker_config import lists_all_topics, stored_batch_topics
from rmq_formats.read.config_documents import GROUPS, OFFSETS, TOPICS
from rmq_formats.read.log_end import readable_segments
from rmq_formats.read.query import Include, Queue
from rmq_formats.read.queue_choice import file_queues, open_queue
from rmq_formats.read.queue_databases import DatabaseQueue, open_queues
from rmq_formats.read.queue_offset_lookup import QueueOffsetLookup
from rmq_formats.read.queue_units import QueueDatabase
from rmq_formats.read.queues import ConsumeQueue
from rmq_formats.read.ranges import log_bounds
from rmq_formats.storage.queue_files import queue_directories
from rmq_formats.storage.segments import LocalStorage
from rmq_formats.storage.store_files import StoreFiles, open_store
from rmq_formats.storage.store_layouts import StoreLayout
from rmq_formats.store import Store
from rmq_offline.convert.commitlog import write_log
from rmq_offline.convert.config import copy_config, write_databases, write_json
from rmq_offline.convert.file_copies import copy_file, copy_tree
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.rebuild.report import RebuildReport
from rmq_offline.repair.checkpoint import write_checkpoint
from rmq_offline.tasks.runner import Runner
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding
from rmq_offline.write.topics import add_topics, queue_counts

_MADE_ANEW: Final = frozenset({
    "commitlog", "config", "consumequeue", "consumequeue_ext", "consumequeue_rocksdb", "batchconsumequeue", "index",
    "checkpoint", "abort", "lock",
})  # fmt: skip
_OWN_OFFSETS: Final = ("compaction",)  # of the logs of compacted topics, which may have what the CommitLog lacks
_WITH_THE_LOG: Final = ("timerlog", "timerwheel", "compaction", "epochFileCheckpoint", "brokerIdentity", "rocksdbstore")
_REPORTED_BY_NAME: Final = ("dledger-", "timerlog", "timerwheel")  # as left out, by _FROM_DLEDGER
_FROM_DLEDGER: Final = (
    "each message of the DLedger CommitLog has another physical offset, and so another offset message id: ids that "
    "clients, logs and traces have kept, and the marks of exports and streams, lead to no message or to another one; "
    "unique keys and KEYS lead to the new places",
    "terms and indexes of entries are gone: the new store is that of a single broker, and must not come back into the "
    "DLedger group; start it with enableDLegerCommitLog=false",
    "entries that no leader had committed yet are messages like the others",
    "the commit or rollback of a transaction that a client holds names the half message by its old offset, and fails; "
    "the broker then asks the client again",
    "timerlog, timerwheel and config/timercheck are left out: a broker makes them anew from the timer topic; RocketMQ "
    "may then deliver timed messages a second time that were due before",
)
_TO_FILES: Final = (
    "queues are files that are made of the log, with the ends of those whose messages have all expired: start the "
    "broker with storeType=default"
)
_TO_ROCKSDB: Final = (
    "queues are in RocksDB, made of the log, with the ends of those whose messages have all expired: start the broker "
    "with storeType=defaultRocksDB"
)
_FILES_TO_ROCKSDB: Final = (
    "queues are in RocksDB, with the units and ends of the files: start the broker with storeType=defaultRocksDB"
)
_CONFIG_TO_FILES: Final = "topics, consumer groups and offsets are JSON files, as of the last flush of the old RocksDB"
_CONFIG_TO_ROCKSDB: Final = (
    "topics, consumer groups and offsets are in RocksDB of v1: start the broker without configManagerVersion=v2 and "
    "useSingleRocksDBForAllConfigs=true; their JSON files are left out"
)
_ADDED_TOPICS: Final = (
    "RocksDB of v2 had no topic that the broker made by itself: those with queues in the log are added, with "
    "permission to read and write, and as many queues as the log has"
)


@dataclass(frozen=True, slots=True)
class Source:
    """Store that is converted, and the sizes of its files, which the new store's files have too."""

    files: StoreFiles
    sizes: StoreSizes


@dataclass(frozen=True, slots=True)
class ConversionResult:
    """Result of one way of conversion.

    Attributes:
        bytes: size of the sound records together.
        changes: differences of the new store, as sentences for people.
        findings: faults of the old store for which the new store lacks something.
    """

    messages: int
    bytes: int
    changes: tuple[str, ...]
    findings: tuple[Finding, ...] = ()


def convert_to_classic(source: Source, new: Path, runner: Runner) -> ConversionResult:
    """Make a classic store of one with a DLedger CommitLog, or with a RocksDB; see ``convert_store``."""
    store, layouts = source.files, source.files.layouts
    if not {StoreLayout.DLEDGER, StoreLayout.ROCKSDB_QUEUES, StoreLayout.ROCKSDB_CONFIG} & set(layouts.evidence):
        raise StoreLayoutError(f"{store.root}: has no DLedger CommitLog and no RocksDB: it is a classic store already")
    in_rocksdb = StoreLayout.ROCKSDB_CONFIG in layouts

    def prepare() -> None:
        copy_config(store, new, with_tables=not in_rocksdb, with_timers=StoreLayout.DLEDGER not in layouts)
        if in_rocksdb:
            write_json(store, new, TOPICS)
            write_json(store, new, GROUPS)

    findings, report, changes = _build_store(source, new, RebuildOptions(True, True, source.sizes), runner, prepare)
    if in_rocksdb:
        write_json(store, new, OFFSETS)
        changes += (_CONFIG_TO_FILES,)
        if not lists_all_topics(store):
            _add_topics(new)
            changes += (_ADDED_TOPICS,)
    if layouts.queue_database is not None:
        write_expired_queues(store, layouts.queue_database, new, source.sizes.consumequeue_file_bytes)
        changes += (_TO_FILES,)
    else:
        copy_expired_queues(store, new)
    return _finish(new, report, changes, findings)


def convert_to_rocksdb(source: Source, new: Path, runner: Runner) -> ConversionResult:
    """Make a store whose queues and config are in RocksDB, which has no batch queues; see ``convert_store``."""
    store, layouts = source.files, source.files.layouts
    if layouts.rebuilds_as_database and StoreLayout.DLEDGER not in layouts:
        raise StoreLayoutError(f"{store.root}: has its ConsumeQueue in RocksDB already")
    _refuse_batch_queues(store.root, sorted(stored_batch_topics(store)))

    def prepare() -> None:
        copy_config(store, new, with_tables=False, with_timers=StoreLayout.DLEDGER not in layouts)
        write_databases(store, new)

    sizes: StoreSizes = replace(source.sizes, consumequeue_ext_file_bytes=0)
    options = RebuildOptions(True, True, sizes, queue_database=True)
    findings, report, changes = _build_store(source, new, options, runner, prepare)
    batch = Path(paths.batch_consumequeue_dir(str(new)))
    _refuse_batch_queues(store.root, sorted(path.name for path in batch.iterdir()) if batch.exists() else [])
    queues_change = _FILES_TO_ROCKSDB if _retains_units(store, options) else _TO_ROCKSDB
    return _finish(new, report, (*changes, queues_change, _CONFIG_TO_ROCKSDB), findings)


def _refuse_batch_queues(root: str, topics: list[str]) -> None:
    if topics:
        what = f"topic {topics[0]} has batch queues (BatchConsumeQueue), which no RocksDB has"
        raise StoreLayoutError(f"{root}: {what}; RocketMQ would lose its queues")


def _build_store(
    source: Source, new: Path, options: RebuildOptions, runner: Runner, prepare: Callable[[], None]
) -> tuple[tuple[Finding, ...], RebuildReport, tuple[str, ...]]:
    store = source.files
    segments = readable_segments(store)
    prepare()  # config is small, and what is wrong with it is told before the log is copied
    damages = write_log(store.storage, segments, new, source.sizes.commitlog_file_bytes)
    is_dledger = StoreLayout.DLEDGER in store.layouts
    changes = _copy_rest(store, new, _OWN_OFFSETS if is_dledger else _WITH_THE_LOG)
    changes = (*_FROM_DLEDGER, *changes) if is_dledger else changes
    if _retains_units(store, options):
        report = rebuild_store(store.root, str(new), options, runner)
    elif options.queue_database:
        report = _rebuild_database(store, new, options, runner)
    else:
        report = rebuild_store(str(new), str(new), options, runner)
    if finding_kinds.QUEUE_OFFSET_REPEATED.code in report.finding_counts:
        refuse_other_messages(store, str(new))
    return tuple(finding_kinds.make_damage_finding(damage) for damage in damages), report, changes


def _rebuild_database(store: StoreFiles, new: Path, options: RebuildOptions, runner: Runner) -> RebuildReport:
    """Rebuild queues as files first, beside the log: a RocksDB that is made of files has their ends too."""
    log, classic = Path(paths.commitlog_dir(str(new))), new / ".classic"
    classic.mkdir()
    log_of_classic = log.rename(paths.commitlog_dir(str(classic)))
    rebuild_store(str(classic), str(classic), replace(options, queue_database=False, index=False), runner)
    copy_expired_queues(store, classic)
    report = rebuild_store(str(classic), str(new), options, runner)
    log_of_classic.rename(log)
    shutil.rmtree(classic)
    return report


def _retains_units(store: StoreFiles, options: RebuildOptions) -> bool:
    """Return whether the new RocksDB gets the units of the queue files, since records stay at their offsets."""
    return options.queue_database and store.storage.is_local and StoreLayout.DLEDGER not in store.layouts


def _copy_rest(store: StoreFiles, new: Path, copied: tuple[str, ...]) -> tuple[str, ...]:
    """Copy files that remain valid, by the begins of their names; report the names of all other entries as a change."""
    unconverted: list[str] = []
    for entry in store.storage.entries(store.root):
        path, target = f"{store.root}/{entry.name}", new / entry.name
        if not entry.name.startswith(copied):
            is_reported = entry.name in _MADE_ANEW or entry.name.startswith((".", *_REPORTED_BY_NAME))
            unconverted += [entry.name] * (not is_reported)
        elif entry.is_directory:
            copy_tree(store.storage, path, target)
        else:
            copy_file(store.storage, path, target, entry.size_bytes)
    if not unconverted:
        return ()
    return (f"left out, as no part of a broker's log, queues or config: {', '.join(sorted(unconverted))}",)


def _add_topics(new: Path) -> None:
    storage, directory = LocalStorage(), paths.consumequeue_dir(str(new))
    queues = [(topic, int(queue)) for topic, queue in queue_directories(storage.entries, directory)]
    topic_queues = [queue for queue in queues if not queue[0].startswith(LIGHT_QUEUE_PREFIX)]
    add_topics(str(new), queue_counts(topic_queues), time.time_ns() // 1_000_000)


def _finish(
    new: Path, report: RebuildReport, changes: tuple[str, ...], findings: tuple[Finding, ...]
) -> ConversionResult:
    write_checkpoint(new)
    return ConversionResult(report.messages, report.bytes, changes, findings + report.findings)


def refuse_other_messages(store: StoreFiles, new: str) -> None:
    """Refuse a conversion whose queues, made of the log, have other messages than those of the store.

    Example: topic Orders was deleted after 40 messages, made again, and has 25 now. The log alone gives the 40.

    Raises:
        StoreLayoutError: a queue would have more or fewer messages.
        StoreError: a store cannot be read.
    """
    if QueueOffsetLookup(store, 0, 0).has_no_queues:
        return
    before, after = _live_messages(store.root), _live_messages(new)
    for topic, queue_id in sorted(before | after):
        queue = topic, queue_id
        if before[queue] != after[queue]:
            raise StoreLayoutError(
                f"{store.root}: consumers get {before[queue]:,} messages of {topic}/{queue_id}, and {after[queue]:,} "
                "of the new store, whose queues are made of the log: the topic was deleted and made again, or offsets "
                "were given twice. Convert the store when the former messages have expired"
            )


def _live_messages(store: str) -> Counter[Queue]:
    """Count by queue the messages that consumers can read."""
    counts: Counter[Queue] = Counter()
    for batch in Store(store).arrow(
        ["topic", "queue_id"], include=Include.LIVE, mode=Mode.DROPMALFORMED, verify_crc=False
    ):
        counts.update(zip(batch["topic"].to_pylist(), batch["queue_id"].to_pylist(), strict=True))
    return counts


def copy_expired_queues(store: StoreFiles, new: Path) -> None:
    """Copy the files of each queue without a message in the log: the log does not have the queue's end."""
    log_begin, _ = log_bounds(store.storage, readable_segments(store))
    for queue in file_queues(store):
        files = queue.files
        directory = Path(paths.queue_dir(queue.directory(str(new)), files.topic, files.queue_id))
        if not directory.exists() and queue.first_since(log_begin) is None:
            directory.mkdir(parents=True)
            for segment in files.segments:
                copy_file(store.storage, segment.path, directory / Path(segment.path).name, segment.size_bytes)


def write_expired_queues(store: StoreFiles, database_path: str, new: Path, file_bytes: int) -> None:
    """Write a file for each queue that has an end in the RocksDB and no message in the log, after all other queues.

    The file has the queue's last unit, which names an expired record, as a broker leaves it in files.

    Raises:
        StoreLayoutError: another queue would end before its end in the RocksDB.
        FormatError: the RocksDB is damaged.
    """
    new_store = open_store(str(new))
    log_begin, log_end = log_bounds(store.storage, readable_segments(store))
    with open_queues(store.storage, database_path) as database:
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
    """Return a queue's last queue offset and the unit there; None if the RocksDB has no end of the queue."""
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
