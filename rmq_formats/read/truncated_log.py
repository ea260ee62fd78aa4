"""Finds where a recovery cut a log whose queues still name records after the cut.

A recovery cuts a queue in memory only. The units after the cut stay in the queue's file until new units overwrite them,
and they name leftovers of the log.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rmq_formats.kernels.scan import CODE, POSITION, SIZE, SOUND
from rmq_formats.read.queue_choice import file_queues
from rmq_formats.scan.segment import scan_segment
from rmq_formats.storage.segments import Segment
from rmq_formats.storage.store_files import StoreFiles

_RECOVERED_FILES: Final = 3  # Source: CommitLog#recoverNormally


@dataclass(frozen=True, slots=True)
class Truncation:
    """End of a log that a recovery cut.

    Attributes:
        log_end: physical offset one past the log's last record.
    """

    log_end: int
    last_timestamp_ms: int


def find_truncation(store: StoreFiles, segments: Sequence[Segment]) -> Truncation | None:
    """Find a break of the log's last files, at which the clock steps back, and in which no unit names a record.

    A unit would name a record that was damaged there, since later records are dispatched.

    Args:
        segments: of its log, by offset, up to the last that has data.

    Raises:
        StoreError: a file cannot be read.
    """
    from rmq_formats.arrow.rows import FrameRows  # noqa: PLC0415 # its kernels are loaded where leftovers are

    previous_end, previous_ms = segments[0].start_offset, 0
    for segment in segments[-_RECOVERED_FILES:]:
        with store.storage.open(segment.path) as file:
            for batch in scan_segment(
                file, segment.start_offset, segment.size_bytes, data_end=segment.data_end(file),
                head_bytes=segment.head_bytes,
            ):  # fmt: skip
                frames = batch.frames[batch.frames[:, CODE] == SOUND]
                begins = batch.physical_offset + frames[:, POSITION]
                ends = np.concatenate([[previous_end], begins + frames[:, SIZE]])
                times_ms = np.concatenate([[previous_ms], FrameRows(batch.data, frames).store_timestamps_ms])
                is_cut = (begins - segment.head_bytes > ends[:-1]) & (times_ms[1:] < times_ms[:-1])
                for row in np.flatnonzero(is_cut).tolist():
                    if not _are_named(store, int(ends[row]), int(begins[row])):
                        return Truncation(int(ends[row]), int(times_ms[row]))
                previous_end, previous_ms = int(ends[-1]), int(times_ms[-1])
                if batch.blank_at is not None:
                    previous_end = segment.end_offset
    return None


def find_truncation_before_end_mark(store: StoreFiles, segment: Segment) -> Truncation | None:
    """Find the end of a log in whose last file half a leftover follows, then the end mark.

    A broker writes an end mark where the next record goes into the next file, and a recovery deletes the files after
    its cut. A unit would name a record that was damaged before the end mark.

    Args:
        segment: the last one of the log that has data.

    Raises:
        StoreError: a file cannot be read.
    """
    from rmq_formats.arrow.rows import FrameRows  # noqa: PLC0415 # its kernels are loaded where leftovers are

    end, last_ms = segment.start_offset, 0
    with store.storage.open(segment.path) as file:
        for batch in scan_segment(
            file, segment.start_offset, segment.size_bytes, data_end=segment.data_end(file),
            head_bytes=segment.head_bytes,
        ):  # fmt: skip
            sound = batch.frames[batch.frames[:, CODE] == SOUND]
            if len(sound):
                end = batch.physical_offset + int(sound[-1, POSITION] + sound[-1, SIZE])
                last_ms = int(FrameRows(batch.data, sound[-1:]).store_timestamps_ms[0])
            elif batch.blank_at is not None and batch.damages and batch.damages[-1].physical_offset == end:
                is_leftover = end > segment.start_offset and not _are_named(store, end, batch.blank_at)
                return Truncation(end, last_ms) if is_leftover else None
    return None


def _are_named(store: StoreFiles, begin: int, end: int) -> bool:
    """Return whether a unit of any queue names a record that begins in ``[begin, end)`` of the log."""
    return any(queue.names_any(begin, end) for queue in file_queues(store))
