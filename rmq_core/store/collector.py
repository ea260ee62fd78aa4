"""Finds units and keys of records in the mapped log, and writes them, in one call of a kernel."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_core.store import kernels
from rmq_core.store.index_file import IndexFile
from rmq_core.store.unit_writer import UnitWriter
from rmq_formats.dispatch import Dispatcher
from rmq_formats.kernels import dispatch as dispatch_kernel
from rmq_formats.kernels import scan as scan_kernel

_RECORDS_AT_ONCE: Final = 4096
_NO_IMAGE: Final = np.zeros(1, dtype=np.uint8)
Table = NDArray[np.int64]


class Collector(Dispatcher):
    """A dispatcher that works on the mapped log itself.

    Attributes:
        numbers: of the last run, int64[RUN_NUMBERS].
    """

    def __init__(self, delay_levels_ms: tuple[int, ...]) -> None:
        super().__init__(delay_levels_ms)
        self.numbers: Table = np.zeros(kernels.RUN_NUMBERS, dtype=np.int64)
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
        numbers[kernels.RUN_INDEX_LIMIT] = -1
        if index_file is not None:
            image = index_file.array
            numbers[kernels.RUN_INDEX_LIMIT] = index_file.allocated_count
            numbers[kernels.RUN_INDEX_ENTRIES] = index_file.entries
            numbers[kernels.RUN_INDEX_SLOTS] = index_file.slots
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
        return self._units[: numbers[kernels.RUN_UNITS]], self._keys[: numbers[kernels.RUN_KEYS]]
