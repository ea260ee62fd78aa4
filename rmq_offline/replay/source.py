"""Source of a replay: the chosen records of a store's logs, and the ranges of the log that were deleted before.

A range that the log lacks is never passed over in silence. Files may also be deleted while the replay reads, and the
units of their queues with them, so the log is listed once more behind each plan and behind each read by units.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from rmq_core.client.access import Access
from rmq_formats.errors import StoreError, StoreNotFoundError
from rmq_formats.read.log_end import readable_segments
from rmq_formats.read.log_fingerprint import differing_range, fingerprint_log
from rmq_formats.read.plan import PointReadTask, QueuesTask, ScanTask, Task, plan_read
from rmq_formats.read.query import Include, Queue, ReadOptions
from rmq_formats.read.ranges import Range, missing_ranges
from rmq_formats.read.task import read_task
from rmq_formats.scan.splits import last_record_end, torn_bytes
from rmq_formats.storage.queue_logs import COMMITLOG_ONLY, LogKind, Logs
from rmq_formats.storage.segments import Segment, Storage
from rmq_formats.storage.store_files import open_store
from rmq_offline.replay.batch_messages import Origin
from rmq_offline.replay.checkpoint import ReplayCheckpoint, ReplayProgress
from rmq_offline.replay.selection import ReplaySelection, filter_rows

_log = logging.getLogger("rmq_offline")

_PLAIN: Final = Access()


@dataclass(frozen=True, slots=True)
class Replay:
    """Source, messages and target of a replay.

    Attributes:
        store_id: the store's name in the property RMQ_ORIGIN.
        to_topic: the topic of all sent messages; None keeps each message's topic.
        rate: messages a second; None is no limit.
        logs: the store's logs in reading order: a tier before the CommitLog.
        fail_on_data_loss: whether bytes that were deleted before they were replayed are an error.
    """

    store: str
    store_id: str
    choice: ReplaySelection
    namesrv: str
    to_topic: str | None = None
    rate: int | None = None
    checkpoint: ReplayCheckpoint | None = None
    access: Access = _PLAIN
    logs: Logs = COMMITLOG_ONLY
    fail_on_data_loss: bool = True

    @property
    def origin(self) -> Origin:
        """Origin of each message: its physical offset; with a tier, its queue offset, which a tier preserves."""
        return Origin(self.store_id, by_queue=self.logs.kind is not LogKind.COMMITLOG)


class MissingRanges:
    """Ranges of a store's log that a replay cannot read, because their files were deleted."""

    def __init__(self, store: str, *, fails: bool = True) -> None:
        self._store, self._fails = store, fails  # else a range is a warning
        self._ranges: set[Range] = set()

    def add(self, ranges: Iterable[Range]) -> None:
        """Add ranges of physical offsets. Raises StoreError."""
        for begin, end in ranges:
            if begin >= end or (begin, end) in self._ranges:
                continue
            message = f"{self._store}: bytes {begin} to {end} of the CommitLog were deleted before the replay"
            if self._fails:
                raise StoreError(f"{message}; --fail-on-data-loss false skips them")
            _log.warning("%s", message)
            self._ranges.add((begin, end))

    @property
    def size_bytes(self) -> int:
        """Number of bytes in the ranges; a byte of several ranges counts once."""
        size = position = 0
        for begin, end in sorted(self._ranges):
            size += max(0, end - max(begin, position))
            position = max(position, end)
        return size


