"""Sources of a rebuilt queue: its files in the store, its units in RocksDB, and the log.

Each source is a class with the methods of one port, and ``queue_sources`` lists those of a rebuild: the first one that
has a queue decides what is written.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import paths
from rmq_formats.codecs.batch_consumequeue import batch_images
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX, is_consumed_by_broker
from rmq_formats.kernels import units as unit_kernel
from rmq_formats.read.queue_units import QueueDatabase
from rmq_formats.scan import derived_images
from rmq_formats.scan.derived_images import Placement, Rows
from rmq_offline.rebuild import log_facts
from rmq_offline.rebuild.existing_database import open_existing_database, place_by_database, read_existing_database_path
from rmq_offline.rebuild.existing_queues import ExistingQueues, Queue, RetainedQueue
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.tasks import spill
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.tasks.work_files import Area
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding
from rmq_offline.verify.log_facts import LogFacts

NO_ROWS: Final = np.empty((0, unit_kernel.ROW_COLUMNS), dtype=np.int64)
PlaceRecords: TypeAlias = Callable[[Rows], Placement]
Files = dict[str, int]  # sizes in bytes, by names in the store


@dataclass(frozen=True, slots=True)
class WrittenQueue:
    """Queue as a rebuild has written it.

    Attributes:
        files: empty for a queue that should have no files.
        unit_count: number of units, without pre-blanks.
        findings: about the queue's records.
        counts: number of all findings by code, also of findings that are not listed.
    """

    files: Files
    unit_count: int
    findings: Sequence[Finding]
    counts: Mapping[str, int]


class QueueSource(Protocol):
    """Port of a source that decides on a queue's units."""

    def write(self, queue: Queue, rows: Rows) -> WrittenQueue | None:
        """Write a queue of records, int64[n, ROW_COLUMNS] in log order; None for a queue of another source."""


@dataclass(frozen=True, slots=True)
class QueueFileWriter:
    """Writer of queue files below ``new/`` of a work area."""

    sizes: StoreSizes
    area: Area

    def write_placement(self, queue: Queue, placement: Placement) -> WrittenQueue:
        """Write the records that have a place in their queue, and report the others."""
        findings = list(_placement_findings(*queue, placement))
        files = self._write_rows(queue, placement.rows) if len(placement.rows) else {}
        return WrittenQueue(files, len(placement.rows), findings, Counter(finding.kind.code for finding in findings))

    def write_merged(self, queue: Queue, merged: RetainedQueue) -> Files:
        """Carry a queue over, or write the merge of its files and its records."""
        files = Files()
        for file in (*(merged.files or ()), *(merged.ext_files or ())):
            files |= self._write_image(file.tree, file.start_offset, file.image)
        if merged.files is not None or merged.state is None:
            return files
        state, lost = merged.state, merged.state.lost
        if not is_consumed_by_broker(queue[0]):  # clients pass over pre-blanks; only the last unit must be none
            lost = lost[lost[:, unit_kernel.QUEUE_OFFSET] == state.end - 1]
        keeps_ext = merged.ext_files is not None
        return files | self._write_rows(queue, state.rows, lost, end=state.end, keeps_ext=keeps_ext)

    def write_batches(self, queue: Queue, units: NDArray[np.void]) -> Files:
        files = Files()
        directory = paths.queue_dir("batchconsumequeue", *queue)
        for start, image in batch_images(units, self.sizes.batchconsumequeue_file_bytes):
            files |= self._write_image(directory, start, image)
        return files

    def _write_rows(
        self, queue: Queue, rows: Rows, lost: Rows = NO_ROWS, *, end: int = 0, keeps_ext: bool = False
    ) -> Files:
        files: Files = {}
        ext_file_bytes = self.sizes.consumequeue_ext_file_bytes
        if ext_file_bytes and not keeps_ext:
            rows, ext_images = derived_images.ext_images(rows, ext_file_bytes)
            directory = paths.queue_dir("consumequeue_ext", *queue)
            for number, image in enumerate(ext_images):
                files |= self._write_image(directory, number * ext_file_bytes, image)
        if len(lost):
            rows = np.concatenate([rows, lost])
            rows = np.ascontiguousarray(rows[np.argsort(rows[:, unit_kernel.QUEUE_OFFSET])])
        directory = paths.queue_dir("consumequeue", *queue)
        for start, units in derived_images.consumequeue_images(rows, self.sizes.consumequeue_file_bytes, end):
            files |= self._write_image(directory, start, units.data)
        return files

    def _write_image(self, directory: str, start_offset: int, image: bytes | memoryview) -> Files:
        """Write a file's used bytes; the rest of the file stays a hole."""
        file_bytes = {
            "consumequeue": self.sizes.consumequeue_file_bytes,
            "consumequeue_ext": self.sizes.consumequeue_ext_file_bytes,
            "batchconsumequeue": self.sizes.batchconsumequeue_file_bytes,
        }[directory.partition("/")[0]]

        def write(target: Path) -> None:
            with target.open("wb", buffering=0) as file:
                file.write(image)
                file.truncate(file_bytes)

        name = f"{directory}/{paths.segment_name(start_offset)}"
        self.area.write(f"new/{name}", write)
        return {name: file_bytes}


