"""Snapshot of a store's CommitLog for an export: its end, deleted ranges, topics and fingerprints."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from rmq_formats.codecs import paths
from rmq_formats.codecs.topics_json import topic_configs
from rmq_formats.errors import OptionError, RmqError, StoreError
from rmq_formats.read.log_end import cut_segments, find_leftovers
from rmq_formats.read.log_fingerprint import differing_range
from rmq_formats.read.plan import plan_read
from rmq_formats.read.task import read_task
from rmq_formats.scan.splits import last_record_end, torn_bytes
from rmq_formats.spark.options.read import commitlog_options
from rmq_formats.storage.queue_files import named_topics
from rmq_formats.storage.segments import Segment
from rmq_formats.storage.store_files import StoreFiles, open_store
from rmq_lakehouse.selection import ExportSelection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HEAD_BYTES: Final = 16 << 20  # read before Spark starts a job: most logs have all of their topics there


@dataclass(frozen=True, slots=True)
class StoreLog:
    """CommitLog of a store, as it was at one moment.

    Attributes:
        end: physical offset after the last sound record.
        torn: number of bytes after ``end`` that no broker is writing.
        leftover_bytes: number of bytes after ``end`` that an earlier recovery has left; a broker overwrites them.
    """

    store: str
    files: StoreFiles
    segments: tuple[Segment, ...]
    end: int
    torn: int
    leftover_bytes: int = 0

    def reread_if_shorter(self, end: int) -> "StoreLog":
        """Return this snapshot, or a new one if it ends before an offset: the log may have grown."""
        return self if end <= self.end + self.torn else snapshot_log(self.store)

    def matches(self, end: int, fingerprint: str | None) -> bool:
        """Return whether the log reaches an offset, and has the bytes of a fingerprint; None is any bytes."""
        return end <= self.end + self.torn and self.differing_range(fingerprint) is None

    def differing_range(self, fingerprint: str | None) -> tuple[int, int] | None:
        """Return the range of bytes that differ from a fingerprint; see ``log_fingerprint``."""
        return differing_range(self.files.storage, self.segments, fingerprint)

    def known_topics(self) -> frozenset[str]:
        """List the topics of the store's queues and configuration; the log may contain others."""
        topics = set(named_topics(self.files))
        path = f"{paths.config_dir(self.files.root)}/topics.json"
        if self.files.storage.exists(path):
            with suppress(RmqError):  # topics are then taken from the log itself
                topics |= set(topic_configs(self.files.storage.read_bytes(path).decode(errors="replace")))
        return frozenset(topics)


def snapshot_log(store: str) -> StoreLog:
    """Take a snapshot of a store's log. Raises StoreNotFoundError."""
    files = open_store(store)
    leftovers = find_leftovers(files, files.segments)
    segments = cut_segments(files.segments, leftovers)
    end = last_record_end(files.storage, segments)
    leftover_bytes = 0 if leftovers is None else leftovers.size_bytes
    return StoreLog(store, files, tuple(segments), end, torn_bytes(files.storage, segments, end), leftover_bytes)


FindTopics = Callable[[StoreLog, Sequence[str]], Collection[str]]
"""Finds which of some topics the records of a log have."""


def check_topics(
    find_topics: FindTopics, logs: Sequence[StoreLog], known_topics: frozenset[str], topics: tuple[str, ...]
) -> None:
    """Refuse topics that neither queues and configuration (``known_topics``) nor logs have. Raises OptionError."""
    lacking = [topic for topic in topics if topic not in known_topics]
    for log in logs:
        if lacking:
            scanned_topics = find_topics(log, lacking)
            lacking = [topic for topic in lacking if topic not in scanned_topics]
    if lacking:
        stores = ", ".join(log.store for log in logs)
        raise OptionError(f"{stores}: has no topic {', '.join(map(repr, lacking))}")


def find_topics(
    log: StoreLog, topics: Sequence[str], begin: int | None = None, end: int | None = None
) -> Collection[str]:
    """Find which of some topics the records in a range of a log have; the search ends where all are found."""
    begin = log.segments[0].start_offset if begin is None else begin
    selection = ExportSelection(log.store, log.store, tuple(topics))
    read_options = selection.read_options(begin, log.end if end is None else end, {"columns": "topic"})
    options = commitlog_options(read_options)
    plan = plan_read(open_store(options.path), options.query, access_path=options.access_path)
    found_topics: set[str] = set()
    for task in plan.tasks:
        for batch in read_task(options.path, task, replace(options.read, columns=("topic",))):
            found_topics |= set(pc.unique(batch.column("topic")).to_pylist())
            if found_topics >= set(topics):
                return found_topics
    return found_topics


def find_topics_by_spark(spark: "SparkSession", log: StoreLog, topics: Sequence[str]) -> Collection[str]:
    """Find which of some topics the records of a log have: the first bytes in this process, the rest in Spark."""
    begin = log.segments[0].start_offset
    head_end = min(begin + _HEAD_BYTES, log.end)
    found_topics = set(find_topics(log, topics, begin, head_end))
    rest = tuple(set(topics) - found_topics)
    if rest and head_end < log.end:
        selection = ExportSelection(log.store, log.store, rest)
        records = selection.batch(spark, head_end, log.end, {"columns": "topic"})
        found_topics |= {row.topic for row in records.distinct().collect()}
    return found_topics


def check_log(log: StoreLog, exported_end: int, fingerprint: str | None, table: str) -> None:
    """Refuse a log that is not the exported log, or that ends before the exported offset. Raises StoreError.

    ``exported_end`` is -1 where nothing was exported, ``fingerprint`` None where it is unknown.
    """
    log = log.reread_if_shorter(exported_end)  # another exporter may have committed records written since
    if exported_end > log.end + log.torn:
        raise StoreError(
            f"{log.store}: the CommitLog ends at {log.end}, but {table} holds it up to {exported_end}: "
            "the log was cut off, or it is another store's"
        )
    differing = log.differing_range(fingerprint)
    if differing is not None:
        raise StoreError(
            f"{log.store}: bytes {differing[0]} to {differing[1]} of the CommitLog are not those that {table} was "
            "exported from: the log was cut off and written anew, or it is another store's; give another table, "
            "or, of one store, --from-offset N to go on from there"
        )
