"""Decoders of message bodies as Spark runs them: over Arrow batches, in its Python workers."""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
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

from rmq_formats.spark.versions import arrow_schema
from rmq_lakehouse.decode.bodies import DECODED, ELEMENT, BodyDecoder
from rmq_lakehouse.evolution import column_types

_JSON_TYPES: Final = (
    ArrayType, BinaryType, BooleanType, DateType, MapType, NumericType, StringType, StructType, TimestampNTZType,
    TimestampType,
)  # fmt: skip


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
