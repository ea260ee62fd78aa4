"""Schema evolution of tables: new columns are added, within structs too; changed types and lost keys are refused."""

from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, CharType, DataType, MapType, StructField, StructType, VarcharType

from rmq_formats.errors import StoreError

Path = tuple[str, ...]


def check_columns(table: str, there: StructType, wanted: StructType, needed: Sequence[str]) -> None:
    """Refuse columns of a table that cannot be written.

    Args:
        table: its name.
        there: its columns.
        wanted: columns to be written; the table may lack some, or have more.
        needed: names of columns that tell its rows apart. One that was renamed or dropped must not be added anew, for
            then it would tell nothing of the rows that are there.

    Raises:
        StoreError: naming what does not fit.
    """
    known = {name.lower() for name in there.fieldNames()}
    for name in needed:
        if name.lower() not in known:
            raise StoreError(f"{table}: has no column {name}, which tells its rows apart: it was renamed or dropped")
    found = misfit(there, wanted)
    if found is not None:
        name, have, asked = found
        raise StoreError(f"{table}: its column {name} is {have.simpleString()}, not {asked.simpleString()}")


def current_columns(table: str, wanted: StructType, former: Mapping[str, str | None]) -> StructType:
    """Give columns the names that they have in a table now, and leave out those that its owner has dropped.

    Args:
        table: its name.
        wanted: columns to be written.
        former: paths that columns of the table had: the path of each now, None if it was dropped.

    Raises:
        StoreError: a member of a struct was renamed or dropped, or a name is that of another wanted column.
    """
    for path, _ in column_types(wanted):
        if "." in path and path in former and path not in wanted.fieldNames():
            now = former[path]
            said = "was dropped" if now is None else f"is {now} now"
            raise StoreError(f"{table}: its column {path} {said}: take it out of the spec, or rename it there")
    names = {field.name: former.get(field.name, field.name) for field in wanted}
    for name, current in names.items():
        if current is not None and list(names.values()).count(current) > 1 and name != current:
            raise StoreError(f"{table}: its column {name} is {current} now, and the spec has both: take {name} out")
    return StructType(
        [
            StructField(current, field.dataType, field.nullable, field.metadata)
            for field in wanted
            if (current := names[field.name]) is not None
        ]
    )


def misfit(there: StructType, wanted: StructType) -> tuple[str, DataType, DataType] | None:
    """Find the first column that a table has with another type than is wanted.

    Args:
        there: the table's columns.
        wanted: columns to be written; the table may lack some, or have more.

    Returns:
        Its name, with those around it, and both types; None if there is no such column.
    """
    for path, known, asked in _pairs(there, wanted, ()):
        if not _is_same_shape(known, asked):
            return ".".join(path), known, asked
    return None


def text_of_a_length(columns: StructType) -> tuple[str, DataType] | None:
    """Find the first column, nested ones too, whose type is ``CHAR(n)`` or ``VARCHAR(n)``: its name and that type."""
    return next((found for found in column_types(columns) if isinstance(found[1], CharType | VarcharType)), None)


def column_types(columns: StructType) -> Iterator[tuple[str, DataType]]:
    """List all columns, nested ones too: path, with dots, and type."""
    return ((".".join(path), kind) for path, kind, _ in _pairs(columns, columns, ()))


def missing(there: StructType, wanted: StructType) -> Iterator[str]:
    """List the columns that a table lacks, as ``ALTER TABLE … ADD COLUMNS`` takes them."""
    known = {field.name.lower() for field in there}
    for field in wanted:
        if field.name.lower() not in known:
            comment = (field.metadata or {}).get("comment")
            told = "" if comment is None else f" COMMENT {text(comment)}"
            yield f"{quoted(field.name)} {_ddl(field.dataType)}{told}"
    for path, found, asked in _pairs(there, wanted, ()):
        if isinstance(found, StructType) and isinstance(asked, StructType):
            inner = {field.name.lower() for field in found}
            for field in asked:
                if field.name.lower() not in inner:
                    yield f"{'.'.join(map(quoted, [*path, field.name]))} {_ddl(field.dataType)}"


def _pairs(there: StructType, wanted: StructType, around: Path) -> Iterator[tuple[Path, DataType, DataType]]:
    """Pair the types of all columns that both have, nested ones too; paths as ``ALTER TABLE`` has them."""
    known = {field.name.lower(): field for field in there}
    for field in wanted:
        found = known.get(field.name.lower())
        if found is not None:
            yield from _pairs_within((*around, found.name), found.dataType, field.dataType)


def _pairs_within(path: Path, there: DataType, wanted: DataType) -> Iterator[tuple[Path, DataType, DataType]]:
    yield path, there, wanted
    if isinstance(there, StructType) and isinstance(wanted, StructType):
        yield from _pairs(there, wanted, path)
    elif isinstance(there, ArrayType) and isinstance(wanted, ArrayType):
        yield from _pairs_within((*path, "element"), there.elementType, wanted.elementType)
    elif isinstance(there, MapType) and isinstance(wanted, MapType):
        yield from _pairs_within((*path, "key"), there.keyType, wanted.keyType)
        yield from _pairs_within((*path, "value"), there.valueType, wanted.valueType)


def _is_same_shape(there: DataType, wanted: DataType) -> bool:
    """Return whether types are equal, but for what is within them."""
    for kind in (StructType, ArrayType, MapType):
        if isinstance(there, kind) and isinstance(wanted, kind):
            return True
    return there == wanted


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
