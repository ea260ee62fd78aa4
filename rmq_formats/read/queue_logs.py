"""Reads the logs of single queues, of compacted topics and of tiered storage, alone or before a store's CommitLog.

If a tier is read with the store, each queue's messages come from the tier up to the queue's first message in the
CommitLog, which the ConsumeQueue tells, and then from the CommitLog.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rmq_formats.arrow.batches import fail_at_damage
from rmq_formats.arrow.rows import FrameRows
from rmq_formats.arrow.schema import Mode
from rmq_formats.codecs import paths
from rmq_formats.codecs.layout import RECORD_VERSIONS, UNIT_BYTES
from rmq_formats.codecs.record import StoredMessage, decode_record
from rmq_formats.codecs.record_frame import Damage
from rmq_formats.codecs.record_layout import head_struct
from rmq_formats.errors import StoreNotFoundError
from rmq_formats.kernels import scan
from rmq_formats.read.query import MAX_LONG, MIN_LONG, Query, QueueBounds
from rmq_formats.read.queue_choice import choose_queues, open_queue
from rmq_formats.read.queues import ConsumeQueue
from rmq_formats.read.ranges import segment_at
from rmq_formats.read.row_filter import RowFilter
from rmq_formats.read.store_times import time_ranges
from rmq_formats.scan.segment import FrameBatch, without_record_sums
from rmq_formats.scan.splits import Split, data_end_of, split_frames, split_of, usual_split_bytes
from rmq_formats.storage import layout_refusals
from rmq_formats.storage.queue_files import QueueFiles
from rmq_formats.storage.queue_logs import QUEUE_LOGS, LogKind, Logs, QueueLog
from rmq_formats.storage.segments import Segment, Storage, open_storage, read_range
from rmq_formats.storage.store_files import StoreFiles

_HEAD: Final = head_struct("magic", "queue_offset", "physical_offset")


@dataclass(frozen=True, slots=True)
class QueueLogPart:
    """Split of a queue's log, with the selected range of queue offsets."""

    topic: str
    queue_id: int
    split: Split
    begin: int | None  # file position of the first record; None searches for a record
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class QueueLogsTask:
    """Task: scan parts of queues' logs, one after the other."""

    directory: str  # path or URI of a directory above the files
    parts: tuple[QueueLogPart, ...]  # in the order of topic, queue and offset

    @property
    def size_bytes(self) -> int:
        """Bytes that are scanned."""
        return sum(min(part.split.limit, part.split.data_end) - part.split.start for part in self.parts)


def queue_log_tasks(
    store: StoreFiles, query: Query, logs: Logs, split_bytes: int, min_tasks: int
) -> tuple[list[QueueLogsTask], str]:
    """Plan the read of the logs of single queues; for JOINED, of messages that the CommitLog has no more.

    Args:
        split_bytes: bytes that a task reads, about.
        min_tasks: make tasks smaller until there are about this many.

    Returns:
        The tasks, and a description of the logs.

    Raises:
        StoreNotFoundError: the store has no such logs.
        StoreError: a file or directory that cannot be read.
    """
    queue_logs = QUEUE_LOGS[logs.kind].open(store, logs.tier)
    existing = queue_logs.existing(query.wants_topic)
    is_joined = logs.kind is LogKind.JOINED
    logs_with_ends = _pair_with_ends(store, query, existing) if is_joined else [(log, MAX_LONG) for log in existing]
    storage, directory = queue_logs.storage, queue_logs.directory
    parts = [part for log, end_offset in logs_with_ends for part in _parts_of(storage, log, query, end_offset)]
    count = len({(log.topic, log.queue_id) for log, _ in logs_with_ends})
    return _bundle_tasks(directory, parts, split_bytes, min_tasks), f"{count} logs of queues, {logs.kind}"


