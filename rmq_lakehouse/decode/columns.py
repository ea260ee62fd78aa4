"""Columns of bodies as Arrow has them: their paths, and a selection by paths."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from rmq_formats.errors import OptionError

COMMENT: Final = b"comment"


def list_of(element: pa.DataType) -> pa.ListType:
    """Return the type of an array whose elements may be null."""
    return pa.list_(pa.field("element", element))


def column_types(columns: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
    """List all columns, nested ones too: path, with dots, and type."""
    for field in columns:
        yield from _types_within(field.name, field.type)


def _types_within(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    yield path, kind
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _types_within(f"{path}.{field.name}", field.type)
    elif pa.types.is_list(kind):
        yield from _types_within(f"{path}.element", kind.value_type)
    elif pa.types.is_map(kind):
        yield from _types_within(f"{path}.key", kind.key_type)
        yield from _types_within(f"{path}.value", kind.item_type)


def check_types(columns: pa.Schema) -> None:
    """Refuse nested types that tables have not. Raises ValueError.

    Parquet has no group without members, and Delta no null within an array or a map. Names of members are the same to
    Spark and Delta in any case of letters.
    """
    for path, kind in column_types(columns):
        if pa.types.is_nested(kind) and _is_void(kind):
            raise ValueError(
                f"column {path} is {kind}, which tables have not. Select the others by columns of the spec"
            )
        members: dict[str, str] = {}
        for name in [field.name for field in kind] if pa.types.is_struct(kind) else ():
            if name.lower() in members:
                pair = f"{members[name.lower()]!r} and {name!r}"
                problem = f"column {path} has members {pair}: one name to tables"
                raise ValueError(f"{problem}. Select one by columns of the spec")
            members[name.lower()] = name


def _is_void(kind: pa.DataType) -> bool:
    """Return whether no value of a type can be other than null."""
    if pa.types.is_struct(kind):
        return all(_is_void(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _is_void(kind.value_type)
    return _is_void(kind.item_type) if pa.types.is_map(kind) else bool(pa.types.is_null(kind))


def select_columns(topic: str, columns: pa.Schema, paths: Sequence[str]) -> pa.Schema:
    """Return the columns of some paths, with all that is within them; all columns without paths.

    Members of a path follow dots; ``element`` is that of an array, ``value`` that of a map. Raises OptionError.
    """
    schema_paths = {path for path, _ in column_types(columns)}
    unknown = [path for path in paths if path not in schema_paths]
    if unknown:
        raise OptionError(f"topic {topic!r}: columns has {unknown[0]!r}, which is no column of the schema")
    return pa.schema(_selected(columns, paths)) if paths else columns


def _selected(fields: Iterable[pa.Field], paths: Sequence[str]) -> list[pa.Field]:
    selected = []
    for field in fields:
        within = [path.removeprefix(f"{field.name}.") for path in paths if path.startswith(f"{field.name}.")]
        if field.name in paths:
            selected.append(field)
        elif within:
            selected.append(field.with_type(_selected_type(field.type, within)))
    return selected


def _selected_type(kind: pa.DataType, paths: Sequence[str]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(_selected(kind, paths))
    name = "element" if pa.types.is_list(kind) else "value"
    within = [path.removeprefix(f"{name}.") for path in paths if path.startswith(f"{name}.")]
    if not within or name in paths or "key" in paths:
        return kind
    if pa.types.is_list(kind):
        return list_of(_selected_type(kind.value_type, within))
    return pa.map_(kind.key_type, _selected_type(kind.item_type, within))
