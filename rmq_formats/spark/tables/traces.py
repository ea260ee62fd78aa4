"""DataFrame of a store's message traces: a row for each send, each listener call, each end of a transaction.

``rmq_formats.codecs.trace`` decodes single records, and is the oracle.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rmq_formats.codecs.trace import FIELD_END, NULL, RECORD_END, TRACE_TOPIC, ContextCode, MessageType, TraceType

_PUB, _BEFORE, _AFTER = TraceType.PUB.value, TraceType.SUB_BEFORE.value, TraceType.SUB_AFTER.value
_ENDED, _RECALL = TraceType.END_TRANSACTION.value, TraceType.RECALL.value
_SOURCE_COLUMNS: Final = "queue_id,queue_offset,physical_offset,body,store_timestamp,born_host,cluster,broker_name"
_OLD_PUB_FIELDS: Final = 13  # with the type, without the offset message id
# Number of each field in the records of a type, where the type is field 0; see ``TraceDataEncoder``.
_FIELD_NUMBERS: Final[Mapping[str, Mapping[str, int]]] = {
    "timestamp": {_PUB: 1, _BEFORE: 1, _AFTER: 7, _ENDED: 1, _RECALL: 1},
    "region_id": {_PUB: 2, _BEFORE: 2, _ENDED: 2, _RECALL: 2},
    "group": {_PUB: 3, _BEFORE: 3, _AFTER: 8, _ENDED: 3, _RECALL: 3},
    "topic": {_PUB: 4, _ENDED: 4, _RECALL: 4},
    "msg_id": {_PUB: 5, _BEFORE: 5, _AFTER: 2, _ENDED: 5, _RECALL: 5},
    "tags": {_PUB: 6, _ENDED: 6},
    "keys": {_PUB: 7, _BEFORE: 7, _AFTER: 5, _ENDED: 7},
    "store_host": {_PUB: 8, _ENDED: 8},
    "body_bytes": {_PUB: 9},
    "cost_ms": {_PUB: 10, _AFTER: 3},
    "message_type": {_PUB: 11, _ENDED: 9},
    "offset_msg_id": {_PUB: 12},
    "success": {_PUB: 13, _AFTER: 4, _RECALL: 6},
    "request_id": {_BEFORE: 4, _AFTER: 1},
    "retry_times": {_BEFORE: 6},
    "context": {_AFTER: 6},
    "transaction_id": {_ENDED: 10},
    "transaction_state": {_ENDED: 11},
    "from_check": {_ENDED: 12},
}


def traces(
    spark: SparkSession, store: str | list[str], view: str | None = None, topic: str = TRACE_TOPIC, **options: str
) -> DataFrame:
    """Read the trace records of a store, a row each.

    Columns: ``trace_type`` (``Pub``, ``SubBefore``, ``SubAfter``, ``EndTransaction``, ``Recall``), ``timestamp``
    (of the begin; for ``SubAfter`` of the listener's return), ``group``, ``topic``, ``msg_id``, ``tags``, ``keys``,
    ``store_host``, ``client_host``, ``region_id``, ``body_bytes``, ``cost_ms``, ``message_type``, ``offset_msg_id``,
    ``success``, ``request_id`` (shared by ``SubBefore`` and ``SubAfter`` of a call), ``retry_times``, ``context``
    (result of a call), ``transaction_id``, ``transaction_state``, ``from_check``, ``store_timestamp`` and
    ``physical_offset`` of the trace message, and the broker's ``cluster`` and ``broker_name``. Fields that a type lacks
    and bad numbers are null; calls of listeners have no topic.

    Args:
        spark: a session with the sources, as of ``rmq_formats.spark.session``.
        store: path or URI, pattern, TOML file, or a list of these.
        view: name of a temporary view to create for SQL.
        topic: topic of the traces.
        **options: more of the source ``rmq_commitlog``, such as ``splitBytes``.
    """
    source_options = {"subscribe": topic, "columns": _SOURCE_COLUMNS, "decompress": "true"}
    messages = spark.read.format("rmq_commitlog").options(**options, **source_options).load(store)
    text = F.explode(F.split(F.make_valid_utf8(F.col("body").cast("string")), RECORD_END, -1)).alias("text")
    records = messages.select("*", text).select("*", F.split("text", FIELD_END, -1).alias("fields"))
    table = records.where(_field(0).isin([trace_type.value for trace_type in TraceType])).select(*_columns())
    if view is not None:
        table.createOrReplaceTempView(view)
    return table


def _field(number: int) -> Column:
    return F.get("fields", F.lit(number))


def _text(name: str) -> Column:
    """Select a field by name; null for types without the field."""
    column = F.lit(None).cast("string")
    for kind, number in _FIELD_NUMBERS[name].items():
        column = F.when(_field(0) == kind, F.nullif(_field(number), F.lit(NULL))).otherwise(column)
    return column


def _member_name(name: str, members: type[IntEnum]) -> Column:
    names = [F.lit(member.name.lower()) for member in members]
    return F.get(F.array(*names), _text(name).try_cast("int")).alias(name)


def _columns() -> list[Column]:
    is_old = (_field(0) == _PUB) & (F.size("fields") == _OLD_PUB_FIELDS)
    success = F.when(is_old, _field(_OLD_PUB_FIELDS - 1)).otherwise(_text("success"))
    millis = _text("timestamp").try_cast("long")
    plain = ("group", "topic", "msg_id", "tags", "keys", "store_host")
    return [
        _field(0).alias("trace_type"),
        F.when(millis > 0, F.timestamp_millis(millis)).alias("timestamp"),
        *(_text(name).alias(name) for name in plain),
        F.col("born_host").alias("client_host"),
        _text("region_id").alias("region_id"),
        _text("body_bytes").try_cast("int").alias("body_bytes"),
        _text("cost_ms").try_cast("int").alias("cost_ms"),
        _member_name("message_type", MessageType),
        F.when(~is_old, _text("offset_msg_id")).alias("offset_msg_id"),
        (success == "true").alias("success"),
        _text("request_id").alias("request_id"),
        _text("retry_times").try_cast("int").alias("retry_times"),
        _member_name("context", ContextCode),
        _text("transaction_id").alias("transaction_id"),
        _text("transaction_state").alias("transaction_state"),
        (_text("from_check") == "true").alias("from_check"),
        F.col("store_timestamp"),
        F.col("physical_offset"),
        F.col("cluster"),
        F.col("broker_name"),
    ]
