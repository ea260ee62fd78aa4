"""Upsert into an Iceberg table with a key by copy on write: tasks rewrite the files with rows to replace.

A snapshot removes these files and adds the new ones, with the transaction versions of the export. The driver sees
bounds of keys and names of files, but no row of the table.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual, Reference
from pyiceberg.expressions.literals import Literal, literal
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    MapType,
    StringType,
    StructType,
)

from rmq_lakehouse.change_data import KeyColumn, MergeRows
from rmq_lakehouse.evolution import column
from rmq_lakehouse.iceberg.rows import FILE, rows_of, write_frame
from rmq_lakehouse.parquet import Layout, WrittenFile

_NEW_ROW: Final = "__rmq_here"  # the new row, in a join with the table's
_OLD_ORDER: Final = "__rmq_there"  # the place of the table's row
_NEW_KEY: Final = "__rmq_key_"  # before a number: its key
_OLDER: Final = "__rmq_older"  # whether the table's row is
# Types whose bounds in manifests tell which files may have a value: those of floating point leave out NaN.
_BOUNDED: Final = (IntegralType, StringType, DateType, DecimalType, BinaryType)


@dataclass(frozen=True, slots=True)
class MergeResult:
    """Files of a merge, which no version of the table has yet; rows of removed files are in the added files."""

    added: tuple[WrittenFile, ...] = ()
    removed: tuple[DataFile, ...] = ()


def merge(spark: SparkSession, table: Table, layout: Layout, frame: DataFrame, rows: MergeRows) -> MergeResult:
    """Write the files of a table in which the last message of each key is its row, unless that is a deletion.

    Args:
        table: the loaded table; the files are for a commit to its snapshot.
        frame: the new rows, with the table's columns or some of them; other columns retain their values.
        rows: key and order of the rows; a row replaces only an earlier row.
    """
    row_struct, order, keys = F.struct(*map(column, frame.columns)), F.expr(rows.order_value()), _keys(rows.key)
    newest = frame.groupBy(*keys).agg(F.max_by(row_struct, order).alias(_NEW_ROW))
    is_kept = F.lit(True) if not rows.deletes else ~F.expr(rows.is_deletion())
    with _persist(newest.select(f"{_NEW_ROW}.*")) as newest_rows:
        candidates = _candidates(table, newest_rows, rows.key)
        if candidates is None:
            return MergeResult()
        if not candidates:
            return MergeResult(tuple(write_frame(newest_rows.where(is_kept), layout)))
        names_of_keys = [f"{_NEW_KEY}{at}" for at in range(len(keys))]
        needed = dict.fromkeys([*(name for part in rows.key for name in part.columns), *rows.order_columns])
        table_keys = rows_of(spark, table, candidates, list(needed), with_file=True).select(
            *keys, order.alias(_OLD_ORDER), FILE
        )
        matches = table_keys.join(newest_rows.select(*keys, order.alias(_NEW_ROW)), names_of_keys)
        with _persist(
            matches.select(*names_of_keys, FILE, (F.col(_OLD_ORDER) < F.col(_NEW_ROW)).alias(_OLDER))
        ) as compared:
            replaced_paths = {row[0] for row in compared.where(_OLDER).select(FILE).distinct().collect()}
            later = compared.where(f"NOT {_OLDER}").select(*names_of_keys)
            fresh = (
                newest_rows.select("*", *keys)
                .join(later, names_of_keys, "left_anti")
                .select(*map(column, newest_rows.columns))
            )
            affected = [task for task in candidates if task.file.file_path in replaced_paths]
            whole = _replace_rows(rows_of(spark, table, affected), fresh, rows.key) if affected else fresh
            return MergeResult(tuple(write_frame(whole.where(is_kept), layout)), tuple(task.file for task in affected))


def _keys(key: Sequence[KeyColumn]) -> list[Column]:
    """Return the values of a row's key, under names of their own."""
    return [F.expr(part.sql()).alias(f"{_NEW_KEY}{at}") for at, part in enumerate(key)]


@contextmanager
def _persist(frame: DataFrame) -> Iterator[DataFrame]:
    persisted = frame.persist()
    try:
        yield persisted
    finally:
        persisted.unpersist()


def _candidates(table: Table, last: DataFrame, key: Sequence[KeyColumn]) -> list[FileScanTask] | None:
    """List the files that may have one of the keys, by their bounds; None if there is no key."""
    bounded = [part.paths[0][0] for part in key if part.paths == ((part.name,),) and isinstance(part.kind, _BOUNDED)]
    extremes = [F.struct(F.min(column(name)), F.max(column(name))) for name in bounded]
    bounds = last.agg(F.count("*"), *extremes).first()
    assert bounds is not None  # an aggregate without groups always has one row
    if not bounds[0]:
        return None
    row_filter: BooleanExpression = AlwaysTrue()
    for name, (least, most) in zip(bounded, bounds[1:], strict=True):
        term = Reference(name)
        row_filter = And(row_filter, GreaterThanOrEqual(term=term, value=_literal(least)))
        row_filter = And(row_filter, LessThanOrEqual(term=term, value=_literal(most)))
    return list(table.scan(row_filter=row_filter).plan_files())


def _literal(value: Any) -> Literal[Any]:
    return literal(bytes(value) if isinstance(value, bytearray) else value)


def _replace_rows(existing: DataFrame, fresh: DataFrame, key: Sequence[KeyColumn]) -> DataFrame:
    """Replace rows by new rows with the same key, and add the other new rows."""
    new_names = {name.lower(): name for name in fresh.columns}
    new = fresh.select(F.struct(*map(column, fresh.columns)).alias(_NEW_ROW), *_keys(key))
    same = [F.expr(part.sql()) == F.col(f"{_NEW_KEY}{at}") for at, part in enumerate(key)]
    joined = existing.join(new, same, "full_outer")

    def merged_column(name: str, kind: DataType) -> Column:
        if name.lower() not in new_names:
            return column(name)
        new_name = new_names[name.lower()]
        value = _cast_value(F.col(_NEW_ROW)[new_name], fresh.schema[new_name].dataType, kind)
        return F.when(F.col(_NEW_ROW).isNotNull(), value).otherwise(column(name)).alias(name)

    return joined.select(*(merged_column(field.name, field.dataType) for field in existing.schema))


def _cast_value(value: Column, kind: DataType, target: DataType) -> Column:
    """Cast a value to the table's type, which may have more members of structs."""
    if isinstance(kind, StructType) and isinstance(target, StructType):
        members_by_name = {field.name.lower(): field for field in kind}
        members = [
            (
                _cast_value(value[members_by_name[name].name], members_by_name[name].dataType, field.dataType)
                if name in members_by_name
                else F.lit(None)
            )
            .cast(field.dataType)
            .alias(field.name)
            for field in target
            for name in [field.name.lower()]
        ]
        return F.when(value.isNotNull(), F.struct(*members))
    if isinstance(kind, ArrayType) and isinstance(target, ArrayType):
        return F.transform(value, lambda element: _cast_value(element, kind.elementType, target.elementType))
    if isinstance(kind, MapType) and isinstance(target, MapType):
        return F.transform_values(value, lambda _, element: _cast_value(element, kind.valueType, target.valueType))
    return value.cast(target)
