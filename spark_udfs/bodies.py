"""Decodes message bodies in JSON, Avro or Protobuf to columns; a body that does not decode gets a reason.

Record by record, in Arrow batches: JSON by Python's own scanner, Avro and Protobuf by their libraries, each in compiled
code (docs/lakehouse.md has the figures).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from rmq_formats.spark.versions import arrow_schema
from spark_udfs.mismatch import DEAD_LETTER, RESCUE, RESCUED, Mismatch
from spark_udfs.times import TimeUnits

DECODED: Final = "decoded"
_HEADER_BYTES: Final = 5  # of a schema registry: a zero, and the schema's id
_EMPTY: Final = "the body is empty"
_REASON_CHARS: Final = 200  # limit of a reason: a library may put the whole body into its message

Decode = Callable[[bytes], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class BodyDecoder:
    """Decoder of bodies.

    Attributes:
        columns: schema of a decoded body.
        make: makes the function that decodes one body, where it runs.
        header_bytes: in front of each body.
    """

    columns: StructType
    make: Callable[[], Decode]
    header_bytes: int = 0

    def decode(self, frame: DataFrame) -> DataFrame:
        """Decode the column ``body``: a column ``decoded``, a struct of ``value`` and ``reason``, beside the others.

        By ``mapInArrow``, not a column function: Spark 4.0 has none over Arrow arrays.
        """
        value_type, make = pa.struct(list(arrow_schema(self.columns))), self.make
        header_bytes = self.header_bytes

        def decode_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            decode = without_header(make(), header_bytes)
            for batch in batches:
                column = decoded(batch.column("body"), decode, value_type)
                yield pa.RecordBatch.from_arrays([*batch.columns, column], [*batch.schema.names, DECODED])

        result = StructType([StructField("value", self.columns), StructField("reason", StringType())])
        return frame.mapInArrow(decode_batches, StructType([*frame.schema, StructField(DECODED, result)]))


def json_decoder(
    columns: StructType, units: TimeUnits, zone: str, *, on_mismatch: str = DEAD_LETTER, header_bytes: int = 0
) -> BodyDecoder:
    """Decode bodies that are JSON objects; see ``json_body``. Raises ValueError: a type that has no JSON."""
    from spark_udfs.json_body import decoder  # noqa: PLC0415 # as the others

    decoder(columns, units, zone)
    with_rescued = _with_rescued(columns, on_mismatch)
    return BodyDecoder(with_rescued, lambda: decoder(columns, units, zone, on_mismatch), header_bytes)


def avro_decoder(
    schema: str,
    columns: StructType,
    *,
    writer_schemas: Mapping[int, str] | None = None,
    on_mismatch: str = DEAD_LETTER,
    header_bytes: int = 0,
) -> BodyDecoder:
    """Decode bodies that are one Avro datum each.

    Args:
        schema: in Avro's JSON.
        columns: what it is in Spark's types.
        writer_schemas: by the id in a registry's header, with which each body begins then.
        on_mismatch: see ``spark_udfs.mismatch``.
        header_bytes: in front of each body; without ``writer_schemas``.

    Raises:
        ValueError: a writer's schema that is none.
    """
    if writer_schemas is not None:
        from spark_udfs.avro import decoder  # noqa: PLC0415 # only where it is used

        decoder(schema, writer_schemas)

    def make() -> Decode:
        from spark_udfs.avro import decoder  # noqa: PLC0415 # where it runs

        return decoder(schema, writer_schemas, on_mismatch)

    return BodyDecoder(_with_rescued(columns, on_mismatch), make, 0 if writer_schemas is not None else header_bytes)


def protobuf_decoder(
    descriptors: bytes, message: str, columns: StructType, *, on_mismatch: str = DEAD_LETTER, header_bytes: int = 0
) -> BodyDecoder:
    """Decode bodies that are one Protobuf message each.

    Args:
        descriptors: a FileDescriptorSet.
        message: full name.
        columns: what it is in Spark's types.
        on_mismatch: see ``spark_udfs.mismatch``.
        header_bytes: in front of each body.
    """

    def make() -> Decode:
        from spark_udfs.protobuf import decoder  # noqa: PLC0415 # where it runs

        return decoder(descriptors, message, on_mismatch)

    return BodyDecoder(_with_rescued(columns, on_mismatch), make, header_bytes)


def _with_rescued(columns: StructType, on_mismatch: str) -> StructType:
    return StructType([*columns, StructField(RESCUED, StringType())]) if on_mismatch == RESCUE else columns


def decoded(bodies: pa.Array, decode: Decode, value_type: pa.DataType) -> pa.Array:
    """Decode bodies to a struct of ``value`` and ``reason`` each.

    Args:
        bodies: binary.
        decode: returns a value, or raises with the reason.
        value_type: of the values.
    """
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


def _struct_array(values: list[dict[str, Any] | None], kind: pa.DataType) -> pa.Array:
    """Build an array of structs member by member: Arrow takes 15 µs for a row of a decimal and a time, and 0.3 so."""
    rows = [value or {} for value in values]
    members = [pa.array([row.get(field.name) for row in rows], field.type) for field in kind]
    missing = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(members, fields=list(kind), mask=missing)


def _attempt(body: bytes | None, decode: Decode) -> tuple[dict[str, Any] | None, str | None]:
    if not body:
        return None, _EMPTY
    try:
        return decode(body), None
    except Mismatch as error:
        reason = str(error)[:_REASON_CHARS]
    except Exception as error:  # whatever a library raises for foreign bytes, the other rows are decoded
        reason = _shown(error)
    has_header = len(body) > _HEADER_BYTES and body[0] == 0 and not reason.startswith("column ")
    return None, f"{reason}; it looks like a registry header: header_bytes = {_HEADER_BYTES}" if has_header else reason


def without_header(decode: Decode, header_bytes: int) -> Decode:
    """Return a decoder of bodies behind a header of so many bytes."""

    def decode_rest(body: bytes) -> dict[str, Any]:
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
