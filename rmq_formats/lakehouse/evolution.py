"""Schema evolution of tables: new columns are added, within structs too; changed types and lost keys are refused."""

from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, CharType, DataType, MapType, StructField, StructType, VarcharType

from rmq_formats.errors import StoreError

Path = tuple[str, ...]


def check_columns(table: str, existing: StructType, expected: StructType, needed: Sequence[str]) -> None:
    """Refuse columns of a table that cannot be written.

    Args:
        table: its name.
        existing: its columns.
        expected: columns to be written; the table may lack some, or have more.
        needed: names of the columns that identify a row. A column of these that was renamed or dropped must not be
            added again: a new column would not identify the existing rows.

    Raises:
        StoreError: naming what does not fit.
    """
    existing_names = {name.lower() for name in existing.fieldNames()}
    for name in needed:
        if name.lower() not in existing_names:
            raise StoreError(f"{table}: has no column {name}, which tells its rows apart: it was renamed or dropped")
    mismatch = first_type_mismatch(existing, expected)
    if mismatch is not None:
        name, actual_type, expected_type = mismatch
        raise StoreError(
            f"{table}: its column {name} is {actual_type.simpleString()}, not {expected_type.simpleString()}"
        )


def current_columns(table: str, expected: StructType, former: Mapping[str, str | None]) -> StructType:
    """Rename columns to their current names in a table, and leave out columns that the table's owner has dropped.

    Args:
        table: its name.
        expected: columns to be written.
        former: paths that columns of the table had: the path of each now, None if it was dropped.

    Raises:
        StoreError: a member of a struct was renamed or dropped, or a name is that of another wanted column.
    """
    for path, _ in column_types(expected):
        if "." in path and path in former and path not in expected.fieldNames():
            current_path = former[path]
            state = "was dropped" if current_path is None else f"is {current_path} now"
            raise StoreError(f"{table}: its column {path} {state}: take it out of the spec, or rename it there")
    names = {field.name: former.get(field.name, field.name) for field in expected}
    for name, current in names.items():
        if current is not None and list(names.values()).count(current) > 1 and name != current:
            raise StoreError(f"{table}: its column {name} is {current} now, and the spec has both: take {name} out")
    return StructType(
        [
            StructField(current, field.dataType, field.nullable, field.metadata)
            for field in expected
            if (current := names[field.name]) is not None
        ]
    )


def first_type_mismatch(existing: StructType, expected: StructType) -> tuple[str, DataType, DataType] | None:
    """Find the first column that a table has with another type than is wanted.

    Args:
        existing: the table's columns.
        expected: columns to be written; the table may lack some, or have more.

    Returns:
        Its name, with those around it, and both types; None if there is no such column.
    """
    for path, actual_type, expected_type in _pairs(existing, expected, ()):
        if not _is_same_kind(actual_type, expected_type):
            return ".".join(path), actual_type, expected_type
    return None


def text_of_a_length(columns: StructType) -> tuple[str, DataType] | None:
    """Find the first column of type ``CHAR(n)`` or ``VARCHAR(n)``, nested ones included: its name and type."""
    return next((found for found in column_types(columns) if isinstance(found[1], CharType | VarcharType)), None)


def column_types(columns: StructType) -> Iterator[tuple[str, DataType]]:
    """List all columns, nested ones too: path, with dots, and type."""
    return ((".".join(path), kind) for path, kind, _ in _pairs(columns, columns, ()))


def missing(existing: StructType, expected: StructType) -> Iterator[str]:
    """List the columns that a table lacks, as ``ALTER TABLE … ADD COLUMNS`` takes them."""
    existing_names = {field.name.lower() for field in existing}
    for field in expected:
        if field.name.lower() not in existing_names:
            comment = (field.metadata or {}).get("comment")
            comment_clause = "" if comment is None else f" COMMENT {text(comment)}"
            yield f"{quoted(field.name)} {_ddl(field.dataType)}{comment_clause}"
    for path, actual_type, expected_type in _pairs(existing, expected, ()):
        if isinstance(actual_type, StructType) and isinstance(expected_type, StructType):
            member_names = {field.name.lower() for field in actual_type}
            for field in expected_type:
                if field.name.lower() not in member_names:
                    yield f"{'.'.join(map(quoted, [*path, field.name]))} {_ddl(field.dataType)}"


def _pairs(existing: StructType, expected: StructType, around: Path) -> Iterator[tuple[Path, DataType, DataType]]:
    """Pair the types of all columns that both have, nested ones too; paths as ``ALTER TABLE`` has them."""
    existing_fields = {field.name.lower(): field for field in existing}
    for field in expected:
        existing_field = existing_fields.get(field.name.lower())
        if existing_field is not None:
            yield from _pairs_within((*around, existing_field.name), existing_field.dataType, field.dataType)


def _pairs_within(path: Path, existing: DataType, expected: DataType) -> Iterator[tuple[Path, DataType, DataType]]:
    yield path, existing, expected
    if isinstance(existing, StructType) and isinstance(expected, StructType):
        yield from _pairs(existing, expected, path)
    elif isinstance(existing, ArrayType) and isinstance(expected, ArrayType):
        yield from _pairs_within((*path, "element"), existing.elementType, expected.elementType)
    elif isinstance(existing, MapType) and isinstance(expected, MapType):
        yield from _pairs_within((*path, "key"), existing.keyType, expected.keyType)
        yield from _pairs_within((*path, "value"), existing.valueType, expected.valueType)


def _is_same_kind(existing: DataType, expected: DataType) -> bool:
    """Return whether types are equal, apart from the types within structs, arrays and maps."""
    for kind in (StructType, ArrayType, MapType):
        if isinstance(existing, kind) and isinstance(expected, kind):
            return True
    return existing == expected


def _ddl(kind: DataType) -> str:
    """Write a type as DDL. Spark's own texts of types leave the names of fields unquoted, which need not parse."""
    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(f'{quoted(field.name)}: {_ddl(field.dataType)}' for field in kind)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_ddl(kind.keyType)}, {_ddl(kind.valueType)}>"
    return kind.simpleString()


def quoted(name: str) -> str:
    """Write a name as SQL has it."""
    return f"`{name.replace('`', '``')}`"


def column(name: str) -> Column:
    """Return a column by its name, which may have dots and backticks in it."""
    return F.col(quoted(name))


def text(value: str) -> str:
    """Write a text as SQL has it."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
