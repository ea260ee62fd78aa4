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
from rmq_formats.read.rocksdb_queues import QueueDatabase
from rmq_formats.scan import derived_images
from rmq_formats.scan.derived_images import Placement, Rows
from rmq_offline.rebuild import log_facts
from rmq_offline.rebuild.existing_database import open_existing_database, place_by_database, read_existing_database_path
from rmq_offline.rebuild.existing_queues import ExistingQueues, Queue, RetainedQueue
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.tasks import batch_queues
from rmq_offline.tasks.work_files import Area
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding
from rmq_offline.verify.log_facts import LogFacts

NO_ROWS: Final = np.empty((0, unit_kernel.ROW_COLUMNS), dtype=np.int64)
PlaceRecords: TypeAlias = Callable[[Rows], Placement]
Files = dict[str, int]  # sizes in bytes, by names in the store


@dataclass(frozen=True, slots=True)
class WrittenQueue:
    """A queue as a rebuild has written it.

    Attributes:
        files: none, where the queue should have none.
        unit_count: units in them, without fillers.
        findings: about its records.
        counts: all findings, those included that were not kept, by code.
    """

    files: Files
    unit_count: int
    findings: Sequence[Finding]
    counts: Mapping[str, int]


class QueueSource(Protocol):
    """Port over what decides on a queue's units."""

    def write(self, queue: Queue, rows: Rows) -> WrittenQueue | None:
        """Write a queue's files; None where this source does not have the queue.

        Args:
            rows: its records, int64[n, ROW_COLUMNS], in log order.
        """
        ...


@contextmanager
def queue_sources(
    partition: int, split_count: int, options: RebuildOptions, area: Area, place_records: PlaceRecords | None
) -> Iterator[tuple[Sequence[Queue], Sequence[QueueSource]]]:
    """Open the sources of a partition's queues, and list the queues that stand in the store.

    Args:
        split_count: of the first wave.
        place_records: gives the records of a queue their queue offsets; None: as a broker dispatches the log.
    """
    inner_batches = functools.cache(lambda: batch_queues.read_batches(area, split_count))
    standing: ExistingQueues | None = None
    with ExitStack() as stack:
        sources: list[QueueSource] = []
        if place_records is None:
            facts = log_facts.read_log_facts(area)
            place_records = functools.partial(derived_images.place_units, lost=facts.lost_ranges)
            if ExistingQueues.exist(area, partition):
                standing = ExistingQueues(area, partition, options, facts)
                sources.append(ExistingFilesSource(options, area, standing))
            if options.queue_database:
                database = stack.enter_context(open_existing_database(read_existing_database_path(area)))
                sources.append(ExistingDatabaseSource(options, area, database, facts))
        sources.insert(0, BatchQueueSource(options, area, standing, inner_batches))
        yield () if standing is None else standing.queues, [*sources, LogSource(options, area, place_records)]


def write_queue(queue: Queue, rows: Rows, sources: Sequence[QueueSource]) -> WrittenQueue:
    """Write a queue by the first source that has it; one whose topic is no directory name is a finding."""
    topic, queue_id = queue
    if not paths.is_safe_topic(topic) or "\ufffd" in topic:
        kind, offset = finding_kinds.LOG_TOPIC, int(rows[0, unit_kernel.PHYSICAL_OFFSET])
        finding = Finding(kind, "topic is no directory name", None, offset, None, topic, queue_id)
        return WrittenQueue({}, 0, [finding], {kind.code: 1})
    written = (source.write(queue, rows) for source in sources)
    return next(result for result in written if result is not None)


@dataclass(frozen=True, slots=True)
class BatchQueueSource:
    """Batch queues: carried over where nothing is wrong in them, else made of the log.

    Attributes:
        standing: the store's queues; None where the log is all.
        inner_batches: reads the inner batches of the log, see ``tasks.batch_queues.read_batches``.
    """

    options: RebuildOptions
    area: Area
    standing: ExistingQueues | None
    inner_batches: Callable[[], NDArray[np.int64]]

    def write(self, queue: Queue, rows: Rows) -> WrittenQueue | None:
        if queue[0] not in self.options.batch_topics:
            return None
        units = batch_queues.units_of(rows, self.inner_batches() if len(rows) else rows)
        carried = None if self.standing is None else self.standing.merge_batches(queue, units)
        if carried is None:
            files = _write_batch_queue(*queue, units, self.options, self.area)
        else:
            files = _write_merged_queue(*queue, carried, self.options, self.area)
        return WrittenQueue(files, len(units), (), {})


@dataclass(frozen=True, slots=True)
class ExistingFilesSource:
    """ConsumeQueue files that stand in the store."""

    options: RebuildOptions
    area: Area
    standing: ExistingQueues

    def write(self, queue: Queue, rows: Rows) -> WrittenQueue | None:
        merged = self.standing.merge(queue, rows)
        if merged is None:
            return None
        files = _write_merged_queue(*queue, merged, self.options, self.area)
        unit_count = 0 if merged.state is None else len(merged.state.rows)
        counts = {kind.code: count for kind, count in merged.findings.counts.items()}
        return WrittenQueue(files, unit_count, merged.findings.kept, counts)


@dataclass(frozen=True, slots=True)
class ExistingDatabaseSource:
    """Units in the RocksDB of a store whose queues are rebuilt as one.

    Attributes:
        database: None where there is none, or none that can be read.
    """

    options: RebuildOptions
    area: Area
    database: QueueDatabase | None
    facts: LogFacts

    def write(self, queue: Queue, rows: Rows) -> WrittenQueue | None:
        placement = place_by_database(self.database, *queue, rows, self.facts)
        return _write_placed_queue(queue, placement, self.options, self.area)


