"""Ends of the data in CommitLog files: each file is read, in tasks if there are many.

With a million objects, reading one after the other in the driver would take ten hours.
"""

import functools
from collections.abc import Sequence
from typing import Final

from rmq_formats.errors import StoreError
from rmq_formats.scan.splits import data_end_of
from rmq_formats.storage.segments import REQUESTS_AT_ONCE, Segment, Storage, request_all
from rmq_offline.tasks.job_steps import JobSteps, TaskBatch

SEGMENTS_PER_TASK: Final = 4096

End = int | StoreError


def find_ends(storage: Storage, segments: Sequence[Segment]) -> JobSteps[list[End]]:
    """Find the ends in steps that yield their tasks.

    Returns:
        For each segment one past its last byte that is not zero, in the file; or why it cannot be read.
    """
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
    """Find the ends of some segments; objects are read concurrently."""
    return list(request_all(storage, functools.partial(_end, storage), segments))


def _end(storage: Storage, segment: Segment) -> End:
    try:
        return data_end_of(storage, segment)
    except StoreError as error:
        return error
