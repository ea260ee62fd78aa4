"""Upserts rows into a Delta table with one row a key: the last message of a key, by physical offset.

A merge is idempotent, also after a later one: only a later message replaces a row. So what
two exports both land is landed once, in whatever order they commit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rmq_formats.errors import StoreError
from rmq_formats.lakehouse.delta.conflicts import CONFLICTS
from rmq_formats.lakehouse.delta.place import DeltaPlace
from rmq_formats.lakehouse.log import StoreLog
from rmq_formats.lakehouse.once import ATTEMPTS, ExactlyOnceTable

_WRITE = "spark.databricks.delta.write"
_NOTE = "spark.databricks.delta.commitInfo.userMetadata"


def upsert(
    spark: SparkSession,
    table: ExactlyOnceTable,
    rows: Callable[[int], DataFrame],
    key: Sequence[str],
    end: int,
    log: StoreLog,
) -> None:
    """Merge the rows not landed yet of the records before ``end``, and set the transaction version, in one commit.

    Args:
        spark: the session.
        table: table to merge into.
        rows: gives the rows from a physical offset on, with the table's columns.
        key: names of columns, none of which is null in a row.
        end: physical offset, exclusive.
        log: the log, of which the commit notes a mark.

    Raises:
        StoreError: each attempt lost a commit conflict.
    """
    for _ in range(ATTEMPTS):
        begin = table.exported_end()
        if end <= begin:
            break
        settings = {f"{_WRITE}.txnAppId": table.app_id, f"{_WRITE}.txnVersion": str(end)}
        note = log.mark(end)
        if note is not None:
            settings[_NOTE] = note
        if table.lands_again:  # Delta passes over a merge of a version that was set before; it is set afterwards then
            settings.clear()
        try:
            with _set(spark, settings):
                _merge(spark, table, rows(begin), key)
            table.force()
        except CONFLICTS:
            continue
        break
    else:
        raise StoreError(f"{table.path}: lost {ATTEMPTS} commit conflicts to other writers; nothing was written")
    if table.lands_again:
        table.settle(end, log)


def _merge(spark: SparkSession, table: ExactlyOnceTable, frame: DataFrame, key: Sequence[str]) -> None:
    offset = table.offset
    every = F.struct(*(F.col(f"`{name}`") for name in frame.columns))
    last = frame.groupBy(*(F.col(f"`{name}`") for name in key)).agg(F.max_by(every, offset).alias("row"))
    same = " AND ".join(f"there.`{name}` = here.`{name}`" for name in key)
    merge = (
        DeltaPlace(spark, table.path)
        .open()
        .alias("there")
        .merge(last.select("row.*").alias("here"), same)
        .withSchemaEvolution()
        .whenMatchedUpdateAll(f"here.`{offset}` > there.`{offset}`")
        .whenNotMatchedInsertAll()
    )
    merge.execute()


@contextmanager
def _set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Have settings of the session for a while."""
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)
