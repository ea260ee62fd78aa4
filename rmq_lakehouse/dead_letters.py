"""Dead letters of an export: messages that its table cannot have, with the reason, each once.

A reason may be a condition of the table beyond its columns' types: a CHECK constraint, NOT NULL, the length of a text.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, CharType, DataType, MapType, StringType, StructField, StructType, VarcharType

from rmq_formats.arrow.schema import BROKER_NAME, CLUSTER
from rmq_formats.spark.options import schemas
from rmq_lakehouse.comments import with_comments
from rmq_lakehouse.exactly_once import commit_with_retry
from rmq_lakehouse.expressions import null_on_error, silence_query_logs
from rmq_lakehouse.selection import ExportSelection
from rmq_lakehouse.spark_table import SparkExactlyOnceTable
from rmq_lakehouse.table_log import (
    CommitAttempt,
    CommitResult,
    PendingRange,
    SparkTableLog,
    StartAttempt,
    TableTransaction,
)
from rmq_lakehouse.table_name import quoted
from rmq_lakehouse.undecoded import DEAD_LETTER_TABLE, MESSAGE_COLUMNS, REASON

REFUSED: Final = "__rmq_refused"
_ROW: Final = "__rmq_row"
_CHECK: Final = "delta.constraints."  # of a table's properties; the rest is the constraint's name
_INVARIANT: Final = "delta.invariants"
_GENERATION: Final = "delta.generationExpression"
_LENGTH: Final = "__CHAR_VARCHAR_TYPE_STRING"
ValueRule = Callable[[DataType, str, bool], str | None]
"""Returns the SQL condition of a value, by its type, its name in SQL, and whether the value may be null; else None."""
_LENGTH_TEXT: Final = re.compile(r"(?:var)?char\((\d+)\)", re.ASCII)


class DeadLetters:
    """Table of dead letters, which several exports of a run may have in common."""

    def __init__(self, path: str, log: SparkTableLog, selection: ExportSelection) -> None:
        self.path = path
        message = [schemas.COMMITLOG[name] for name in MESSAGE_COLUMNS]
        broker_names = () if selection.broker is None else (CLUSTER, BROKER_NAME)
        brokers = [schemas.with_brokers(schemas.COMMITLOG)[name] for name in broker_names]
        self.columns = with_comments(StructType([*message, StructField(REASON, StringType()), *brokers]))
        self.table = SparkExactlyOnceTable(path, log, selection, DEAD_LETTER_TABLE)

    def commit(
        self, messages: DataFrame | None, start: StartAttempt, belongs_to_attempt: Callable[[CommitAttempt], Column]
    ) -> tuple[int, PendingRange | None]:
        """Commit the pending messages; return the number of files, and the range of pending rows.

        Args:
            messages: all dead letters, with a reason each; None without dead letters.
            belongs_to_attempt: returns the condition that a message is pending.
        """
        pending: PendingRange | None = None

        def start_and_record(transaction: TableTransaction) -> CommitAttempt | None:
            nonlocal pending
            attempt = start(transaction)
            pending = None if attempt is None else attempt.pending_range
            return attempt

        def write(attempts: Mapping[int, CommitAttempt]) -> CommitResult:
            assert messages is not None  # commit_with_retry calls this function only with messages
            dead = messages.select(*self.columns.fieldNames())
            return self.table.append(attempts[0], dead.where(belongs_to_attempt(attempts[0])))

        write_rows = None if messages is None else write
        return commit_with_retry(self.path, self.table.log, [start_and_record], write_rows).files, pending


def table_constraints(log: SparkTableLog) -> dict[str, str]:
    """Map the reason for a dead letter to the condition that each row of a table has to meet."""
    checks = {
        f"the table's constraint {name.removeprefix(_CHECK)}, {condition}, is not met": condition
        for name, condition in log.configuration().items()
        if name.startswith(_CHECK)
    }
    unless = "" if log.null_breaks_members else "{} IS NULL OR "
    return {**checks, **dict(_of_columns(log.schema(), (), "", unless))}


def _of_columns(
    schema: StructType, around: tuple[str, ...], condition_start: str, unless: str
) -> Iterator[tuple[str, str]]:
    """List the conditions of columns.

    Args:
        condition_start: exception of NOT NULL, as SQL.
        unless: exception of NOT NULL of a struct's members; ``{}`` is the struct.
    """
    for field in schema:
        path = (*around, field.name)
        name, column, metadata = ".".join(path), ".".join(map(quoted, path)), field.metadata or {}
        if not field.nullable:
            yield f"column {name}: null, wanted NOT NULL", f"{condition_start}{column} IS NOT NULL"
        text_type = str(metadata.get(_LENGTH, ""))  # of a struct, too, with the types of its members
        lengths = _nested_condition(_limit_length, _parse_text_type(text_type), column) if text_type else None
        if lengths is not None:
            yield f"column {name}: a longer text, wanted {text_type.upper()}", lengths
        if _GENERATION in metadata:
            expression = metadata[_GENERATION]
            yield f"column {name}: cannot be computed by {expression}", f"isnull({expression}) IN (true, false)"
        if _INVARIANT in metadata:
            condition = json.loads(metadata[_INVARIANT])["expression"]["expression"]
            yield f"column {name}: the table's {condition} is not met", condition
        if isinstance(field.dataType, StructType):
            yield from _of_columns(field.dataType, path, unless.format(column), unless)
        elif (elements := _nested_condition(_forbid_null, field.dataType, column)) is not None:
            yield f"column {name}: null in an element, wanted NOT NULL", elements


def _parse_text_type(text: str) -> DataType:
    """Parse a type with CHAR and VARCHAR, as Spark writes it into a column's metadata."""
    length = _LENGTH_TEXT.fullmatch(text)
    if length is not None:
        return VarcharType(int(length[1]))
    columns = StructType.fromDDL(f"c {text}")
    assert isinstance(columns, StructType)  # of one column
    return columns["c"].dataType


