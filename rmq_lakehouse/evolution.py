"""Schema evolution of tables: new columns are added, within structs too, and types become wider.

Other changes of types, and lost keys, are refused.
"""

from collections.abc import Iterator, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StructField,
    StructType,
    VarcharType,
)

from rmq_formats.errors import StoreError
from rmq_lakehouse.table_name import quoted

Path = tuple[str, ...]


def check_columns(table: str, existing: StructType, expected: StructType) -> None:
    """Refuse columns of another type than those to be written, unless types can be widened. Raises StoreError."""
    for path, actual_type, expected_type in type_mismatches(existing, expected):
        if not is_wider(expected_type, actual_type):
            raise StoreError(
                f"{table}: its column {'.'.join(path)} is {actual_type.simpleString()}, "
                f"not {expected_type.simpleString()}"
            )


def current_columns(table: str, expected: StructType, former: Mapping[str, str | None]) -> StructType:
    """Rename columns to their current names in a table, and leave out columns that the table's owner has dropped.

    Args:
        former: current path by former path of a column; None if the column was dropped.

    Raises StoreError: a member of a struct was renamed or dropped, or a name is that of another expected column.
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


def type_mismatches(existing: StructType, expected: StructType) -> Iterator[tuple[Path, DataType, DataType]]:
    """List the columns that a table has with another type than expected: path, actual and expected type."""
    for path, actual_type, expected_type in _pairs(existing, expected, ()):
        if not _is_same_kind(actual_type, expected_type):
            yield path, actual_type, expected_type


def is_wider(wide: DataType, narrow: DataType) -> bool:
    """Return whether a type is wider than another: BIGINT than INT, DOUBLE than FLOAT, DECIMAL with more digits."""
    if isinstance(narrow, DecimalType) and isinstance(wide, DecimalType):
        more_digits = wide.precision - narrow.precision
        return more_digits > 0 and 0 <= wide.scale - narrow.scale <= more_digits
    pairs = ((IntegerType, LongType), (FloatType, DoubleType))
    return any(isinstance(narrow, of_narrow) and isinstance(wide, of_wide) for of_narrow, of_wide in pairs)


def with_wider_types(
    expected: StructType, existing: StructType, former: Mapping[str, str | None] | None = None
) -> StructType:
    """Return columns with the types that a table has for them, where these are wider."""
    existing_fields = {field.name.lower(): field for field in existing}

    def wider_field(field: StructField) -> StructField:
        existing_field = existing_fields.get(((former or {}).get(field.name) or field.name).lower())
        if existing_field is None:
            return field
        kind = _wider_type(field.dataType, existing_field.dataType)
        return StructField(field.name, kind, field.nullable, field.metadata)

    return StructType([wider_field(field) for field in expected])


def _wider_type(expected: DataType, existing: DataType) -> DataType:
    if isinstance(expected, StructType) and isinstance(existing, StructType):
        return with_wider_types(expected, existing)
    if isinstance(expected, ArrayType) and isinstance(existing, ArrayType):
        return ArrayType(_wider_type(expected.elementType, existing.elementType), expected.containsNull)
    if isinstance(expected, MapType) and isinstance(existing, MapType):
        key, value = expected.keyType, expected.valueType
        return MapType(
            _wider_type(key, existing.keyType), _wider_type(value, existing.valueType), expected.valueContainsNull
        )
    return existing if is_wider(existing, expected) else expected


def text_of_a_length(columns: StructType) -> tuple[str, DataType] | None:
    """Find the first column of type ``CHAR(n)`` or ``VARCHAR(n)``, nested ones included: its name and type."""
    return next((pair for pair in column_types(columns) if isinstance(pair[1], CharType | VarcharType)), None)


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
            yield f"{quoted(field.name)} {ddl(field.dataType)}{comment_clause}"
    for path, actual_type, expected_type in _pairs(existing, expected, ()):
        if isinstance(actual_type, StructType) and isinstance(expected_type, StructType):
            member_names = {field.name.lower() for field in actual_type}
            for field in expected_type:
                if field.name.lower() not in member_names:
                    yield f"{'.'.join(map(quoted, [*path, field.name]))} {ddl(field.dataType)}"


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


def ddl(kind: DataType) -> str:
    """Write a type as DDL. Spark's own texts of types leave the names of fields unquoted, which need not parse."""
    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(f'{quoted(field.name)}: {ddl(field.dataType)}' for field in kind)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{ddl(kind.keyType)}, {ddl(kind.valueType)}>"
    return kind.simpleString()


def column(name: str) -> Column:
    """Return a column by its name, which may have dots and backticks in it."""
    return F.col(quoted(name))


def text(value: str) -> str:
    """Write a text as SQL has it."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