@dataclass(slots=True)
class Counts:
    """Counts of the messages that a replay has found, or sent.

    Attributes:
        missing: ranges of the log that were deleted before they were read.
        bytes: size of the records together.
        damaged: number of records that fail a check, and of damaged ranges; neither is sent.
        refused: number of records that no broker accepts, or that the target's refuse.
        begin: physical offset at which reading starts.
        end: physical offset of the log's end when the replay began.
        unknown_ids: ids of the selection that no chosen message has; empty if a checkpoint has read a part before.
    """

    missing: MissingRanges
    by_queue: dict[Queue, int] = field(default_factory=dict)
    messages: int = 0
    bytes: int = 0
    damaged: int = 0
    refused: int = 0
    begin: int = 0
    end: int = 0
    unknown_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplayRead:
    """Planned read of the chosen records; its tasks, in log order, read one file of the log at most."""

    store: str
    choice: ReplaySelection
    options: ReadOptions
    tasks: tuple[Task, ...]

    def rows(self, missing: MissingRanges, numbers: Iterable[int] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the chosen records of tasks, all by default, in log order; a batch may be empty. Raises StoreError.

        ``missing`` receives the ranges whose files are deleted meanwhile.
        """
        storage = open_store(self.store).storage
        for task in self.tasks if numbers is None else (self.tasks[number] for number in numbers):
            path = _log_path(task)
            try:
                yield from filter_rows(read_task(self.store, task, self.options), self.choice)
            except StoreNotFoundError:
                if path is None or storage.exists(path):
                    raise
                missing.add([_log_range(task)])
                continue
            # Units may be deleted with the file of their records: the task has then read less, without an error.
            if isinstance(task, QueuesTask) and path is not None and not storage.exists(path):
                missing.add([_log_range(task)])


def plan_replay(replay: Replay, counts: Counts, columns: tuple[str, ...]) -> ReplayRead:
    """Plan the read of the chosen records, and find the deleted ranges of the log. Raises StoreError."""
    query = replay.choice.query
    query = replace(
        query,
        # A damaged range may be of any topic; and before leftovers there is always half a record.
        with_damage=query.named_topics is None and query.included is not Include.UNQUEUED,
        first_physical_offset=max(query.first_physical_offset, counts.begin),
        end_physical_offset=min(query.end_physical_offset, counts.end),
    )
    plan = plan_read(open_store(replay.store), query, logs=replay.logs)
    segments = open_store(replay.store).segments  # listed behind the plan: a file is deleted before its units are
    begin, end = query.first_physical_offset, query.end_physical_offset
    if replay.logs.kind is not LogKind.COMMITLOG:  # a tier has what is before the log
        begin = max(begin, segments[0].start_offset if segments else end)
    counts.missing.add(missing_ranges(segments, begin, end))
    tasks = tuple(part for task in plan.tasks for part in _tasks_of_files(task))
    return ReplayRead(replay.store, replay.choice, ReadOptions(columns, query, logs=replay.logs), tasks)


@dataclass(frozen=True, slots=True)
class ReplayLog:
    """CommitLog of a store when a replay begins, up to its end, or to the end of leftovers if these are replayed."""

    store: str
    storage: Storage
    segments: list[Segment]
    end: int

    def fingerprint(self, end: int) -> str | None:
        """Compute the fingerprint before an offset; None if the bytes are deleted. Raises StoreError."""
        try:
            return fingerprint_log(self.storage, self.segments, end)
        except StoreNotFoundError:
            return None

    def check(self, progress: ReplayProgress, checkpoint: str) -> None:
        """Refuse a log that is not the replayed one, or that ends before the checkpoint's offset. Raises StoreError."""
        saved_end, remedy = progress.next_physical_offset, "or it is another store's; give another --checkpoint"
        if saved_end > self.end and saved_end > self.end + torn_bytes(self.storage, self.segments, self.end):
            raise StoreError(
                f"{self.store}: the CommitLog ends at {self.end}, but {checkpoint} is at {saved_end}: "
                f"the log was cut off, {remedy}"
            )
        differing = differing_range(self.storage, self.segments, progress.fingerprint)
        if differing is not None:
            raise StoreError(
                f"{self.store}: bytes {differing[0]} to {differing[1]} of the CommitLog are not those that were "
                f"replayed with {checkpoint}: the log was cut off and written anew, {remedy}"
            )


def open_log(replay: Replay) -> ReplayLog:
    """List the log's files and find its end. Raises StoreError."""
    store = open_store(replay.store)
    is_unqueued = replay.choice.query.included is Include.UNQUEUED
    segments = store.segments if is_unqueued else readable_segments(store)
    return ReplayLog(replay.store, store.storage, segments, last_record_end(store.storage, segments))


def _tasks_of_files(task: Task) -> Iterator[Task]:
    if isinstance(task, QueuesTask):
        for segment in task.segments:
            begin, end = max(task.begin, segment.start_offset), min(task.end, segment.end_offset)
            yield replace(task, segments=(segment,), begin=begin, end=end)
    elif isinstance(task, PointReadTask):
        for segment in task.segments:
            offsets = tuple(at for at in task.physical_offsets if segment.start_offset <= at < segment.end_offset)
            if offsets:
                yield PointReadTask((segment,), offsets)
    else:
        yield task


def _log_path(task: Task) -> str | None:
    if isinstance(task, ScanTask):
        return task.split.path
    return task.segments[0].path if isinstance(task, QueuesTask | PointReadTask) else None


def _log_range(task: Task) -> Range:
    if isinstance(task, ScanTask):
        split = task.split
        begin = split.start if task.begin is None else task.begin
        return split.file_offset + begin, split.file_offset + min(split.limit, split.data_end)
    if isinstance(task, QueuesTask):
        return task.begin, task.end
    assert isinstance(task, PointReadTask)
    return task.physical_offsets[0], task.segments[0].end_offset
