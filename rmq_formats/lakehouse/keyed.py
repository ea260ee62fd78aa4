"""Lands rows in a table of one row a key: the last message of a key, by physical offset, is its row.

A merge that is run again, or after a later one, changes nothing: a row gives way only to a later message. So what
two exports both land is landed once, in whatever order they commit.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rmq_formats.errors import StoreError
from rmq_formats.lakehouse.once import ATTEMPTS, OnceTable
from rmq_formats.spark.delta import CONFLICTS

_SETTINGS = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")


def upsert(
    spark: SparkSession, table: OnceTable, rows: Callable[[int], DataFrame], key: Sequence[str], end: int
) -> None:
    """Merge what is owed of the records that begin before ``end``, and set the transaction's version, in one commit.

    Args:
        spark: the session.
        table: where to.
        rows: of a physical offset or behind it, with the table's columns.
        key: names of columns, none of which is null in a row.
        end: physical offset, exclusive.

    Raises:
        StoreError: other writers were faster each time.
    """
    offset = table.offset
    for _ in range(ATTEMPTS):
        landed = table.exported_end()
        if end <= landed:
            return
        frame = rows(landed)
        every = F.struct(*(F.col(f"`{name}`") for name in frame.columns))
        last = frame.groupBy(*(F.col(f"`{name}`") for name in key)).agg(F.max_by(every, offset).alias("row"))
        same = " AND ".join(f"there.`{name}` = here.`{name}`" for name in key)
        merge = (
            DeltaTable.forPath(spark, table.path)
            .alias("there")
            .merge(last.select("row.*").alias("here"), same)
            .withSchemaEvolution()
            .whenMatchedUpdateAll(f"here.`{offset}` > there.`{offset}`")
            .whenNotMatchedInsertAll()
        )
        try:
            with _transaction(spark, table.app_id, end):
                merge.execute()
        except CONFLICTS:
            continue
        return
    raise StoreError(f"{table.path}: other writers were faster {ATTEMPTS} times; nothing was written")


@contextmanager
def _transaction(spark: SparkSession, app_id: str, version: int) -> Iterator[None]:
    """Have the session's next commands set a transaction's version, or do nothing if it is set already."""
    for name, value in zip(_SETTINGS, (app_id, str(version)), strict=True):
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in _SETTINGS:
            spark.conf.unset(name)
