"""DataFrame of the pending timer messages of a store."""

from pyspark.sql import DataFrame, SparkSession

import rmq_formats.pending_timers


def pending_timers(spark: SparkSession, store: str, view: str | None = None) -> DataFrame:
    """Read the pending timer messages of a store; columns as of ``rmq_formats.pending_timers.pending_timers``.

    Args:
        spark: a session.
        store: directory of the store.
        view: name of a temporary view to create for SQL.

    Raises:
        StoreNotFoundError: there is no store, or no CommitLog in it.
    """
    table = spark.createDataFrame(rmq_formats.pending_timers.pending_timers(store))
    if view is not None:
        table.createOrReplaceTempView(view)
    return table
