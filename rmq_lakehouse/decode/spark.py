"""Columns of topics' bodies as Spark has them, and their decoders as Spark runs them, over Arrow batches."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    IntegerType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from rmq_formats.errors import OptionError
from rmq_formats.spark.versions import arrow_schema
from rmq_lakehouse.decode.bodies import DECODED, ELEMENT, BodyDecoder
from rmq_lakehouse.decode.columns import select_columns as select_arrow_columns
from rmq_lakehouse.decode.topics import build_decoder, read_schema, schema_columns
from rmq_lakehouse.evolution import column_types, text_of_a_length
from rmq_lakehouse.spec import TypedTopic

_JSON_TYPES: Final = (
    ArrayType, BinaryType, BooleanType, DateType, MapType, NumericType, StringType, StructType, TimestampNTZType,
    TimestampType,
)  # fmt: skip
WidenColumns = Callable[[StructType], StructType]
"""Replaces the types of columns by the wider types that the table has."""


@dataclass(frozen=True, slots=True)
class SparkBodyDecoder:
    """Decoder of the bodies of a frame."""

    columns: StructType
    decoder: BodyDecoder

    def decode(self, frame: DataFrame) -> DataFrame:
        """Decode the column ``body``: a column ``decoded``, a struct of ``value`` and ``reason``, beside the others.

        By ``mapInArrow``, not a column function: Spark 4.0 has none over Arrow arrays. Exploded bodies have the column
        ``ELEMENT``, too; a body is in its first row only.
        """
        result = StructType([StructField("value", self.columns), StructField("reason", StringType())])
        element = [StructField(ELEMENT, IntegerType())] if self.decoder.explode else []
        columns = StructType([*frame.schema, *element, StructField(DECODED, result)])
        return frame.mapInArrow(self.decoder.decode_batches, columns)


def arrow_columns_of_json(columns: StructType) -> pa.Schema:
    """Convert columns to Arrow's. Raises ValueError: a type that has no JSON."""
    for path, kind in column_types(columns):
        if not isinstance(kind, _JSON_TYPES):
            raise ValueError(f"column {path} is {kind.simpleString()}, which no JSON body is decoded to")
    return arrow_schema(columns)


def select_columns(topic: str, columns: StructType, paths: Sequence[str]) -> StructType:
    """Return the columns that ``decode.columns.select_columns`` selects, as Spark has them. Raises OptionError."""
    return StructType(_select_fields(columns, select_arrow_columns(topic, arrow_schema(columns), paths)))


def _select_fields(columns: StructType, selected: Iterable[pa.Field]) -> list[StructField]:
    fields = [(columns[field.name], field.type) for field in selected]
    return [
        StructField(field.name, _select_type(field.dataType, kind), field.nullable, field.metadata)
        for field, kind in fields
    ]


def _select_type(kind: DataType, selected: pa.DataType) -> DataType:
    if isinstance(kind, StructType):
        return StructType(_select_fields(kind, selected))
    if isinstance(kind, ArrayType):
        return ArrayType(_select_type(kind.elementType, selected.value_type), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _select_type(kind.valueType, selected.item_type), kind.valueContainsNull)
    return kind


def build_body_decoder(
    spark: SparkSession, topic: TypedTopic, widen: WidenColumns = lambda columns: columns
) -> SparkBodyDecoder:
    """Build the body decoder from a topic's schema. Raises OptionError."""
    try:
        columns = widen(_schema_columns(topic))
        to_arrow = arrow_columns_of_json if topic.format == "json" else arrow_schema
        arrow_columns = to_arrow(columns)
        selected_columns = select_columns(topic.topic, columns, topic.columns)
        zone = str(spark.conf.get("spark.sql.session.timeZone"))
        decoder = build_decoder(topic, arrow_columns, to_arrow(selected_columns), zone)
    except (ValueError, PySparkException) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise OptionError(f"topic {topic.topic!r}: its {topic.format} schema cannot be used: {lines[0]}") from error
    texts = [StructField(field.name, StringType()) for field in list(decoder.value_type)[len(selected_columns) :]]
    return SparkBodyDecoder(StructType([*selected_columns, *texts]), decoder)


def _schema_columns(topic: TypedTopic) -> StructType:
    """Convert the schema of bodies, or of the elements of bodies, to columns that may all be null."""
    if topic.format == "json":
        return parse_json_columns(read_schema(topic).decode()).toNullable()  # a missing JSON member is null, no fault
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 # loads pandas, which few need

    return from_arrow_schema(schema_columns(topic), prefer_timestamp_ntz=True)


def parse_json_columns(text: str) -> StructType:
    """Parse columns in Spark's DDL, or in Spark's own JSON of a schema. Raises ValueError or PySparkException."""
    try:
        is_json = text.lstrip().startswith("{")
        columns = StructType.fromJson(json.loads(text)) if is_json else StructType.fromDDL(text)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not Spark's JSON of a schema ({error})") from error
    if not isinstance(columns, StructType):
        raise ValueError(f"{text!r} is one column's type, and not columns")
    text_column = text_of_a_length(columns)
    if text_column is not None:
        name, kind = text_column
        raise ValueError(f"column {name} is {kind.simpleString()}, for which tables have STRING")
    return columns
