"""Decodes CommitLog frames into Arrow record batches, for the Spark source ``rmq_commitlog`` and ``Store.arrow``.

Kernels fill whole columns from a window; no Python runs for a record, except for damaged ones (invalid
UTF-8, checksums) and for bodies to be inflated. Only the columns asked for are computed.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from rmq_formats.arrow.builder import MAX_ROWS, BatchBuilder
from rmq_formats.arrow.rows import FrameRows
from rmq_formats.arrow.schema import Mode
from rmq_formats.codecs.damage import Damage, DamageCode
from rmq_formats.errors import FormatError
from rmq_formats.kernels import scan
from rmq_formats.scan.segment import FrameBatch

BATCH_BYTES: Final = 8 << 20  # bytes of text and bodies after which a batch is given out
MAX_INT: Final = (1 << 31) - 1


class RowSelector(Protocol):
    """Selector of the frames and damaged ranges that become rows; see ``rmq_formats.read.row_filter``."""

    def select(self, rows: FrameRows) -> FrameRows:
        """Return the frames that become rows."""
        ...

    def damage(self, damage: Damage) -> bool:
        """Return whether a damaged range becomes a row."""
        ...


def record_batches(
    batches: Iterable[FrameBatch],
    schema: pa.Schema,
    *,
    mode: Mode = Mode.PERMISSIVE,
    decompress: bool = False,
    selector: RowSelector | None = None,
    path: str | None = None,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Decode the frames of scanned batches into record batches, in log order.

    Args:
        decompress: inflate bodies that the producer compressed. One that does not inflate stays as it is
            stored and has a record_error.
        selector: selects the rows; None selects all.
        path: the file that errors name.
        batch_bytes: text and body bytes after which a batch is given out; one record may have more.

    Yields:
        Batches of at least one row; none shares memory with a window.

    Raises:
        FormatError: in FAILFAST, at the first damaged stretch, record or body.
    """
    builder = BatchBuilder(schema)
    inflates = decompress and "body" in schema.names
    for batch in batches:
        if mode is Mode.FAILFAST:
            fail_at_damage(batch, path)
        if mode is Mode.PERMISSIVE and batch.damages:
            selected = [damage for damage in batch.damages if selector is None or selector.damage(damage)]
            if selected:
                if builder.count:
                    yield builder.finish()
                yield damage_batch(selected, schema)
        for rows in _parts(_wanted_rows(batch, mode, selector), inflates, batch_bytes):
            if rows.errors and mode is Mode.FAILFAST:
                row, reason = next(iter(rows.errors.items()))
                raise FormatError(reason, int(rows.physical_offsets[row]), path)
            if builder.count and not builder.room_for(rows):
                yield builder.finish()
            if len(rows):
                builder.append(rows)
            if builder.byte_count >= batch_bytes or builder.count == MAX_ROWS:
                yield builder.finish()
    if builder.count:
        yield builder.finish()


def _wanted_rows(batch: FrameBatch, mode: Mode, selector: RowSelector | None) -> FrameRows:
    rows = FrameRows(batch.data, batch.frames)
    if mode is Mode.DROPMALFORMED:
        rows = rows.take(batch.frames[:, scan.CODE] == scan.SOUND)
    if selector is not None and len(rows):
        rows = selector.select(rows)
    return rows


def fail_at_damage(batch: FrameBatch, path: str | None) -> None:
    """Raise FormatError at the first damaged range or record of a batch, if there is one."""
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


def damage_batch(damages: Sequence[Damage], schema: pa.Schema) -> pa.RecordBatch:
    """Build rows for damaged ranges: physical offset, size and record_error; all other columns are null."""
    return error_batch([(damage.physical_offset, damage.size, damage.code.text) for damage in damages], schema)


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
