"""Layouts of queues that the tasks of a verification compare with the log: files, and batch queues."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from rmq_formats.codecs import paths
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX, is_broker_topic
from rmq_formats.kernels.units import QUEUE_OFFSET, ROW_COLUMNS
from rmq_formats.storage.store_files import StoreFiles
from rmq_offline.tasks import spill
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.absent_queues import AbsentQueues, is_deleted
from rmq_offline.verify.batch_queue import BatchQueueCheck
from rmq_offline.verify.consumequeue import QueueCheck, QueueFile, QueueName
from rmq_offline.verify.findings import FindingList
from rmq_offline.verify.log_facts import LogFacts, Longs
from rmq_offline.verify.phases.stored_files import StoredFiles

NO_ROWS: Final = np.empty((0, ROW_COLUMNS), dtype=np.int64)
_DELETED: Final = (finding_kinds.TOPIC_DELETED, finding_kinds.QUEUE_ABSENT)


@dataclass(slots=True)
class PartitionState:
    """State that the checks of a partition's queues share; ``known_topics`` is None without ``config/topics.json``."""

    store: StoreFiles
    sizes: StoreSizes
    facts: LogFacts
    known_topics: frozenset[str] | None
    batch_topics: frozenset[str]
    absent_queues: AbsentQueues
    findings: FindingList = field(default_factory=FindingList)
    race_findings: FindingList = field(default_factory=FindingList)
    queue_count: int = 0

    @property
    def stored(self) -> StoredFiles:
        """Reader of the files of queues."""
        return StoredFiles(self.store, self.sizes, self.findings)

    def queue_files(self, name: QueueName, directory: str, file_bytes: int) -> list[QueueFile] | None:
        """List the files of a queue; None where the directory cannot be read, which is a finding."""
        kinds = finding_kinds.QUEUE_UNREADABLE, finding_kinds.QUEUE_FOREIGN
        return self.stored.files(name, directory, *kinds, file_bytes)


@dataclass(frozen=True, slots=True)
class QueueRecords:
    """Records of a queue, int64[n, ROW_COLUMNS], in log order.

    ``has_consumer_offset`` is whether a group has committed an offset above 0.
    """

    name: QueueName
    rows: Longs
    has_consumer_offset: bool


class QueueLayout(Protocol):
    """Port over the layouts of queues. ``queues.queue_layouts`` lists its implementations."""

    def has(self, name: QueueName) -> bool:
        """Return whether this layout may have a queue."""
        ...

    def check(self, queue: QueueRecords) -> int | None:
        """Compare a queue with its records.

        Returns:
            One past the queue's last message; None if unknown, so that no committed offset is compared.
        """
        ...


@dataclass(frozen=True, slots=True)
class FileQueueLayout:
    """ConsumeQueue files; ``has_light_queues`` is False where a database has the light queues."""

    partition: PartitionState
    has_light_queues: bool

    def has(self, name: QueueName) -> bool:
        if name.topic in self.partition.batch_topics:
            return False
        return self.has_light_queues or not name.topic.startswith(LIGHT_QUEUE_PREFIX)

    def check(self, queue: QueueRecords) -> int | None:
        partition, name, rows = self.partition, queue.name, queue.rows
        directory = paths.queue_dir(paths.consumequeue_dir(partition.store.root), name.topic, name.queue_id)
        files = partition.queue_files(name, directory, partition.sizes.consumequeue_file_bytes)
        if files is None:
            return None
        if not files and len(rows):
            if is_broker_topic(name.topic) and is_deleted(name.topic, partition.known_topics):
                detail = f"{len(rows)} messages of the log"
                name.report(partition.findings, finding_kinds.OWN_TOPIC_MISSING, detail, count=len(rows))
                return int(rows[:, QUEUE_OFFSET].max()) + 1
            kind = partition.absent_queues.classify(name.topic, rows, has_consumer_offset=queue.has_consumer_offset)
            if kind in _DELETED:
                detail = f"{len(rows)} messages of the log, and no files"
                name.report(partition.findings, kind, detail, count=len(rows))
                return None
        partition.queue_count += 1
        check = QueueCheck(
            name,
            rows,
            partition.facts,
            partition.findings,
            partition.race_findings,
            partition.stored.ext(name),
            is_known=not is_deleted(name.topic, partition.known_topics),
            log_file_bytes=partition.sizes.commitlog_file_bytes,
        )
        check.check(files, partition.sizes.consumequeue_file_bytes)
        return check.end_offset


@dataclass(frozen=True, slots=True)
class BatchQueueLayout:
    """BatchConsumeQueue files; ``inner_batches`` reads the log's inner batches, see ``tasks.spill.read_batches``."""

    partition: PartitionState
    inner_batches: Callable[[], Longs]

    def has(self, name: QueueName) -> bool:
        return name.topic in self.partition.batch_topics

    def check(self, queue: QueueRecords) -> int | None:
        partition, name, rows = self.partition, queue.name, queue.rows
        plain = paths.queue_dir(paths.consumequeue_dir(partition.store.root), name.topic, name.queue_id)
        if partition.store.storage.exists(plain):
            kind = finding_kinds.QUEUE_OF_OTHER_KIND
            name.report(partition.findings, kind, "a plain queue's directory", path=plain)
        directory = paths.queue_dir(paths.batch_consumequeue_dir(partition.store.root), name.topic, name.queue_id)
        file_bytes = partition.sizes.batchconsumequeue_file_bytes
        files = partition.queue_files(name, directory, file_bytes)
        if files is None:
            return None
        partition.queue_count += 1
        units = spill.make_batch_units(rows, self.inner_batches() if len(rows) else rows)
        findings, race_findings = partition.findings, partition.race_findings
        is_known = not is_deleted(name.topic, partition.known_topics)
        check = BatchQueueCheck(name, units, partition.facts, findings, race_findings, is_known=is_known)
        check.check(files, file_bytes)
        return check.end_offset
