"""Converts CommitLog frames, records in pull responses, ConsumeQueue units and Index entries to Arrow record batches.

Kernels fill whole columns from a window. Python runs only for damaged records (invalid UTF-8, checksums) and for
compressed bodies. Only the columns of the schema are made.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_formats.arrow.builder import MAX_ROWS, BatchBuilder, timestamps_array
from rmq_formats.arrow.rows import FrameRows
from rmq_formats.arrow.schema import Mode
from rmq_formats.codecs.batch_consumequeue import BATCH_UNIT_DTYPE
from rmq_formats.codecs.record_frame import Damage, DamageCode
from rmq_formats.codecs.record_layout import RECORD_FIXED_BYTES_V1
from rmq_formats.errors import FormatError
from rmq_formats.kernels import scan
from rmq_formats.kernels.columns import select
from rmq_formats.kernels.columns.select import list_records
from rmq_formats.kernels.scan import FRAME_COLUMNS
from rmq_formats.scan.dispatch import QueueTable
from rmq_formats.scan.segment import FrameBatch

BATCH_BYTES: Final = 8 << 20  # bytes of text and bodies in a batch, about
_MAX_TOPICS: Final = 8  # of batches by topic: each topic costs calls of kernels for each window
MAX_INT: Final = (1 << 31) - 1
_ANY_LOG_BYTES: Final = 1 << 62  # a pulled record may have any physical offset


class RowSelector(Protocol):
    """Selector of the frames and damaged ranges that become rows; see ``rmq_formats.read.row_filter``."""

    def select(self, rows: FrameRows) -> FrameRows:
        """Return the frames that become rows."""

    def damage(self, damage: Damage) -> bool:
        """Return whether a damaged range becomes a row."""


def record_batches(
    batches: Iterable[FrameBatch],
    schema: pa.Schema,
    *,
    mode: Mode = Mode.PERMISSIVE,
    decompress: bool = False,
    selector: RowSelector | None = None,
    path: str | None = None,
    batch_bytes: int = BATCH_BYTES,
    by_topic: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Decode the frames of scanned batches into record batches, in log order.

    Args:
        decompress: inflate compressed bodies. A body that does not inflate stays compressed, and its row has a
            record_error.
        selector: selects the rows; None selects all.
        path: the file that errors name.
        batch_bytes: text and body bytes of a batch, about; a single record may have more.
        by_topic: a batch has rows of one topic, for at most 8 topics; rows of different topics lose their order.

    Yields:
        Batches of at least one row; no batch shares memory with a window.

    Raises:
        FormatError: in FAILFAST, at the first damaged range, record or body.
    """
    inflates = decompress and "body" in schema.names
    builders = _Builders(schema, batch_bytes, by_topic=by_topic)
    for batch in batches:
        if mode is Mode.FAILFAST:
            fail_at_damage(batch, path)
        if mode is Mode.PERMISSIVE and batch.damages:
            selected = [damage for damage in batch.damages if selector is None or selector.damage(damage)]
            if selected:
                yield from builders.finish()
                ranges = [(damage.physical_offset, damage.size, damage.code.text) for damage in selected]
                yield error_batch(ranges, schema)
        for builder, group in builders.groups(_wanted_rows(batch, mode, selector)):
            for rows in _parts(group, inflates, batch_bytes):
                if rows.errors and mode is Mode.FAILFAST:
                    row, reason = next(iter(rows.errors.items()))
                    raise FormatError(reason, int(rows.physical_offsets[row]), path)
                yield from builders.append(builder, rows)
    yield from builders.finish()


