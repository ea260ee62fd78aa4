"""Decodes message bodies in JSON, Avro or Protobuf to columns; a body that does not decode gets a reason.

Record by record, in Arrow batches: JSON by Python's own scanner, Avro by readers that are compiled from the schemas,
Protobuf by Google's library (docs/lakehouse.md has the figures).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rmq_lakehouse.decode.mismatch import Mismatch
from rmq_lakehouse.decode.partition_texts import (
    NO_PARTITION_TEXTS,
    PartitionTexts,
    decode_with_partitions,
    without_partition_faults,
)
from rmq_lakehouse.spec import REGISTRY_HEADER_BYTES

DECODED: Final = "decoded"
_EMPTY: Final = "the body is empty"
_REASON_CHARS: Final = 200  # limit of a reason: a library may put the whole body into its message

ELEMENT: Final = "element_index"
"""Column of exploded bodies: index of the row's element in the array; ``NO_ELEMENT`` if the array is empty."""
NO_ELEMENT: Final = -1
_MAX_ROWS: Final = 4096  # limit of a batch of exploded bodies, which ends at a body's end

Decode = Callable[[bytes], Any]
"""Decodes a body to a row, or to a list of rows where bodies are exploded."""
DecodeBodies = Callable[[pa.Array], pa.Array]
"""Decodes bodies to a struct of ``value`` and ``reason`` each."""


