"""Columns of a Delta table by their physical names in files, which stay when the owner renames a column."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

_PHYSICAL: Final = "delta.columnMapping.physicalName"


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


def former_columns(schema: StructType, exported: Mapping[str, str]) -> dict[str, str | None]:
    """List the former columns of a table: the path that each has now, None where it was dropped.

    Args:
        schema: of the table, with column mapping.
        exported: columns that it had, as ``physical_columns`` gives them.
    """
    current_paths = {physical: path for path, physical in physical_columns(schema).items()}
    return {
        path: current_paths.get(physical) for path, physical in exported.items() if path not in current_paths.values()
    }


def exported_columns(property_: str | None, version: int, lines: Callable[[int], list[bytes] | None]) -> dict[str, str]:
    """Return the columns that the table has had: those recorded by exports, or else those in its commits.

    Args:
        property_: ``COLUMNS_PROPERTY`` of the table; None if it has none.
        lines: gives the actions of a commit; None if it was cleaned up.
    """
    if property_ is not None:
        return dict(json.loads(property_))
    columns: dict[str, str] = {}
    while version >= 0 and (actions := lines(version)) is not None:
        for action in actions:
            if action.startswith(b'{"metaData"'):
                metadata: dict[str, Any] = json.loads(action)["metaData"]
                columns = {**physical_columns(StructType.fromJson(json.loads(metadata["schemaString"]))), **columns}
        version -= 1
    return columns
