"""Spill files of a rebuild: Arrow IPC files of one split's units and keys, laid out for the tasks that read them.

A units file has one record batch for each partition of queues; its rows are queues, their units one binary
value (int64 rows, native order, never read on another machine type). A keys file has batches of at most
``KEYS_PER_BATCH`` keys in log order. The inner batches of a split are a file of their own.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_formats.codecs.batch_consumequeue import batch_units
from rmq_formats.codecs.hashing import java_string_hash
from rmq_formats.errors import SpillError, StoreError
from rmq_formats.kernels import dispatch as dispatch_kernel
from rmq_formats.kernels import units as unit_kernel
from rmq_formats.kernels.inner_batches import BATCH_BASE_OFFSET, BATCH_COLUMNS, BATCH_MESSAGES, BATCH_PHYSICAL_OFFSET
from rmq_formats.storage.segments import ArrowStorage, open_storage
from rmq_offline.tasks.work_files import Area, read_longs, write_longs

Number = TypeVar("Number", int, NDArray[np.int64])

KEYS_PER_BATCH: Final = 1 << 18
UNITS_SCHEMA: Final = pa.schema([("topic", pa.string()), ("queue_id", pa.int32()), ("rows", pa.large_binary())])
KEYS_SCHEMA: Final = pa.schema(
    [("hash", pa.int32()), ("physical_offset", pa.int64()), ("store_timestamp_ms", pa.int64())]
)


def queue_partition(topic: str, queue_id: int, partition_count: int) -> int:
    """Return the partition whose task writes a queue's files."""
    return partition_of(java_string_hash(topic), queue_id, partition_count)


def partition_of(topic_hash: Number, queue_id: Number, partition_count: int) -> Number:
    """Return the partition of a queue, or of arrays of queues, int64[n], by Java's hashes of the topics."""
    return (topic_hash * 31 + queue_id) % partition_count


