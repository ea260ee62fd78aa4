"""Second task batch of a verification: each task compares the queues of one partition with the records of the log."""

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from rmq_formats.kernels.live_dispatch_tables import LIGHT_UNIT
from rmq_formats.kernels.units import PHYSICAL_OFFSET, QUEUE_OFFSET, STORE_TIMESTAMP
from rmq_formats.read.query import Queue
from rmq_formats.storage.store_files import open_store
from rmq_offline.tasks import spill
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.tasks.work_area import WorkArea
from rmq_offline.tasks.work_files import read_longs, write_longs, write_text
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.absent_queues import AbsentQueues
from rmq_offline.verify.committed_offsets import CommittedOffset, check_committed_offset, check_offset_without_queue
from rmq_offline.verify.consumequeue import QueueName
from rmq_offline.verify.findings import FindingList
from rmq_offline.verify.log_facts import LogFacts, Longs
from rmq_offline.verify.phases.queue_database import DatabaseQueueLayout, DatabaseReference, reopen_database
from rmq_offline.verify.phases.queue_directories import QueuesByPartition, is_named_topic
from rmq_offline.verify.phases.queue_layouts import (
    NO_ROWS,
    BatchQueueLayout,
    FileQueueLayout,
    PartitionState,
    QueueLayout,
    QueueRecords,
)
from rmq_offline.verify.phases.queue_logs import QueueLogInput, check_queue_log


@dataclass(frozen=True, slots=True)
class PartResult:
    """Result of verifying one partition; ``unit_count`` is the number of units that the queues should have."""

    findings: FindingList
    race_findings: FindingList
    queue_count: int
    unit_count: int


@dataclass(frozen=True, slots=True)
class TopicsAndOffsets:
    """Topics and committed offsets of a store's queues, by its config files.

    Attributes:
        known_topics: topics of ``config/topics.json``; None without that file.
        batch_topics: topics whose queues are BatchConsumeQueues.
        offsets: offsets of consumer groups and delay levels, by the path of their file.
        begins_elsewhere: queue offset at which a queue begins in a compacted log or in tiered storage.
    """

    known_topics: frozenset[str] | None
    batch_topics: frozenset[str]
    offsets: Mapping[str, Sequence[CommittedOffset]]
    begins_elsewhere: Mapping[Queue, int]


def write_facts(work: WorkArea, facts: LogFacts) -> None:
    """Write the facts of the log for the tasks."""
    numbers = [facts.start, facts.end, facts.largest_record_bytes, facts.is_cut, facts.dispatched_end]
    bounds = np.array(numbers, dtype=np.int64)
    write_longs(work, "facts.msgpack", bounds=bounds, begins=facts.lost_begins, ends=facts.lost_ends)


def read_facts(work: WorkArea) -> LogFacts:
    """Read the facts of the log from the file of ``write_facts``."""
    arrays = read_longs(work, "facts.msgpack")
    start, end, largest, is_cut, dispatched = arrays["bounds"].tolist()
    return LogFacts(start, end, arrays["begins"], arrays["ends"], largest, bool(is_cut), dispatched)


def write_queue_inputs(
    work: WorkArea,
    directories: QueuesByPartition,
    committed_offsets: TopicsAndOffsets,
    database: DatabaseReference | None = None,
    logs: Sequence[QueueLogInput] = (),
    *,
    has_files: bool = True,
) -> None:
    """Write the store's queue directories and committed offsets for the tasks, one file a partition.

    Args:
        database: the ConsumeQueue in a database; None without a readable one.
        logs: logs of single queues, in tiered storage or of compacted topics.
        has_files: whether the store has ConsumeQueue files too.
    """
    facts = {
        "database": None if database is None else [database.path, database.dispatched],
        "has_files": has_files,
        "known_topics": None if committed_offsets.known_topics is None else sorted(committed_offsets.known_topics),
        "batch_topics": sorted(committed_offsets.batch_topics),
    }
    write_text(work, "topics.json", json.dumps(facts))
    parts: list[list[Any]] = [[] for _ in range(len(directories))]
    for path, file_offsets in committed_offsets.offsets.items():
        for committed in file_offsets:
            partition = spill.queue_partition(committed.topic, committed.queue_id, len(directories))
            begin = committed_offsets.begins_elsewhere.get((committed.topic, committed.queue_id))
            fields = [committed.topic, committed.queue_id, committed.queue_offset, committed.group]
            parts[partition].append([path, begin, *fields])
    queue_logs: list[list[Any]] = [[] for _ in range(len(directories))]
    for log in logs:
        queue_logs[spill.queue_partition(log.topic, log.queue_id, len(directories))].append(log.to_list())
    for partition in range(len(directories)):
        queues = directories.of(partition)
        text = json.dumps({"directories": queues, "offsets": parts[partition], "logs": queue_logs[partition]})
        write_text(work, f"queues-{partition:06d}.json", text)


