"""Spark schemas of the sources, and the projection to the columns of a read."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rmq_formats.arrow import schema as arrow_schema
from rmq_formats.arrow.schema import BROKER_NAME, CLUSTER, TIMESTAMP
from rmq_formats.errors import OptionError

if TYPE_CHECKING:
    from rmq_formats.spark.options.read import SourceOptions

_STRING, _INT, _LONG, _TIMESTAMP = StringType(), IntegerType(), LongType(), TimestampType()
_TYPES: Final[Mapping[pa.DataType, DataType]] = {
    pa.string(): _STRING,
    pa.binary(): BinaryType(),
    pa.bool_(): BooleanType(),
    pa.int32(): _INT,
    pa.int64(): _LONG,
    pa.float64(): DoubleType(),
    TIMESTAMP: _TIMESTAMP,
    pa.list_(pa.field("element", pa.string())): ArrayType(_STRING),
    pa.map_(pa.string(), pa.string()): MapType(_STRING, _STRING),
}


def of_arrow(schema: pa.Schema) -> StructType:
    """Return the Spark schema of an Arrow schema, with the comments of its columns."""
    metadata = [{name.decode(): text.decode() for name, text in (column.metadata or {}).items()} for column in schema]
    return StructType(
        [
            StructField(column.name, _TYPES[column.type], metadata=entries)
            for column, entries in zip(schema, metadata, strict=True)
        ]
    )


COMMITLOG: Final = of_arrow(arrow_schema.COMMITLOG)
CONSUMEQUEUE: Final = of_arrow(arrow_schema.CONSUMEQUEUE)
INDEX: Final = of_arrow(arrow_schema.INDEX)
_BROKER: Final = StructType([StructField(name, _STRING) for name in (CLUSTER, BROKER_NAME)])


def with_brokers(full: StructType) -> StructType:
    """Append the columns that name a row's cluster and broker to a schema."""
    return StructType([*full.fields, *_BROKER.fields])


def of_read(full: StructType, options: "SourceOptions") -> StructType:
    """Return the schema of a read: all columns, or those of the option ``columns``. Raises OptionError."""
    return project(with_brokers(full) if options.names_brokers else full, options.columns)


def check_read(full: StructType, requested: StructType, options: "SourceOptions") -> tuple[str, ...]:
    """Return the columns that a read produces, see ``check_requested_columns``. Raises OptionError."""
    return check_requested_columns(with_brokers(full) if options.names_brokers else full, requested, options.columns)


def project(full: StructType, columns: tuple[str, ...] | None) -> StructType:
    """Select the columns of the option ``columns``.

    Raises:
        OptionError: naming a column that is not there or comes twice.
    """
    if columns is None:
        return full
    names = full.fieldNames()
    for name in columns:
        if name not in names:
            raise OptionError(f"option columns: unknown column {name!r}; there are {', '.join(names)}")
        if columns.count(name) > 1:
            raise OptionError(f"option columns: {name!r} comes twice")
    return StructType([full[name] for name in columns])


def check_requested_columns(
    full: StructType, requested: StructType, columns: tuple[str, ...] | None
) -> tuple[str, ...]:
    """Return the columns to produce: those of ``.schema(...)``, or of the option, or all.

    Raises:
        OptionError: a column that is not there, or is there with another type; or a schema and an option that
            do not agree.
    """
    names = full.fieldNames()
    if columns is not None and tuple(requested.fieldNames()) != columns:
        raise OptionError(f"schema: {', '.join(requested.fieldNames())}, but option columns: {', '.join(columns)}")
    for column in requested:
        if column.name not in names:
            raise OptionError(f"schema: unknown column {column.name!r}; there are {', '.join(names)}")
        expected = full[column.name]
        if (expected.dataType, expected.nullable) != (column.dataType, column.nullable):
            expected_type = expected.dataType.simpleString()
            raise OptionError(f"schema: column {column.name!r} is {expected_type} and may be null")
    return tuple(requested.fieldNames())
