"""Dispatch: what stands in the log goes to its ConsumeQueues and to the Index, batch by batch.

The kernels of ``rmq_formats.dispatch`` find units and keys; here they are written. A batch that fails on a
full disk is given again, from its beginning: units stand at their own places and can be written twice, and
the Index knows how many keys of it it has.
"""

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmq_core.store.index import Index
from rmq_core.store.log import CommitLog, LogFile
from rmq_core.store.queue import UNIT, UNIT_TYPE, ConsumeQueue
from rmq_core.store.queues import QueueTable
from rmq_core.store.values import Arrival
from rmq_formats.damage import Damage, DamageCode
from rmq_formats.dispatch import Dispatcher
from rmq_formats.errors import FormatError
from rmq_formats.kernels import dispatch as dispatch_kernel
from rmq_formats.kernels import scan as scan_kernel
from rmq_formats.kernels.dispatch import (
    KEY_PHYSICAL_OFFSET,
    UNIT_PHYSICAL_OFFSET,
    UNIT_QUEUE,
    UNIT_QUEUE_OFFSET,
    UNIT_SIZE,
    UNIT_STORE_TIMESTAMP,
    UNIT_TAGS_CODE,
)
from rmq_formats.layout import UNIT_BYTES
from rmq_formats.scan import FrameBatch

