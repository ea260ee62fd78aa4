"""Where a log ends, and each of its queues: what a write that continues a store has to know."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from rmq_formats import paths
from rmq_formats.dispatch import Dispatcher
from rmq_formats.errors import StoreError, StoreSizeError
from rmq_formats.kernels import dispatch as kernel
from rmq_formats.layout import COMMITLOG_FILE_BYTES, UNIT_BYTES
from rmq_formats.offline.plan import Split, frozen_end, plan_splits, torn_bytes
from rmq_formats.offline.write_place import LogEnd
from rmq_formats.scan import scan_segment
from rmq_formats.segment import Segment, Storage, list_segments, open_storage, opened

_NO_DELAYS = (0,)  # tags codes are not looked at
QueueEnds = dict[tuple[str, int], int]


def log_segments(root: str) -> list[Segment]:
    """The CommitLog's files of a store that may have none."""
    storage, path = open_storage(root)
    return list_segments(storage, paths.commitlog_dir(path))


def log_file_bytes(segments: list[Segment], wanted: int | None) -> int:
    """The size that a log's files have, or are to have.

    Raises:
        StoreSizeError: there are files of another size than the wanted one, or of several.
    """
    for segment in segments:
        size = segments[0].size_bytes if wanted is None else wanted
        if segment.size_bytes != size:
            raise StoreSizeError(f"{segment.path}: has {segment.size_bytes} bytes, not {size}")
        if segment.start_offset % size:
            raise StoreSizeError(f"{segment.path}: does not begin at a multiple of {size} bytes")
    return segments[0].size_bytes if segments else wanted or COMMITLOG_FILE_BYTES


def log_end(segments: list[Segment], file_bytes: int) -> LogEnd:
    """Where a log goes on.

    Raises:
        StoreError: bytes behind the last sound record that a recovery has yet to deal with.
    """
    if not segments:
        return LogEnd(0, 0)
    storage, _ = open_storage(segments[0].path)
    end = frozen_end(storage, segments)
    torn = torn_bytes(storage, segments, end)
    if torn:
        raise StoreError(
            f"{segments[-1].path}: {torn} bytes behind the last sound record, which ends at {end}; "
            "let the broker recover the store, or run rmq repair"
        )
    return LogEnd(end, -(-end // file_bytes) * file_bytes)


def queue_ends(root: str, segments: list[Segment], workers: int) -> QueueEnds:
    """The next queue offset of each queue, by the log and by the ConsumeQueues, whichever knows more of it.

    A queue whose records have all been deleted goes on where its ConsumeQueue ends, as in the original.
    """
    storage, path = open_storage(root)
    ends = dict(_consumequeue_ends(storage, path))
    splits = plan_splits(storage, segments, min_splits=workers) if segments else []
    with ThreadPoolExecutor(workers) as pool:
        for found in pool.map(_split_ends, splits):
            for queue, end in found.items():
                ends[queue] = max(ends.get(queue, 0), end)
    return ends


def _split_ends(split: Split) -> QueueEnds:
    dispatcher = Dispatcher(_NO_DELAYS)
    ends: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    storage, path = open_storage(split.path)
    with opened(storage, path) as file:
        for batch in scan_segment(
            file, split.file_offset, split.file_bytes, start=split.start, limit=split.limit, data_end=split.data_end,
            verify_crc=False,
        ):  # fmt: skip
            dispatcher.dispatch(batch)
            units, _ = dispatcher.take()
            queues = units[:, kernel.UNIT_QUEUE]
            grown = np.zeros(max(len(ends), int(queues.max(initial=-1)) + 1), dtype=np.int64)
            grown[: len(ends)] = ends
            np.maximum.at(grown, queues, units[:, kernel.UNIT_QUEUE_OFFSET] + 1)
            ends = grown
    return dict(zip(dispatcher.queue_names(), ends.tolist(), strict=False))


def _consumequeue_ends(storage: Storage, root: str) -> Iterator[tuple[tuple[str, int], int]]:
    directory = paths.consumequeue_dir(root)
    for topic in storage.entries(directory):
        for queue in storage.entries(f"{directory}/{topic.name}"):
            files = list_segments(storage, f"{directory}/{topic.name}/{queue.name}")
            if files and queue.name.isascii() and queue.name.isdigit():
                with opened(storage, files[-1].path) as file:
                    used_bytes = file.data_end()
                yield (topic.name, int(queue.name)), -(-(files[-1].start_offset + used_bytes) // UNIT_BYTES)
