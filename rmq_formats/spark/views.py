"""Temporary views for SQL of all tables of stores, in one call."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE_VIEWS: Final = {
    "messages": "rmq_commitlog",
    "consumequeue": "rmq_consumequeue",
    "message_index": "rmq_index",
    "consumer_offsets": "rmq_offsets",
    "topics": "rmq_topics",
    "consumer_groups": "rmq_groups",
    "timers": "rmq_timers",
}
NARROW_VIEWS: Final = ("message_headers", "message_positions")
VIEWS: Final = (*SOURCE_VIEWS, *NARROW_VIEWS, "transactions", "traces")
_LARGE: Final = ("body", "properties")
_NO_TEXT: Final = "\x01"  # names no topic, file or cluster
_POSITIONS: Final = (
    "topic", "queue_id", "queue_offset", "physical_offset", "size", "store_timestamp", "cluster", "broker_name",
)  # fmt: skip


def create_views(spark: "SparkSession", store: str | Sequence[str], prefix: str = "") -> tuple[str, ...]:
    """Create a temporary view of each table of a store, or of several stores; views of these names are replaced.

    Each query is planned when a view is selected from, and sees the messages of that time. A table that cannot be read
    from a store's layout is an error of the query.

    Args:
        spark: a session with the sources, as of ``rmq_formats.spark.session``.
        store: path or URI, pattern, TOML file, or a list of these, as for ``load()``.
        prefix: of each name, for a session with views of several clusters.

    Returns:
        The views' names: ``messages``, ``consumequeue``, ``message_index``, ``consumer_offsets``, ``topics``,
        ``consumer_groups``, ``timers``, ``message_headers``, ``message_positions``, ``transactions``, ``traces``.
    """
    from rmq_formats.spark.tables.traces import traces  # noqa: PLC0415 # pyspark, as the next
    from rmq_formats.spark.tables.transactions import transactions  # noqa: PLC0415

    stores = store if isinstance(store, str) else list(store)
    for name, source in SOURCE_VIEWS.items():
        _create_view(spark.read.format(source).load(stores), prefix + name)
    columns = spark.table(f"{prefix}messages").columns
    narrow = {
        "message_headers": [name for name in columns if name not in _LARGE],
        "message_positions": [name for name in columns if name in _POSITIONS],
    }
    for name, names in narrow.items():
        reader = spark.read.format("rmq_commitlog").option("columns", ",".join(names))
        _create_view(reader.load(stores), prefix + name)
    transactions(spark, stores, view=f"{prefix}transactions")
    traces(spark, stores, view=f"{prefix}traces")
    return tuple(prefix + name for name in VIEWS)


def _create_view(frame: "DataFrame", name: str) -> None:
    """Create a view whose queries are planned anew: Spark caches the plan of a load for queries without a condition.

    The condition is true for each row, and of a kind that Spark pushes down to sources in Python.
    """
    frame.where(f"NOT `{frame.columns[0]}` <=> '{_NO_TEXT}'").createOrReplaceTempView(name)
