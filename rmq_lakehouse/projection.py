"""Projection of a spec: the columns that a topic's table has, of all that its schema describes."""

from collections.abc import Sequence

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from rmq_formats.errors import OptionError
from rmq_lakehouse.evolution import column_types


def select_columns(topic: str, columns: StructType, paths: Sequence[str]) -> StructType:
    """Return the columns that a spec names, with all that is within them; all columns if it names none.

    Args:
        paths: of columns; members of structs are after dots, elements of arrays ``element``, values of maps ``value``.

    Raises:
        OptionError: the schema lacks a path.
    """
    schema_paths = {path for path, _ in column_types(columns)}
    unknown = [path for path in paths if path not in schema_paths]
    if unknown:
        raise OptionError(f"topic {topic!r}: columns has {unknown[0]!r}, which is no column of the schema")
    return _members(columns, paths) if paths else columns


def _members(columns: StructType, paths: Sequence[str]) -> StructType:
    fields = []
    for field in columns:
        within = [path.removeprefix(f"{field.name}.") for path in paths if path.startswith(f"{field.name}.")]
        if field.name in paths:
            fields.append(field)
        elif within:
            fields.append(StructField(field.name, _within(field.dataType, within), field.nullable, field.metadata))
    return StructType(fields)


def _within(kind: DataType, paths: Sequence[str]) -> DataType:
    if isinstance(kind, StructType):
        return _members(kind, paths)
    name = "element" if isinstance(kind, ArrayType) else "value"
    inner = [path.removeprefix(f"{name}.") for path in paths if path.startswith(f"{name}.")]
    if not inner or name in paths or "key" in paths:
        return kind
    if isinstance(kind, ArrayType):
        return ArrayType(_within(kind.elementType, inner), kind.containsNull)
    assert isinstance(kind, MapType)  # only nested types have columns within
    return MapType(kind.keyType, _within(kind.valueType, inner), kind.valueContainsNull)
