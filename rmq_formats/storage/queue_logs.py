"""Logs of single queues, in tiered storage and of compacted topics, with copies of CommitLog records.

Each record states its offset in the log of its queue instead of that in the CommitLog, and is the same otherwise, so
that a scan of a CommitLog reads such a log. ``QUEUE_LOGS`` has the layouts with such logs.
docs/formats/tiered.md, docs/formats/compaction.md
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final, Self

from rmq_formats.codecs import paths, tiered
from rmq_formats.errors import OptionError, StoreNotFoundError
from rmq_formats.storage.queue_files import queue_topics
from rmq_formats.storage.segments import Segment, Storage, list_segments, open_storage, refuse_overlaps
from rmq_formats.storage.store_files import StoreFiles
from rmq_formats.storage.store_layouts import StoreLayout

WantsTopic = Callable[[str], bool]


def _is_any(_topic: str) -> bool:
    return True


class LogKind(StrEnum):
    """Selection of a store's logs."""

    COMMITLOG = "commitlog"
    COMPACTED = "compacted"  # the logs of compacted topics
    TIERED = "tiered"  # the logs of tiered storage
    JOINED = "joined"  # the CommitLog, and tiered storage for messages that the CommitLog has no more


@dataclass(frozen=True, slots=True)
class Logs:
    """The logs that are read.

    Attributes:
        tier: ``tieredStoreFilePath``, a path or URI; None where no tier is read.
    """

    kind: LogKind = LogKind.COMMITLOG
    tier: str | None = None

    @classmethod
    def of(cls, kind: LogKind | str | None, tier: str | None) -> "Logs":
        """Return the logs that two options name: with a tier and no kind, both joined.

        Raises:
            OptionError: unknown log kind, a kind that needs a tier without one, or a tier with another kind.
        """
        try:
            log_kind = LogKind(kind or (LogKind.COMMITLOG if tier is None else LogKind.JOINED))
        except ValueError:
            raise OptionError(f"log {kind!r}: give {', '.join(LogKind)}") from None
        needs_tier = log_kind in {LogKind.TIERED, LogKind.JOINED}
        if needs_tier and tier is None:
            raise OptionError(f"log {log_kind} needs tier, the path that the broker has as tieredStoreFilePath")
        if tier is not None and not needs_tier:
            raise OptionError(f"tier is read with log {LogKind.JOINED} or {LogKind.TIERED}, not {log_kind}")
        return cls(log_kind, tier)


COMMITLOG_ONLY: Final = Logs()


@dataclass(frozen=True, slots=True)
class QueueLog:
    """The log of one queue.

    Attributes:
        segments: its files, by offset; at least one. A compacted log has gaps where files were deleted.
        units: files of its units, by offset: 20 bytes a unit in tiered storage, 46 in a compacted log, where each file
            has the offset of its log file.
        is_padded: whether files are made with their full size, so that zeros follow what is written.
    """

    topic: str
    queue_id: int
    segments: tuple[Segment, ...]
    units: tuple[Segment, ...] = ()
    is_padded: bool = False


@dataclass(frozen=True, slots=True)
class QueueLogs(ABC):
    """Logs of single queues of a layout, in one directory.

    Attributes:
        layout: the layout that has these logs.
        is_in_store: whether the logs are below the store's root.
    """

    storage: Storage
    directory: str
    layout: ClassVar[StoreLayout]
    is_in_store: ClassVar[bool]

    @classmethod
    @abstractmethod
    def open(cls, store: StoreFiles, tier: str | None) -> Self:
        """Find the logs of a store's broker. Raises OptionError without a tier, StoreNotFoundError without logs."""

    @abstractmethod
    def queues(self, wants_topic: WantsTopic = _is_any) -> Iterator[tuple[str, int]]:
        """List topics and queue ids by the directories of logs, with files or without."""

    @abstractmethod
    def log(self, topic: str, queue_id: int) -> QueueLog:
        """List the log of one queue; it may have no files. Raises StoreSizeError if files overlap."""

    def existing(self, wants_topic: WantsTopic = _is_any) -> Iterator[QueueLog]:
        """Yield the logs that have files, by topic and queue. Raises StoreSizeError if files overlap."""
        for queue in self.queues(wants_topic):
            log = self.log(*queue)
            if log.segments:
                yield log


