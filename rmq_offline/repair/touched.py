"""Finds the queues and the Index that name bytes of the log which a repair overwrites: those are made anew as well."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import paths
from rmq_formats.codecs.index import ENTRY_DTYPE, entry_position
from rmq_formats.codecs.layout import PRE_BLANK_SIZE
from rmq_formats.storage.segments import LocalStorage, opened, read_range
from rmq_offline.repair.filler import Fill, LogRange
from rmq_offline.repair.lost_units import read_all_units

Ranges = tuple[tuple[int, int], ...]


def lost_ranges(log_ranges: Iterable[LogRange]) -> Ranges:
    """List the ranges of the log whose records are lost: begin and end, in log order, joined where they overlap."""
    joined: list[tuple[int, int]] = []
    lost = [item for item in log_ranges if item.fill is not Fill.BYTES]
    for begin, end in sorted((item.physical_offset, item.physical_offset + item.size) for item in lost):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return tuple(joined)


def placeholder_ends(log_ranges: Iterable[LogRange]) -> dict[tuple[str, int], int]:
    """Return, by queue, the queue offset one past the last lost message that gets a placeholder."""
    ends: dict[tuple[str, int], int] = {}
    for message in (message for log_range in log_ranges for message in log_range.places):
        queue_end = ((message.topic, message.queue_id), message.queue_offset + max(1, message.batch_size))
        # MixAll.LMQ_QUEUE_ID is 0.
        light = (((topic, 0), queue_offset + 1) for topic, queue_offset in message.light)
        for queue, end in (queue_end, *light):
            ends[queue] = max(end, ends.get(queue, 0))
    return ends


def touched_queues(root: str, ranges: Ranges) -> set[tuple[str, int]]:
    """Find the queues with units whose records overlap a range."""
    if not ranges:
        return set()
    return {
        (units.topic, units.queue_id)
        for units in read_all_units(root)
        if _overlap(
            ranges,
            units.physical_offsets,
            units.physical_offsets + _record_sizes(units.physical_offsets, units.sizes),
        ).any()
    }


def _record_sizes(physical_offsets: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sizes of the records that units name; pre-blanks name none."""
    is_blank = (physical_offsets == 0) & (sizes == PRE_BLANK_SIZE)
    return np.where(is_blank, 0, np.maximum(sizes, 1))


def is_index_touched(root: str, ranges: Ranges, index_slots: int) -> bool:
    """Return whether an IndexFile has entries of records that begin in a range."""
    storage, begin = LocalStorage(), entry_position(1, index_slots)
    for entry in storage.entries(paths.index_dir(root)) if ranges else ():
        if entry.is_directory or not paths.is_index_file_name(entry.name):
            continue
        with opened(storage, f"{paths.index_dir(root)}/{entry.name}") as file:
            data = read_range(file, begin, max(0, min(file.data_end(), entry.size_bytes) - begin))
        entries = np.frombuffer(data, dtype=ENTRY_DTYPE, count=len(data) // ENTRY_DTYPE.itemsize)
        offsets = entries["physical_offset"].astype(np.int64)
        if _overlap(ranges, offsets, offsets + 1).any():
            return True
    return False


def _overlap(
    ranges: Sequence[tuple[int, int]], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which of some intervals overlap one of the ranges, which are in order and apart."""
    bounds = np.array(ranges, dtype=np.int64)
    last = np.searchsorted(bounds[:, 0], ends, side="left") - 1
    overlaps: NDArray[np.bool_] = (last >= 0) & (bounds[last, 1] > begins)
    return overlaps