@dataclass(frozen=True, slots=True)
class BodyDecoder:
    """Decoder of a topic's bodies, which is pickled to where it runs.

    Attributes:
        make: makes the function that decodes one body.
        header_bytes: size of the header in front of each body.
        explode: whether each element of a body is a row.
        make_for_batches: makes the function that decodes many bodies, from the function that decodes one body with its
            header; None decodes them one by one.
    """

    value_type: pa.StructType
    make: Callable[[], Decode]
    header_bytes: int = 0
    explode: bool = False
    make_for_batches: Callable[[Decode], DecodeBodies] | None = None
    partition_texts: PartitionTexts = NO_PARTITION_TEXTS

    def decode_batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode the column ``body`` to a column ``DECODED``; exploded bodies have the column ``ELEMENT``, too."""
        decode = without_header(self.make(), self.header_bytes)
        decode_one_by_one = partial(decoded, decode=decode, value_type=self.value_type)
        decode_bodies = self.make_for_batches(decode) if self.make_for_batches else decode_one_by_one
        partitions = self.partition_texts
        decode_rows = partial(decode_with_partitions, decode, partitions) if partitions.columns else decode
        for batch in batches:
            if self.explode:
                yield from exploded(batch, decode_rows, self.value_type)
                continue
            columns = [*batch.columns, without_partition_faults(decode_bodies(batch.column("body")), partitions)]
            yield pa.RecordBatch.from_arrays(columns, [*batch.schema.names, DECODED])


def decoded(bodies: pa.Array, decode: Decode, value_type: pa.DataType) -> pa.Array:
    """Decode binary bodies to a struct of ``value`` and ``reason`` each; ``decode`` raises with the reason."""
    values: list[dict[str, Any] | None] = []
    reasons: list[str | None] = []
    for body in bodies.to_pylist():
        value, reason = _attempt(body, decode)
        values.append(value)
        reasons.append(reason)
    try:
        column = _struct_array(values, value_type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        column = _one_by_one(values, reasons, value_type)
    return pa.StructArray.from_arrays([column, pa.array(reasons, pa.string())], names=["value", "reason"])


Rows = tuple[list[Any] | None, str | None]
"""Rows of a body, or None and the reason."""


def exploded(batch: pa.RecordBatch, decode: Decode, value_type: pa.DataType) -> Iterator[pa.RecordBatch]:
    """Decode the column ``body`` of a batch to a row for each element, with the columns ``ELEMENT`` and ``DECODED``.

    A body that does not decode is one row with a reason, whichever element is the fault; one without elements is one
    row with ``NO_ELEMENT``. All rows of a body are in one batch.
    """
    first, row_count = 0, 0
    parts: list[Rows] = []
    for number, body in enumerate(batch.column("body")):
        rows, reason = _attempt(body.as_py(), decode)
        parts.append((rows, reason))
        row_count += len(rows or [None])
        if row_count >= _MAX_ROWS:
            yield _exploded(batch.slice(first, len(parts)), parts, value_type)
            first, row_count, parts = number + 1, 0, []
    if parts:
        yield _exploded(batch.slice(first), parts, value_type)


def _exploded(messages: pa.RecordBatch, parts: list[Rows], value_type: pa.DataType) -> pa.RecordBatch:
    try:
        values = _struct_array([row for rows, _ in parts for row in rows or [None]], value_type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        parts = [_fitting(rows, reason, value_type) for rows, reason in parts]
        values = pa.array([row for rows, _ in parts for row in rows or [None]], value_type)
    counts = np.array([len(rows or [None]) for rows, _ in parts])
    positions = np.repeat(np.arange(len(parts)), counts)
    elements = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
    is_first = elements == 0
    elements[is_first] = [NO_ELEMENT if rows == [] else 0 for rows, _ in parts]
    reasons = pa.array([parts[position][1] for position in positions], pa.string())
    columns = [
        column.take(pa.array(positions, mask=~is_first if name == "body" else None))
        for name, column in zip(messages.schema.names, messages.columns, strict=True)
    ]
    result = pa.StructArray.from_arrays([values, reasons], names=["value", "reason"])
    element_column = pa.array(elements, pa.int32())
    return pa.RecordBatch.from_arrays([*columns, element_column, result], [*messages.schema.names, ELEMENT, DECODED])


def _fitting(rows: list[Any] | None, reason: str | None, value_type: pa.DataType) -> Rows:
    """Return the rows of a body and its reason; no rows if one does not fit its columns."""
    try:
        pa.array(rows or [], value_type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        return None, _shown(error)
    return rows, reason


def _struct_array(values: list[dict[str, Any] | None], kind: pa.DataType) -> pa.Array:
    """Build an array of structs member by member: 0.3 µs for a row of a decimal and a time; by rows Arrow needs 15."""
    rows = [value or {} for value in values]
    members = [pa.array([row.get(field.name) for row in rows], field.type) for field in kind]
    missing = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(members, fields=list(kind), mask=missing)


def _attempt(body: bytes | None, decode: Decode) -> tuple[Any, str | None]:
    if not body:
        return None, _EMPTY
    try:
        return decode(body), None
    except Mismatch as error:
        reason = str(error)[:_REASON_CHARS]
        if error.header_is_known:
            return None, reason
    except Exception as error:  # whatever a library raises for foreign bytes, the other rows are decoded
        reason = _shown(error)
    has_header = len(body) > REGISTRY_HEADER_BYTES and body[0] == 0 and not reason.startswith(("column ", "element "))
    advice = f"; it looks like a registry header: header_bytes = {REGISTRY_HEADER_BYTES}" if has_header else ""
    return None, reason + advice


def without_header(decode: Decode, header_bytes: int) -> Decode:
    """Return a decoder of bodies with a header of ``header_bytes`` bytes."""

    def decode_rest(body: bytes) -> Any:
        if len(body) < header_bytes:
            raise Mismatch(f"the body has {len(body)} bytes, wanted a header of {header_bytes}")
        return decode(body[header_bytes:])

    return decode_rest if header_bytes else decode


def _one_by_one(values: list[Any], reasons: list[str | None], value_type: pa.DataType) -> pa.Array:
    """Build the array value by value; one that does not fit its column becomes null and gets a reason."""
    for row, value in enumerate(values):
        try:
            pa.array([value], value_type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            values[row], reasons[row] = None, _shown(error)
    return pa.array(values, value_type)


def _shown(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:_REASON_CHARS] if text else type(error).__name__