def check_queues(partition: int, root: str, split_count: int, sizes: StoreSizes, work: WorkArea) -> PartResult:
    """Task: compare the queues of one partition."""
    queues: dict[tuple[str, int], list[Longs]] = {}
    for number in range(split_count):
        for topic, queue_id, rows in spill.read_partition(work.path(f"spill/units-{number:06d}.arrow"), partition):
            if len(rows):
                queues.setdefault((topic, queue_id), []).append(rows)
    inputs = json.loads(work.read_text(f"queues-{partition:06d}.json"))
    for topic, queue_id in inputs["directories"]:
        queues.setdefault((topic, queue_id), [])
    logs: dict[tuple[str, int], list[QueueLogInput]] = {}
    for item in inputs["logs"]:
        log = QueueLogInput(*item)
        logs.setdefault((log.topic, log.queue_id), []).append(log)
    committed_offsets: dict[tuple[str, int], list[tuple[str, CommittedOffset]]] = {}
    begins_elsewhere: dict[Queue, int] = {}
    for path, begin, *fields in inputs["offsets"]:
        committed = CommittedOffset(*fields)
        committed_offsets.setdefault((committed.topic, committed.queue_id), []).append((path, committed))
        if begin is not None:
            begins_elsewhere[committed.topic, committed.queue_id] = begin
    topics = json.loads(work.read_text("topics.json"))
    store = open_store(root)
    known_topics = None if topics["known_topics"] is None else frozenset(topics["known_topics"])
    batch_topics, absent_queues = frozenset(topics["batch_topics"]), AbsentQueues(store, known_topics)
    state = PartitionState(store, sizes, read_facts(work), known_topics, batch_topics, absent_queues)
    unit_count, names = 0, frozenset(queues)
    with queue_layouts(state, topics, work, split_count) as layouts:
        for name in sorted(queues):
            records = np.concatenate([NO_ROWS, *queues.pop(name)])
            unit_count += len(records)
            begin_elsewhere = begins_elsewhere.get(name)
            _check_queue(QueueName(*name), records, committed_offsets.get(name, ()), begin_elsewhere, state, layouts)
            for log in logs.pop(name, ()):
                check_queue_log(log, records, state.findings, state.race_findings)
    for name in sorted(committed_offsets.keys() - names):
        for path, committed in committed_offsets[name]:
            finding = check_offset_without_queue(committed, path, state.known_topics)
            if finding is not None:
                state.race_findings.add(finding)
    for log in (log for queue_logs in logs.values() for log in queue_logs):
        check_queue_log(log, NO_ROWS, state.findings, state.race_findings)
    return PartResult(state.findings, state.race_findings, state.queue_count, unit_count)


@contextmanager
def queue_layouts(
    partition: PartitionState, topics: Mapping[str, Any], work: WorkArea, split_count: int
) -> Iterator[Sequence[QueueLayout]]:
    """Open the layouts of the store's queues; of a queue in several, the last layout decides on its end."""
    inner_batches = functools.cache(lambda: spill.read_batches(work, split_count))
    reference = None if topics["database"] is None else DatabaseReference(*topics["database"])
    with reopen_database(partition.store.storage, reference, partition.findings) as database:
        layouts: list[QueueLayout] = [BatchQueueLayout(partition, inner_batches)]
        if reference is not None and database is not None:
            layouts.append(DatabaseQueueLayout(partition, database, reference.dispatched))
        if topics["has_files"]:
            layouts.append(FileQueueLayout(partition, has_light_queues=database is None))
        yield layouts


def _check_queue(
    name: QueueName,
    rows: Longs,
    committed_offsets: Sequence[tuple[str, CommittedOffset]],
    begin_elsewhere: int | None,
    partition: PartitionState,
    layouts: Sequence[QueueLayout],
) -> None:
    if not is_named_topic(name.topic):
        _report_light_name(name, rows, partition.findings)
        return
    queue = QueueRecords(name, rows, any(committed.queue_offset > 0 for _, committed in committed_offsets))
    end_offset: int | None = None
    for layout in layouts:
        if layout.has(name):
            end_offset = layout.check(queue)
    if end_offset is None:
        return
    least_offset = int(rows[:, QUEUE_OFFSET].min()) if len(rows) else end_offset
    if begin_elsewhere is not None:
        least_offset = min(least_offset, begin_elsewhere)
    for path, committed in committed_offsets:
        partition.race_findings.extend(check_committed_offset(committed, path, least_offset, end_offset))


def _report_light_name(name: QueueName, rows: Longs, findings: FindingList) -> None:
    """Report a light queue's name that no directory can have; the scan has done so for each record of a topic."""
    light = rows[rows[:, STORE_TIMESTAMP] == LIGHT_UNIT]
    if len(light):
        detail = "a light queue's name that is no directory name"
        offset = int(light[0, PHYSICAL_OFFSET])
        name.report(findings, finding_kinds.LOG_TOPIC, detail, physical_offset=offset, count=len(light))
