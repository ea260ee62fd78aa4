"""Columns and decoder of a topic's bodies, built from the schema that its spec has."""

import json
from collections.abc import Callable

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from rmq_formats.errors import OptionError
from rmq_formats.spark.versions import arrow_schema
from rmq_lakehouse.decode.spark import SparkBodyDecoder, arrow_columns_of_json
from rmq_lakehouse.decode.topics import build_decoder, read_schema, schema_columns
from rmq_lakehouse.evolution import text_of_a_length
from rmq_lakehouse.projection import select_columns
from rmq_lakehouse.spec import TypedTopic

WidenColumns = Callable[[StructType], StructType]
"""Gives columns the wider types that the table has."""


def build_body_decoder(
    spark: SparkSession, topic: TypedTopic, widen: WidenColumns = lambda columns: columns
) -> SparkBodyDecoder:
    """Build the body decoder from a topic's schema. Raises OptionError."""
    try:
        columns = widen(_schema_columns(topic))
        selected_columns = select_columns(topic.topic, columns, topic.columns)
        to_arrow = arrow_columns_of_json if topic.format == "json" else arrow_schema
        zone = str(spark.conf.get("spark.sql.session.timeZone"))
        decoder = build_decoder(topic, to_arrow(columns), to_arrow(selected_columns), zone)
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
