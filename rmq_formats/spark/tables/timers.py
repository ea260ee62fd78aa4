"""DataFrame of the pending timer messages of a store."""

from pyspark.sql import DataFrame, SparkSession


def pending_timers(spark: SparkSession, store: str | list[str], view: str | None = None) -> DataFrame:
    """Read the pending timer messages of a store.

    Columns: ``cluster``, ``broker_name``, and those of ``rmq_formats.pending_timers.pending_timers``.

    Args:
        spark: a session with the sources, as of ``rmq_formats.spark.session``.
        store: path, pattern, TOML file, or a list of these, on local disks.
        view: name of a temporary view to create for SQL.
    """
    table = spark.read.format("rmq_timers").load(store)
    if view is not None:
        table.createOrReplaceTempView(view)
    return table
