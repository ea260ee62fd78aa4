"""DataFrame of a store's transactions: half messages joined to their op messages and to the committed messages."""

from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rmq_formats.codecs.layout import (
    FLAG_TRANSACTION_COMMIT,
    FLAG_TRANSACTION_MASK,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
)
from rmq_formats.codecs.topics import HALF_TOPIC

_OP: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
_GIVEN_UP: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
_WAITING_COLUMNS: Final = (
    "topic,queue_id,queue_offset,physical_offset,tags,uniq_key,body,properties,store_timestamp,cluster,broker_name"
)
_COMMIT_COLUMNS: Final = (
    "topic,queue_offset,physical_offset,sys_flag,prepared_transaction_offset,store_timestamp,properties,cluster,"
    "broker_name"
)
_TRANSACTION: Final = ("transaction_id", "producer_group", "topic", "queue_id")
_BROKER: Final = "broker"  # cluster and name: a transaction is within one broker


def transactions(spark: SparkSession, store: str | list[str], view: str | None = None, **options: str) -> DataFrame:
    """Read the transactions of a store, a row each, with all half messages of a transaction.

    Columns: ``transaction_id``, ``producer_group``, ``topic`` and ``queue_id`` of the message, ``state``
    (``committed``, ``rolled_back``, ``given_up``, ``open``), ``half_messages`` (with each repetition of the first),
    ``checks`` (of the producer), ``half_physical_offset`` of the first half message, ``begin_timestamp``,
    ``end_timestamp`` (null for an open transaction), ``deliveries`` (committed records; several if a producer has
    committed twice), ``commit_physical_offset`` and ``commit_queue_offset`` of the first committed record, and the
    broker's ``cluster`` and ``broker_name``.

    Args:
        spark: a session with the sources, as of ``rmq_formats.spark.session``.
        store: path or URI, pattern, TOML file, or a list of these.
        view: name of a temporary view to create for SQL.
        **options: more of the source ``rmq_commitlog``, such as ``splitBytes``.
    """
    waiting = {"subscribePattern": f"{HALF_TOPIC}|{_OP}|{_GIVEN_UP}", "columns": _WAITING_COLUMNS}
    broker = F.struct("cluster", "broker_name").alias(_BROKER)
    waiting_records = spark.read.format("rmq_commitlog").options(**options, **waiting).load(store).select("*", broker)
    # A committed message that waited for its delay is stored as another record, which names no half message.
    is_delivered = F.col("properties")["TIMER_DEQUEUE_MS"].isNotNull()
    is_commit = (F.col("sys_flag").bitwiseAND(FLAG_TRANSACTION_MASK) == FLAG_TRANSACTION_COMMIT) & ~is_delivered
    records = spark.read.format("rmq_commitlog").options(**options, columns=_COMMIT_COLUMNS).load(store)
    commits = _commits(records.where(is_commit).select("*", broker))
    joined = (
        _half_messages(waiting_records)
        .join(_op_messages(waiting_records), [_BROKER, "half_queue_offset"], "left")
        .join(commits, [_BROKER, "half_physical_offset"], "left")
    )
    given_up = _messages_past_check_limit(waiting_records)
    table = _one_row_each(joined).join(given_up, [_BROKER, "transaction_id"], "left").select(*_columns())
    if view is not None:
        table.createOrReplaceTempView(view)
    return table


def _half_messages(records: DataFrame) -> DataFrame:
    properties = F.col("properties")
    return records.where(F.col("topic") == HALF_TOPIC).select(
        _BROKER,
        F.coalesce("uniq_key", F.col("physical_offset").cast("string")).alias("transaction_id"),
        properties[PROPERTY_PRODUCER_GROUP].alias("producer_group"),
        properties[PROPERTY_REAL_TOPIC].alias("topic"),
        properties[PROPERTY_REAL_QUEUE_ID].try_cast("int").alias("queue_id"),
        F.coalesce(properties["TRANSACTION_CHECK_TIMES"].try_cast("int"), F.lit(0)).alias("checks"),
        F.col("queue_offset").alias("half_queue_offset"),
        F.col("physical_offset").alias("half_physical_offset"),
        F.col("store_timestamp").alias("half_timestamp"),
    )


def _op_messages(records: DataFrame) -> DataFrame:
    """Read the time of the op message of each half message, by the half message's queue offset."""
    offset = F.explode(F.split(F.col("body").cast("string"), ",")).alias("offset")
    return (
        records.where((F.col("topic") == _OP) & (F.col("tags") == "d"))
        .select(_BROKER, offset, F.col("store_timestamp").alias("op_timestamp"))
        .select(_BROKER, F.col("offset").try_cast("long").alias("half_queue_offset"), "op_timestamp")
        .where(F.col("half_queue_offset").isNotNull())
        .groupBy(_BROKER, "half_queue_offset")
        .agg(F.min("op_timestamp").alias("op_timestamp"))
    )


def _commits(records: DataFrame) -> DataFrame:
    """Group committed messages by their half message."""
    commit = F.struct("physical_offset", "queue_offset", "store_timestamp")
    return records.groupBy(_BROKER, F.col("prepared_transaction_offset").alias("half_physical_offset")).agg(
        F.min(commit).alias("commit"), F.count("*").alias("commits")
    )


def _messages_past_check_limit(records: DataFrame) -> DataFrame:
    return (
        records.where(F.col("topic") == _GIVEN_UP)
        .groupBy(_BROKER, F.col("uniq_key").alias("transaction_id"))
        .agg(F.max("store_timestamp").alias("given_up_timestamp"))
    )


def _one_row_each(joined: DataFrame) -> DataFrame:
    return joined.groupBy(_BROKER, *_TRANSACTION).agg(
        F.count("*").alias("half_messages"),
        F.max("checks").alias("checks"),
        F.min("half_physical_offset").alias("half_physical_offset"),
        F.min("half_timestamp").alias("begin_timestamp"),
        F.max("op_timestamp").alias("op_timestamp"),
        F.coalesce(F.sum("commits"), F.lit(0)).alias("deliveries"),
        F.min("commit").alias("commit"),
    )


def _columns() -> list[Column]:
    is_committed = F.col("commit").isNotNull()
    has_op_message = F.col("op_timestamp").isNotNull()
    is_given_up = F.col("given_up_timestamp").isNotNull()
    state = F.when(is_committed, "committed").when(has_op_message, "rolled_back").when(is_given_up, "given_up")
    end = F.coalesce("commit.store_timestamp", "op_timestamp", "given_up_timestamp")
    return [
        *(F.col(name) for name in _TRANSACTION),
        state.otherwise("open").alias("state"),
        *(F.col(name) for name in ("half_messages", "checks", "half_physical_offset", "begin_timestamp")),
        end.alias("end_timestamp"),
        F.col("deliveries"),
        F.col("commit.physical_offset").alias("commit_physical_offset"),
        F.col("commit.queue_offset").alias("commit_queue_offset"),
        F.col(f"{_BROKER}.cluster").alias("cluster"),
        F.col(f"{_BROKER}.broker_name").alias("broker_name"),
    ]
