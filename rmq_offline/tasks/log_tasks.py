"""Tasks over a log: the number of partitions, the check of split boundaries, the ends of the data in its files."""

import functools
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from rmq_formats.errors import StoreError
from rmq_formats.scan.splits import Split, data_end_of
from rmq_formats.storage.segments import REQUESTS_AT_ONCE, Segment, Storage, request_all
from rmq_offline.tasks.job_steps import JobSteps, TaskBatch

PARTITION_BYTES: Final = 512 << 20  # bytes of log for each task that writes queues
MAX_PARTITIONS: Final = 256
EARLY_PARTITIONS: Final = 16
_EARLY_BYTES: Final = 4 << 20
SEGMENTS_PER_TASK: Final = 4096  # files whose ends a task finds: in the driver, a million objects take ten hours
MAX_REPORTED: Final = 1000  # findings that a report lists; all are counted
End = int | StoreError


def partition_count(splits: Sequence[Split]) -> int:
    """Return the number of tasks that write queues, by the log's bytes: the number of queues comes later.

    Even a small log may have a hundred thousand queues, each of which costs a file: hence several tasks early.
    """
    total = sum(split.size_bytes for split in splits)
    return min(MAX_PARTITIONS, max(1 + total // PARTITION_BYTES, min(EARLY_PARTITIONS, 1 + total // _EARLY_BYTES)))


class SplitScan(Protocol):
    """First and last position of a split's scan."""

    @property
    def begin_physical_offset(self) -> int:
        """Physical offset of the split's first frame."""

    @property
    def end_physical_offset(self) -> int:
        """Physical offset where the walk ended: the first frame of the next split."""


AnyScan = TypeVar("AnyScan", bound=SplitScan)


def rescan_misaligned_splits(
    splits: Sequence[Split], results: Sequence[AnyScan], scan_again: Callable[[Split, int], AnyScan]
) -> list[AnyScan]:
    """Check that each split of a file began where the one before it ended; scan again those that did not.

    A record's body may, by malice, hold a record's bytes with the very offset where they stand. A split
    that begins inside such a body takes these bytes for a frame; a walk from the file's start does not.
    """
    corrected = list(results)
    for number in range(1, len(splits)):
        split, before = splits[number], splits[number - 1]
        end = corrected[number - 1].end_physical_offset
        if split.path == before.path and corrected[number].begin_physical_offset != end:
            corrected[number] = scan_again(split, end - split.file_offset)
    return corrected


def find_ends(storage: Storage, segments: Sequence[Segment]) -> JobSteps[list[End]]:
    """Find the end of the data in each segment, or the error of reading it, in steps that yield their tasks."""
    task = functools.partial(_ends, storage=storage)
    if storage.is_local or len(segments) <= REQUESTS_AT_ONCE:
        return task(segments)
    slices = [segments[at : at + SEGMENTS_PER_TASK] for at in range(0, len(segments), SEGMENTS_PER_TASK)]
    task_ends: list[list[End]] = yield TaskBatch(task, slices)
    return [end for part in task_ends for end in part]


def require_readable_ends(ends: Sequence[End]) -> list[int]:
    """Return the ends of a log whose files can all be read. Raises the StoreError of the first that cannot."""
    for end in ends:
        if isinstance(end, StoreError):
            raise end
    return [end for end in ends if not isinstance(end, StoreError)]


def _ends(segments: Sequence[Segment], storage: Storage) -> list[End]:
    return list(request_all(storage, functools.partial(_end, storage), segments))


def _end(storage: Storage, segment: Segment) -> End:
    try:
        return data_end_of(storage, segment)
    except StoreError as error:
        return error
