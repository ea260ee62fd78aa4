"""Runs the dispatch kernel on the mapped CommitLog: collects and writes units and keys of records in one call.

This is the only module of dispatch that loads numba; see ``kernel_loading``.
"""

from collections import defaultdict
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_core.store.commitlog.log import LogFile
from rmq_core.store.commitlog.quarantine import HEAD_BYTES, is_tombstone
from rmq_core.store.consumequeue.writer import UnitWriter
from rmq_core.store.index.file import MappedIndexFile
from rmq_formats.codecs.layout import FLAG_TRANSACTION_MASK, FLAG_TRANSACTION_ROLLBACK
from rmq_formats.codecs.record_frame import Damage, DamageCode
from rmq_formats.codecs.record_layout import RECORD_SYS_FLAG_AT
from rmq_formats.kernels import dispatch as dispatch_kernel
from rmq_formats.kernels import inner_batches, live_dispatch
from rmq_formats.kernels import live_dispatch_tables as tables
from rmq_formats.kernels import scan as scan_kernel
from rmq_formats.scan.dispatch import Dispatcher, drop_light_units
from rmq_formats.scan.segment import FrameBatch

_RECORDS_AT_ONCE: Final = 4096
assert tuple(range(dispatch_kernel.UNIT_COLUMNS)) == (
    dispatch_kernel.UNIT_QUEUE,
    dispatch_kernel.UNIT_QUEUE_OFFSET,
    dispatch_kernel.UNIT_PHYSICAL_OFFSET,
    dispatch_kernel.UNIT_SIZE,
    dispatch_kernel.UNIT_TAGS_CODE,
    dispatch_kernel.UNIT_STORE_TIMESTAMP,
)  # the order that ``UnitWriter.put`` expects
_LOWEST_FLAG_AT: Final = RECORD_SYS_FLAG_AT + 3  # the lowest byte of sys_flag
_NO_IMAGE: Final = np.zeros(1, dtype=np.uint8)
Table = NDArray[np.int64]


