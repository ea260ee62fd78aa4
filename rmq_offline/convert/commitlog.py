"""The CommitLog of a new store: classic files, whatever the old store has them in.

Files of a classic CommitLog are copied. The records of a DLedger CommitLog are written one after the other, without
the headers of entries, and so get new physical offsets. Their queue offsets do not change, so that consumer offsets
remain valid.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import paths
from rmq_formats.codecs.layout import BLANK_BYTES, MAGIC_BLANK
from rmq_formats.codecs.record_frame import Damage
from rmq_formats.codecs.record_layout import SIZE_AND_MAGIC
from rmq_formats.errors import OptionError
from rmq_formats.kernels import dledger as kernel
from rmq_formats.kernels import scan as scan_kernel
from rmq_formats.scan.segment import FrameBatch, log_frames
from rmq_formats.storage.segments import Segment, Storage
from rmq_offline.convert.file_copies import copy_file
from rmq_offline.tasks.publish import start_sync


def write_log(storage: Storage, segments: Sequence[Segment], new: Path, file_bytes: int) -> list[Damage]:
    """Write the CommitLog of a new store; return the damage of a DLedger CommitLog, which the new log does not have.

    Raises:
        OptionError: a record of the DLedger CommitLog does not fit into a file.
        StoreError: a file that cannot be read or written.
    """
    directory = Path(paths.commitlog_dir(str(new)))
    directory.mkdir()
    entries = [segment for segment in segments if segment.head_bytes]
    for segment in segments:
        if not segment.head_bytes:
            copy_file(storage, segment.path, directory / Path(segment.path).name, segment.size_bytes, segment.log_bytes)
    damages: list[Damage] = []
    if entries:
        with _LogWriter(directory, entries[0].start_offset, file_bytes) as log:
            for _, batch in log_frames(storage, entries):
                damages += batch.all_damages()
                log.append(batch)
    return damages


class _LogWriter(ExitStack):
    """Writer of records into the files of a new CommitLog, one after the other, as a broker does."""

    def __init__(self, directory: Path, begin: int, file_bytes: int) -> None:
        super().__init__()
        self._directory = directory
        self._file_bytes = file_bytes
        self._file_begin = begin
        self._at = begin  # physical offset of the next record
        self._out = np.empty(0, dtype=np.uint8)
        self._halves = np.empty((2, 0), dtype=np.int64)  # half messages: where they stood, and where they stand
        self._known = np.array([0, begin], dtype=np.int64)
        self._file: BinaryIO = self._create_file()

    def append(self, batch: FrameBatch) -> None:
        frames = np.ascontiguousarray(batch.frames[batch.frames[:, scan_kernel.CODE] == scan_kernel.SOUND])
        needed = int(frames[:, scan_kernel.SIZE].sum())
        if needed > len(self._out):
            self._out = np.empty(needed, dtype=np.uint8)
        self._make_room_for_halves(len(frames))
        first = 0
        while first < len(frames):
            room = self._file_begin + self._file_bytes - BLANK_BYTES - self._at
            stop = int(
                kernel.copy_records(batch.data, frames, first, self._at, room, self._out, self._halves, self._known)
            )
            size = int(frames[first:stop, scan_kernel.SIZE].sum())
            self._write(self._out[:size])
            first = stop
            if first < len(frames):
                self._next_file(int(frames[first, scan_kernel.SIZE]))

    def _make_room_for_halves(self, count: int) -> None:
        half_count = int(self._known[0])
        if half_count + count > self._halves.shape[1]:
            halves = np.empty((2, 2 * half_count + count), dtype=np.int64)
            halves[:, :half_count] = self._halves[:, :half_count]
            self._halves = halves

    def _write(self, records: NDArray[np.uint8]) -> None:
        self._file.write(records.data)
        start_sync(self._file.fileno(), self._at - self._file_begin, len(records))
        self._at += len(records)

    def _next_file(self, record_bytes: int) -> None:
        """Begin a file for a record, unless no file has room for the record."""
        if record_bytes > self._file_bytes - BLANK_BYTES:
            what = f"a record of {record_bytes} bytes and the end mark do not fit into a file"
            raise OptionError(f"--commitlog-file-bytes {self._file_bytes}: {what}")
        end = self._file_begin + self._file_bytes
        self._file.write(SIZE_AND_MAGIC.pack(end - self._at, MAGIC_BLANK))
        self._file.close()
        self._at = self._file_begin = end
        self._file = self._create_file()

    def _create_file(self) -> BinaryIO:
        path = self._directory / paths.segment_name(self._file_begin)
        file = self.enter_context(path.open("xb"))
        file.truncate(self._file_bytes)
        return file