def _placement_findings(topic: str, queue_id: int, placement: Placement) -> Iterator[Finding]:
    for kind, rows in (
        (finding_kinds.QUEUE_OFFSET_REPEATED, placement.repeated),
        (finding_kinds.QUEUE_OFFSET_DISPLACED, placement.displaced),
    ):
        for row in rows:
            offset, size = int(row[unit_kernel.PHYSICAL_OFFSET]), int(row[unit_kernel.SIZE])
            queue_offset = int(row[unit_kernel.QUEUE_OFFSET])
            yield Finding(kind, "unit left out", None, offset, size, topic, queue_id, queue_offset)
    if placement.gap_units:
        detail = f"{placement.gap_units} queue offsets between the first and the last have no record"
        yield Finding(finding_kinds.QUEUE_OFFSET_GAP, detail, topic=topic, queue_id=queue_id)


@dataclass(frozen=True, slots=True)
class BatchQueueSource:
    """Source of batch queues: sound ones are carried over, others are made of the log.

    Attributes:
        existing: the store's queues; None if the log decides alone.
        inner_batches: reads the inner batches of the log, see ``tasks.spill.read_batches``.
    """

    writer: QueueFileWriter
    topics: frozenset[str]
    existing: ExistingQueues | None
    inner_batches: Callable[[], NDArray[np.int64]]

    def write(self, queue: Queue, rows: Rows) -> WrittenQueue | None:
        if queue[0] not in self.topics:
            return None
        units = spill.make_batch_units(rows, self.inner_batches() if len(rows) else rows)
        carried = None if self.existing is None else self.existing.merge_batches(queue, units)
        files = self.writer.write_batches(queue, units) if carried is None else self.writer.write_merged(queue, carried)
        return WrittenQueue(files, len(units), (), {})


@dataclass(frozen=True, slots=True)
class ExistingFilesSource:
    """Source of the queues that have ConsumeQueue files in the store."""

    writer: QueueFileWriter
    existing: ExistingQueues

    def write(self, queue: Queue, rows: Rows) -> WrittenQueue | None:
        merged = self.existing.merge(queue, rows)
        if merged is None:
            return None
        files = self.writer.write_merged(queue, merged)
        unit_count = 0 if merged.state is None else len(merged.state.rows)
        counts = {kind.code: count for kind, count in merged.findings.counts.items()}
        return WrittenQueue(files, unit_count, merged.findings.kept, counts)


@dataclass(frozen=True, slots=True)
class ExistingDatabaseSource:
    """Source of the queues of a store whose ConsumeQueue is rebuilt as a RocksDB, by the store's one if readable."""

    writer: QueueFileWriter
    database: QueueDatabase | None
    facts: LogFacts

    def write(self, queue: Queue, rows: Rows) -> WrittenQueue | None:
        return self.writer.write_placement(queue, place_by_database(self.database, *queue, rows, self.facts))


@dataclass(frozen=True, slots=True)
class LogSource:
    """Source of last resort: the log, which has each queue.

    Attributes:
        is_partial: some topics are not rebuilt, so that light queues lack the units of those topics.
    """

    writer: QueueFileWriter
    place_records: PlaceRecords
    is_partial: bool

    def write(self, queue: Queue, rows: Rows) -> WrittenQueue | None:
        has_gaps = self.is_partial and queue[0].startswith(LIGHT_QUEUE_PREFIX)
        placement = derived_images.place_by_offset(rows) if has_gaps else self.place_records(rows)
        return self.writer.write_placement(queue, placement)


@contextmanager
def queue_sources(
    partition: int, split_count: int, options: RebuildOptions, area: Area, place_records: PlaceRecords | None
) -> Iterator[tuple[Sequence[Queue], Sequence[QueueSource]]]:
    """Open the sources of a partition's queues, and list the queues that have files in the store.

    Args:
        place_records: gives the records of a queue their queue offsets; None: as a broker dispatches the log.
    """
    writer = QueueFileWriter(options.sizes, area)
    inner_batches = functools.cache(lambda: spill.read_batches(area, split_count))
    existing: ExistingQueues | None = None
    with ExitStack() as stack:
        sources: list[QueueSource] = []
        if place_records is None:
            facts = log_facts.read_log_facts(area)
            place_records = functools.partial(derived_images.place_units, lost=facts.lost_ranges)
            if ExistingQueues.exist(area, partition):
                existing = ExistingQueues(area, partition, options, facts)
                sources.append(ExistingFilesSource(writer, existing))
            if options.queue_database:
                database = stack.enter_context(open_existing_database(read_existing_database_path(area)))
                sources.append(ExistingDatabaseSource(writer, database, facts))
        sources.insert(0, BatchQueueSource(writer, options.batch_topics, existing, inner_batches))
        sources.append(LogSource(writer, place_records, is_partial=options.live_topics is not None))
        yield () if existing is None else existing.queues, sources


def write_queue(queue: Queue, rows: Rows, sources: Sequence[QueueSource]) -> WrittenQueue:
    """Write a queue by the first source that has the queue; a topic that is no directory name is a finding."""
    topic, queue_id = queue
    if not paths.is_safe_topic(topic) or "\ufffd" in topic:
        kind, offset = finding_kinds.LOG_TOPIC, int(rows[0, unit_kernel.PHYSICAL_OFFSET])
        finding = Finding(kind, "topic is no directory name", None, offset, None, topic, queue_id)
        return WrittenQueue({}, 0, [finding], {kind.code: 1})
    written = (source.write(queue, rows) for source in sources)
    return next(result for result in written if result is not None)
