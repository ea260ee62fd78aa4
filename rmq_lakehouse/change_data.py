"""Change data capture: keys by paths into the body, and messages that delete the row of their key.

A merge gets deletions as rows with a negative physical offset. So a row has the table's columns only, and Delta's MERGE
can add new columns by them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, DataType, MapType, StructType

from rmq_formats.errors import OptionError
from rmq_lakehouse.evolution import quoted
from rmq_lakehouse.spec import TypedTopic

DELETED = "__rmq_deleted"
_ROW = "__rmq_row"
Path = tuple[str, ...]
_BEFORE = {"after": "before"}  # members of an envelope: where the first is null, the other has the key


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """Part of a table's key.

    Attributes:
        paths: into a row; the first that is not null has the value.
    """

    name: str
    paths: tuple[Path, ...]
    kind: DataType

    def sql(self, alias: str = "") -> str:
        """Write the value of a row as SQL has it; ``alias`` is that of the rows."""
        around = f"{alias}." if alias else ""
        parts = [around + ".".join(map(quoted, path)) for path in self.paths]
        return parts[0] if len(parts) == 1 else f"coalesce({', '.join(parts)})"

    @property
    def columns(self) -> list[str]:
        """Columns of the table that it is a part of."""
        return [path[0] for path in self.paths]


def key_columns(topic: TypedTopic, columns: StructType) -> tuple[KeyColumn, ...]:
    """Find the key of a topic's spec in the columns of its bodies. Raises OptionError."""
    return tuple(_key_column(topic.topic, name, columns) for name in topic.key)


def _key_column(topic: str, name: str, columns: StructType) -> KeyColumn:
    path = (name,) if name in columns.fieldNames() else tuple(name.split("."))
    kind = _type_at(columns, path)
    if kind is None or isinstance(kind, StructType | ArrayType | MapType):
        raise OptionError(f"topic {topic!r}: key {name!r} is not a primitive column of the schema")
    before_path = (_BEFORE.get(path[0], ""), *path[1:])
    is_envelope = len(path) > 1 and _type_at(columns, before_path) == kind
    return KeyColumn(name, (path, before_path) if is_envelope else (path,), kind)


def _type_at(kind: DataType, path: Path) -> DataType | None:
    for name in path:
        if not isinstance(kind, StructType) or name not in kind.fieldNames():
            return None
        kind = kind[name].dataType
    return kind


def check_condition(spark: SparkSession, topic: TypedTopic, columns: StructType) -> None:
    """Refuse a ``delete_when`` that is no condition over the columns. Raises OptionError."""
    if not topic.delete_when:
        return
    try:
        schema = spark.createDataFrame([], columns).select(F.expr(topic.delete_when).alias(DELETED)).schema
    except PySparkException as error:
        message = str(error).strip().splitlines()[0]
        raise OptionError(f"topic {topic.topic!r}: delete_when {topic.delete_when!r}: {message}") from error
    if not isinstance(schema[DELETED].dataType, BooleanType):
        raise OptionError(f"topic {topic.topic!r}: delete_when {topic.delete_when!r}: is not a condition")


def with_deletions(frame: DataFrame, value: Column, columns: StructType, condition: str) -> DataFrame:
    """Add a column ``DELETED``: whether a decoded body meets a condition over its columns; a null is not met."""
    if not condition:
        return frame.withColumn(DELETED, F.lit(False))
    row_struct = F.struct(*(F.col(quoted(name)) for name in frame.columns)).alias(_ROW)
    row = frame.select(row_struct, *(value[field.name].alias(field.name) for field in columns))
    return row.select(f"{_ROW}.*", F.coalesce(F.expr(condition), F.lit(False)).alias(DELETED))


def tombstone_key(key: KeyColumn) -> Column:
    """Return the key that the message's KEYS are, null if they are none of its type."""
    text = F.when(F.size("keys") > 0, F.array_join("keys", " "))
    return text.try_cast(key.kind)


def tombstone_value(columns: StructType, path: Path, key: Column) -> Column:
    """Build a decoded body that has nothing but its key."""
    members = [
        (F.lit(None) if field.name != path[0] else key if len(path) == 1 else _within(field.dataType, path[1:], key))
        .cast(field.dataType)
        .alias(field.name)
        for field in columns
    ]
    return F.struct(*members)


def _within(kind: DataType, path: Path, key: Column) -> Column:
    assert isinstance(kind, StructType)  # the key was found by this path
    return tombstone_value(kind, path, key)


def signed_offset(offset: Column, deleted: Column) -> Column:
    """Return the physical offset of a row to merge; it is negative for a deletion."""
    return F.when(deleted, -1 - offset).otherwise(offset)


@dataclass(frozen=True, slots=True)
class MergeRows:
    """Key and order by which rows are merged into a table.

    Attributes:
        key: parts of the key, none of which is null in a row.
        order: names of columns by which of two messages one is the later; the last is the physical offset.
        deletes: whether rows may be deletions; see ``signed_offset``.
        element: name of the column by which rows of one message are ordered; None if a message is one row.
    """

    key: Sequence[KeyColumn]
    order: Sequence[str]
    deletes: bool = False
    element: str | None = None

    @property
    def order_columns(self) -> list[str]:
        """Names of all columns by which rows are ordered."""
        return [*self.order, *([] if self.element is None else [self.element])]

    def same_key(self, left: str, right: str) -> str:
        """Write the condition under which two rows have the same key, by their aliases."""
        return " AND ".join(f"{part.sql(left)} = {part.sql(right)}" for part in self.key)

    def order_value(self, alias: str = "") -> str:
        """Write the SQL expression that orders messages."""
        around = f"{alias}." if alias else ""
        *before, offset = (around + quoted(name) for name in self.order)
        plain = f"CASE WHEN {offset} < 0 THEN -1 - {offset} ELSE {offset} END" if self.deletes else offset
        element = [] if self.element is None else [f"{around}{quoted(self.element)}"]
        return f"struct({', '.join([*before, f'{plain} AS `offset`', *element])})"

    def is_deletion(self, alias: str = "") -> str:
        """Write the condition under which a new row is a deletion."""
        return f"{alias}.{quoted(self.order[-1])} < 0" if alias else f"{quoted(self.order[-1])} < 0"