def _limit_length(kind: DataType, value: str, _may_be_null: bool) -> str | None:
    if not isinstance(kind, CharType | VarcharType):
        return None
    return f"{value} IS NULL OR char_length({value}) <= {kind.length}"


def _forbid_null(_kind: DataType, value: str, may_be_null: bool) -> str | None:
    return None if may_be_null else f"{value} IS NOT NULL"


def _nested_condition(
    rule: ValueRule, kind: DataType, value: str, *, may_be_null: bool = True, depth: int = 0
) -> str | None:
    """Return the condition that a value and all values within it meet a rule; None without a condition."""
    conditions = [rule(kind, value, may_be_null)]
    if isinstance(kind, StructType):
        members = _all_of(
            _nested_condition(
                rule, field.dataType, f"{value}.{quoted(field.name)}", may_be_null=field.nullable, depth=depth
            )
            for field in kind
        )
        conditions.append(None if members is None else f"{value} IS NULL OR ({members})")
    elif isinstance(kind, ArrayType):
        conditions.append(_elements_condition(rule, kind.elementType, value, kind.containsNull, depth))
    elif isinstance(kind, MapType):
        conditions += [
            _elements_condition(rule, kind.keyType, f"map_keys({value})", True, depth),
            _elements_condition(rule, kind.valueType, f"map_values({value})", kind.valueContainsNull, depth),
        ]
    return _all_of(conditions)


def _elements_condition(rule: ValueRule, kind: DataType, array: str, contains_null: bool, depth: int) -> str | None:
    item = f"item_{depth}"
    condition = _nested_condition(rule, kind, item, may_be_null=contains_null, depth=depth + 1)
    return None if condition is None else f"{array} IS NULL OR forall({array}, {item} -> {condition})"


def _all_of(conditions: Iterable[str | None]) -> str | None:
    present_conditions = [condition for condition in conditions if condition is not None]
    if len(present_conditions) < 2:
        return next(iter(present_conditions), None)
    return " AND ".join(f"({condition})" for condition in present_conditions)


def with_refusals(frame: DataFrame, columns: Mapping[str, Column], constraints: Mapping[str, str]) -> DataFrame:
    """Add a column ``REFUSED``: the reason of the first condition that a row does not meet, else null.

    Conditions over columns that are not written are left to the table, which may generate these columns.

    Args:
        columns: expressions of the table's columns over the frame, by name.
    """
    row_struct = F.struct(*(F.col(quoted(name)) for name in frame.columns)).alias(_ROW)
    row = frame.select(row_struct, *(column.alias(name) for name, column in columns.items()))
    reasons: list[Column] = []
    for reason, condition in constraints.items():
        is_met = F.coalesce(F.expr(condition), F.lit(False))  # Delta takes null for not met, too
        evaluated = F.coalesce(null_on_error(frame.sparkSession, is_met), F.lit(False))
        refused = F.when(~evaluated, F.lit(reason))
        try:
            with silence_query_logs():
                row.select(refused)
        except PySparkException:
            continue
        reasons.append(refused)
    first = F.coalesce(*reasons) if reasons else F.lit(None).cast("string")
    return row.select(f"{_ROW}.*", first.alias(REFUSED))
