"""Upserts rows into an Iceberg table with one row a key: files that have rows to replace are written anew by tasks.

Copy on write: a snapshot takes these files out and the new ones in, with the versions of the transaction. The driver
sees bounds of keys and names of files, and no row of the table.
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

from rmq_formats.lakehouse.changes import KeyColumn, MergeRows
from rmq_formats.lakehouse.evolution import column
from rmq_formats.lakehouse.frame_files import write_frame
from rmq_formats.lakehouse.iceberg.rows import FILE, rows_of
from rmq_formats.lakehouse.parquet import Layout, WrittenFile

_HERE: Final = "__rmq_here"  # the new row, in a join with the table's
_THERE: Final = "__rmq_there"  # the place of the table's row
_NEW_KEY: Final = "__rmq_key_"  # before a number: its key
_OLDER: Final = "__rmq_older"  # whether the table's row is
# Types whose bounds in manifests tell which files may have a value: those of floating point leave out NaN.
_BOUNDED: Final = (IntegralType, StringType, DateType, DecimalType, BinaryType)


@dataclass(frozen=True, slots=True)
class Merged:
    """Files of a merge, which no version of the table has yet.

    Attributes:
        added: files that tasks have written.
        removed: files whose rows are in these, or have given way.
    """

    added: tuple[WrittenFile, ...] = ()
    removed: tuple[DataFile, ...] = ()


def merge(spark: SparkSession, table: Table, layout: Layout, frame: DataFrame, rows: MergeRows) -> Merged:
    """Write the files of a table in which the last message of each key is its row, unless that is a deletion.

    Args:
        spark: the session.
        table: as it was loaded; the files are for a commit to this very snapshot.
        layout: of its files.
        frame: the new rows, with the table's columns or some of them; else rows keep theirs.
        rows: their key and order; a row gives way only to a later one.
    """
    every, place, keys = F.struct(*map(column, frame.columns)), F.expr(rows.place()), _keys(rows.key)
    newest = frame.groupBy(*keys).agg(F.max_by(every, place).alias(_HERE))
    kept = F.lit(True) if not rows.deletes else ~F.expr(rows.is_deletion())
    with _persisted(newest.select(f"{_HERE}.*")) as last:
        candidates = _candidates(table, last, rows.key)
        if candidates is None:
            return Merged()
        if not candidates:
            return Merged(tuple(write_frame(last.where(kept), layout)))
        names_of_keys = [f"{_NEW_KEY}{at}" for at in range(len(keys))]
        needed = dict.fromkeys([*(name for part in rows.key for name in part.columns), *rows.order])
        held = rows_of(spark, table, candidates, list(needed), with_file=True).select(*keys, place.alias(_THERE), FILE)
        met = held.join(last.select(*keys, place.alias(_HERE)), names_of_keys)
        with _persisted(met.select(*names_of_keys, FILE, (F.col(_THERE) < F.col(_HERE)).alias(_OLDER))) as found:
            names = {row[0] for row in found.where(_OLDER).select(FILE).distinct().collect()}
            later = found.where(f"NOT {_OLDER}").select(*names_of_keys)
            fresh = last.select("*", *keys).join(later, names_of_keys, "left_anti").select(*map(column, last.columns))
            affected = [task for task in candidates if task.file.file_path in names]
            whole = _replaced(rows_of(spark, table, affected), fresh, rows.key) if affected else fresh
            return Merged(tuple(write_frame(whole.where(kept), layout)), tuple(task.file for task in affected))


def _keys(key: Sequence[KeyColumn]) -> list[Column]:
    """Return the values of a row's key, under names of their own."""
    return [F.expr(part.sql()).alias(f"{_NEW_KEY}{at}") for at, part in enumerate(key)]


@contextmanager
def _persisted(frame: DataFrame) -> Iterator[DataFrame]:
    kept = frame.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def _candidates(table: Table, last: DataFrame, key: Sequence[KeyColumn]) -> list[FileScanTask] | None:
    """List the files that may have one of the keys, by their bounds; None if there is no key."""
    bounded = [part.paths[0][0] for part in key if part.paths == ((part.name,),) and isinstance(part.kind, _BOUNDED)]
    extremes = [F.struct(F.min(column(name)), F.max(column(name))) for name in bounded]
    bounds = last.agg(F.count("*"), *extremes).first()
    assert bounds is not None  # an aggregate without groups always has one row
    if not bounds[0]:
        return None
    held: BooleanExpression = AlwaysTrue()
    for name, (least, most) in zip(bounded, bounds[1:], strict=True):
        term = Reference(name)
        held = And(held, GreaterThanOrEqual(term=term, value=_literal(least)))
        held = And(held, LessThanOrEqual(term=term, value=_literal(most)))
    return list(table.scan(row_filter=held).plan_files())


def _literal(value: Any) -> Literal[Any]:
    return literal(bytes(value) if isinstance(value, bytearray) else value)


def _replaced(there: DataFrame, fresh: DataFrame, key: Sequence[KeyColumn]) -> DataFrame:
    """Put new rows in the place of those with their keys, and beside the others."""
    given = {name.lower(): name for name in fresh.columns}
    new = fresh.select(F.struct(*map(column, fresh.columns)).alias(_HERE), *_keys(key))
    same = [F.expr(part.sql()) == F.col(f"{_NEW_KEY}{at}") for at, part in enumerate(key)]
    joined = there.join(new, same, "full_outer")

    def chosen(name: str, kind: DataType) -> Column:
        if name.lower() not in given:
            return column(name)
        own = given[name.lower()]
        value = _fitted(F.col(_HERE)[own], fresh.schema[own].dataType, kind)
        return F.when(F.col(_HERE).isNotNull(), value).otherwise(column(name)).alias(name)

    return joined.select(*(chosen(field.name, field.dataType) for field in there.schema))


def _fitted(value: Column, kind: DataType, wanted: DataType) -> Column:
    """Give a value the table's type, which may have more members of structs."""
    if isinstance(kind, StructType) and isinstance(wanted, StructType):
        own = {field.name.lower(): field for field in kind}
        members = [
            (_fitted(value[own[name].name], own[name].dataType, field.dataType) if name in own else F.lit(None))
            .cast(field.dataType)
            .alias(field.name)
            for field in wanted
            for name in [field.name.lower()]
        ]
        return F.when(value.isNotNull(), F.struct(*members))
    if isinstance(kind, ArrayType) and isinstance(wanted, ArrayType):
        return F.transform(value, lambda one: _fitted(one, kind.elementType, wanted.elementType))
    if isinstance(kind, MapType) and isinstance(wanted, MapType):
        return F.transform_values(value, lambda _, one: _fitted(one, kind.valueType, wanted.valueType))
    return value.cast(wanted)
