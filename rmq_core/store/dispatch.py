"""Dispatch: what stands in the log goes to its ConsumeQueues and to the Index, batch by batch.

The kernels of ``rmq_formats.dispatch`` find units and keys, and those of ``rmq_core.store.kernels`` write
them. A batch that fails on a full disk is given again, from its beginning: units stand at their own places
and can be written twice, and the Index knows how many keys of it it has.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmq_core.store import kernels
from rmq_core.store.collector import Collector
from rmq_core.store.index import Index
from rmq_core.store.log import CommitLog, LogFile
from rmq_core.store.queues import QueueTable
from rmq_core.store.unit_writer import UnitWriter
from rmq_core.store.values import Arrival
from rmq_formats.damage import Damage, DamageCode
from rmq_formats.kernels import scan as scan_kernel
from rmq_formats.kernels.dispatch import (
    KEY_PHYSICAL_OFFSET,
    UNIT_PHYSICAL_OFFSET,
    UNIT_QUEUE,
    UNIT_STORE_TIMESTAMP,
    UNIT_TAGS_CODE,
)
from rmq_formats.scan import FrameBatch

Table = NDArray[np.int64]


class Mark(NamedTuple):
    """How far dispatch is, for the thread that forces what it wrote.

    Attributes:
        offset: physical offset below which all is dispatched.
        timestamp_ms: store timestamp of the last message dispatched.
        unit_total: sum of the queues' maximum offsets.
        index_name: of the newest IndexFile; 0 if there is none.
        index_files: IndexFiles.
        index_header: header of the newest.
        index_full_ms: store timestamp of the last key in the last IndexFile that is full.
    """

    offset: int
    timestamp_ms: int
    unit_total: int
    index_name: int
    index_files: int
    index_header: bytes
    index_full_ms: int


@dataclass(slots=True)
class Resume:
    """From where a recovery's dispatch writes; what is before that is there already.

    Attributes:
        units_from: physical offset of the first record whose unit is written.
        keys_from: likewise of keys; of this record itself, ``keys_there`` are there.
        keys_there: keys.
        restart: write all queues anew that the log has a unit for, from the first of these on.
    """

    units_from: int = 0
    keys_from: int = 0
    keys_there: int = 0
    restart: bool = False


class Dispatch:
    """Writes units and keys of records, in the order of the log.

    Attributes:
        offset: physical offset of the next record to dispatch.
        timestamp_ms: store timestamp of the last one dispatched.
        mark: for the other threads.
        writer: of units.
        skipped: stretches of the log that could not be read.
    """

    def __init__(
        self, log: CommitLog, queues: QueueTable, index: Index | None, delay_levels_ms: tuple[int, ...],
        writer: UnitWriter,
    ) -> None:  # fmt: skip
        self.offset = 0
        self.timestamp_ms = 0
        self.skipped: list[Damage] = []
        self.writer = writer
        self._log = log
        self._queues = queues
        self._index = index
        self._collector = Collector(delay_levels_ms)
        self._file: LogFile | None = None
        self._array: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
        self.mark = Mark(0, 0, 0, 0, 0, b"", 0)

    def note(self) -> None:
        """Renew ``mark``."""
        index = self._index
        newest = index.files[-1] if index is not None and index.files else None
        self.mark = Mark(
            self.offset,
            self.timestamp_ms,
            self._queues.unit_total,
            0 if newest is None else newest.name,
            0 if index is None else len(index.files),
            b"" if index is None else index.header_bytes,
            0 if index is None else index.full_end_timestamp_ms,
        )

    def run(self, limit: int, arrivals: dict[int, list[int]] | None) -> None:
        """Dispatch the whole records that stand below a physical offset.

        Args:
            limit: of the log, bytes; what begins below it and ends above waits.
            arrivals: the tags codes of the new messages of each row are added to it; None if no one asks.

        Raises:
            OSError: the disk is full, or broken. What was not dispatched comes again at the next call.
        """
        while self.offset < limit:
            file = self._log.file_at(self.offset)
            if file is None:  # gone with the oldest files, or never there
                next_file = self.offset - self.offset % self._log.file_bytes + self._log.file_bytes
                self._skip_to(min(limit, next_file))
            elif not self._run_file(file, limit, arrivals):
                break
        self.note()

    def _run_file(self, file: LogFile, limit: int, arrivals: dict[int, list[int]] | None) -> bool:
        """Dispatch a batch of one file's records; False if none is whole below the limit."""
        if file is not self._file:
            self._file, self._array = file, file.array
        collector, index = self._collector, self._index
        numbers = collector.numbers
        data_bytes = min(limit - file.start, file.size)
        before = self.offset - file.start
        numbers[kernels.RUN_POSITION] = before
        numbers[kernels.RUN_DATA_BYTES] = data_bytes
        numbers[kernels.RUN_FILE_OFFSET] = file.start
        numbers[kernels.RUN_FILE_BYTES] = file.size
        target = index.target() if index is not None else None
        units, keys = collector.run(self._array, self.writer, target)
        found = numbers.tolist()
        self._queues.unit_total += found[kernels.RUN_WRITTEN]
        if found[kernels.RUN_PLACED] < len(units):
            self._know_queues()
            self.writer.place(units, found[kernels.RUN_PLACED])
        if len(units):
            self.timestamp_ms = found[kernels.RUN_TIMESTAMP]
            if arrivals is not None:
                self._note_arrivals(units, arrivals)
        if index is not None and found[kernels.RUN_LAST_OFFSET] >= 0:
            if found[kernels.RUN_INDEXED]:
                index.note_appended()
            else:
                index.append(keys, found[kernels.RUN_LAST_OFFSET], self.timestamp_ms)
        status, position = found[kernels.RUN_WALK_STATUS], found[kernels.RUN_POSITION]
        if status == scan_kernel.BLANK:
            self.offset = file.start + file.size
            return True
        self.offset = file.start + position
        if status > scan_kernel.SOUND:
            self._skip_damage(file, position, data_bytes)
            return True
        return bool(position > before)

    def _know_queues(self) -> None:
        """Have a name for each row of the queue table."""
        if self._collector.queue_count > len(self.writer.names):
            self.writer.names = self._collector.queue_names()

    @staticmethod
    def _note_arrivals(units: Table, arrivals: dict[int, list[int]]) -> None:
        rows, codes = units[:, UNIT_QUEUE].tolist(), units[:, UNIT_TAGS_CODE].tolist()
        for row, code in zip(rows, codes, strict=True):
            known = arrivals.get(row)
            if known is None:
                arrivals[row] = [code]
            else:
                known.append(code)

    def arrivals_of(self, rows: dict[int, list[int]]) -> list[Arrival]:
        """What ``run`` has noted, by queue."""
        self._know_queues()
        names = self.writer.names
        found = []
        for row, codes in rows.items():
            topic, queue_id = names[row]
            queue = self._queues.get(topic, queue_id)
            if queue is not None:
                found.append(Arrival(topic, queue_id, queue.max_offset, codes))
        return found

    def _skip_to(self, physical_offset: int) -> None:
        self.skipped.append(Damage(self.offset, physical_offset - self.offset, DamageCode.MAGIC))
        self.offset = physical_offset

    def _skip_damage(self, file: LogFile, position: int, data_bytes: int) -> None:
        """Go on at the next sound frame. A recovery leaves no damage; a master's log may have some."""
        row = np.zeros(scan_kernel.FRAME_COLUMNS, dtype=np.int64)
        result = np.zeros(2, dtype=np.int64)
        status = scan_kernel.find_sound(self._array, data_bytes, 0, file.start, file.size, position + 1, row, result)
        found = status in (scan_kernel.SOUND, scan_kernel.BLANK)
        self._skip_to(file.start + (int(result[0]) if found else data_bytes))

    def feed(self, batch: FrameBatch, resume: Resume) -> None:
        """Dispatch the sound frames of a batch that a recovery has read.

        Raises:
            OSError: the disk is full, or broken.
        """
        frames = batch.frames[batch.frames[:, scan_kernel.CODE] == scan_kernel.SOUND]
        if not len(frames):
            return
        self._collector.dispatch(FrameBatch(batch.data, batch.physical_offset, frames, (), None, 0, 0))
        units, keys = self._collector.take()
        if len(units):
            self.timestamp_ms = int(units[-1, UNIT_STORE_TIMESTAMP])
        begin = int(np.searchsorted(units[:, UNIT_PHYSICAL_OFFSET], resume.units_from))
        self._know_queues()
        self.writer.place(units, begin)
        last = batch.physical_offset + int(frames[-1, scan_kernel.POSITION])
        if self._index is not None and last >= resume.keys_from:
            self._index.append(_from(keys, resume), last, self.timestamp_ms)


def _from(keys: Table, resume: Resume) -> Table:
    """The keys that are not in the Index yet."""
    offsets = keys[:, KEY_PHYSICAL_OFFSET]
    begin = int(np.searchsorted(offsets, resume.keys_from))
    there = int(np.searchsorted(offsets, resume.keys_from, side="right")) - begin
    return keys[begin + min(there, resume.keys_there) :]
