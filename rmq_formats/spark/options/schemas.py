"""Spark schemas of the sources, the projection to the columns of a read, and options of tables in Spark's catalog.

``CREATE TABLE t USING rmq_commitlog OPTIONS (path '/data/store')``: a source gets the options when the table is
created, and never again. ``PythonDataSourceV2#getTable`` drops the table's properties, and
``PythonTable#newScanBuilder`` has only those of ``SELECT … WITH (…)``. But the catalog saves the source's schema, and
readers get that schema: so a table's options are in the metadata of the first column.
"""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.types import StructField, StructType

from rmq_formats.arrow import schema as arrow_schema
from rmq_formats.arrow.schema import BROKER_NAME, CLUSTER, TIMESTAMP
from rmq_formats.errors import OptionError

if TYPE_CHECKING:
    from rmq_formats.spark.options.read import SourceOptions

_STRING = types.StringType()
_TYPES: Final[Mapping[pa.DataType, types.DataType]] = {
    pa.string(): _STRING,
    pa.binary(): types.BinaryType(),
    pa.bool_(): types.BooleanType(),
    pa.int32(): types.IntegerType(),
    pa.int64(): types.LongType(),
    pa.float64(): types.DoubleType(),
    TIMESTAMP: types.TimestampType(),
    pa.list_(pa.field("element", pa.string())): types.ArrayType(_STRING),
    pa.map_(pa.string(), pa.string()): types.MapType(_STRING, _STRING),
}
_METADATA: Final = "rmq.options"  # name in a column's metadata
_PREFIX: Final = "option."  # of each option of OPTIONS (…) among the properties of a table
_PROVIDER: Final = "provider"  # a property of each table, and no option of these sources
_SECRETS: Final = frozenset({"accesskey", "secretkey", "securitytoken", "tls.client.keypassword"})


def of_arrow(schema: pa.Schema) -> StructType:
    """Return the Spark schema of an Arrow schema, with the comments of its columns."""
    fields = []
    for column in schema:
        metadata = {name.decode(): text.decode() for name, text in (column.metadata or {}).items()}
        fields.append(StructField(column.name, _TYPES[column.type], metadata=metadata))
    return StructType(fields)


COMMITLOG: Final = of_arrow(arrow_schema.COMMITLOG)
CONSUMEQUEUE: Final = of_arrow(arrow_schema.CONSUMEQUEUE)
INDEX: Final = of_arrow(arrow_schema.INDEX)


def with_brokers(full: StructType) -> StructType:
    """Append the columns of a row's cluster and broker to a schema."""
    return StructType([*full.fields, *(StructField(name, _STRING) for name in (CLUSTER, BROKER_NAME))])


def of_read(full: StructType, options: "SourceOptions") -> StructType:
    """Return the schema of a read: all columns, or those of the option ``columns``. Raises OptionError."""
    return project(with_brokers(full) if options.names_brokers else full, options.columns)


def check_read(full: StructType, requested: StructType, options: "SourceOptions") -> tuple[str, ...]:
    """Return the columns of a read, see ``check_requested_columns``. Raises OptionError."""
    return check_requested_columns(with_brokers(full) if options.names_brokers else full, requested, options.columns)


def project(full: StructType, columns: tuple[str, ...] | None) -> StructType:
    """Select the columns of the option ``columns``. Raises OptionError: an unknown or repeated column."""
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

    Raises OptionError: an unknown column, another type, or a schema that does not agree with the option.
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


def get_source_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a source; of a new table, the options among the properties."""
    if _PROVIDER not in options:
        return dict(options)
    source_options = {name.removeprefix(_PREFIX): value for name, value in options.items() if name.startswith(_PREFIX)}
    if "path" in options:  # as a location: OPTIONS (path …) and LOCATION
        source_options["path"] = re.sub(r"^file:(//)?(?=/)", "", options["path"])
    return source_options


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema of a new table with its options; the schema of any other read is unchanged.

    Raises OptionError: an option is a secret, which all who select from the table could read.
    """
    if _PROVIDER not in options:
        return schema
    source_options = get_source_options(options)
    secrets = sorted(_SECRETS & {name.lower() for name in source_options})
    if secrets:
        raise OptionError(f"a table cannot keep the option {secrets[0]}; give credentialsFile, or variables")
    first, *other_fields = schema.fields
    metadata = {**(first.metadata or {}), _METADATA: json.dumps(source_options)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *other_fields])


def table_options(schema: StructType, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a read: the table's options in the schema, overridden by the read's ``options``."""
    options_of_table: dict[str, str] = {}
    for column in schema:
        options_of_table |= json.loads((column.metadata or {}).get(_METADATA, "{}"))
    overridden = {name.lower() for name in options}
    return {name: value for name, value in options_of_table.items() if name.lower() not in overridden} | dict(options)
