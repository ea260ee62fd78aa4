"""Scans the CommitLog for a recovery: over damaged ranges to its end, with tests for unwritten sectors.

A damaged range with sound records after it is damage, and the records count. Without sound records after it, the range
is a torn tail, and the log ends before it. Two kinds of records look sound and are not: remnants after the end of a log
that the original cut (older than the records before the damage), and records with a disk sector that was never written,
or not after the log's last flush (``live_dispatch.mark_torn``).
"""

import os
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_core.store.commitlog.log import LogFile, store_timestamp_ms
from rmq_formats.codecs.record_frame import Damage, DamageCode
from rmq_formats.kernels.live_dispatch import mark_torn
from rmq_formats.kernels.scan import CODE, POSITION, SIZE, SOUND, used_bytes
from rmq_formats.scan.segment import FrameBatch, scan_segment

_BLOCK_BYTES: Final = 1 << 20


class _LogFileReader:
    """Reader of a log file by read calls, as the file may not have its full size yet and is not mapped."""

    def __init__(self, file: LogFile) -> None:
        self._file = file

    def read_into(self, offset: int, target: memoryview) -> int:
        """Read into ``target``; fewer bytes at the file's end."""
        done_bytes = 0
        while done_bytes < len(target):
            got = os.preadv(self._file.descriptor, [target[done_bytes:]], offset + done_bytes)
            if not got:
                break
            done_bytes += got
        return done_bytes

    def data_end(self) -> int:
        """Return the position after the last byte that is not zero; holes and unused blocks are skipped."""
        block = np.empty(_BLOCK_BYTES, dtype=np.uint8)
        for begin, end in reversed(_data_extents(self._file.descriptor, self._file.size)):
            at_end = end
            while at_end > begin:
                at = max(begin, at_end - _BLOCK_BYTES)
                used = int(used_bytes(block, self.read_into(at, block[: at_end - at].data)))
                if used:
                    return at + used
                at_end = at
        return 0


def _data_extents(descriptor: int, size: int) -> list[tuple[int, int]]:
    extents, at = [], 0
    while at < size:
        try:
            begin = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError:  # ENXIO: the rest of the file is a hole
            break
        at = min(os.lseek(descriptor, begin, os.SEEK_HOLE), size)
        extents.append((begin, at))
    return extents


