"""Columns of a Delta table by their physical names in files, which stay when the owner renames a column.

Values of partition columns that Spark's writer cannot make a directory of end an export, before its commit.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from rmq_lakehouse.decode.partition_texts import ESCAPED, partition_fault
from rmq_lakehouse.evolution import column, text
from rmq_lakehouse.parquet import MAX_DIRECTORY_BYTES, NULL_PARTITION
from rmq_lakehouse.table_name import quoted

_PHYSICAL: Final = "delta.columnMapping.physicalName"
_REMEDY: Final = ". Choose --topics without this value, or other partitions"


def physical_columns(schema: StructType) -> dict[str, str]:
    """List the columns of a table, nested ones too: their paths, and the paths in files."""
    return {".".join(path): ".".join(physical) for path, physical in _paths(schema, (), ())}


def _paths(
    kind: DataType, path: tuple[str, ...], physical: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    if isinstance(kind, StructType):
        for field in kind:
            physical_name = (field.metadata or {}).get(_PHYSICAL, field.name)
            yield (*path, field.name), (*physical, physical_name)
            yield from _paths(field.dataType, (*path, field.name), (*physical, physical_name))
    elif isinstance(kind, ArrayType):
        yield from _paths(kind.elementType, (*path, "element"), (*physical, "element"))
    elif isinstance(kind, MapType):
        yield from _paths(kind.keyType, (*path, "key"), (*physical, "key"))
        yield from _paths(kind.valueType, (*path, "value"), (*physical, "value"))


def exported_columns(property_: str | None, version: int, lines: Callable[[int], list[bytes] | None]) -> dict[str, str]:
    """Return the columns that the table has had: those recorded by exports, or else those in its commits.

    Args:
        property_: ``COLUMNS_PROPERTY`` of the table.
        lines: returns the actions of a commit; None if it was cleaned up.
    """
    if property_ is not None:
        return dict(json.loads(property_))
    columns: dict[str, str] = {}
    while version >= 0 and (actions := lines(version)) is not None:
        for action in actions:
            if action.startswith(b'{"metaData"'):
                metadata: dict[str, Any] = json.loads(action)["metaData"]
                columns |= physical_columns(StructType.fromJson(json.loads(metadata["schemaString"])))
        version -= 1
    return columns


def with_partition_checks(
    frame: DataFrame, partitions: Sequence[str], properties: Mapping[str, str], local_path: str | None
) -> DataFrame:
    """Make Spark's tasks refuse texts that become null in its writer, or are too long for a directory's name."""
    has_directories = has_partition_directories(properties, local_path)
    lower_partitions = {name.lower() for name in partitions}
    texts = [
        field.name
        for field in frame.schema
        if field.name.lower() in lower_partitions and isinstance(field.dataType, StringType)
    ]

    def with_check(name: str) -> Column:
        value = column(name)
        reason = partition_reason(name, value, has_directories=has_directories)
        return F.when(reason.isNotNull(), F.raise_error(F.concat(reason, F.lit(_REMEDY)))).otherwise(value)

    return frame.withColumns({name: with_check(name) for name in texts}) if texts else frame


def has_partition_directories(properties: Mapping[str, str], local_path: str | None) -> bool:
    """Return whether partitions' values are in the names of local directories, whose length is limited."""
    is_mapped = properties.get("delta.columnMapping.mode", "none") != "none"
    is_random = properties.get("delta.randomizeFilePrefixes", "false") == "true"
    return local_path is not None and not is_mapped and not is_random


def unwritable_partitions(
    files: DataFrame, schema: StructType, partitions: Sequence[str], *, has_directories: bool
) -> dict[str, list[str]]:
    """List the texts of tasks' partitions that Spark's writer would lose or fail at, by column."""
    fields = [field for field in schema if field.name in partitions and isinstance(field.dataType, StringType)]
    faulty: dict[str, list[str]] = {}
    for field in fields:
        physical_name = (field.metadata or {}).get(_PHYSICAL, field.name)
        values = files.select(F.col("partitionValues").getItem(physical_name)).distinct().collect()
        faulty[field.name] = sorted(
            row[0]
            for row in values
            if row[0] and partition_fault(field.name, row[0], has_directories=has_directories) is not None
        )
    return {name: values for name, values in faulty.items() if values}


def writable_partitions_condition(unwritable: Mapping[str, Sequence[str]]) -> str | None:
    """Write the SQL condition that leaves partitions out; None if there are none."""
    conditions = [
        f"({quoted(name)} IS NULL OR {quoted(name)} NOT IN ({', '.join(map(text, values))}))"
        for name, values in unwritable.items()
    ]
    return " AND ".join(conditions) or None


def partition_reason(name: str, value: Column, *, has_directories: bool) -> Column:
    """Return why Spark's writer cannot make a partition of a text; null if it can."""

    def refusal(*reason: str | Column) -> Column:
        parts = [f"{name} '", value, "' ", *reason]
        return F.concat(*(part if isinstance(part, Column) else F.lit(part) for part in parts))

    result = F.when(
        value == NULL_PARTITION, refusal("is the text that Spark writes for null, so it cannot be a partition value")
    )
    if has_directories:
        bytes_ = F.octet_length(F.regexp_replace(value, ESCAPED, "%00")) + len(f"{name}=")
        length = F.length(value).cast("string")
        reason = ("has ", length, " characters: the directory name would have ", bytes_.cast("string"))
        is_long = bytes_ > MAX_DIRECTORY_BYTES
        result = result.when(is_long, refusal(*reason, f" bytes, at most {MAX_DIRECTORY_BYTES} are allowed"))
    return result
