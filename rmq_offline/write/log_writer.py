"""Places encoded pieces into a CommitLog: offsets by running sums, then parallel copies of many records at a time.

The running sums read 32 bytes of each record; the records themselves are copied by threads, into
whose buffers a kernel writes the offsets.
"""

import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import paths
from rmq_formats.codecs.layout import MAGIC_BLANK
from rmq_formats.codecs.record_layout import SIZE_AND_MAGIC
from rmq_formats.errors import StoreError
from rmq_formats.kernels.encode import offsets as kernel
from rmq_formats.kernels.encode.rows import ORDER_KEY, QUEUE, SIZE
from rmq_offline.tasks.publish import start_sync
from rmq_offline.write.piece import Piece, Table, WrittenTask

_CHUNK_BYTES: Final = 2 << 20  # bytes placed and written at once; more than a core's L2 cache holds only costs time
_CHUNKS_AHEAD: Final = 4  # chunks in flight for each worker, so that none waits


@dataclass(frozen=True, slots=True)
class AppendPosition:
    """End of a log, and of the log's last file; both are equal if the next record begins a file."""

    physical_offset: int
    file_end: int


@dataclass(frozen=True, slots=True)
class _Stream:
    """Rows in log order, and the addresses of their records in memory; ``buffers`` references that memory."""

    rows: Table
    addresses: Table
    buffers: list[NDArray[np.uint8]]


def in_order(pieces: Sequence[Piece]) -> list[Piece] | None:
    """Order the pieces by their keys; None if key ranges overlap, so that the pieces have to be merged."""
    placed = sorted(pieces, key=lambda piece: piece.first_key)
    apart = all(before.last_key <= after.first_key for before, after in pairwise(placed))
    return placed if apart and all(piece.is_sorted for piece in placed) else None


class LogWriter:
    """Appends records of pieces to the end of a log."""

    def __init__(self, directory: Path, end: AppendPosition, file_bytes: int, *, keep_offsets: bool) -> None:
        self._directory = directory  # nobody else may see it yet
        self._end = np.array([end.physical_offset, end.file_end], dtype=np.int64)
        self._file_bytes = file_bytes
        self._keep_offsets = keep_offsets
        self._workers = len(os.sched_getaffinity(0))
        self._local = threading.local()

    def write(self, tasks: Sequence[WrittenTask], queue_ends: dict[tuple[str, int], int]) -> None:
        """Append all records of some tasks, in the order of their keys, and update the next queue offset of each queue.

        Raises StoreError for records whose kept offsets do not fit each other.
        """
        numbers: dict[tuple[str, int], int] = {}
        for task in tasks:
            for queue in task.queues:
                numbers.setdefault(queue, len(numbers))
        ends = np.array([queue_ends.get(queue, 0) for queue in numbers], dtype=np.int64)
        pending: deque[Future[None]] = deque()
        with ThreadPoolExecutor(self._workers, thread_name_prefix="place") as pool:
            for stream in _streams(tasks, numbers):
                places = self._lay_out(stream, ends)
                for first, stop in pairwise(self._chunk_bounds(places)):
                    pending.append(pool.submit(self._write_chunk, stream, places, first, stop))
                    if len(pending) > _CHUNKS_AHEAD * self._workers:
                        pending.popleft().result()
            for written in pending:
                written.result()
        queue_ends.update(zip(numbers, ends.tolist(), strict=True))

    def _lay_out(self, stream: _Stream, queue_ends: Table) -> Table:
        """Compute the places of a stream's rows, and create the files for them."""
        before = int(self._end[0])
        places = np.empty((len(stream.rows), kernel.PLACE_COLUMNS), dtype=np.int64)
        failed = int(kernel.lay_out(stream.rows, queue_ends, self._keep_offsets, self._file_bytes, self._end, places))
        if failed != kernel.PLACED:
            at = int(places[failed - 1, kernel.PHYSICAL_OFFSET] + stream.rows[failed - 1, SIZE]) if failed else before
            raise StoreError(
                f"the record at physical offset {int(stream.rows[failed, ORDER_KEY])} cannot keep it: the log ends at "
                f"{at} there, in files of {self._file_bytes} bytes; are rows missing, or was the files' size another?"
            )
        offsets = places[:, kernel.PHYSICAL_OFFSET]
        ends_before = np.concatenate([[before], offsets[:-1] + stream.rows[:-1, SIZE]])
        for row in np.flatnonzero(offsets % self._file_bytes == 0).tolist():
            with (self._directory / paths.segment_name(int(offsets[row]))).open("xb") as file:
                file.truncate(self._file_bytes)
        for row in np.flatnonzero(offsets != ends_before).tolist():
            begin = int(ends_before[row])
            self._write_at(begin, memoryview(SIZE_AND_MAGIC.pack(int(offsets[row]) - begin, MAGIC_BLANK)))
        return places

    def _write_at(self, physical_offset: int, data: memoryview) -> None:
        start = physical_offset // self._file_bytes * self._file_bytes
        with (self._directory / paths.segment_name(start)).open("r+b") as file:  # buffered: goes on after a short write
            file.seek(physical_offset - start)
            file.write(data)
            file.flush()
            start_sync(file.fileno(), physical_offset - start, len(data))

    def _chunk_bounds(self, places: Table) -> list[int]:
        """Return the first row of each chunk, and the end: a chunk is in one file, and has about _CHUNK_BYTES."""
        offsets = places[:, kernel.PHYSICAL_OFFSET]
        numbers = offsets // self._file_bytes * (self._file_bytes // _CHUNK_BYTES + 1)
        numbers += offsets % self._file_bytes // _CHUNK_BYTES
        return [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(offsets)]

    def _write_chunk(self, stream: _Stream, places: Table, first: int, stop: int) -> None:
        begin = int(places[first, kernel.PHYSICAL_OFFSET])
        size = int(places[stop - 1, kernel.PHYSICAL_OFFSET] + stream.rows[stop - 1, SIZE]) - begin
        buffer: NDArray[np.uint8] | None = getattr(self._local, "buffer", None)
        if buffer is None or len(buffer) < size:
            buffer = self._local.buffer = np.empty(max(size, 2 * _CHUNK_BYTES), dtype=np.uint8)
        kernel.place_records(stream.rows, stream.addresses, places, first, stop, buffer)
        self._write_at(begin, buffer[:size].data)


def _streams(tasks: Sequence[WrittenTask], numbers: dict[tuple[str, int], int]) -> Iterator[_Stream]:
    """Yield rows in log order: a piece at a time, or all at once where pieces have to be merged."""
    queues_of = {
        piece.path: np.array([numbers[queue] for queue in task.queues], dtype=np.int64)
        for task in tasks
        for piece in task.pieces
    }
    pieces = [piece for task in tasks for piece in task.pieces]
    placed = in_order(pieces)
    if placed is not None:
        yield from (_stream(piece, queues_of[piece.path]) for piece in placed)
        return
    streams = [_stream(piece, queues_of[piece.path]) for piece in pieces]
    rows = np.concatenate([stream.rows for stream in streams])
    order = np.argsort(rows[:, ORDER_KEY], kind="stable")  # stable sort of sorted runs: it merges them
    addresses = np.concatenate([stream.addresses for stream in streams])
    yield _Stream(rows[order], addresses[order], [records for stream in streams for records in stream.buffers])


def _stream(piece: Piece, queues: Table) -> _Stream:
    rows, records = piece.rows(), piece.records()
    rows[:, QUEUE] = queues[rows[:, QUEUE]]
    ends = np.cumsum(rows[:, SIZE])
    return _Stream(rows, records.ctypes.data + ends - rows[:, SIZE], [records])