def _column(values: NDArray[Any], arrow_type: pa.DataType) -> pa.Array:
    """Wrap numbers as an Arrow array. ``pa.array`` would import pandas, most of a second in each worker."""
    return pa.Array.from_buffers(arrow_type, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _text_column(values: list[str]) -> pa.Array:
    encoded = [value.encode("utf-8", "surrogatepass") for value in values]
    offsets = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum([len(value) for value in encoded], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def write_units(path: Path, units: NDArray[np.int64], names: Sequence[tuple[str, int]], partition_count: int) -> None:
    """Write the units of one split, int64[n, UNIT_COLUMNS], grouped by partition, queue and log order.

    ``names`` has the topic and the queue id of each queue number in the units.
    """
    placed = sorted((queue_partition(*name, partition_count), name, row) for row, name in enumerate(names))
    rank = np.empty(len(names), dtype=np.int64)
    rank[[row for _, _, row in placed]] = np.arange(len(names))
    starts = np.empty(len(names) + 1, dtype=np.int64)
    rows = np.empty((len(units), unit_kernel.ROW_COLUMNS), dtype=np.int64)
    unit_kernel.group_by_queue(units, rank, starts, rows)
    bounds = np.searchsorted([partition for partition, _, _ in placed], np.arange(partition_count + 1)).tolist()
    data = pa.py_buffer(rows)
    row_bytes = rows.itemsize * unit_kernel.ROW_COLUMNS
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, UNITS_SCHEMA) as writer:
        for begin, end in pairwise(bounds):
            topics = _text_column([name[0] for _, name, _ in placed[begin:end]])
            queue_ids = _column(np.array([name[1] for _, name, _ in placed[begin:end]], dtype=np.int32), pa.int32())
            base = int(starts[begin]) * row_bytes
            offsets = pa.py_buffer(starts[begin : end + 1] * row_bytes - base)
            values = data.slice(base, int(starts[end]) * row_bytes - base)
            binary = pa.LargeBinaryArray.from_buffers(pa.large_binary(), end - begin, [None, offsets, values])
            writer.write_batch(pa.record_batch([topics, queue_ids, binary], schema=UNITS_SCHEMA))


def _source(path: str) -> Any:
    storage, path = open_storage(path)
    if isinstance(storage, ArrowStorage):
        return storage.file_system.open_input_file(storage.inner(path))
    return pa.memory_map(path)


@contextmanager
def _open_batches(path: str) -> Iterator[Any]:
    try:
        with _source(path) as source, pa.ipc.open_file(source) as reader:
            yield reader
    except StoreError as error:
        raise SpillError(str(error)) from error
    except (OSError, pa.ArrowException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise SpillError(f"{path}: cannot be read ({reason})") from error


def read_partition(path: str, partition: int) -> Iterator[tuple[str, int, NDArray[np.int64]]]:
    """Read topic, queue id and rows, int64[n, ROW_COLUMNS], of each queue of a partition. Raises SpillError."""
    with _open_batches(path) as reader:
        batch = reader.get_batch(partition)
        topics, queue_ids, binaries = batch.columns
        for topic, queue_id, binary in zip(topics, queue_ids, binaries, strict=True):
            rows = np.frombuffer(binary.as_buffer(), dtype=np.int64).reshape(-1, unit_kernel.ROW_COLUMNS)
            yield topic.as_py(), queue_id.as_py(), rows.copy()


def write_keys(path: Path, keys: NDArray[np.int64]) -> None:
    """Write the keys of one split, int64[n, KEY_COLUMNS], in log order."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, KEYS_SCHEMA) as writer:
        for begin in range(0, len(keys), KEYS_PER_BATCH):
            part = keys[begin : begin + KEYS_PER_BATCH]
            columns = [
                _column(part[:, dispatch_kernel.KEY_HASH].astype(np.int32), pa.int32()),
                _column(part[:, dispatch_kernel.KEY_PHYSICAL_OFFSET], pa.int64()),
                _column(part[:, dispatch_kernel.KEY_STORE_TIMESTAMP], pa.int64()),
            ]
            writer.write_batch(pa.record_batch(columns, schema=KEYS_SCHEMA))


def read_keys(
    path: str, begin: int, end: int
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]]:
    """Read the keys ``[begin, end)`` of a file: hashes, physical offsets, store timestamps (ms). Raises SpillError."""
    with _open_batches(path) as reader:
        for number in range(begin // KEYS_PER_BATCH, -(-end // KEYS_PER_BATCH)):
            first = number * KEYS_PER_BATCH
            batch = reader.get_batch(number)
            part = batch.slice(max(begin - first, 0), min(end - first, batch.num_rows) - max(begin - first, 0))
            hashes, physical_offsets, timestamps = part.columns
            yield _numbers(hashes, np.int32), _numbers(physical_offsets, np.int64), _numbers(timestamps, np.int64)


def _numbers(column: pa.Array, dtype: type[Any]) -> NDArray[Any]:
    return np.frombuffer(column.buffers()[1], dtype=dtype)[column.offset : column.offset + len(column)]


def _spill_name(split_number: int) -> str:
    return f"spill/batches-{split_number:06d}.msgpack"


def spill_batches(area: Area, split_number: int, batches: NDArray[np.int64]) -> None:
    """Write the inner batches of a split, int64[n, BATCH_COLUMNS]; most stores have none."""
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
    """Make the units of a batch queue: one for each of its records, int64[n, ROW_COLUMNS] in log order.

    A record that is not among the inner ``batches`` of ``read_batches`` is one message.
    """
    bases, counts = rows[:, unit_kernel.QUEUE_OFFSET].copy(), np.ones(len(rows), dtype=np.int64)
    offsets, sizes = rows[:, unit_kernel.PHYSICAL_OFFSET], rows[:, unit_kernel.SIZE]
    if len(batches):
        nearest = np.minimum(np.searchsorted(batches[:, BATCH_PHYSICAL_OFFSET], offsets), len(batches) - 1)
        is_batch = batches[nearest, BATCH_PHYSICAL_OFFSET] == offsets
        bases[is_batch] = batches[nearest[is_batch], BATCH_BASE_OFFSET]
        counts[is_batch] = batches[nearest[is_batch], BATCH_MESSAGES]
    tags_codes, timestamps = rows[:, unit_kernel.TAGS_CODE], rows[:, unit_kernel.STORE_TIMESTAMP]
    return batch_units(offsets, sizes, tags_codes, timestamps, bases, counts)
