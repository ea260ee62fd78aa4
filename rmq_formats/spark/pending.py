"""Timer messages that wait, as a DataFrame."""

from pyspark.sql import DataFrame, SparkSession

from rmq_formats import pending


def pending_timers(spark: SparkSession, store: str, view: str | None = None) -> DataFrame:
    """The timer messages of a store that wait; columns as ``rmq_formats.pending.pending_timers`` gives them.

    Args:
        spark: a session.
        store: directory of the store.
        view: the name of a temporary view to make of it, for SQL.

    Raises:
        StoreNotFoundError: there is no store, or no CommitLog in it.
    """
    table = spark.createDataFrame(pending.pending_timers(store))
    if view is not None:
        table.createOrReplaceTempView(view)
    return table
