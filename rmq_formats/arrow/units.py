"""Converts ConsumeQueue units and IndexFile entries to Arrow record batches."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_formats.arrow.builder import timestamps_array
from rmq_formats.codecs.variants.batch_consumequeue import BATCH_UNIT_DTYPE


def unit_batch(
    topic: str, queue_id: int, queue_offsets: NDArray[np.int64], units: NDArray[np.void], schema: pa.Schema
) -> pa.RecordBatch:
    """Convert units of one queue to a record batch.

    Args:
        queue_offsets: int64[n], of the units.
        units: of ``rmq_formats.codecs.consumequeue.UNIT_DTYPE``, or units of RocksDB or of a batch queue, n of them.
    """
    count = len(units)
    columns: dict[str, Callable[[], pa.Array]] = {
        "topic": lambda: pa.repeat(pa.scalar(topic, pa.string()), count),
        "queue_id": lambda: pa.array(np.full(count, queue_id, dtype=np.int32)),
        "queue_offset": lambda: pa.array(queue_offsets),
        "physical_offset": lambda: pa.array(units["physical_offset"].astype(np.int64)),
        "size": lambda: pa.array(units["size"].astype(np.int32)),
        "tags_code": lambda: pa.array(units["tags_code"].astype(np.int64)),
        "batch_size": lambda: pa.array(_batch_sizes(units)),
    }
    return pa.RecordBatch.from_arrays([columns[name]() for name in schema.names], schema=schema)


def _batch_sizes(units: NDArray[np.void]) -> NDArray[np.int32]:
    """Messages of each unit's record: 1 but for those of batch queues."""
    if units.dtype == BATCH_UNIT_DTYPE:
        return units["batch_size"].astype(np.int32)
    return np.ones(len(units), dtype=np.int32)


def index_batch(
    name: str, first: int, begin_timestamp_ms: int, slots: int, entries: NDArray[np.void], schema: pa.Schema
) -> pa.RecordBatch:
    """Convert entries of one IndexFile to a record batch.

    Args:
        first: number of the first entry.
        begin_timestamp_ms: of the file's header, from which entries count their seconds.
        entries: of ``rmq_formats.codecs.index.ENTRY_DTYPE``.
    """
    count = len(entries)
    hashes = entries["key_hash"].astype(np.int32)
    columns: dict[str, Callable[[], pa.Array]] = {
        "index_file": lambda: pa.repeat(pa.scalar(name, pa.string()), count),
        "entry": lambda: pa.array(np.arange(first, first + count, dtype=np.int32)),
        "slot": lambda: pa.array((hashes % slots).astype(np.int32)),
        "key_hash": lambda: pa.array(hashes),
        "physical_offset": lambda: pa.array(entries["physical_offset"].astype(np.int64)),
        "store_timestamp": lambda: timestamps_array(begin_timestamp_ms + entries["seconds"].astype(np.int64) * 1000),
        "previous_entry": lambda: pa.array(entries["previous"].astype(np.int32)),
    }
    return pa.RecordBatch.from_arrays([columns[column]() for column in schema.names], schema=schema)
