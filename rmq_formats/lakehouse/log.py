"""What an export looks at in a store's log: where it ends, what is gone of it, which topics it has."""

from contextlib import suppress
from dataclasses import dataclass

from pyspark.sql import SparkSession

from rmq_formats import paths
from rmq_formats.access.follow import missing_ranges
from rmq_formats.access.queues import queue_topics
from rmq_formats.config_json import topic_configs
from rmq_formats.errors import OptionError, RmqError, StoreError
from rmq_formats.lakehouse.selection import Selection
from rmq_formats.offline.plan import frozen_end, torn_bytes
from rmq_formats.segment import Segment, Storage, commitlog_segments, open_storage


@dataclass(frozen=True, slots=True)
class StoreLog:
    """A store's CommitLog at one moment.

    Attributes:
        store: the store's root.
        storage: where it is.
        root: the root in that storage.
        segments: in log order.
        end: physical offset one past the last sound record.
        torn: bytes behind it that nobody is at work on.
    """

    store: str
    storage: Storage
    root: str
    segments: tuple[Segment, ...]
    end: int
    torn: int

    def missing(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Stretches of ``[begin, end)`` that were deleted."""
        return missing_ranges(self.segments, begin, end)

    def known_topics(self) -> frozenset[str]:
        """Topics that the store's queues and configuration name; others may be in the log."""
        found = set(queue_topics(self.storage, self.root))
        path = f"{paths.config_dir(self.root)}/topics.json"
        if self.storage.exists(path):
            with suppress(RmqError):  # the log is the truth, and is asked then
                found |= set(topic_configs(self.storage.read_bytes(path).decode(errors="replace")))
        return frozenset(found)


def look(store: str) -> StoreLog:
    """The log as it is now.

    Raises:
        StoreNotFoundError: there is none.
    """
    storage, root = open_storage(store)
    segments = commitlog_segments(storage, root)
    end = frozen_end(storage, segments)
    return StoreLog(store, storage, root, tuple(segments), end, torn_bytes(storage, segments, end))


def check_topics(spark: SparkSession, log: StoreLog, known: frozenset[str], topics: tuple[str, ...]) -> None:
    """Refuse topics that the store does not have; the log itself is scanned for those that only it can have.

    Args:
        spark: scans.
        log: of the store.
        known: its ``known_topics``, which are looked up anew at each call.
        topics: that are asked for.

    Raises:
        OptionError: naming them.
    """
    unknown = [topic for topic in topics if topic not in known]
    if not unknown:
        return
    scanned = Selection(log.store, log.store, tuple(unknown)).batch(
        spark, log.segments[0].start_offset, log.end, {"columns": "topic"}
    )
    found = {row.topic for row in scanned.distinct().collect()}
    lacking = [topic for topic in unknown if topic not in found]
    if lacking:
        raise OptionError(f"{log.store}: has no topic {', '.join(map(repr, lacking))}")


def check_end(log: StoreLog, exported: int, table: str) -> None:
    """Refuse a log that ends before what was exported of it.

    Raises:
        StoreError: it was cut off, or is another store's.
    """
    if exported > log.end + log.torn:
        raise StoreError(
            f"{log.store}: the CommitLog ends at {log.end}, but {table} holds it up to {exported}: "
            "the log was cut off, or it is another store's"
        )