class CompactedLogs(QueueLogs):
    """Logs of a store's compacted topics; ``directory`` is ``<root>/compaction``."""

    layout = StoreLayout.COMPACTION
    is_in_store = True

    @classmethod
    def of(cls, store: StoreFiles) -> Self:
        """Return the logs of a store, which may have none."""
        return cls(store.storage, f"{store.root}/compaction")

    @classmethod
    def open(cls, store: StoreFiles, tier: str | None) -> Self:  # noqa: ARG003 # of the port
        """Find the logs of a store. Raises StoreNotFoundError without any."""
        logs = cls.of(store)
        if not logs.storage.exists(logs.log_directory):
            raise StoreNotFoundError(f"{logs.log_directory}: no compacted topics")
        return logs

    @property
    def log_directory(self) -> str:
        """``compaction/compactionLog``."""
        return f"{self.directory}/compactionLog"

    @property
    def unit_directory(self) -> str:
        """``compaction/compactionCq``."""
        return f"{self.directory}/compactionCq"

    def queues(self, wants_topic: WantsTopic = _is_any) -> Iterator[tuple[str, int]]:
        """List topics and queue ids by the directories of logs."""
        return _queues(self.storage, self.log_directory, wants_topic)

    def queues_with_units(self) -> list[tuple[str, int]]:
        """List topics and queue ids by the directories of logs and of units."""
        return sorted({*self.queues(), *_queues(self.storage, self.unit_directory, _is_any)})

    def log(self, topic: str, queue_id: int) -> QueueLog:
        """List the log of one queue; it may have no files. Raises StoreSizeError if files overlap."""
        segments = list_segments(self.storage, f"{self.log_directory}/{topic}/{queue_id}")
        refuse_overlaps(segments)
        units = list_segments(self.storage, f"{self.unit_directory}/{topic}/{queue_id}")
        return QueueLog(topic, queue_id, tuple(segments), tuple(units), is_padded=True)


class TieredLogs(QueueLogs):
    """Logs of a broker's queues in tiered storage; ``directory`` is the broker's."""

    layout = StoreLayout.TIERED
    is_in_store = False

    @classmethod
    def open(cls, store: StoreFiles, tier: str | None) -> Self:
        """Find the logs of a store's broker. Raises OptionError without a tier, StoreNotFoundError without logs."""
        if tier is None:
            raise OptionError(f"log {LogKind.TIERED} needs the place of the tier: give its tieredStoreFilePath")
        storage, path = open_storage(tier)
        return cls(storage, broker_directory(storage, path, *store.broker_names))

    def queues(self, wants_topic: WantsTopic = _is_any) -> Iterator[tuple[str, int]]:
        """List topics and queue ids by their directories, with log files or without."""
        return _queues(self.storage, self.directory, lambda topic: topic != tiered.INDEX_TOPIC and wants_topic(topic))

    def log(self, topic: str, queue_id: int) -> QueueLog:
        """List the log of one queue; it may have no files. Raises StoreSizeError if files overlap."""
        path = f"{self.directory}/{topic}/{queue_id}"
        segments = tiered_segments(self.storage, f"{path}/{tiered.COMMIT_LOG}")
        refuse_overlaps(segments)
        return QueueLog(topic, queue_id, segments, tiered_segments(self.storage, f"{path}/{tiered.CONSUME_QUEUE}"))


QUEUE_LOGS: Final[Mapping[LogKind, type[QueueLogs]]] = {
    LogKind.COMPACTED: CompactedLogs,
    LogKind.TIERED: TieredLogs,
    LogKind.JOINED: TieredLogs,
}


def tiered_brokers(storage: Storage, tier: str) -> dict[tuple[str, str], str]:
    """List the broker directories of a tiered storage (``tieredStoreFilePath``), by cluster and broker name."""
    directories = {}
    for entry in storage.entries(tier):
        cluster = tiered.parse_cluster_directory(entry.name) if entry.is_directory else None
        if cluster is not None:
            for broker in storage.entries(f"{tier}/{entry.name}"):
                if broker.is_directory:
                    directories[cluster, broker.name] = f"{tier}/{entry.name}/{broker.name}"
    return directories


def broker_directory(storage: Storage, tier: str, cluster: str | None, broker: str | None) -> str:
    """Find the directory of a broker in a tiered storage; an unknown cluster or broker name is None.

    Raises StoreNotFoundError if there is no such broker, or if several fit.
    """
    brokers = tiered_brokers(storage, tier)
    if not brokers:
        raise StoreNotFoundError(f"{tier}: no tiered storage")
    fit = {
        name: path
        for name, path in brokers.items()
        if (broker is None or name[1] == broker) and (cluster is None or name[0] == cluster)
    }
    if len(fit) == 1:
        return next(iter(fit.values()))
    there = ", ".join(f"{name[1]} of {name[0]}" for name in sorted(brokers))
    whose = "which broker's is meant is not known" if broker is None else f"broker {broker}"
    raise StoreNotFoundError(f"{tier}: {whose}; there are {there}")


def tiered_segments(storage: Storage, directory: str) -> tuple[Segment, ...]:
    """List the segments of one flat file of tiered storage, by offset; other names are passed over."""
    segments = []
    for entry in storage.entries(directory):
        base = None if entry.is_directory else tiered.parse_segment_name(entry.name, entry.size_bytes)
        if base is not None:
            segments.append(Segment(f"{directory}/{entry.name}", base, entry.size_bytes, 0, entry.version))
    return tuple(sorted(segments, key=lambda segment: segment.start_offset))


def _queues(storage: Storage, tree: str, wants_topic: WantsTopic) -> Iterator[tuple[str, int]]:
    """List topics and queue ids of a tree of queues by its directories."""
    for topic in filter(wants_topic, queue_topics(storage, tree)):
        names = [entry.name for entry in storage.entries(f"{tree}/{topic}") if entry.is_directory]
        ids_by_name = {name: paths.parse_queue_id(name) for name in names}
        queue_ids = [
            queue_id for name, queue_id in ids_by_name.items() if queue_id is not None and str(queue_id) == name
        ]
        yield from ((topic, queue_id) for queue_id in sorted(queue_ids))
