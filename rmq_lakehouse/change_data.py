"""Change data capture: keys by paths into the body, and messages that delete the row of their key.

A merge gets deletions as rows with a negative physical offset. So a row has the table's columns only, and Delta's MERGE
can add new columns by them.

Example: an event changes the key of a row from 1 to 2. The merge gets two rows with the event's offset: one deletes the
row of key 1, the other is the row of key 2. Their keys differ, so neither replaces the other.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FloatType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from rmq_formats.errors import OptionError
from rmq_formats.spark.versions import arrow_schema
from rmq_lakehouse.decode.json_body import decoder
from rmq_lakehouse.decode.mismatch import Mismatch, shown
from rmq_lakehouse.decode.times import TimeUnits
from rmq_lakehouse.expressions import null_on_error, silence_query_logs
from rmq_lakehouse.java import java_class
from rmq_lakehouse.spec import TypedTopic
from rmq_lakehouse.table_name import quoted

DELETED = "__rmq_deleted"
TOMBSTONE_KEY = "__rmq_tombstone_key"
TOMBSTONE_REASON = "__rmq_tombstone_reason"
_KEYS = "__rmq_keys"
_ROW = "__rmq_row"
_BODY = "__rmq_body"
Path = tuple[str, ...]
_AFTER, _BEFORE = "after", "before"  # members of an envelope: where the first is null, the other has the key
_JSON_LITERAL: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?|true|false", re.ASCII)
_DAY: Final = r"\d{4}-\d{2}-\d{2}"
_FULL_DATE: Final = re.compile(_DAY, re.ASCII)
_TIME_FORM: Final = " with date, time and 6 digits of a fraction at most"
_KEY_FORMS: Final[Mapping[type[DataType], str]] = {
    DateType: " as YYYY-MM-DD",
    TimestampType: _TIME_FORM,
    TimestampNTZType: _TIME_FORM,
    DecimalType: " without rounding",
    BinaryType: " in Base64",
}
_FULL_TIME: Final = re.compile(rf"{_DAY}[T ]\d{{2}}:\d{{2}}(:\d{{2}}(\.\d{{1,6}})?)?( ?[A-Z+-]\S*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """Part of a table's key.

    Attributes:
        paths: into a row; of an envelope into its members ``after`` and ``before``.
        after_path: path of the member ``after`` of an envelope; None if the key is in no envelope.
        all_in_after: paths of all parts of the key in ``after``; where all are null, ``before`` has the key.
    """

    name: str
    paths: tuple[Path, ...]
    kind: DataType
    after_path: Path | None = None
    all_in_after: tuple[Path, ...] = ()

    def sql(self, alias: str = "") -> str:
        """Write the value of a row as SQL has it; ``alias`` is that of the rows."""
        around = f"{alias}." if alias else ""
        parts, in_after = (
            [around + ".".join(map(quoted, path)) for path in paths] for paths in (self.paths, self.all_in_after)
        )
        if len(parts) == 1:
            return parts[0]
        if len(in_after) == 1:
            return f"coalesce({', '.join(parts)})"
        has_after = " OR ".join(f"{part} IS NOT NULL" for part in in_after)
        return f"CASE WHEN {has_after} THEN {parts[0]} ELSE {parts[1]} END"

    @property
    def columns(self) -> list[str]:
        return [path[0] for path in self.paths]


def key_columns(topic: TypedTopic, columns: StructType) -> tuple[KeyColumn, ...]:
    """Find the key of a topic's spec in the columns of its bodies. Raises OptionError."""
    parts = tuple(_key_column(topic.topic, name, columns) for name in topic.key)
    in_after: dict[Path | None, tuple[Path, ...]] = {}
    for part in parts:
        in_after[part.after_path] = (*in_after.get(part.after_path, ()), part.paths[0])
    return tuple(
        part if part.after_path is None else replace(part, all_in_after=in_after[part.after_path]) for part in parts
    )


def _key_column(topic: str, name: str, columns: StructType) -> KeyColumn:
    path = (name,) if name in columns.fieldNames() else tuple(name.split("."))
    kind = _type_at(columns, path)
    if kind is None or isinstance(kind, StructType | ArrayType | MapType):
        raise OptionError(f"topic {topic!r}: key {name!r} is not a primitive column of the schema")
    for position, member in enumerate(path[:-1]):
        before_path = (*path[:position], _BEFORE, *path[position + 1 :])
        if member == _AFTER and _type_at(columns, before_path) == kind:
            return KeyColumn(name, (path, before_path), kind, path[: position + 1])
    return KeyColumn(name, (path,), kind)