def _pair_with_ends(store: StoreFiles, query: Query, logs: Iterable[QueueLog]) -> list[tuple[QueueLog, int]]:
    """Pair each log in a tier with the queue offset at which the CommitLog goes on."""
    database = choose_queues(store).database
    layout_refusals.refuse(layout_refusals.queue_files_refusal(store.layouts, database))
    directory = paths.consumequeue_dir(store.root)
    if not store.storage.exists(directory):
        raise StoreNotFoundError(
            f"{directory}: no ConsumeQueue, which tells where the CommitLog goes on from the tier; run rmq rebuild, or "
            "read the tier alone"
        )
    begin = store.segments[0].start_offset
    if query.first_physical_offset > begin:
        return []  # the messages of the tier were stored before
    return [(log, _first_stored_offset(store, log, begin)) for log in logs]


def _first_stored_offset(store: StoreFiles, log: QueueLog, log_begin: int) -> int:
    """Find the queue offset of a queue's first message in the CommitLog; MAX_LONG for a queue without messages."""
    queue = open_queue(ConsumeQueue, store, log.topic, log.queue_id)
    first = None if queue is None else queue.first_since(log_begin)
    return MAX_LONG if first is None else first.queue_offset


def queue_log_query(query: Query, logs: Logs) -> Query:
    """Derive the query for the logs of single queues from a query for the whole store.

    Physical offsets in a joined query are places in the CommitLog, and not comparable with places in a queue's log.
    """
    if logs.kind is not LogKind.JOINED:
        return query
    return replace(query, first_physical_offset=0, end_physical_offset=MAX_LONG)


def _parts_of(storage: Storage, log: QueueLog, query: Query, end_offset: int) -> Iterator[QueueLogPart]:
    """Cut the selected range of a log into its files."""
    bounds = query.queue_bounds(log.topic, log.queue_id)
    bounds = replace(bounds, end_offset=min(bounds.end_offset, end_offset))
    if bounds.first_offset >= bounds.end_offset:
        return
    begin, end, is_exact = _wanted_range(storage, log, query, bounds)
    for segment in log.segments:
        start, limit = max(begin, segment.start_offset), min(end, segment.end_offset)
        if start < limit:
            data_end = data_end_of(storage, segment) if log.is_padded else segment.size_bytes
            split = split_of(segment, 0, start - segment.start_offset, limit - segment.start_offset, data_end)
            if split.start < data_end or not split.start:
                begins = split.start if is_exact and start == begin else None
                yield QueueLogPart(log.topic, log.queue_id, split, begins, bounds.first_offset, bounds.end_offset)


def _wanted_range(storage: Storage, log: QueueLog, query: Query, bounds: QueueBounds) -> tuple[int, int, bool]:
    """Find the range of a log in which all selected records begin, and whether a record begins at the range's begin."""
    begin, end = log.segments[0].start_offset, log.segments[-1].end_offset
    first_ms, end_ms = query.time_bounds
    first_ms, end_ms = max(first_ms, bounds.first_ms), min(end_ms, bounds.end_ms)
    if first_ms > MIN_LONG or end_ms < MAX_LONG:
        bounded = [item if log.is_padded else replace(item, log_bytes=item.size_bytes) for item in log.segments]
        ranges = time_ranges(storage, bounded, first_ms, end_ms)
        begin, end = (ranges[0][0], ranges[-1][1]) if ranges else (begin, begin)
    is_known = False
    if not log.is_padded:
        first = _place_of(storage, log, bounds.first_offset)
        if first is not None and first >= begin:
            begin, is_known = first, True
        last = _place_of(storage, log, bounds.end_offset)
        end = end if last is None else min(end, last)
    return begin, end, is_known


def _place_of(storage: Storage, log: QueueLog, queue_offset: int) -> int | None:
    """Find a message's place in the log by its unit; None without a unit, or if another record is at the place."""
    if not 0 <= queue_offset < MAX_LONG // UNIT_BYTES:
        return None
    unit = ConsumeQueue(storage, QueueFiles(log.topic, log.queue_id, log.units)).unit_at(queue_offset)
    if unit is None or not _is_record(storage, log.segments, unit.physical_offset, queue_offset):
        return None
    return unit.physical_offset


