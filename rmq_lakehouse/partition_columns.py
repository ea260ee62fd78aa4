"""Columns that partition a table: checks of their types, and the days and hours of messages in Spark."""

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from rmq_formats.errors import OptionError
from rmq_lakehouse.evolution import column
from rmq_lakehouse.partitions import TIME_COLUMNS, TIME_TRANSFORMS, check_columns_exist, parse_partition

_NESTED: Final = (ArrayType, MapType, StructType)
_SOURCES: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    **dict.fromkeys(TIME_TRANSFORMS[:3], (DateType, TimestampType, TimestampNTZType)),
    "hour": (TimestampType, TimestampNTZType),
    "bucket": (IntegerType, LongType, DecimalType, StringType, BinaryType, DateType, TimestampType, TimestampNTZType),
    "truncate": (IntegerType, LongType, DecimalType, StringType),
}
"""Types of columns by transform: those of Iceberg's specification, but for ``truncate`` of bytes."""


def check_partitions(partitions: Sequence[str], schema: StructType, option: str) -> None:
    """Refuse partitions by unknown columns, or by columns of another type. Raises OptionError."""
    check_columns_exist([parse_partition(text).column for text in partitions], schema.fieldNames())
    for text in partitions:
        partition = parse_partition(text)
        kind = schema[partition.column].dataType
        if partition.transform == "identity":
            if isinstance(kind, (BinaryType, *_NESTED)):
                raise OptionError(f"{option} {text}: its type {kind.simpleString()} makes no partitions")
        elif not isinstance(kind, _SOURCES[partition.transform]):
            what = "of single values" if isinstance(kind, _NESTED) else "of another type"
            problem = f"{option} {text}: {partition.column} is {kind.simpleString()}"
            raise OptionError(f"{problem}. Give {partition.transform} a column {what}")


def time_fields(names: Sequence[str]) -> list[StructField]:
    """Return the table's columns of days and hours."""
    return [StructField(name, DateType() if TIME_COLUMNS[name].is_day else TimestampType()) for name in names]


def time_column(name: str) -> Column:
    """Return the expression of a column of days or hours over a message, in UTC whatever the session's zone is."""
    time = TIME_COLUMNS[name]
    units = F.floor(F.unix_micros(column(time.source)) / F.lit(time.unit_us))
    if time.is_day:
        return F.date_from_unix_date(units.cast("int"))
    return F.timestamp_micros(units * F.lit(time.unit_us))
