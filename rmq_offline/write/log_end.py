"""Finds the end of a log and of each of its queues, where a write that appends goes on."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import paths
from rmq_formats.codecs.layout import COMMITLOG_FILE_BYTES, PRE_BLANK_SIZE, UNIT_BYTES
from rmq_formats.errors import StoreError, StoreSizeError
from rmq_formats.kernels import dispatch as kernel
from rmq_formats.kernels import units as unit_kernel
from rmq_formats.read.log_end import cut_segments, find_leftovers
from rmq_formats.scan.dispatch import Dispatcher
from rmq_formats.scan.splits import Split, last_record_end, plan_splits, split_frames, torn_bytes
from rmq_formats.storage import layout_refusals
from rmq_formats.storage.queue_files import walk_queues
from rmq_formats.storage.segments import OpenRange, Segment, Storage, list_segments, open_storage
from rmq_formats.storage.store_files import open_store
from rmq_offline.write.log_writer import AppendPosition

_NO_DELAYS = (0,)  # the tags codes computed are not used
_BLOCK_UNITS: Final = 4096  # units at a queue's end that are read at once
QueueEnds = dict[tuple[str, int], int]


def list_log_segments(root: str) -> list[Segment]:
    """List the CommitLog's files of a store, if any, up to the log's end."""
    store = open_store(root)
    segments = list_segments(store.storage, paths.commitlog_dir(store.root))
    return cut_segments(segments, find_leftovers(store, segments)) if segments else []


def is_empty(root: str) -> bool:
    """Return whether a store's log has no files, or only files of zeros, as preallocated ones."""
    storage, _ = open_storage(root)
    for segment in list_log_segments(root):
        with storage.open(segment.path) as file:
            if file.data_end():
                return False
    return True


def usual_file_bytes(segments: list[Segment]) -> int | None:
    """Return the size that most of a log's files have; None without a file that has bytes."""
    sizes = Counter(segment.size_bytes for segment in segments if segment.size_bytes)
    return max(sizes, key=lambda size: (sizes[size], size), default=None)  # of two files the shorter one was cut


def require_log_file_bytes(segments: list[Segment], file_bytes: int | None) -> int:
    """Determine the size of a log's present or future files. Raises StoreSizeError for files of other sizes."""
    for segment in segments:
        if not segment.size_bytes:
            raise StoreSizeError(f"{segment.path}: the file is empty; run rmq repair, or delete it if it is the last")
        size = segments[0].size_bytes if file_bytes is None else file_bytes
        if segment.size_bytes != size:
            raise StoreSizeError(f"{segment.path}: has {segment.size_bytes} bytes, not {size}")
        if segment.start_offset % size:
            raise StoreSizeError(f"{segment.path}: does not begin at a multiple of {size} bytes")
    return segments[0].size_bytes if segments else file_bytes or COMMITLOG_FILE_BYTES


def log_end(root: str, segments: list[Segment], file_bytes: int) -> AppendPosition:
    """Find the end of a store's log, where the next record goes. Raises StoreError if a recovery has to come first."""
    if not segments:
        return AppendPosition(0, 0)
    storage, _ = open_storage(root)
    end = last_record_end(storage, segments)
    torn = torn_bytes(storage, segments, end)
    if torn:
        raise StoreError(
            f"{segments[-1].path}: {torn} bytes after the last sound record, which ends at {end}; "
            "let the broker recover the store, or run rmq repair"
        )
    return AppendPosition(end, -(-end // file_bytes) * file_bytes)


def queue_ends(root: str, segments: list[Segment], log_end_offset: int, workers: int) -> QueueEnds:
    """Find the next queue offset of each queue, by the log or the ConsumeQueue, whichever ends later.

    A queue whose records have all been deleted continues where its ConsumeQueue ends, as in RocketMQ. Units of lost
    records behind the log's end do not count.
    """
    storage, path = open_storage(root)
    ends = {
        (queue.topic, queue.queue_id): _consumequeue_end(storage, queue.segments, log_end_offset)
        for queue in walk_queues(storage, paths.consumequeue_dir(path))
    }
    splits = plan_splits(storage, segments, min_splits=workers) if segments else []
    with ThreadPoolExecutor(workers) as pool:
        for split_ends in pool.map(_split_ends, splits):
            for queue, end in split_ends.items():
                ends[queue] = max(ends.get(queue, 0), end)
    return ends


def _split_ends(split: Split) -> QueueEnds:
    dispatcher = Dispatcher(_NO_DELAYS)
    ends: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    storage, path = open_storage(split.path)
    with storage.open(path) as file:
        for batch in split_frames(file, split, verify_crc=False):
            dispatcher.dispatch(batch)
            units, _ = dispatcher.drain()
            queues = units[:, kernel.UNIT_QUEUE]
            grown = np.zeros(max(len(ends), int(queues.max(initial=-1)) + 1), dtype=np.int64)
            grown[: len(ends)] = ends
            np.maximum.at(grown, queues, units[:, kernel.UNIT_QUEUE_OFFSET] + 1)
            ends = grown
    light, inner = (dispatcher.marked_topics(mark) for mark in (kernel.MARK_LIGHT, kernel.MARK_BATCH))
    layout_refusals.refuse(layout_refusals.records_refusal(str(split.path).rpartition("/commitlog/")[0], light, inner))
    return dict(zip(dispatcher.queue_names(), ends.tolist(), strict=False))


def _consumequeue_end(storage: Storage, files: Sequence[Segment], log_end_offset: int) -> int:
    """Return one past the last unit of a record of the log; without such a unit, one past the last unit."""
    end = 0
    for segment in reversed(files):
        with storage.open(segment.path) as file:
            stop = -(-file.data_end() // UNIT_BYTES)
            begin = segment.start_offset // UNIT_BYTES
            end = max(end, begin + stop)
            stored_end = _stored_units_end(file, stop, log_end_offset)
            if stored_end:
                return begin + stored_end
    return end


def _stored_units_end(file: OpenRange, stop: int, log_end_offset: int) -> int:
    """Find one past the last of a file's first ``stop`` units whose record ends in the log; 0 if none does."""
    while stop > 0:
        begin = max(0, stop - _BLOCK_UNITS)
        image = np.empty((stop - begin) * UNIT_BYTES, dtype=np.uint8)
        got = file.read_into(begin * UNIT_BYTES, image.data)
        rows = np.zeros((got // UNIT_BYTES, unit_kernel.ROW_COLUMNS), dtype=np.int64)
        unit_kernel.decode_units(image, rows)
        sizes = rows[:, unit_kernel.SIZE]
        is_stored = rows[:, unit_kernel.PHYSICAL_OFFSET] + sizes <= log_end_offset
        rows_in_log = np.flatnonzero((sizes > 0) & (sizes != PRE_BLANK_SIZE) & is_stored)
        if len(rows_in_log):
            return begin + int(rows_in_log[-1]) + 1
        stop = begin
    return 0
