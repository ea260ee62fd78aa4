"""Queues of a store by their directories: there may be ten million, at eight bytes each in the driver."""

import functools
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import paths
from rmq_formats.codecs.hashing import java_string_hash
from rmq_formats.codecs.index import MAX_INT
from rmq_formats.storage.segments import REQUESTS_AT_ONCE, Storage, request_all
from rmq_formats.storage.store_files import StoreFiles
from rmq_offline.tasks.job_steps import JobSteps, TaskBatch
from rmq_offline.tasks.log_tasks import MAX_PARTITIONS
from rmq_offline.tasks.spill import partition_of
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import FindingList
from rmq_offline.verify.log_facts import Longs
from rmq_offline.verify.phases.plan import list_or_report

QUEUES_PER_PARTITION: Final = 4096  # directories that one task lists
_MAX_LISTS: Final = 256  # tasks that list topics

QueueIds: TypeAlias = "array[int]"  # of 32 bits


@dataclass(frozen=True, slots=True)
class QueuesByPartition:
    """Queues, each once, by the partition whose task checks them.

    Attributes:
        topics: topics with queues.
        topic_numbers: int32[n], the position of each queue's topic in ``topics``.
        bounds: int64[partitions + 1], where the queues of each partition begin.
    """

    topics: Sequence[str]
    topic_numbers: NDArray[np.int32]
    queue_ids: NDArray[np.int32]
    bounds: Longs

    def __len__(self) -> int:
        """Return the number of partitions."""
        return len(self.bounds) - 1

    def of(self, partition: int) -> list[tuple[str, int]]:
        """Return topic and queue id of each queue of a partition."""
        rows = slice(self.bounds[partition], self.bounds[partition + 1])
        numbers, queue_ids = self.topic_numbers[rows].tolist(), self.queue_ids[rows].tolist()
        return [(self.topics[number], queue_id) for number, queue_id in zip(numbers, queue_ids, strict=True)]


class QueueDirectories:
    """Set of queues, to which several directories may add the same queue."""

    def __init__(self) -> None:
        self._topics: dict[str, int] = {}
        self._numbers, self._queue_ids = array("i"), array("i")

    def add(self, topic: str, queue_ids: Sequence[int]) -> None:
        """Add queues of a topic; their ids are Java's, of 32 bits."""
        if queue_ids:
            number = self._topics.setdefault(topic, len(self._topics))
            self._numbers.extend([number] * len(queue_ids))
            self._queue_ids.extend(queue_ids)

    def by_partition(self, least: int) -> QueuesByPartition:
        """Divide the queues among ``least`` or more partitions, of which none has too many, up to MAX_PARTITIONS."""
        both = np.array(self._numbers, dtype=np.int64) << 32
        both |= np.array(self._queue_ids, dtype=np.int32).view(np.uint32)
        both = np.unique(both)
        numbers, queue_ids = (both >> 32).astype(np.int32), both.astype(np.uint32).view(np.int32)
        count = min(MAX_PARTITIONS, max(least, -(-len(both) // QUEUES_PER_PARTITION)))
        hashes = np.fromiter(map(java_string_hash, self._topics), dtype=np.int64, count=len(self._topics))
        partitions = partition_of(hashes[numbers], queue_ids.astype(np.int64), count).astype(np.int16)
        order = np.argsort(partitions, kind="stable")
        bounds = np.searchsorted(partitions[order], np.arange(count + 1))
        return QueuesByPartition(list(self._topics), numbers[order], queue_ids[order], bounds)


def list_queues(store: StoreFiles, findings: FindingList) -> JobSteps[QueueDirectories]:
    """List the queue directories in steps that yield their tasks; other entries become findings.

    Topics are listed in tasks where they are many objects: a million light queues have a topic's directory each.
    """
    directories = QueueDirectories()
    topics = list(_topics(store, findings))
    task = functools.partial(_list_topics, storage=store.storage)
    size = max(REQUESTS_AT_ONCE, -(-len(topics) // _MAX_LISTS))
    slices = [topics[at : at + size] for at in range(0, len(topics), size)]
    parts = map(task, slices) if store.storage.is_local or len(slices) <= 1 else iter((yield TaskBatch(task, slices)))
    for part_topics, (queue_ids, part_findings) in zip(slices, parts, strict=True):
        for (_, topic), ids in zip(part_topics, queue_ids, strict=True):
            directories.add(topic, ids)
        findings.merge(part_findings)
    return directories


def _topics(store: StoreFiles, findings: FindingList) -> Iterator[tuple[str, str]]:
    """List directory and name of each topic that may have queues."""
    batch = paths.batch_consumequeue_dir(store.root)
    trees = [paths.consumequeue_dir(store.root), paths.consumequeue_ext_dir(store.root), batch]
    is_database = store.layouts.queue_database is not None
    if is_database and not store.layouts.has_queue_files:
        trees = [batch]
    for tree in trees:
        for topic in list_or_report(store.storage, tree, finding_kinds.QUEUE_UNREADABLE, findings):
            path = f"{tree}/{topic.name}"
            if not topic.is_directory and is_database and tree == paths.consumequeue_dir(store.root):
                continue  # a file of the database
            if not topic.is_directory:
                findings.report(finding_kinds.STRAY, "a file among the topics' directories", path)
            elif not is_named_topic(topic.name):
                findings.report(finding_kinds.STRAY, "a directory that is no topic's", path)
            else:
                yield tree, topic.name


def _list_topics(topics: Sequence[tuple[str, str]], storage: Storage) -> tuple[list[QueueIds], FindingList]:
    """Task: list the queues of some topics; return their ids by topic, and other entries as findings."""
    ids_by_topic: list[QueueIds] = []
    findings = FindingList()
    for queue_ids, topic_findings in request_all(storage, functools.partial(_list_topic_queues, storage), topics):
        ids_by_topic.append(queue_ids)
        if topic_findings.counts:
            findings.merge(topic_findings)
    return ids_by_topic, findings


def _list_topic_queues(storage: Storage, topic_directory: tuple[str, str]) -> tuple[QueueIds, FindingList]:
    """List the queue ids in the directory of a topic; other entries become findings."""
    queue_ids, findings, (tree, topic) = array("i"), FindingList(), topic_directory
    path = f"{tree}/{topic}"
    for queue in list_or_report(storage, path, finding_kinds.QUEUE_UNREADABLE, findings):
        # Java creates a queue with a negative id, too, if a record has one.
        is_number = queue.name.removeprefix("-").isdecimal() and str(int(queue.name)) == queue.name
        if queue.is_directory and is_number and -MAX_INT - 1 <= int(queue.name) <= MAX_INT:
            queue_ids.append(int(queue.name))
        else:
            what = "a directory" if queue.is_directory else "a file"
            findings.report(finding_kinds.STRAY, f"{what} that is no queue's", f"{path}/{queue.name}", topic=topic)
    return queue_ids, findings


def is_named_topic(topic: str) -> bool:
    """Return whether a topic can have a directory; a topic that was no UTF-8 in its record has none."""
    return paths.is_safe_topic(topic) and "\N{REPLACEMENT CHARACTER}" not in topic