@dataclass(frozen=True, slots=True)
class LogSource:
    """The log, which has each queue.

    Attributes:
        place_records: gives the rows of a queue their places.
    """

    options: RebuildOptions
    area: Area
    place_records: PlaceRecords

    def write(self, queue: Queue, rows: Rows) -> WrittenQueue | None:
        # Of light queues, the units of topics that are not rebuilt are left out.
        is_partial = self.options.live_topics is not None and queue[0].startswith(LIGHT_QUEUE_PREFIX)
        placement = derived_images.place_by_offset(rows) if is_partial else self.place_records(rows)
        return _write_placed_queue(queue, placement, self.options, self.area)


def _write_placed_queue(queue: Queue, placement: Placement, options: RebuildOptions, area: Area) -> WrittenQueue:
    findings = list(_queue_findings(*queue, placement))
    files = _write_queue(*queue, placement.rows, options, area) if len(placement.rows) else {}
    return WrittenQueue(files, len(placement.rows), findings, Counter(finding.kind.code for finding in findings))


def _queue_findings(topic: str, queue_id: int, placement: Placement) -> Iterator[Finding]:
    for kind, rows in (
        (finding_kinds.QUEUE_OFFSET_REPEATED, placement.repeated),
        (finding_kinds.QUEUE_OFFSET_DISPLACED, placement.displaced),
    ):
        for row in rows:
            yield Finding(
                kind, "unit left out", None, int(row[unit_kernel.PHYSICAL_OFFSET]), int(row[unit_kernel.SIZE]),
                topic, queue_id, int(row[unit_kernel.QUEUE_OFFSET]),
            )  # fmt: skip
    if placement.gap_units:
        detail = f"{placement.gap_units} queue offsets between the first and the last have no record"
        yield Finding(finding_kinds.QUEUE_OFFSET_GAP, detail, topic=topic, queue_id=queue_id)


def _write_merged_queue(
    topic: str, queue_id: int, merged: RetainedQueue, options: RebuildOptions, area: Area
) -> Files:  # fmt: skip
    """Carry a queue over, or write the merge of its files and its records."""
    sizes, files = options.sizes, Files()
    sizes_of = {
        "consumequeue": sizes.consumequeue_file_bytes, "consumequeue_ext": sizes.consumequeue_ext_file_bytes,
        "batchconsumequeue": sizes.batchconsumequeue_file_bytes,
    }  # fmt: skip
    for file in (*(merged.files or ()), *(merged.ext_files or ())):
        files |= _write_image(area, file.tree, file.start_offset, file.image, sizes_of[file.tree.split("/")[0]])
    if merged.files is not None or merged.state is None:
        return files
    state, lost = merged.state, merged.state.lost
    if not is_consumed_by_broker(topic):  # clients pass over pre-blanks; only the last unit must be none
        lost = lost[lost[:, unit_kernel.QUEUE_OFFSET] == state.end - 1]
    keeps_ext = merged.ext_files is not None
    return files | _write_queue(topic, queue_id, state.rows, options, area, lost, end=state.end, keeps_ext=keeps_ext)


def _write_queue(
    topic: str,
    queue_id: int,
    rows: Rows,
    options: RebuildOptions,
    area: Area,
    lost: Rows = NO_ROWS,
    *,
    end: int = 0,
    keeps_ext: bool = False,
) -> Files:
    files: Files = {}
    if options.sizes.consumequeue_ext_file_bytes and not keeps_ext:
        rows, ext_images = derived_images.ext_images(rows, options.sizes.consumequeue_ext_file_bytes)
        directory = paths.queue_dir("consumequeue_ext", topic, queue_id)
        for number, image in enumerate(ext_images):
            start = number * options.sizes.consumequeue_ext_file_bytes
            files |= _write_image(area, directory, start, image, options.sizes.consumequeue_ext_file_bytes)
    if len(lost):
        rows = np.concatenate([rows, lost])
        rows = np.ascontiguousarray(rows[np.argsort(rows[:, unit_kernel.QUEUE_OFFSET])])
    directory = paths.queue_dir("consumequeue", topic, queue_id)
    for start, units in derived_images.consumequeue_images(rows, options.sizes.consumequeue_file_bytes, end):
        files |= _write_image(area, directory, start, units.data, options.sizes.consumequeue_file_bytes)
    return files


def _write_batch_queue(
    topic: str, queue_id: int, units: NDArray[np.void], options: RebuildOptions, area: Area
) -> Files:  # fmt: skip
    file_bytes, files = options.sizes.batchconsumequeue_file_bytes, Files()
    directory = paths.queue_dir("batchconsumequeue", topic, queue_id)
    for start, image in batch_images(units, file_bytes):
        files |= _write_image(area, directory, start, image, file_bytes)
    return files


def _write_image(area: Area, directory: str, start_offset: int, image: bytes | memoryview, file_bytes: int) -> Files:
    """Write a file's used bytes; the rest of it stays a hole."""

    def write(target: Path) -> None:
        with target.open("wb", buffering=0) as file:
            file.write(image)
            file.truncate(file_bytes)

    name = f"{directory}/{paths.segment_name(start_offset)}"
    area.write(f"new/{name}", write)
    return {name: file_bytes}