class _Builders:
    """Builders of the batches of one task: a builder for all rows, or for each of a few topics."""

    def __init__(self, schema: pa.Schema, batch_bytes: int, *, by_topic: bool) -> None:
        self._schema, self._batch_bytes = schema, batch_bytes
        self._topics = QueueTable() if by_topic else None
        self._builders = [BatchBuilder(schema)]

    def groups(self, rows: FrameRows) -> Iterator[tuple[BatchBuilder, FrameRows]]:
        """Assign rows to builders. Rows of one topic keep their order."""
        if self._topics is None or not len(rows):
            yield self._builders[0], rows
            return
        rows.repair(scan.TOPIC_AT)
        numbers = self._topics.number(rows.data, rows.frames, np.zeros(len(rows), dtype=np.int32))
        if self._topics.queue_count > _MAX_TOPICS:
            self._topics = None
            yield self._builders[0], rows
            return
        self._builders += [BatchBuilder(self._schema) for _ in range(len(self._builders), self._topics.queue_count)]
        for number in np.unique(numbers).tolist():
            yield self._builders[number], rows.select(numbers == number)

    def append(self, builder: BatchBuilder, rows: FrameRows) -> Iterator[pa.RecordBatch]:
        """Append rows to a builder; return full batches, or the largest batch if all have many bytes together."""
        if self._topics is None and len(self._builders) > 1:
            yield from self.finish()  # from now on the first builder has the rows of all topics
            del self._builders[1:]
        if builder.count and not builder.room_for(rows):
            yield builder.finish()
        if len(rows):
            builder.append(rows)
        if builder.byte_count >= self._batch_bytes or builder.count == MAX_ROWS:
            yield builder.finish()
        elif sum(other.byte_count for other in self._builders) >= 2 * self._batch_bytes:
            yield max(self._builders, key=lambda other: other.byte_count).finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Return the batches of all remaining rows."""
        yield from (builder.finish() for builder in self._builders if builder.count)


def _wanted_rows(batch: FrameBatch, mode: Mode, selector: RowSelector | None) -> FrameRows:
    rows = FrameRows(batch.data, batch.frames)
    if mode is Mode.DROPMALFORMED:
        rows = rows.select(batch.frames[:, scan.CODE] == scan.SOUND)
    if selector is not None and len(rows):
        rows = selector.select(rows)
    return rows


def fail_at_damage(batch: FrameBatch, path: str | None) -> None:
    """Raise FormatError at the first damaged range or record of a batch."""
    for damage in batch.damages[:1]:  # damages precede the frames of a batch
        raise FormatError(damage.code.text, damage.physical_offset, path)
    failed = np.flatnonzero(batch.frames[:, scan.CODE])[:1]
    for row in failed.tolist():
        code = DamageCode(int(batch.frames[row, scan.CODE]))
        offset = FrameRows(batch.data, batch.frames[row : row + 1]).physical_offsets[0]
        raise FormatError(code.text, int(offset), path)


def _parts(rows: FrameRows, inflates: bool, batch_bytes: int) -> Iterator[FrameRows]:
    """Cut rows into pieces that fit into one record batch each."""
    if len(rows) <= MAX_ROWS and not inflates:
        yield rows
        return
    begin, count = 0, len(rows)
    while begin < count:
        part = rows.part(begin, begin + MAX_ROWS)
        begin += part.inflate(batch_bytes) if inflates else len(part)
        yield part


def error_batch(ranges: Sequence[tuple[int, int, str]], schema: pa.Schema) -> pa.RecordBatch:
    """Build rows for ranges of the log: physical offset, size (bytes), record_error; all other columns are null."""
    offsets, sizes, errors = zip(*ranges, strict=True)
    values: dict[str, Sequence[Any]] = {
        "physical_offset": offsets,
        "size": [min(size, MAX_INT) for size in sizes],
        "record_error": errors,
    }
    nothing = [None] * len(ranges)
    arrays = [pa.array(values.get(field.name, nothing), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def pulled_frames(
    answers: Sequence[bytes | memoryview], begin: int, end: int, *, verify_crc: bool = True
) -> FrameBatch:
    """Find the records ``[begin, end)`` in bodies of pull responses of one queue. Raises FormatError.

    A body has whole CommitLog records, perhaps more than were requested. A record with a wrong sum remains, with the
    CODE.
    """
    data = np.frombuffer(bytearray().join(answers), dtype=np.uint8)
    points = np.empty((len(data) // RECORD_FIXED_BYTES_V1, select.POINT_COLUMNS), dtype=np.int64)
    result = np.zeros(1, dtype=np.int64)
    record_count = int(list_records(data, points, result))
    if result[0] != len(data):
        raise FormatError("a pull response has bytes that are no record", None, actual=len(data) - int(result[0]))
    frames = np.empty((record_count, FRAME_COLUMNS), dtype=np.int64)
    count = select.check_points(data, len(data), points[:record_count], 0, _ANY_LOG_BYTES, verify_crc, frames)
    if count != record_count:
        raise FormatError("a pull response has records whose lengths do not add up", actual=record_count - count)
    queue_offsets = FrameRows(data, frames).queue_offsets
    is_in_range = (queue_offsets >= begin) & (queue_offsets < end)
    return FrameBatch(data, 0, frames if is_in_range.all() else frames[is_in_range], (), None, 0, 0)


def unit_batch(
    topic: str, queue_id: int, queue_offsets: NDArray[np.int64], units: NDArray[np.void], schema: pa.Schema
) -> pa.RecordBatch:
    """Convert units of one queue to a record batch.

    Args:
        queue_offsets: int64[n].
        units: UNIT_DTYPE[n], or units of RocksDB or of a batch queue.
    """
    count, is_batch = len(units), units.dtype == BATCH_UNIT_DTYPE
    columns: dict[str, Callable[[], pa.Array]] = {
        "topic": lambda: pa.repeat(pa.scalar(topic, pa.string()), count),
        "queue_id": lambda: pa.array(np.full(count, queue_id, dtype=np.int32)),
        "queue_offset": lambda: pa.array(queue_offsets),
        "physical_offset": lambda: pa.array(units["physical_offset"].astype(np.int64)),
        "size": lambda: pa.array(units["size"].astype(np.int32)),
        "tags_code": lambda: pa.array(units["tags_code"].astype(np.int64)),
        "batch_size": lambda: pa.array(units["batch_size"].astype(np.int32) if is_batch else np.ones(count, np.int32)),
    }
    return pa.RecordBatch.from_arrays([columns[name]() for name in schema.names], schema=schema)


def index_batch(
    name: str, first: int, begin_timestamp_ms: int, slots: int, entries: NDArray[np.void], schema: pa.Schema
) -> pa.RecordBatch:
    """Convert entries of one IndexFile, ENTRY_DTYPE[n], of which ``first`` is the first number, to a record batch."""
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
