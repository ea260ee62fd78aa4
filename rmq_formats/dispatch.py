"""Collects what records give to their ConsumeQueues and to the Index, batch by batch.

The broker's dispatch and the rebuild of a store at rest both go through here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rmq_formats.kernels import dispatch as kernel
from rmq_formats.kernels.scan import CODE, SIZE, SOUND
from rmq_formats.scan import FrameBatch

_FIRST_QUEUES = 256
_FIRST_POOL_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Dispatched:
    """Columns out of one batch.

    Attributes:
        units: int64[n, UNIT_COLUMNS] in log order; UNIT_QUEUE is a row of the dispatcher's queues.
        keys: int64[m, KEY_COLUMNS] in log order.
        message_count: sound records, those included that give neither.
        record_bytes: their bytes.
    """

    units: NDArray[np.int64]
    keys: NDArray[np.int64]
    message_count: int
    record_bytes: int


class Dispatcher:
    """Turns frames into units and keys; keeps the table of the queues that it met."""

    def __init__(self, delay_levels_ms: Sequence[int]) -> None:
        self._delay_levels_ms = np.array(delay_levels_ms, dtype=np.int64)
        self._queues = np.zeros((_FIRST_QUEUES, kernel.QUEUE_COLUMNS), dtype=np.int64)
        self._slots = np.full(4 * _FIRST_QUEUES, -1, dtype=np.int32)
        self._pool = np.zeros(_FIRST_POOL_BYTES, dtype=np.uint8)
        self._used = np.zeros(2, dtype=np.int64)

    def dispatch(self, batch: FrameBatch) -> Dispatched:
        """Units and keys of the sound frames in a batch."""
        frames = batch.frames
        units = np.empty((len(frames), kernel.UNIT_COLUMNS), dtype=np.int64)
        keys = np.empty((4 * len(frames) + 64, kernel.KEY_COLUMNS), dtype=np.int64)
        result = np.zeros(3, dtype=np.int64)
        while True:
            status = kernel.dispatch_frames(
                batch.data, batch.physical_offset, frames, int(result[0]), self._delay_levels_ms,
                self._queues, self._slots, self._pool, self._used, units, keys, result,
            )  # fmt: skip
            if status == kernel.DONE:
                break
            if status == kernel.QUEUES_FULL:
                self._grow_queues()
            else:  # one record may hold 16,000 keys
                keys = np.concatenate([keys, np.empty((len(keys) + 32768, kernel.KEY_COLUMNS), dtype=np.int64)])
        sound = frames[:, CODE] == SOUND
        record_bytes = int(frames[sound, SIZE].sum())
        return Dispatched(units[: result[1]], keys[: result[2]], int(np.count_nonzero(sound)), record_bytes)

    def _grow_queues(self) -> None:
        capacity = 2 * len(self._queues)
        queues = np.zeros((capacity, kernel.QUEUE_COLUMNS), dtype=np.int64)
        pool = np.zeros(2 * len(self._pool), dtype=np.uint8)
        slots = np.full(4 * capacity, -1, dtype=np.int32)
        used = np.zeros(2, dtype=np.int64)
        for row in self._queues[: self._used[0]]:
            kernel.find_queue(
                self._pool, row[kernel.QUEUE_TOPIC_AT], row[kernel.QUEUE_TOPIC_BYTES],
                np.uint32(row[kernel.QUEUE_TOPIC_HASH]), row[kernel.QUEUE_ID], queues, slots, pool, used,
            )  # fmt: skip
        self._queues, self._pool, self._slots, self._used = queues, pool, slots, used

    def queue_names(self) -> list[tuple[str, int]]:
        """Topic and queue id of each row of the queue table."""
        pool = self._pool.tobytes()
        names = []
        for at, size, queue_id, _ in self._queues[: self._used[0]].tolist():
            names.append((pool[at : at + size].decode("utf-8", "replace"), queue_id))
        return names
