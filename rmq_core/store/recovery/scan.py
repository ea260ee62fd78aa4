"""Scans the CommitLog for a recovery: over damaged ranges to its end, with tests for unwritten sectors.

A damaged range before sound records is damage: the records count. Where nothing
sound follows, it is a torn tail, and the log ends before it. Two things look sound and are not: records
that the original left after its own end when it cut the log (older than those before the damage), and records
of which a disk sector was never written, or not from where the log ended at a force (``live_dispatch.mark_torn``).
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
    """Reads ranges of a log file by read calls: a file is mapped only when its size is right."""

    def __init__(self, file: LogFile) -> None:
        self._file = file

    def read_into(self, offset: int, target: memoryview) -> int:
        """Read into ``target``; fewer bytes at the file's end."""
        done = 0
        while done < len(target):
            got = os.preadv(self._file.descriptor, [target[done:]], offset + done)
            if not got:
                break
            done += got
        return done

    def data_end(self) -> int:
        """Position one past the last byte that is not zero; holes, which unused blocks are too, are skipped."""
        block = np.empty(_BLOCK_BYTES, dtype=np.uint8)
        for begin, end in reversed(_extents(self._file.descriptor, self._file.size)):
            at_end = end
            while at_end > begin:
                at = max(begin, at_end - _BLOCK_BYTES)
                used = int(used_bytes(block, self.read_into(at, block[: at_end - at].data)))
                if used:
                    return at + used
                at_end = at
        return 0


def _extents(descriptor: int, size: int) -> list[tuple[int, int]]:
    extents, at = [], 0
    while at < size:
        try:
            begin = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole is left
            break
        at = min(os.lseek(descriptor, begin, os.SEEK_HOLE), size)
        extents.append((begin, at))
    return extents


class RecoveryScan:
    """One pass of a recovery over the end of the log.

    Attributes:
        end: physical offset where the next record goes.
        timestamp_ms: store timestamp of the last record before that.
        damages: damaged ranges before sound records, in order.
        tail: damaged ranges at the end, without the zeros after them, to be cut off.
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
            files: of the log, in order; those from the start of the scan on are read.
            feed: dispatches the sound frames of a batch; those whose CODE is not 0 are damaged.
            flushed_until: physical offset below which all was on the disk: nothing there is half-written.
            is_slave: this is a slave's log, which ends before the first damage after what was flushed: its master has
                the rest, where a log that was patched would be another one than the master's.
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
        self._rests: list[Damage] = []  # ends of files without a BLANK: damage, should a next file have records

    @staticmethod
    def data_end(file: LogFile) -> int:
        """Position one past the last byte of a file that is not zero."""
        return _LogFileReader(file).data_end()

    def run(self, start: int) -> None:
        """Scan to the end of the log, from a physical offset where a record or a file begins."""
        self.end = start
        ends = {file.start: _LogFileReader(file).data_end() for file in self._files if file.start + file.size > start}
        for file in self._files:
            if file.start not in ends:
                continue
            self._is_last_data = not any(end for begin, end in ends.items() if begin > file.start)
            if not self._scan_file(file, max(start - file.start, 0), ends[file.start]):
                return

    def _scan_file(self, file: LogFile, begin: int, data_end: int) -> bool:
        """Scan one file from a position on; False if the log ends in it."""
        for batch in scan_segment(
            _LogFileReader(file), file.start, file.size, start=begin, data_end=max(data_end, begin), search=False,
            verify_crc=self._verify_crc,
        ):  # fmt: skip
            self.tail += batch.damages
            if len(batch.frames) and not self._feed_frames(file, batch):
                self.tail.append(Damage(self.end, file.start + data_end - self.end, DamageCode.PHYSICAL_OFFSET))
                return False
            if batch.blank_at is not None:
                if self._ends_before(batch.blank_at):
                    return False
                self._accept(file.start + file.size)
        if self.end < file.start + file.size:
            rest_at = max(self.end, file.start)
            self._rests.append(Damage(rest_at, file.start + file.size - rest_at, DamageCode.TRUNCATED))
        return True

    def _accept(self, end: int) -> None:
        """Move the log's end after a sound frame or BLANK; pending bytes before it become damage."""
        if self._rests:
            first = self._rests[0].physical_offset
            last = self._rests[-1].physical_offset + self._rests[-1].size
            self.tail = [item for item in self.tail if not first <= item.physical_offset < last] + self._rests
            self._rests = []
        self.damages += sorted(self.tail)
        self.tail = []
        self.end = end

    def _feed_frames(self, file: LogFile, batch: FrameBatch) -> bool:
        """Check a batch's frames and feed the sound ones; False if the log ended before one of them."""
        frames, data = batch.frames, batch.data
        unflushed = frames[:, POSITION] + frames[:, SIZE] + batch.physical_offset > self._flushed_until
        if unflushed.any():
            window_at = batch.physical_offset - file.start
            mark_torn(data[: file.size - window_at], window_at, frames, int(np.argmax(unflushed)), self._is_slave)
        sound = frames[:, CODE] == SOUND
        if sound.all() and not self.tail and not self._rests:
            self._accept_frames(batch, frames)
            self._feed(batch)
            return True
        for number in range(len(frames)):
            begin = batch.physical_offset + int(frames[number, POSITION])
            if not sound[number]:
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
        """Return whether a slave's log ends before a sound frame, because of damage in between."""
        return self._is_slave and bool(self.tail or self._rests) and physical_offset >= self._flushed_until

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
