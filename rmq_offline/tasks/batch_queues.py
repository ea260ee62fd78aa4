"""Inner batches as spill files: written by the scan of the log, read by the tasks that write batch queues."""

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.batch_consumequeue import batch_units
from rmq_formats.kernels import units as unit_kernel
from rmq_formats.kernels.inner_batches import (
    BATCH_BASE_OFFSET,
    BATCH_COLUMNS,
    BATCH_MESSAGES,
    BATCH_PHYSICAL_OFFSET,
)
from rmq_offline.tasks.work_files import Area, read_longs, write_longs


def _spill_name(split_number: int) -> str:
    return f"spill/batches-{split_number:06d}.msgpack"


def spill_batches(area: Area, split_number: int, batches: NDArray[np.int64]) -> None:
    """Write the inner batches of a split, int64[n, BATCH_COLUMNS]; of most stores there is nothing to write."""
    if len(batches):
        write_longs(area, _spill_name(split_number), rows=batches.reshape(-1))


def read_batches(area: Area, split_count: int) -> NDArray[np.int64]:
    """Read the inner batches of all splits, int64[n, BATCH_COLUMNS], ascending by physical offset."""
    batches = [np.empty((0, BATCH_COLUMNS), dtype=np.int64)]
    for number in range(split_count):
        if area.exists(_spill_name(number)):
            batches.append(read_longs(area, _spill_name(number))["rows"].reshape(-1, BATCH_COLUMNS))
    return np.concatenate(batches)


def make_batch_units(rows: NDArray[np.int64], batches: NDArray[np.int64]) -> NDArray[np.void]:
    """Make the units of a batch queue: one for each record, in log order.

    Args:
        rows: int64[n, ROW_COLUMNS], of the queue, in log order.
        batches: see ``read_batches``; a record that is none of them is one message.
    """
    bases, counts = rows[:, unit_kernel.QUEUE_OFFSET].copy(), np.ones(len(rows), dtype=np.int64)
    if len(batches):
        offsets = rows[:, unit_kernel.PHYSICAL_OFFSET]
        nearest = np.minimum(np.searchsorted(batches[:, BATCH_PHYSICAL_OFFSET], offsets), len(batches) - 1)
        is_batch = batches[nearest, BATCH_PHYSICAL_OFFSET] == offsets
        bases[is_batch] = batches[nearest[is_batch], BATCH_BASE_OFFSET]
        counts[is_batch] = batches[nearest[is_batch], BATCH_MESSAGES]
    return batch_units(
        rows[:, unit_kernel.PHYSICAL_OFFSET], rows[:, unit_kernel.SIZE], rows[:, unit_kernel.TAGS_CODE],
        rows[:, unit_kernel.STORE_TIMESTAMP], bases, counts,
    )  # fmt: skip
