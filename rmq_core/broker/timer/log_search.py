"""Finds records that contain given bytes in an open store's CommitLog, without a step of Python for each record.

A kernel walks the records of a window, and a search of bytes tells which of them are worth a look.
"""

from collections.abc import Iterator

import numpy as np

from rmq_core.store.store import MessageStore
from rmq_formats.kernels.scan import POSITION, SIZE
from rmq_formats.scan.segment import FrameBatch, scan_segment


def records_with(store: MessageStore, mark: bytes, begin: int) -> Iterator[memoryview]:
    """The records that contain some bytes, in log order; checksums are not verified.

    Args:
        store: where they are.
        mark: the bytes.
        begin: physical offset at which a record begins, or the log's end.

    Yields:
        A record, valid until the next one is asked for.
    """
    end, file_bytes = store.max_physical_offset, store.config.commitlog_file_bytes
    while begin < end:
        start = begin - begin % file_bytes
        if store.log_stretch(begin, 1) is not None:  # a file may be missing
            for batch in scan_segment(
                _FileReader(store, start), start, file_bytes, start=begin - start, data_end=end - start, search=False,
                verify_crc=False,
            ):  # fmt: skip
                yield from _marked(batch, mark)
        begin = start + file_bytes


class _FileReader:
    """Reads ranges of one CommitLog file of an open store; what is not written yet is zeros."""

    def __init__(self, store: MessageStore, start: int) -> None:
        self._store = store
        self._start = start

    def read_into(self, offset: int, target: memoryview) -> int:
        """Fill ``target`` from the file's byte ``offset`` on."""
        found = self._store.log_stretch(self._start + offset, len(target)) or b""
        target[: len(found)] = found
        target[len(found) :] = bytes(len(target) - len(found))
        return len(target)


def _marked(batch: FrameBatch, mark: bytes) -> Iterator[memoryview]:
    positions, sizes = batch.frames[:, POSITION], batch.frames[:, SIZE]
    if not len(positions):
        return
    first = int(positions[0])
    text = batch.data[first : int(positions[-1] + sizes[-1])].tobytes()
    at = text.find(mark)
    while at >= 0:
        row = int(np.searchsorted(positions, first + at, side="right")) - 1
        position, end = int(positions[row]), int(positions[row] + sizes[row])
        if first + at + len(mark) <= end:  # else it goes from one record into the next
            yield batch.data[position:end].data
            at = end - first - 1
        at = text.find(mark, at + 1)