def _is_record(storage: Storage, segments: Sequence[Segment], place: int, queue_offset: int) -> bool:
    """Return whether a record with a queue offset begins at a place: a damaged unit must not hide records."""
    segment = segment_at(segments, place)
    if segment is None:
        return False
    with storage.open(segment.path) as file:
        head = read_range(file, place - segment.start_offset, _HEAD.size)
    if len(head) < _HEAD.size:
        return False
    magic, recorded_offset, physical_offset = _HEAD.unpack(head)
    return magic in RECORD_VERSIONS and (recorded_offset, physical_offset) == (queue_offset, place)


def first_queue_offset(storage: Storage, log: QueueLog) -> int | None:
    """Return the queue offset of a log's first record, 0 of a damaged record; None of a log without records."""
    for segment in log.segments:
        with storage.open(segment.path) as file:
            head = read_range(file, 0, _HEAD.size)
        if any(head):
            magic, queue_offset, _ = _HEAD.unpack(head.ljust(_HEAD.size, b"\0"))
            return max(0, queue_offset) if magic in RECORD_VERSIONS else 0
    return None


def _bundle_tasks(root: str, parts: Sequence[QueueLogPart], split_bytes: int, min_tasks: int) -> list[QueueLogsTask]:
    """Cut large parts and combine small parts to tasks of about the same size."""
    task_bytes = usual_split_bytes(sum(part.split.size_bytes for part in parts), split_bytes, min_tasks)
    tasks: list[QueueLogsTask] = []
    waiting: list[QueueLogPart] = []
    waiting_bytes = 0
    for piece in (piece for part in parts for piece in _cut(part, task_bytes)):
        waiting.append(piece)
        waiting_bytes += piece.split.size_bytes
        if waiting_bytes >= task_bytes:
            tasks.append(QueueLogsTask(root, tuple(waiting)))
            waiting, waiting_bytes = [], 0
    if waiting:
        tasks.append(QueueLogsTask(root, tuple(waiting)))
    return tasks


def _cut(part: QueueLogPart, split_bytes: int) -> Iterator[QueueLogPart]:
    split = part.split
    for start in range(split.start, split.limit, split_bytes):
        piece = replace(split, start=start, limit=min(start + split_bytes, split.limit))
        yield replace(part, split=piece, begin=part.begin if start == split.start else None)


class PartSelector:
    """Selector of rows by a part's range of queue offsets and the query's other conditions."""

    def __init__(self, part: QueueLogPart, query: Query) -> None:
        self._part = part
        self._filter = None if query == Query() else RowFilter(query)

    def select(self, rows: FrameRows) -> FrameRows:
        """Select the rows that match."""
        offsets = rows.queue_offsets
        rows = rows.select((offsets >= self._part.first_offset) & (offsets < self._part.end_offset))
        return rows if self._filter is None or not len(rows) else self._filter.select(rows)

    def damage(self, damage: Damage) -> bool:
        """Return whether a damaged range becomes a row."""
        return self._filter is None or self._filter.damage(damage)


def part_frames(storage: Storage, part: QueueLogPart, *, verify_crc: bool = True) -> Iterator[FrameBatch]:
    """Scan the frames of a part."""
    with storage.open(part.split.path) as file:
        yield from without_record_sums(split_frames(file, part.split, begin=part.begin, verify_crc=verify_crc))


def queue_log_messages(task: QueueLogsTask, query: Query, mode: Mode) -> Iterator[StoredMessage]:
    """Decode the messages of a task without damaged records. Raises FormatError: in FAILFAST, the first damage."""
    storage, _ = open_storage(task.directory)
    for part in task.parts:
        selector = PartSelector(part, query)
        for batch in part_frames(storage, part):
            if mode is Mode.FAILFAST:
                fail_at_damage(batch, part.split.path)
            rows = FrameRows(batch.data, batch.frames).select(batch.frames[:, scan.CODE] == scan.SOUND)
            rows = selector.select(rows) if len(rows) else rows
            window = batch.data.data
            for position in np.asarray(rows.frames[:, scan.POSITION]).tolist():
                yield decode_record(window, position, verify_crc=False)