def _type_at(kind: DataType, path: Path) -> DataType | None:
    for name in path:
        if not isinstance(kind, StructType) or name not in kind.fieldNames():
            return None
        kind = kind[name].dataType
    return kind


def check_condition(spark: SparkSession, topic: TypedTopic, columns: StructType) -> None:
    """Refuse a ``delete_when`` that is no condition over the columns of one message. Raises OptionError."""
    condition = topic.delete_when
    if not condition:
        return
    try:
        with silence_query_logs():
            kind = spark.createDataFrame([], columns).select(F.expr(condition).alias(DELETED)).schema[0].dataType
            bodies = spark.createDataFrame([], StructType([StructField(_BODY, columns)]))
            frame: Any = with_deletions(bodies, F.col(_BODY), columns, condition)
            problem = _find_problem(spark, kind, frame._jdf.queryExecution().analyzed())
    except PySparkException as error:
        problem = str(error).strip().splitlines()[0].rstrip("; ")
    if problem:
        advice = "Give a condition over the columns of one message"
        raise OptionError(f"topic {topic.topic!r}: delete_when {condition!r}: {problem}. {advice}")


def _find_problem(spark: SparkSession, kind: DataType, plan: Any) -> str:
    """Return why an analyzed condition cannot be ``delete_when``; an empty text if it can."""
    patterns = java_class(spark._jvm, "org.apache.spark.sql.catalyst.trees.TreePattern")
    if not isinstance(kind, BooleanType):
        return "is not a condition"
    if not plan.deterministic():
        return "is not deterministic"
    if plan.containsPattern(patterns.CURRENT_LIKE()):
        return "depends on the time or the user of the run"
    return "depends on other messages" if plan.containsPattern(patterns.WINDOW()) else ""


def with_deletions(frame: DataFrame, value: Column, columns: StructType, condition: str) -> DataFrame:
    """Add a column ``DELETED``: whether a decoded body meets a condition over its columns.

    A condition that is null is not met. ``DELETED`` is null where the condition cannot be evaluated.
    """
    if not condition:
        return frame.withColumn(DELETED, F.lit(False))
    row_struct = F.struct(*(F.col(quoted(name)) for name in frame.columns)).alias(_ROW)
    row = frame.select(row_struct, *(value[field.name].alias(field.name) for field in columns))
    is_met = null_on_error(frame.sparkSession, F.coalesce(F.expr(condition), F.lit(False)))
    return row.select(_ROW, is_met.alias(DELETED)).select(f"{_ROW}.*", DELETED)


def condition_reason(condition: str) -> Column:
    """Return the reason for a dead letter whose ``delete_when`` cannot be evaluated; null for other rows."""
    return F.when(F.col(DELETED).isNull(), F.lit(f"delete_when cannot be evaluated: {shown(condition)}"))


def select_keys(messages: DataFrame) -> DataFrame:
    """Replace ``properties`` by the property KEYS of messages with an empty body; ``keys`` has KEYS split."""
    keys = F.when(is_empty_body(), F.nullif(F.col("properties")["KEYS"], F.lit("")))
    return messages.withColumn(_KEYS, keys).drop("properties")


def is_empty_body() -> Column:
    """Return the condition that a message has an empty body."""
    return F.coalesce(F.octet_length("body"), F.lit(0)) == 0


def with_tombstone_keys(messages: DataFrame, key: KeyColumn) -> DataFrame:
    """Add the columns ``TOMBSTONE_KEY`` and ``TOMBSTONE_REASON`` to messages of ``select_keys``.

    Python checks KEYS in batches, and only where there are some. Spark casts what is right.
    """
    import pandas as pd  # noqa: PLC0415 # a second to load
    from pyspark.sql.pandas.functions import pandas_udf  # noqa: PLC0415 # likewise

    zone = str(messages.sparkSession.conf.get("spark.sql.session.timeZone"))

    def find_reasons(texts: pd.Series) -> pd.Series:
        sent = texts.dropna()
        find_reason = key_text_checker(key, zone) if len(sent) else None  # made in the task: a decoder is not pickled
        reasons = pd.Series([find_reason and find_reason(text) for text in sent], index=sent.index, dtype=object)
        return reasons.reindex(texts.index, fill_value=None)

    keys = F.col(_KEYS)
    absent = F.when(
        keys.isNull(), F.lit(f"column {key.name}: a tombstone without KEYS, wanted {_expected_keys(key.kind)}")
    )
    reason = pandas_udf(find_reasons, StringType())(keys)  # type: ignore[call-overload] # hints of Python have the kind
    checked = messages.withColumn(TOMBSTONE_REASON, reason)
    value = F.when(F.col(TOMBSTONE_REASON).isNull(), _cast_key(keys, key.kind))
    return checked.withColumn(TOMBSTONE_KEY, value).withColumn(TOMBSTONE_REASON, F.coalesce(absent, TOMBSTONE_REASON))