_FRAMES_AT_ONCE: Final = 4096
_FEW: Final = 48  # units that are written one by one faster than by columns
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
        restarted: rows of those queues where that was begun.
    """

    units_from: int = 0
    keys_from: int = 0
    keys_there: int = 0
    restart: bool = False
    restarted: set[int] = field(default_factory=set)


class Dispatch:
    """Writes units and keys of records, in the order of the log.

    Attributes:
        offset: physical offset of the next record to dispatch.
        timestamp_ms: store timestamp of the last one dispatched.
        mark: for the other threads.
        displaced: units left out because of an impossible queue offset.
        unit_count: units written.
        skipped: stretches of the log that could not be read.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        index: Index | None,
        delay_levels_ms: tuple[int, ...],
        dropped_topics: dict[str, int],
    ) -> None:
        self.offset = 0
        self.timestamp_ms = 0
        self.displaced = 0
        self.unit_count = 0
        self.skipped: list[Damage] = []
        self._log = log
        self._queues = queues
        self._index = index
        self._dropped_topics = dropped_topics
        self._dispatcher = Dispatcher(delay_levels_ms)
        self._rows: list[ConsumeQueue | None] = []
        self._names: list[tuple[str, int]] = []
        self._frames = np.empty((_FRAMES_AT_ONCE, scan_kernel.FRAME_COLUMNS), dtype=np.int64)
        self._result = np.zeros(2, dtype=np.int64)
        self._file: LogFile | None = None
        self._array: NDArray[np.uint8] | None = None
        self.mark = Mark(0, 0, 0, 0, 0, b"", 0)
        self.note()

    def note(self) -> None:
        """Renew ``mark``."""
        index = self._index
        name = index.files[-1].name if index is not None and index.files else 0
        self.mark = Mark(
            self.offset, self.timestamp_ms, self._queues.unit_total, name,
            0 if index is None else len(index.files), b"" if index is None else index.header_bytes,
            0 if index is None else index.full_end_timestamp_ms,
        )  # fmt: skip

    def forget_queues(self) -> None:
        """Look all queues up anew: some were removed."""
        self._rows = [None] * len(self._rows)

    def run(self, limit: int) -> list[Arrival]:
        """Dispatch the whole records that stand below a physical offset.

        Args:
            limit: of the log, bytes; what begins below it and ends above waits.

        Returns:
            The queues that have new messages.

        Raises:
            OSError: the disk is full, or broken. What was not dispatched comes again at the next call.
        """
        arrivals: dict[int, Arrival] = {}
        while self.offset < limit:
            file = self._log.file_at(self.offset)
            if file is None:  # gone with the oldest files, or never there
                self._skip_to(min(limit, self._next_file(self.offset)))
                continue
            end, position = self._walk(file, limit)
            count = int(self._result[0])
            if count:
                assert self._array is not None
                self._write(self._array, file.start, self._frames[:count], None, arrivals)
            before, self.offset = self.offset, end
            if position is not None:
                self._skip_damage(file, position, limit)
            elif end == before:
                break
        self.note()
        return list(arrivals.values())

    def _walk(self, file: LogFile, limit: int) -> tuple[int, int | None]:
        """Find the frames from ``offset`` on; physical offset of their end, and the position of damage there."""
        if file is not self._file:
            self._file, self._array = file, file.array
        assert self._array is not None
        data_bytes = min(limit - file.start, file.size)
        status = scan_kernel.walk_frames(
            self._array, data_bytes, 0, file.start, file.size, self.offset - file.start, data_bytes, False,
            self._frames, self._result,
        )  # fmt: skip
        position = int(self._result[1])
        if status == scan_kernel.BLANK:
            return file.start + file.size, None
        return file.start + position, position if status > scan_kernel.SOUND else None

    def _next_file(self, physical_offset: int) -> int:
        return physical_offset - physical_offset % self._log.file_bytes + self._log.file_bytes

    def _skip_to(self, physical_offset: int) -> None:
        self.skipped.append(Damage(self.offset, physical_offset - self.offset, DamageCode.MAGIC))
        self.offset = physical_offset

    def _skip_damage(self, file: LogFile, position: int, limit: int) -> None:
        """Go on at the next sound frame. A recovery leaves no damage; a master's log may have some."""
        assert self._array is not None
        data_bytes = min(limit - file.start, file.size)
        row = np.zeros(scan_kernel.FRAME_COLUMNS, dtype=np.int64)
        status = scan_kernel.find_sound(
            self._array, data_bytes, 0, file.start, file.size, position + 1, row, self._result
        )
        found = status in (scan_kernel.SOUND, scan_kernel.BLANK)
        self._skip_to(file.start + int(self._result[0]) if found else file.start + data_bytes)

    def feed(self, batch: FrameBatch, resume: Resume) -> None:
        """Dispatch the sound frames of a batch that a recovery has read.

        Raises:
            OSError: the disk is full, or broken.
        """
        sound = batch.frames[batch.frames[:, scan_kernel.CODE] == scan_kernel.SOUND]
        if len(sound):
            self._write(batch.data, batch.physical_offset, sound, resume, {})

    def _write(
        self,
        data: NDArray[np.uint8],
        physical_offset: int,
        frames: Table,
        resume: Resume | None,
        arrivals: dict[int, Arrival],
    ) -> None:
        batch = FrameBatch(data, physical_offset, frames, (), None, 0, 0)
        self._dispatcher.dispatch(batch)
        units, keys = self._dispatcher.take()
        if resume is not None:
            units = units[units[:, UNIT_PHYSICAL_OFFSET] >= resume.units_from]
            keys = _from(keys, resume)
        self._know_queues(units)
        if resume is not None and resume.restart:
            self._restart(units, resume.restarted)
        if len(units) <= _FEW:
            self._write_few(units.tolist(), arrivals)
        else:
            self._write_many(units, arrivals)
        if len(units):
            self.timestamp_ms = int(units[-1, UNIT_STORE_TIMESTAMP])
        if self._index is not None:
            last = frames[-1]
            last_offset = physical_offset + int(last[scan_kernel.POSITION])
            if resume is None or last_offset >= resume.keys_from:
                self._index.append(keys, last_offset, self.timestamp_ms)

    def _restart(self, units: Table, restarted: set[int]) -> None:
        """Have queues begin anew at the first unit that the log has for them."""
        rows, first = np.unique(units[:, UNIT_QUEUE], return_index=True)
        for row, at in zip(rows.tolist(), first.tolist(), strict=True):
            queue = self._queue(row)
            if row not in restarted and queue is not None:
                before = queue.max_offset
                queue.restart(int(units[at, UNIT_QUEUE_OFFSET]))
                self._queues.unit_total += queue.max_offset - before
            restarted.add(row)

    def _know_queues(self, units: Table) -> None:
        """Have a name for each row of the queue table that the units name."""
        if len(units) and int(units[:, UNIT_QUEUE].max()) >= len(self._names):
            self._names = self._dispatcher.queue_names()
            self._rows += [None] * (len(self._names) - len(self._rows))

    def _queue(self, row: int) -> ConsumeQueue | None:
        """The queue of a row; None for one that gets no unit."""
        queue = self._rows[row]
        if queue is None:
            topic, queue_id = self._names[row]
            if self._queues.is_foreign(topic):
                return None
            try:
                queue = self._rows[row] = self._queues.get_or_make(topic, queue_id)
            except FormatError:  # a crafted topic that is no directory's name
                return None
        return queue

    def _write_few(self, units: list[list[int]], arrivals: dict[int, Arrival]) -> None:
        """Units of a small batch: those of a queue that follow each other go in one write."""
        runs: dict[int, tuple[int, list[bytes], list[int]]] = {}
        pack = UNIT.pack
        for row, queue_offset, physical_offset, size, tags_code, _ in units:
            run = runs.get(row)
            if run is not None and queue_offset != run[0] + len(run[1]):
                self._put(row, run[0], b"".join(run[1]), run[2], arrivals)
                run = None
            if run is None:
                run = runs[row] = (queue_offset, [], [])
            run[1].append(pack(physical_offset, size, tags_code))
            run[2].append(tags_code)
        for row, (queue_offset, packed, codes) in runs.items():
            self._put(row, queue_offset, b"".join(packed), codes, arrivals)

    def _write_many(self, units: Table, arrivals: dict[int, Arrival]) -> None:
        """Units of a large batch, sorted by queue; the order within each stays."""
        units = units[np.argsort(units[:, UNIT_QUEUE], kind="stable")]
        packed = np.empty(len(units), dtype=UNIT_TYPE)
        packed["physical_offset"] = units[:, UNIT_PHYSICAL_OFFSET]
        packed["size"] = units[:, UNIT_SIZE]
        packed["tags_code"] = units[:, UNIT_TAGS_CODE]
        rows, offsets = units[:, UNIT_QUEUE], units[:, UNIT_QUEUE_OFFSET]
        breaks = np.flatnonzero((np.diff(rows) != 0) | (np.diff(offsets) != 1)) + 1
        bounds = [0, *breaks.tolist(), len(units)]
        for begin, end in zip(bounds, bounds[1:], strict=False):
            codes: Any = units[begin:end, UNIT_TAGS_CODE]
            self._put(int(rows[begin]), int(offsets[begin]), packed[begin:end].tobytes(), codes, arrivals)

    def _put(
        self, row: int, queue_offset: int, units: bytes, tags_codes: Any, arrivals: dict[int, Arrival]
    ) -> None:
        queue = self._queue(row)
        if queue is None:
            return
        if self._dropped_topics and queue.topic in self._dropped_topics:
            queue_offset, units = self._undropped(queue.topic, queue_offset, units)
        before = queue.max_offset
        self.displaced += queue.append(queue_offset, units)
        after = queue.max_offset
        if after == before:
            return
        self._queues.unit_total += after - before
        self.unit_count += after - before
        new = tuple(map(int, tags_codes[-(after - before) :]))
        known = arrivals.get(row)
        codes = new if known is None else known.tags_codes + new
        arrivals[row] = Arrival(queue.topic, queue.queue_id, after, codes)

    def _undropped(self, topic: str, queue_offset: int, units: bytes) -> tuple[int, bytes]:
        """The units of messages that came after their topic was deleted: those before do not come back."""
        dropped_until = self._dropped_topics[topic]
        for at in range(0, len(units), UNIT_BYTES):
            if UNIT.unpack_from(units, at)[0] >= dropped_until:
                return queue_offset + at // UNIT_BYTES, units[at:]
        return queue_offset, b""


def _from(keys: Table, resume: Resume) -> Table:
    """The keys that are not in the Index yet."""
    offsets = keys[:, KEY_PHYSICAL_OFFSET]
    begin = int(np.searchsorted(offsets, resume.keys_from))
    there = int(np.searchsorted(offsets, resume.keys_from, side="right")) - begin
    return keys[begin + min(there, resume.keys_there) :]


assert dispatch_kernel.UNIT_COLUMNS == UNIT_STORE_TIMESTAMP + 1