class RecoveryScan:
    """One pass of a recovery over the end of the log.

    Attributes:
        end: physical offset of the next record.
        timestamp_ms: store timestamp of the last record before ``end``.
        damages: damaged ranges before sound records, in order.
        tail: damaged ranges at the end, without the zeros after them; the caller cuts them off.
    """

    def __init__(
        self,
        files: Sequence[LogFile],
        feed: Callable[[FrameBatch], None],
        *,
        flushed_until: int,
        verify_crc: bool,
        is_slave: bool,
    ) -> None:
        """Prepare a scan.

        Args:
            files: the log's files in order; those from the start of the scan on are read.
            feed: dispatches the sound frames of a batch; frames with another CODE than 0 are damaged.
            flushed_until: physical offset below which the log was on the disk, without half-written records.
            is_slave: this is a slave's log, which ends before the first damage after ``flushed_until``. The master
                sends the rest again; a log with tombstones would differ from the master's.
        """
        self.end = 0
        self.timestamp_ms = 0
        self.damages: list[Damage] = []
        self.tail: list[Damage] = []
        self.record_count = 0
        self._files = files
        self._feed = feed
        self._flushed_until = flushed_until
        self._verify_crc = verify_crc
        self._is_slave = is_slave
        self._is_last_data = False
        self._unused_file_ends: list[Damage] = []  # ends of files without a BLANK; damage if a later file has records

    @staticmethod
    def data_end(file: LogFile) -> int:
        """Return the position after the last byte of a file that is not zero."""
        return _LogFileReader(file).data_end()

    def run(self, start: int) -> None:
        """Scan to the end of the log, from a physical offset where a record or a file begins."""
        self.end = start
        ends = {file.start: _LogFileReader(file).data_end() for file in self._files if file.end > start}
        for file in self._files:
            if file.start not in ends:
                continue
            self._is_last_data = not any(end for begin, end in ends.items() if begin > file.start)
            if not self._scan_file(file, max(start - file.start, 0), ends[file.start]):
                return

    def _scan_file(self, file: LogFile, begin: int, data_end: int) -> bool:
        """Scan one file from a position on; False if the log ends in it."""
        for batch in scan_segment(
            _LogFileReader(file),
            file.start,
            file.size,
            start=begin,
            data_end=max(data_end, begin),
            search=False,
            verify_crc=self._verify_crc,
        ):
            self.tail += batch.damages
            if len(batch.frames) and not self._feed_frames(file, batch):
                self.tail.append(Damage(self.end, file.start + data_end - self.end, DamageCode.PHYSICAL_OFFSET))
                return False
            if batch.blank_at is not None:
                if self._ends_before(batch.blank_at):
                    return False
                self._accept(file.end)
        if self.end < file.end:
            rest_at = max(self.end, file.start)
            self._unused_file_ends.append(Damage(rest_at, file.end - rest_at, DamageCode.TRUNCATED))
        return True

    def _accept(self, end: int) -> None:
        """Move the log's end after a sound frame or BLANK; pending bytes before it become damage."""
        if self._unused_file_ends:
            first, last = self._unused_file_ends[0], self._unused_file_ends[-1]
            unused = range(first.physical_offset, last.physical_offset + last.size)
            self.tail = [damage for damage in self.tail if damage.physical_offset not in unused]
            self.tail += self._unused_file_ends
            self._unused_file_ends = []
        self.damages += sorted(self.tail)
        self.tail = []
        self.end = end

    def _feed_frames(self, file: LogFile, batch: FrameBatch) -> bool:
        """Check a batch's frames and feed the sound ones; False if the log ended before one of them."""
        frames, data = batch.frames, batch.data
        is_unflushed = frames[:, POSITION] + frames[:, SIZE] + batch.physical_offset > self._flushed_until
        if is_unflushed.any():
            window_at = batch.physical_offset - file.start
            mark_torn(data[: file.size - window_at], window_at, frames, int(np.argmax(is_unflushed)), self._is_slave)
        is_sound = frames[:, CODE] == SOUND
        if is_sound.all() and not self.tail and not self._unused_file_ends:
            self._accept_frames(batch, frames)
            self._feed(batch)
            return True
        for number in range(len(frames)):
            begin = batch.physical_offset + int(frames[number, POSITION])
            if not is_sound[number]:
                code = DamageCode(int(frames[number, CODE]))
                self.tail.append(Damage(begin, int(frames[number, SIZE]), code))
                continue
            is_stale = bool(self.tail) and begin >= self._flushed_until and self._is_stale(batch, number)
            if is_stale or self._ends_before(begin):
                self._feed(FrameBatch(data, batch.physical_offset, frames[:number], (), None, 0, 0))
                return False
            self._accept_frames(batch, frames[number : number + 1])
        self._feed(batch)
        return True

    def _ends_before(self, physical_offset: int) -> bool:
        """Return whether a slave's log ends before a sound frame, because damage precedes the frame."""
        return self._is_slave and bool(self.tail or self._unused_file_ends) and physical_offset >= self._flushed_until

    def _accept_frames(self, batch: FrameBatch, frames: NDArray[np.int64]) -> None:
        at, size = int(frames[-1, POSITION]), int(frames[-1, SIZE])
        self._accept(batch.physical_offset + at + size)
        self.timestamp_ms = store_timestamp_ms(batch.data[at : at + size].data)
        self.record_count += len(frames)

    def _is_stale(self, batch: FrameBatch, number: int) -> bool:
        """Return whether a record after damage is a remnant of a log that Java cut."""
        at, size = int(batch.frames[number, POSITION]), int(batch.frames[number, SIZE])
        is_older = store_timestamp_ms(batch.data[at : at + size].data) < self.timestamp_ms
        return is_older and self._is_last_data and self.record_count > 0
