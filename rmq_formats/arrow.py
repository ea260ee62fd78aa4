"""Records as Arrow columns: what ``rmq_commitlog`` gives to Spark, and ``Store.arrow`` to anyone.

Kernels fill whole columns out of a window; there is no Python per record, except for what is broken (text
that is not UTF-8, checksums) and for bodies that are to be inflated. Only asked-for columns are computed.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from rmq_formats.arrow_build import MAX_ROWS, BatchBuilder
from rmq_formats.arrow_rows import FrameRows
from rmq_formats.arrow_schema import Mode
from rmq_formats.damage import Damage, DamageCode
from rmq_formats.errors import FormatError
from rmq_formats.kernels import scan
from rmq_formats.scan import FrameBatch

BATCH_BYTES: Final = 8 << 20  # of text and bodies, after which a batch is given out
MAX_INT: Final = (1 << 31) - 1


class RowSelector(Protocol):
    """Which rows are wanted; see ``rmq_formats.access.selection``."""

    def select(self, rows: FrameRows) -> FrameRows:
        """The wanted rows."""
        ...

    def damage(self, damage: Damage) -> bool:
        """Whether a stretch without a record is wanted as a row."""
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
    """The records of frames, in log order.

    Args:
        batches: what a scan or point reads give.
        schema: of the wanted columns, see ``rmq_formats.arrow_schema.schema_of``.
        mode: what becomes of damaged stretches.
        decompress: inflate bodies that the producer compressed. One that does not inflate stays as it is
            stored and has a record_error.
        selector: which rows; None is all.
        path: the file that errors name.
        batch_bytes: give out a batch when its text and bodies have so many; one record may have more.

    Yields:
        Batches of at least one row; none shares memory with a window.

    Raises:
        FormatError: in FAILFAST, at the first damaged stretch, record or body.
    """
    builder = BatchBuilder(schema)
    inflates = decompress and "body" in schema.names
    for batch in batches:
        if mode is Mode.FAILFAST:
            _fail_at_damage(batch, path)
        if mode is Mode.PERMISSIVE and batch.damages:
            wanted = [damage for damage in batch.damages if selector is None or selector.damage(damage)]
            if wanted:
                if builder.count:
                    yield builder.finish()
                yield damage_batch(wanted, schema)
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


def _fail_at_damage(batch: FrameBatch, path: str | None) -> None:
    """Raise FormatError at the first damaged stretch or record of a batch, if there is one."""
    for damage in batch.damages[:1]:  # they stand before the frames
        raise FormatError(damage.code.text, damage.physical_offset, path)
    failed = np.flatnonzero(batch.frames[:, scan.CODE])[:1]
    for row in failed.tolist():
        code = DamageCode(int(batch.frames[row, scan.CODE]))
        offset = FrameRows(batch.data, batch.frames[row : row + 1]).physical_offsets[0]
        raise FormatError(code.text, int(offset), path)


def _parts(rows: FrameRows, inflates: bool, batch_bytes: int) -> Iterator[FrameRows]:
    """Rows in pieces that a batch can hold."""
    if len(rows) <= MAX_ROWS and not inflates:
        yield rows
        return
    begin, count = 0, len(rows)
    while begin < count:
        part = rows.part(begin, begin + MAX_ROWS)
        begin += part.inflate(batch_bytes) if inflates else len(part)
        yield part


def damage_batch(damages: Sequence[Damage], schema: pa.Schema) -> pa.RecordBatch:
    """Stretches without a record: place, size and record_error; all else is null."""
    return error_batch([(damage.physical_offset, damage.size, damage.code.text) for damage in damages], schema)


def error_batch(stretches: Sequence[tuple[int, int, str]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows for stretches of the log: physical offset, bytes and what is wrong; all else is null."""
    offsets, sizes, errors = zip(*stretches, strict=True)
    values: dict[str, Sequence[Any]] = {
        "physical_offset": offsets,
        "size": [min(size, MAX_INT) for size in sizes],
        "record_error": errors,
    }
    nothing = [None] * len(stretches)
    arrays = [pa.array(values.get(field.name, nothing), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
