"""Converts rows of ``rmq_consumequeue`` and ``rmq_index`` into the unit and key tables that files are built from."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_formats.arrow.buffers import Table, numbers
from rmq_formats.arrow.functions import key_hashes
from rmq_formats.errors import StoreError
from rmq_formats.kernels import dispatch as kernel

_MS = 1000  # microseconds


class UnitRows:
    """Converts rows to unit tables, and numbers the queues that occur in them."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int], int] = {}

    def queue_names(self) -> list[tuple[str, int]]:
        """Topic and queue id of each queue."""
        return list(self._numbers)

    def table(self, batch: pa.RecordBatch) -> Table:
        """Convert rows of ``rmq_consumequeue``'s columns to units, int64[rows, UNIT_COLUMNS].

        Raises:
            StoreError: a null, or a number that no unit can have; a batch queue's unit.
        """
        if "batch_size" in batch.schema.names and pc.any(pc.not_equal(batch.column("batch_size"), 1)).as_py():
            raise StoreError("column batch_size: a unit of a batch queue (BatchConsumeQueue), which is made of the log")
        for name in ("topic", "queue_id", "queue_offset", "physical_offset", "size", "tags_code"):
            _refuse_nulls(batch, name)
        units = np.zeros((len(batch), kernel.UNIT_COLUMNS), dtype=np.int64)
        units[:, kernel.UNIT_QUEUE] = self._queues(batch)
        for at, name in (
            (kernel.UNIT_QUEUE_OFFSET, "queue_offset"),
            (kernel.UNIT_PHYSICAL_OFFSET, "physical_offset"),
            (kernel.UNIT_SIZE, "size"),
            (kernel.UNIT_TAGS_CODE, "tags_code"),
        ):
            units[:, at] = numbers(batch.column(name), 0)
            if name != "tags_code" and len(units) and units[:, at].min() < 0:
                raise StoreError(f"column {name}: {units[:, at].min()} is negative")
        return units

    def _queues(self, batch: pa.RecordBatch) -> Table:
        """Return the queue number of each row."""
        topics = batch.column("topic").dictionary_encode()
        names = topics.dictionary.to_pylist()
        codes = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        pairs, inverse = np.unique(codes << 32 | numbers(batch.column("queue_id"), 0), return_inverse=True)
        queue_names = [(names[pair >> 32], pair & 0xFFFFFFFF) for pair in pairs.tolist()]
        for topic, queue_id in queue_names:
            if queue_id >= 1 << 31:
                raise StoreError(f"topic {topic!r}: queue_id {queue_id - (1 << 32)} is negative")
        rows = [self._numbers.setdefault(queue, len(self._numbers)) for queue in queue_names]
        queues: Table = np.array(rows, dtype=np.int64)[inverse]
        return queues


def key_table(batch: pa.RecordBatch) -> Table:
    """Convert rows with ``topic``, ``key``, ``physical_offset``, ``store_timestamp`` to keys, int64[rows, KEY_COLUMNS].

    Raises:
        StoreError: a null, or a negative physical offset.
    """
    for name in ("topic", "key", "physical_offset", "store_timestamp"):
        _refuse_nulls(batch, name)
    keys = np.zeros((len(batch), kernel.KEY_COLUMNS), dtype=np.int64)
    keys[:, kernel.KEY_HASH] = numbers(key_hashes(batch.column("topic"), batch.column("key")), 0)
    keys[:, kernel.KEY_PHYSICAL_OFFSET] = numbers(batch.column("physical_offset"), 0)
    keys[:, kernel.KEY_STORE_TIMESTAMP] = numbers(batch.column("store_timestamp"), 0) // _MS
    if len(keys) and keys[:, kernel.KEY_PHYSICAL_OFFSET].min() < 0:
        raise StoreError(f"column physical_offset: {keys[:, kernel.KEY_PHYSICAL_OFFSET].min()} is negative")
    return keys


def _refuse_nulls(batch: pa.RecordBatch, name: str) -> None:
    if batch.column(name).null_count:
        raise StoreError(f"column {name}: null in a row")
