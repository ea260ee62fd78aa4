"""Logs of single queues, in tiered storage and of compacted topics, with copies of CommitLog records.

Each record states its offset in the log of its queue instead of that in the CommitLog, and is the same otherwise, so
that a scan of a CommitLog reads such a log. docs/formats/tiered.md, docs/formats/compaction.md
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from rmq_formats.codecs import paths, tiered
from rmq_formats.errors import StoreNotFoundError
from rmq_formats.storage.queue_files import queue_topics
from rmq_formats.storage.segments import Segment, Storage, list_segments, refuse_overlaps
from rmq_formats.storage.store_files import StoreFiles

COMPACTION: Final = "compaction"
WantsTopic = Callable[[str], bool]


def _is_any(_topic: str) -> bool:
    return True


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


def compaction_log_dir(root: str) -> str:
    """``<root>/compaction/compactionLog``."""
    return f"{root}/{COMPACTION}/compactionLog"


def compaction_queue_dir(root: str) -> str:
    """``<root>/compaction/compactionCq``."""
    return f"{root}/{COMPACTION}/compactionCq"


def compacted_logs(store: StoreFiles, wants_topic: WantsTopic = _is_any) -> Iterator[QueueLog]:
    """List the logs of compacted topics of a store, by topic and queue. Raises StoreSizeError if files overlap."""
    for topic, queue_id in _queues(store.storage, compaction_log_dir(store.root), wants_topic):
        log = compacted_queue_log(store, topic, queue_id)
        if log.segments:
            yield log


def compacted_queue_log(store: StoreFiles, topic: str, queue_id: int) -> QueueLog:
    """List the log of one queue of a compacted topic; it may have no files. Raises StoreSizeError if files overlap."""
    segments = list_segments(store.storage, f"{compaction_log_dir(store.root)}/{topic}/{queue_id}")
    refuse_overlaps(segments)
    units = list_segments(store.storage, f"{compaction_queue_dir(store.root)}/{topic}/{queue_id}")
    return QueueLog(topic, queue_id, tuple(segments), tuple(units), is_padded=True)


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


def tiered_logs(storage: Storage, directory: str, wants_topic: WantsTopic = _is_any) -> Iterator[QueueLog]:
    """List the logs of a broker's queues in tiered storage, by topic and queue. Raises StoreSizeError on overlaps."""
    for topic, queue_id in tiered_queues(storage, directory, wants_topic):
        log = tiered_queue_log(storage, directory, topic, queue_id)
        if log.segments:
            yield log


def tiered_queue_log(storage: Storage, directory: str, topic: str, queue_id: int) -> QueueLog:
    """List the log of one queue in tiered storage; it may have no files. Raises StoreSizeError if files overlap."""
    path = f"{directory}/{topic}/{queue_id}"
    segments = tiered_segments(storage, f"{path}/{tiered.COMMIT_LOG}")
    refuse_overlaps(segments)
    return QueueLog(topic, queue_id, segments, tiered_segments(storage, f"{path}/{tiered.CONSUME_QUEUE}"))


def tiered_queues(storage: Storage, directory: str, wants_topic: WantsTopic = _is_any) -> Iterator[tuple[str, int]]:
    """List the topics and queues that a broker's directory of tiered storage has, with files or not."""
    return _queues(storage, directory, lambda topic: topic != tiered.INDEX_TOPIC and wants_topic(topic))


def compacted_queues(store: StoreFiles) -> Iterator[tuple[str, int]]:
    """List the topics and queues that have a directory of a compacted log, or of its units."""
    queues: set[tuple[str, int]] = set()
    for tree in (compaction_log_dir(store.root), compaction_queue_dir(store.root)):
        queues.update(_queues(store.storage, tree, _is_any))
    yield from sorted(queues)


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