def key_text_checker(key: KeyColumn, zone: str) -> Callable[[str], str | None]:
    """Return a function that returns the reason why KEYS are no value of a key; None if they are one.

    KEYS are decoded as a JSON value of the column; ``zone`` is the zone of times without one. Times have to be in full:
    in JSON ``2024`` is the first day of that year. Raises OptionError: the type of the key has no JSON.
    """
    name, kind, expected = key.name, key.kind, _expected_keys(key.kind)
    (arrow_kind,) = arrow_schema(StructType([StructField(name, kind)])).types
    try:
        decode = decoder(pa.struct([(name, arrow_kind)]), TimeUnits(), zone)
    except ValueError as error:
        raise OptionError(f"tombstones: {error}. Remove tombstones, or give another key") from error
    is_literal = isinstance(kind, BooleanType) or (isinstance(kind, NumericType) and not isinstance(kind, DecimalType))
    is_time = isinstance(kind, TimestampType | TimestampNTZType)
    full = _FULL_DATE if isinstance(kind, DateType) else _FULL_TIME if is_time else None
    json_name = json.dumps(name)

    def find_reason(text: str) -> str | None:
        value = text if is_literal and _JSON_LITERAL.fullmatch(text) else json.dumps(text)
        try:
            if full is None or full.fullmatch(text):
                decode(f"{{{json_name}:{value}}}".encode())
                return None
        except Mismatch:
            pass
        return f"column {name}: a tombstone with KEYS {shown(text)!r}, wanted {expected}"

    return find_reason


def _expected_keys(kind: DataType) -> str:
    """Describe the KEYS of a tombstone for a key of a type."""
    return kind.simpleString().upper() + _KEY_FORMS.get(type(kind), "")


def _cast_key(text: Column, kind: DataType) -> Column:
    if isinstance(kind, BinaryType):
        return F.unbase64(text)
    # The decoder of JSON rounds a FLOAT twice, too.
    return text.try_cast("double").cast(kind) if isinstance(kind, FloatType) else text.try_cast(kind)


def tombstone_value(columns: StructType, path: Path, key: Column) -> Column:
    """Build a decoded body that has nothing but its key."""

    def member(field: StructField) -> Column:
        if field.name != path[0]:
            return F.lit(None)
        if len(path) == 1:
            return key
        assert isinstance(field.dataType, StructType)  # the key was found by this path
        return tombstone_value(field.dataType, path[1:], key)

    return F.struct(*(member(field).cast(field.dataType).alias(field.name) for field in columns))


def with_former_keys(frame: DataFrame, value_name: str, key: Sequence[KeyColumn]) -> DataFrame:
    """Add a deletion to each decoded row of an envelope that changes the key: a row of the key that ``before`` has."""
    after_paths = {part.after_path for part in key if part.after_path is not None}
    if not after_paths:
        return frame
    value, pairs = F.col(value_name), [(part.paths[0], part.paths[-1]) for part in key]
    values = [(_member(value, after), _member(value, before)) for after, before in pairs]
    are_complete = reduce(and_, (after.isNotNull() & before.isNotNull() for after, before in values))
    are_same = reduce(and_, (after == before for after, before in values))
    former = value
    for path in after_paths:
        null = F.when(F.lit(False), _member(value, path))  # of the member's type
        former = former.withField(".".join(map(quoted, path)), null)
    deletions = frame.where(are_complete & ~are_same).withColumn(value_name, former).withColumn(DELETED, F.lit(True))
    return frame.unionByName(deletions)


def _member(value: Column, path: Path) -> Column:
    return reduce(lambda around, name: around[name], path, value)


def signed_offset(offset: Column, deleted: Column) -> Column:
    """Return the physical offset of a row to merge; it is negative for a deletion."""
    return F.when(deleted, -1 - offset).otherwise(offset)


@dataclass(frozen=True, slots=True)
class MergeRows:
    """Key and order by which rows are merged into a table.

    Attributes:
        key: parts of the key, none of which is null in a row.
        order: names of the columns that order messages; the last is the physical offset.
        deletes: whether rows may be deletions; see ``signed_offset``.
        element: name of the column that orders the rows of one message; None if a message is one row.
    """

    key: Sequence[KeyColumn]
    order: Sequence[str]
    deletes: bool = False
    element: str | None = None

    @property
    def order_columns(self) -> list[str]:
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
