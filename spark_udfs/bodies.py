"""Decodes message bodies in JSON, Avro or Protobuf to columns; a body that does not decode gets a reason.

Each function returns a struct of ``value`` and ``reason``, one of which is null. Spark decodes JSON. The jars
that decode Avro and Protobuf in Spark are not published for its version; their Python libraries do it instead,
record by record, each in compiled code (docs/lakehouse.md has the figures).
"""

from collections.abc import Callable
from secrets import token_hex
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from rmq_formats.spark.versions import arrow_schema
from spark_udfs.arrow import ArrowFunction

_CORRUPT: Final = "__rmq_corrupt"
_END: Final = "__rmq_end"
_EMPTY: Final = "the body is empty"
_REASON_CHARS: Final = 200  # limit of a reason: a library may put the whole body into its message

Decode = Callable[[bytes], dict[str, Any]]


def json_body(body: Column, schema: StructType) -> Column:
    """Decode bodies that are JSON objects; members that the schema does not name are passed over."""
    text = body.cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}

    parsed = F.from_json(text, StructType([*schema, StructField(_CORRUPT, StringType())]), options)
    is_text, is_one = F.is_valid_utf8(text), _is_one_value(text)
    found = F.struct(parsed.alias("parsed"), is_text.alias("is_text"), is_one.alias("is_one"))

    def told(found: Column) -> Column:
        parsed = found["parsed"]
        reason = (
            F.when(body.isNull() | (F.octet_length(body) == 0), F.lit(_EMPTY))
            .when(~found["is_text"], F.lit("the body is not UTF-8"))
            .when(parsed.isNull() | parsed[_CORRUPT].isNotNull(), F.lit("the body is not JSON of the schema"))
            .when(~found["is_one"], F.lit("the body is not one JSON object"))
        )
        value = F.struct(*(parsed[field.name].alias(field.name) for field in schema))
        return F.struct(F.when(reason.isNull(), value).alias("value"), reason.alias("reason"))

    return _once(found, told)


def _once(column: Column, use: Callable[[Column], Column]) -> Column:
    """Use a column several times in an expression; Spark would evaluate it as often: a body was parsed seven times."""
    return F.get(F.transform(F.array(column), use), F.lit(0))


def _is_one_value(text: Column) -> Column:
    """Return whether nothing follows the first JSON value, where ``from_json`` stops: a mark behind it is the next.

    No body has the mark, which is made anew each time: its own end of the list would hide the one put behind it.
    """
    mark = token_hex(8)
    items = F.from_json(F.concat(F.lit("["), text, F.lit(f',{{"{_END}":"{mark}"}}]')), f"array<struct<{_END}: string>>")
    return F.coalesce(F.get(items, F.lit(1))[_END] == mark, F.lit(False))


def avro_body(body: Column, schema: str, columns: StructType) -> Column:
    """Decode bodies that are one Avro datum each, without a header.

    Args:
        body: binary.
        schema: in Avro's JSON.
        columns: what it is in Spark's types.
    """

    def decoder() -> Decode:
        from spark_udfs.avro import decoder as of  # noqa: PLC0415 # where it runs

        return of(schema)

    return _library_body(body, decoder, columns)


def protobuf_body(body: Column, descriptors: bytes, message: str, columns: StructType) -> Column:
    """Decode bodies that are one Protobuf message each.

    Args:
        body: binary.
        descriptors: a FileDescriptorSet.
        message: full name.
        columns: what it is in Spark's types.
    """

    def decoder() -> Decode:
        from spark_udfs.protobuf import decoder as of  # noqa: PLC0415 # where it runs

        return of(descriptors, message)

    return _library_body(body, decoder, columns)


def _library_body(body: Column, decoder: Callable[[], Decode], columns: StructType) -> Column:
    value_type = pa.struct(list(arrow_schema(columns)))
    cached: list[Decode] = []

    def decode(bodies: pa.Array) -> pa.Array:
        if not cached:
            cached.append(decoder())
        return decoded(bodies, cached[0], value_type)

    result = StructType([StructField("value", columns), StructField("reason", StringType())])
    return ArrowFunction(decode, result)(body)


def decoded(bodies: pa.Array, decode: Decode, value_type: pa.DataType) -> pa.Array:
    """Decode bodies to a struct of ``value`` and ``reason`` each.

    Args:
        bodies: binary.
        decode: returns a value, or raises with the reason.
        value_type: of the values.
    """
    values: list[dict[str, Any] | None] = []
    reasons: list[str | None] = []
    for body in bodies:
        value, reason = _attempt(body.as_py(), decode)
        values.append(value)
        reasons.append(reason)
    try:
        column = pa.array(values, value_type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        column = _one_by_one(values, reasons, value_type)
    return pa.StructArray.from_arrays([column, pa.array(reasons, pa.string())], names=["value", "reason"])


def _attempt(body: bytes | None, decode: Decode) -> tuple[dict[str, Any] | None, str | None]:
    if not body:
        return None, _EMPTY
    try:
        return decode(body), None
    except Exception as error:  # whatever a library raises for foreign bytes, the other rows are decoded
        return None, _shown(error)


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
