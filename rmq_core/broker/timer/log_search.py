"""Search for records with certain bytes in an open store's CommitLog, by a kernel.

A kernel walks the records of a window, and a search for the bytes selects the records to decode.
"""

from collections.abc import Iterator

import numpy as np

from rmq_core.store.store import MessageStore
from rmq_formats.kernels.scan import POSITION, SIZE
from rmq_formats.scan.segment import FrameBatch, scan_segment


def records_with(store: MessageStore, mark: bytes, begin: int) -> Iterator[memoryview]:
    """Yield the records that contain certain bytes, in log order, each valid until the next; CRCs are not verified.

    A record begins at the physical offset ``begin``, or the log ends there.
    """
    end, file_bytes = store.max_physical_offset, store.config.commitlog_file_bytes
    while begin < end:
        start = begin - begin % file_bytes
        if store.read_log_range(begin, 1) is not None:  # a file may be missing
            for batch in scan_segment(
                _FileReader(store, start),
                start,
                file_bytes,
                start=begin - start,
                data_end=end - start,
                search=False,
                verify_crc=False,
            ):
                yield from _select_marked(batch, mark)
        begin = start + file_bytes


class _FileReader:
    """Reader of one CommitLog file of an open store; unwritten bytes are zeros."""

    def __init__(self, store: MessageStore, start: int) -> None:
        self._store = store
        self._start = start

    def read_into(self, offset: int, target: memoryview) -> int:
        data = self._store.read_log_range(self._start + offset, len(target)) or b""
        target[: len(data)] = data
        target[len(data) :] = bytes(len(target) - len(data))
        return len(target)


def _select_marked(batch: FrameBatch, mark: bytes) -> Iterator[memoryview]:
    positions, sizes = batch.frames[:, POSITION], batch.frames[:, SIZE]
    if not len(positions):
        return
    first = int(positions[0])
    text = batch.data[first : int(positions[-1] + sizes[-1])].tobytes()
    index = text.find(mark)
    while index >= 0:
        row = int(np.searchsorted(positions, first + index, side="right")) - 1
        position, end = int(positions[row]), int(positions[row] + sizes[row])
        if first + index + len(mark) <= end:  # else the match crosses the end of the record
            yield batch.data[position:end].data
            index = end - first - 1
        index = text.find(mark, index + 1)
