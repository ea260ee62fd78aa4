"""Facts of a CommitLog for ``rmq inspect``, by one pass of the kernels over each file."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.arrow.rows import FrameRows
from rmq_formats.codecs.record_frame import Damage
from rmq_formats.kernels.dispatch import UNIT_QUEUE, UNIT_QUEUE_OFFSET, UNIT_SIZE
from rmq_formats.kernels.scan import CODE, POSITION, SIZE, SOUND
from rmq_formats.scan.dispatch import Dispatcher
from rmq_formats.scan.segment import FrameBatch, scan_segment, without_record_sums
from rmq_formats.storage.segments import Segment, Storage
from rmq_offline.rebuild.job import find_segment_faults
from rmq_offline.verify.finding_kinds import make_damage_finding
from rmq_offline.verify.findings import Finding

MAX_LISTED: Final = 1000  # damaged ranges that are listed; all are counted
_MAX_LONG: Final = int(np.iinfo(np.int64).max)

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LogFileFacts:
    """One CommitLog file; its first and last physical offsets and times are those of sound records.

    Attributes:
        start_offset: physical offset of its first byte.
        used_bytes: up to its last byte that is not zero.
        bytes: size of the sound records together.
        end_physical_offset: one past the last sound record.
        first_store_timestamp: lowest, in ms.
        last_store_timestamp: highest, in ms.
    """

    path: str
    start_offset: int
    size_bytes: int
    used_bytes: int
    messages: int
    bytes: int
    first_physical_offset: int | None
    last_physical_offset: int | None
    end_physical_offset: int | None
    first_store_timestamp: int | None
    last_store_timestamp: int | None
    damaged_stretches: int


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """Messages of one queue in the log; ``max_offset`` is one past the highest queue offset."""

    queue_id: int
    messages: int
    min_offset: int
    max_offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """Messages of one topic in the log: sums and extremes of its queues."""

    topic: str
    messages: int
    min_offset: int
    max_offset: int
    bytes: int
    queues: tuple[QueueFacts, ...]


@dataclass(frozen=True, slots=True)
class CommitLogFacts:
    """Sums over the files of a CommitLog.

    Attributes:
        without_queue: number of records without a queue offset: half messages and rollbacks of old brokers.
        findings: missing files, wrong sizes, and the first MAX_LISTED damaged ranges of each file.
        finding_count: number of all findings.
    """

    messages: int
    bytes: int
    size_bytes: int
    used_bytes: int
    first_physical_offset: int | None
    last_physical_offset: int | None
    end_physical_offset: int | None
    first_store_timestamp: int | None
    last_store_timestamp: int | None
    without_queue: int
    files: tuple[LogFileFacts, ...]
    topics: tuple[TopicFacts, ...]
    findings: tuple[Finding, ...]
    finding_count: int


class _SegmentScan:
    """One pass over one CommitLog file."""

    def __init__(self, storage: Storage, segment: Segment, *, is_of_queue: bool) -> None:
        self._storage = storage
        self._is_of_queue = is_of_queue
        self._segment = segment
        self._dispatcher = Dispatcher(())
        # Count, bytes, lowest and highest queue offset of each queue, by its row in the dispatcher's table.
        self._queue_sums = np.empty((0, 4), dtype=np.int64)
        self._first: int | None = None
        self._last: int | None = None
        self._end: int | None = None
        self._times = (_MAX_LONG, -_MAX_LONG)
        self.damages: list[Damage] = []
        self.damage_count = 0

    def run(self, on_bytes: Callable[[int], None]) -> LogFileFacts:
        segment = self._segment
        with self._storage.open(segment.path) as file:
            used_bytes = segment.data_end(file)
            position = segment.start_offset
            batches = scan_segment(
                file, segment.start_offset, segment.size_bytes, data_end=used_bytes, head_bytes=segment.head_bytes
            )
            for batch in without_record_sums(batches) if self._is_of_queue else batches:
                self._add(batch)
                on_bytes(batch.next_physical_offset - position)
                position = batch.next_physical_offset
        lowest, highest = (None, None) if self._first is None else self._times
        return LogFileFacts(
            segment.path,
            segment.start_offset,
            segment.size_bytes,
            used_bytes,
            self._dispatcher.message_count,
            self._dispatcher.record_bytes,
            self._first,
            self._last,
            self._end,
            lowest,
            highest,
            self.damage_count,
        )

    def _add(self, batch: FrameBatch) -> None:
        self._dispatcher.dispatch(batch)
        self._add_units(self._dispatcher.drain()[0])
        damages = batch.all_damages()
        self.damage_count += len(damages)
        self.damages += damages[: MAX_LISTED - len(self.damages)]
        sound = batch.frames[batch.frames[:, CODE] == SOUND]
        if len(sound):
            first, last = (batch.physical_offset + int(sound[row, POSITION]) for row in (0, -1))
            self._first = first if self._first is None else self._first
            self._last, self._end = last, last + int(sound[-1, SIZE])
            times = FrameRows(batch.data, sound).store_timestamps_ms
            self._times = (min(self._times[0], int(times.min())), max(self._times[1], int(times.max())))

    def _add_units(self, units: Rows) -> None:
        if not len(units):
            return
        queue = units[:, UNIT_QUEUE]
        new = int(queue.max()) + 1 - len(self._queue_sums)
        if new > 0:
            empty_rows = np.tile(np.array([0, 0, _MAX_LONG, -1]), (2 * new, 1))
            self._queue_sums = np.vstack([self._queue_sums, empty_rows])
        np.add.at(self._queue_sums[:, 0], queue, 1)
        np.add.at(self._queue_sums[:, 1], queue, units[:, UNIT_SIZE])
        np.minimum.at(self._queue_sums[:, 2], queue, units[:, UNIT_QUEUE_OFFSET])
        np.maximum.at(self._queue_sums[:, 3], queue, units[:, UNIT_QUEUE_OFFSET])

    def queues(self) -> dict[tuple[str, int], list[int]]:
        """Return count, bytes, lowest and highest queue offset of each queue that has a unit."""
        names = self._dispatcher.queue_names()
        return {name: row for name, row in zip(names, self._queue_sums.tolist(), strict=False) if row[0]}


def log_facts(
    storage: Storage,
    segments: Sequence[Segment],
    on_bytes: Callable[[int], None] | None = None,
    *,
    is_of_queue: bool = False,
) -> CommitLogFacts:
    """Read a CommitLog, as many files at once as there are processors.

    Args:
        on_bytes: called with the number of bytes that have been read so far.
        is_of_queue: the log is that of one queue, whose files need not follow each other, nor be of one size.
    """
    scans = [_SegmentScan(storage, segment, is_of_queue=is_of_queue) for segment in segments]
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more  # a lost update between threads costs the bar a step, no more
        if on_bytes:
            on_bytes(done)

    with ThreadPoolExecutor(min(len(scans), len(os.sched_getaffinity(0)))) as pool:
        running = [pool.submit(scan.run, count) for scan in scans]
        try:
            for future in as_completed(running):
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        files = tuple(future.result() for future in running)
    topics = _topics([scan.queues() for scan in scans])
    misfits = [] if is_of_queue else find_segment_faults(segments)
    findings = [*misfits, *(make_damage_finding(damage) for scan in scans for damage in scan.damages)]
    findings.sort(key=lambda finding: finding.physical_offset or 0)
    unlisted = sum(scan.damage_count - len(scan.damages) for scan in scans)
    messages = sum(file.messages for file in files)
    filled = [file for file in files if file.messages]
    return CommitLogFacts(
        messages=messages,
        bytes=sum(file.bytes for file in files),
        size_bytes=sum(file.size_bytes for file in files),
        used_bytes=sum(file.used_bytes for file in files),
        first_physical_offset=filled[0].first_physical_offset if filled else None,
        last_physical_offset=filled[-1].last_physical_offset if filled else None,
        end_physical_offset=filled[-1].end_physical_offset if filled else None,
        first_store_timestamp=min((file.first_store_timestamp or 0 for file in filled), default=None),
        last_store_timestamp=max((file.last_store_timestamp or 0 for file in filled), default=None),
        without_queue=messages - sum(topic.messages for topic in topics),
        files=files,
        topics=topics,
        findings=tuple(findings),
        finding_count=len(findings) + unlisted,
    )


def _topics(parts: Sequence[dict[tuple[str, int], list[int]]]) -> tuple[TopicFacts, ...]:
    """Merge the queues of all files, and sort them."""
    sums: dict[tuple[str, int], list[int]] = {}
    for part in parts:
        for name, (count, size, low, high) in part.items():
            queue_sums = sums.setdefault(name, [0, 0, low, high])
            sums[name] = [
                queue_sums[0] + count,
                queue_sums[1] + size,
                min(queue_sums[2], low),
                max(queue_sums[3], high),
            ]
    topics: dict[str, list[QueueFacts]] = {}
    for (topic, queue_id), (count, size, low, high) in sorted(sums.items()):
        topics.setdefault(topic, []).append(QueueFacts(queue_id, count, low, high + 1, size))
    return tuple(
        TopicFacts(
            topic,
            sum(queue.messages for queue in queues),
            min(queue.min_offset for queue in queues),
            max(queue.max_offset for queue in queues),
            sum(queue.bytes for queue in queues),
            tuple(queues),
        )
        for topic, queues in topics.items()
    )
