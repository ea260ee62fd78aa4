"""Finds units and keys of records in the mapped log, and writes them, in one call of a kernel.

The one module of dispatch that loads numba: whoever needs it imports it when it is needed.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_core.store import dispatch_tables as tables
from rmq_core.store import kernels
from rmq_core.store.index_file import IndexFile
from rmq_core.store.log import LogFile
from rmq_core.store.unit_writer import UnitWriter
from rmq_formats.dispatch import Dispatcher
from rmq_formats.kernels import dispatch as dispatch_kernel
from rmq_formats.kernels import scan as scan_kernel
from rmq_formats.scan import FrameBatch

_RECORDS_AT_ONCE: Final = 4096
_PUT_COLUMNS: Final = (
    dispatch_kernel.UNIT_QUEUE,
    dispatch_kernel.UNIT_QUEUE_OFFSET,
    dispatch_kernel.UNIT_PHYSICAL_OFFSET,
    dispatch_kernel.UNIT_SIZE,
    dispatch_kernel.UNIT_TAGS_CODE,
    dispatch_kernel.UNIT_STORE_TIMESTAMP,
)
assert tuple(range(dispatch_kernel.UNIT_COLUMNS)) == _PUT_COLUMNS  # as UnitWriter.put takes them
_NO_IMAGE: Final = np.zeros(1, dtype=np.uint8)
Table = NDArray[np.int64]


class Collector(Dispatcher):
    """A dispatcher that works on the mapped log itself.

    Attributes:
        numbers: of the last run, int64[RUN_NUMBERS].
    """

    def __init__(self, delay_levels_ms: tuple[int, ...]) -> None:
        super().__init__(delay_levels_ms)
        self.numbers: Table = np.zeros(tables.RUN_NUMBERS, dtype=np.int64)
        self._frames = np.empty((_RECORDS_AT_ONCE, scan_kernel.FRAME_COLUMNS), dtype=np.int64)

    @property
    def queue_count(self) -> int:
        """Rows of the queue table."""
        return int(self._used[0])

    def run(self, data: NDArray[np.uint8], writer: UnitWriter, index_file: IndexFile | None) -> tuple[Table, Table]:
        """Take the records of a log file that ``numbers`` asks for, and write what can be written at once.

        Args:
            data: the mapped file.
            writer: knows where units go.
            index_file: where keys go; None if they cannot go there now.

        Returns:
            Units and keys found; ``numbers`` says what of them is done. Valid until the next run.
        """
        numbers = self.numbers
        image = _NO_IMAGE
        numbers[tables.RUN_INDEX_LIMIT] = -1
        if index_file is not None:
            image = index_file.array
            numbers[tables.RUN_INDEX_LIMIT] = index_file.allocated_count
            numbers[tables.RUN_INDEX_ENTRIES] = index_file.entries
            numbers[tables.RUN_INDEX_SLOTS] = index_file.slots
        while True:
            lacking = kernels.dispatch_log(
                data, numbers, self._frames, self._delay_levels_ms, self._queues, self._slots, self._pool, self._used,
                self._units, self._keys, self._result, writer.targets, image,
            )  # fmt: skip
            if lacking == dispatch_kernel.DONE:
                break
            if lacking == dispatch_kernel.QUEUES_FULL:
                self._grow_queues()
            elif lacking == dispatch_kernel.UNITS_FULL:
                self._units = np.empty((2 * len(self._units), dispatch_kernel.UNIT_COLUMNS), dtype=np.int64)
            else:
                self._keys = np.empty((2 * len(self._keys), dispatch_kernel.KEY_COLUMNS), dtype=np.int64)
        self._result[:] = 0
        return self._units[: numbers[tables.RUN_UNITS]], self._keys[: numbers[tables.RUN_KEYS]]

    @property
    def is_at_blank(self) -> bool:
        """Whether the last run ended at the BLANK that ends a file."""
        return bool(self.numbers[tables.RUN_WALK_STATUS] == scan_kernel.BLANK)

    @property
    def is_at_damage(self) -> bool:
        """Whether the last run ended at something that is no record."""
        return bool(self.numbers[tables.RUN_WALK_STATUS] > scan_kernel.SOUND)

    def place(self, units: Table, begin: int, writer: UnitWriter) -> None:
        """Write units, from a row on.

        Raises:
            OSError: the disk is full, or broken. All may be given again.
        """
        numbers = self.numbers
        while begin < len(units):
            numbers[tables.RUN_WRITTEN] = 0
            begin = int(kernels.place_units(units, begin, len(units), writer.targets, numbers))
            writer.note_written(int(numbers[tables.RUN_WRITTEN]))
            if begin < len(units):
                begin += writer.put(units[begin : begin + writer.most_at_once].tolist())

    def collect_sound(self, batch: FrameBatch) -> tuple[Table, Table, int]:
        """Units and keys of a batch's sound frames, and the physical offset of the last of these; -1 without any."""
        frames = batch.frames[batch.frames[:, scan_kernel.CODE] == scan_kernel.SOUND]
        if not len(frames):
            return self._units[:0], self._keys[:0], -1
        self.dispatch(FrameBatch(batch.data, batch.physical_offset, frames, (), None, 0, 0))
        return *self.take(), batch.physical_offset + int(frames[-1, scan_kernel.POSITION])

    @staticmethod
    def last_timestamp_ms(units: Table) -> int:
        """Store timestamp of the last unit's message."""
        return int(units[-1, dispatch_kernel.UNIT_STORE_TIMESTAMP])

    @staticmethod
    def first_unit_from(units: Table, physical_offset: int) -> int:
        """The first row whose record stands at a physical offset or behind it."""
        return int(np.searchsorted(units[:, dispatch_kernel.UNIT_PHYSICAL_OFFSET], physical_offset))

    @staticmethod
    def keys_from(keys: Table, physical_offset: int, passed_over: int) -> Table:
        """The keys from a physical offset on, but for the first ones of the very record that stands there."""
        offsets = keys[:, dispatch_kernel.KEY_PHYSICAL_OFFSET]
        begin = int(np.searchsorted(offsets, physical_offset))
        there = int(np.searchsorted(offsets, physical_offset, side="right")) - begin
        return keys[begin + min(there, passed_over) :]

    @staticmethod
    def note_arrivals(units: Table, arrivals: dict[int, list[int]]) -> None:
        """Add the tags codes of units to those of their queues."""
        rows = units[:, dispatch_kernel.UNIT_QUEUE].tolist()
        for row, code in zip(rows, units[:, dispatch_kernel.UNIT_TAGS_CODE].tolist(), strict=True):
            known = arrivals.get(row)
            if known is None:
                arrivals[row] = [code]
            else:
                known.append(code)

    @staticmethod
    def next_sound(file: LogFile, begin: int, end: int) -> int:
        """Where in a log file the next sound record or BLANK is, from a position on; ``end`` if none is before it."""
        row = np.zeros(scan_kernel.FRAME_COLUMNS, dtype=np.int64)
        result = np.zeros(2, dtype=np.int64)
        status = scan_kernel.find_sound(file.array, end, 0, file.start, file.size, begin, row, result)
        return int(result[0]) if status in (scan_kernel.SOUND, scan_kernel.BLANK) else end