class Collector(Dispatcher):
    """A ``Dispatcher`` that runs on the mapped CommitLog itself.

    Attributes:
        numbers: arguments and results of the last run, int64[RUN_NUMBERS]; see ``live_dispatch_tables``.
        marks: MARK_LIGHT, MARK_BATCH and MARK_ROLLBACK, if any record so far has them.
        batches: the inner batches of the last run, by physical offset: queue offset of the first message, and number
            of messages.
    """

    def __init__(self, delay_levels_ms: tuple[int, ...], tags_from: int, *, to_light_queues: bool) -> None:
        super().__init__(delay_levels_ms, tags_from=tags_from, to_light_queues=to_light_queues)
        self.numbers: Table = np.zeros(tables.RUN_NUMBERS, dtype=np.int64)
        self.numbers[tables.RUN_TAGS_FROM] = tags_from
        self.numbers[tables.RUN_LIGHT] = to_light_queues
        self.marks = 0
        self.batches: dict[int, tuple[int, int]] = {}
        self.tombstones: list[Damage] = []
        self._frames = np.empty((_RECORDS_AT_ONCE, scan_kernel.FRAME_COLUMNS), dtype=np.int64)

    @property
    def queue_count(self) -> int:
        """Number of rows in the queue table."""
        return int(self._used[0])

    def run(
        self, data: NDArray[np.uint8], writer: UnitWriter, index_file: MappedIndexFile | None
    ) -> tuple[Table, Table]:
        """Dispatch the records of a log file that ``numbers`` selects, and write units into mapped files.

        Args:
            index_file: the newest IndexFile, to which keys are appended; None to append none.

        Returns:
            Units and keys; ``numbers`` has the counts of those that are written. Valid until the next run.
        """
        numbers, image = self.numbers, _NO_IMAGE
        numbers[tables.RUN_INDEX_LIMIT] = -1
        if index_file is not None:
            image = index_file.array
            numbers[tables.RUN_INDEX_LIMIT] = index_file.allocated_count
            numbers[tables.RUN_INDEX_ENTRIES] = index_file.entries
            numbers[tables.RUN_INDEX_SLOTS] = index_file.slots
        while True:
            full_table = live_dispatch.dispatch_log(
                data,
                numbers,
                self._frames,
                self._delay_levels_ms,
                self._queues,
                self._slots,
                self._pool,
                self._used,
                self._units,
                self._keys,
                self._result,
                writer.targets,
                image,
            )
            if full_table == dispatch_kernel.DONE:
                break
            if full_table == dispatch_kernel.QUEUES_FULL:
                self._grow_queues()
            elif full_table == dispatch_kernel.UNITS_FULL:
                self._units = np.empty((2 * len(self._units), dispatch_kernel.UNIT_COLUMNS), dtype=np.int64)
            else:
                self._keys = np.empty((2 * len(self._keys), dispatch_kernel.KEY_COLUMNS), dtype=np.int64)
        marks = int(self._result[dispatch_kernel.MARKS])
        self.marks |= marks
        self._result[:] = 0
        self.batches = {}
        frames = self._frames[: numbers[tables.RUN_FRAMES]]
        self._find_tombstones(marks, data, int(numbers[tables.RUN_FILE_OFFSET]), frames)
        if marks & dispatch_kernel.MARK_BATCH:
            batch_rows = np.empty((len(frames), inner_batches.BATCH_COLUMNS), dtype=np.int64)
            count = inner_batches.find_inner_batches(data, int(numbers[tables.RUN_FILE_OFFSET]), frames, batch_rows)
            self.batches = _by_offset(batch_rows[:count])
        return self._units[: numbers[tables.RUN_UNITS]], self._keys[: numbers[tables.RUN_KEYS]]

    def rows_of_batches(self, units: Table) -> set[int]:
        """Return the rows of queues for which one of these units is an inner batch."""
        if not self.batches:
            return set()
        is_batch = np.isin(units[:, dispatch_kernel.UNIT_PHYSICAL_OFFSET], list(self.batches))
        return set(units[is_batch, dispatch_kernel.UNIT_QUEUE].tolist())

    @property
    def has_lmq_records(self) -> bool:
        """True if a record has LMQ offsets."""
        return bool(self.marks & dispatch_kernel.MARK_LIGHT)

    @property
    def is_at_blank(self) -> bool:
        """True if the last run ended at the BLANK at a file's end."""
        return bool(self.numbers[tables.RUN_WALK_STATUS] == scan_kernel.BLANK)

    @property
    def is_at_damage(self) -> bool:
        """True if the last run ended at bytes that are no sound record."""
        return bool(self.numbers[tables.RUN_WALK_STATUS] > scan_kernel.SOUND)

    def write_units(self, units: Table, begin: int, writer: UnitWriter, max_new_queue_count: int | None = None) -> bool:
        """Write units to their ConsumeQueues, from row ``begin`` on; return whether all are written.

        Args:
            max_new_queue_count: value of ``writer.new_queue_count`` at which writing ends; the caller passes the same
                units again.
        """
        numbers = self.numbers
        writer.batches = self.batches
        while begin < len(units):
            numbers[tables.RUN_WRITTEN] = 0
            begin = int(live_dispatch.write_units(units, begin, len(units), writer.targets, numbers))
            writer.queues.unit_total += int(numbers[tables.RUN_WRITTEN])
            if begin < len(units):
                if max_new_queue_count is not None and writer.new_queue_count >= max_new_queue_count:
                    return False
                begin += writer.put(units[begin : begin + writer.max_units_per_put].tolist())
        return True

    def collect_sound(self, batch: FrameBatch) -> tuple[Table, Table, int]:
        """Return units and keys of a batch's sound frames, and the last such frame's physical offset, or -1."""
        frames = batch.frames[batch.frames[:, scan_kernel.CODE] == scan_kernel.SOUND]
        self.tombstones = []
        if not len(frames):
            return self._units[:0], self._keys[:0], -1
        self.dispatch(FrameBatch(batch.data, batch.physical_offset, frames, (), None, 0, 0))
        marks = int(self._result[dispatch_kernel.MARKS])
        self.marks |= marks
        self._result[dispatch_kernel.MARKS] = 0
        self._find_tombstones(marks, batch.data, batch.physical_offset, frames)
        self.batches = _by_offset(self.inner_batches())
        self._batches.clear()
        return *self.drain(), batch.physical_offset + int(frames[-1, scan_kernel.POSITION])

    def _find_tombstones(self, marks: int, data: NDArray[np.uint8], physical_offset: int, frames: Table) -> None:
        """Find the tombstones among the sound frames of data that begins at a physical offset."""
        self.tombstones = []
        if not marks & dispatch_kernel.MARK_ROLLBACK:
            return
        flags = data[frames[:, scan_kernel.POSITION] + _LOWEST_FLAG_AT] & FLAG_TRANSACTION_MASK
        for frame in frames[flags == FLAG_TRANSACTION_ROLLBACK]:
            position, size = int(frame[scan_kernel.POSITION]), int(frame[scan_kernel.SIZE])
            head = data[position : position + HEAD_BYTES].tobytes()
            if is_tombstone(head, physical_offset + position, size):
                self.tombstones.append(Damage(physical_offset + position, size, DamageCode.MAGIC))

    drop_lmq_units = staticmethod(drop_light_units)

    @staticmethod
    def last_timestamp_ms(units: Table) -> int:
        """Store timestamp of the last unit's message."""
        times = units[:, dispatch_kernel.UNIT_STORE_TIMESTAMP]
        return int(times[np.flatnonzero(times != tables.LIGHT_UNIT)[-1]])

    @staticmethod
    def first_unit_from(units: Table, physical_offset: int) -> int:
        """Return the row of the first unit whose record is at or after a physical offset."""
        return int(np.searchsorted(units[:, dispatch_kernel.UNIT_PHYSICAL_OFFSET], physical_offset))

    @staticmethod
    def keys_from(keys: Table, physical_offset: int, indexed_count: int) -> Table:
        """Return the keys of records from a physical offset on, except the first record's ``indexed_count`` keys."""
        offsets = keys[:, dispatch_kernel.KEY_PHYSICAL_OFFSET]
        begin = int(np.searchsorted(offsets, physical_offset))
        record_key_count = int(np.searchsorted(offsets, physical_offset, side="right")) - begin
        return keys[begin + min(record_key_count, indexed_count) :]

    @staticmethod
    def add_arrivals(units: Table, arrivals: defaultdict[int, list[int]]) -> None:
        """Append the tags codes of units to the list of each unit's queue-table row."""
        rows = units[:, dispatch_kernel.UNIT_QUEUE].tolist()
        for row, code in zip(rows, units[:, dispatch_kernel.UNIT_TAGS_CODE].tolist(), strict=True):
            arrivals[row].append(code)

    @staticmethod
    def next_sound(file: LogFile, begin: int, end: int) -> int:
        """Position of the next sound record or BLANK in a log file, from ``begin`` on; ``end`` without one."""
        row = np.zeros(scan_kernel.FRAME_COLUMNS, dtype=np.int64)
        result = np.zeros(2, dtype=np.int64)
        status = scan_kernel.find_sound(file.array, end, 0, file.start, file.size, begin, row, result)
        return int(result[0]) if status in (scan_kernel.SOUND, scan_kernel.BLANK) else end


def _by_offset(batches: Table) -> dict[int, tuple[int, int]]:
    return {offset: (base, count) for offset, base, count in batches.tolist()}


assert (inner_batches.BATCH_PHYSICAL_OFFSET, inner_batches.BATCH_BASE_OFFSET, inner_batches.BATCH_MESSAGES) == (0, 1, 2)
