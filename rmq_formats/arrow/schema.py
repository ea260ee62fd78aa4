"""Schemas of the Arrow columns and the read modes for damage; imports no kernels."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import pyarrow as pa

from rmq_formats.errors import OptionError

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")  # null outside of Spark's years 1 to 9999
COMMITLOG: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("physical_offset", pa.int64()),
        ("size", pa.int32()),
        ("tags", pa.string()),
        ("keys", pa.list_(pa.field("element", pa.string()))),
        ("uniq_key", pa.string()),
        ("msg_id", pa.string()),
        ("body", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("store_timestamp", TIMESTAMP),
        ("born_timestamp", TIMESTAMP),
        ("born_host", pa.string()),
        ("store_host", pa.string()),
        ("flag", pa.int32()),
        ("sys_flag", pa.int32()),
        ("reconsume_times", pa.int32()),
        ("prepared_transaction_offset", pa.int64()),
        ("body_crc", pa.int32()),
        ("version", pa.int32()),
        ("record_error", pa.string()),
    ]
)
CONSUMEQUEUE: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("physical_offset", pa.int64()),
        ("size", pa.int32()),
        ("tags_code", pa.int64()),
        ("batch_size", pa.int32()),
    ]
)
CLUSTER: Final = "cluster"  # columns of reads of several brokers
BROKER_NAME: Final = "broker_name"
INDEX: Final = pa.schema(
    [
        ("index_file", pa.string()),
        ("entry", pa.int32()),
        ("slot", pa.int32()),
        ("key_hash", pa.int32()),
        ("physical_offset", pa.int64()),
        ("store_timestamp", TIMESTAMP),
        ("previous_entry", pa.int32()),
    ]
)


def _column(name: str, kind: pa.DataType, comment: str) -> pa.Field:
    """Make a field with the comment that a table's description shows."""
    return pa.field(name, kind, metadata={"comment": comment})


_BROKER: Final = (
    _column(CLUSTER, pa.string(), "the broker's cluster; null where nothing tells it"),
    _column(BROKER_NAME, pa.string(), "the broker's name"),
)
_ATTRIBUTES: Final = pa.map_(pa.string(), pa.string())
CONSUMER_OFFSETS: Final = pa.schema(
    [
        *_BROKER,
        _column("group", pa.string(), "the consumer group"),
        _column("topic", pa.string(), "the topic; %RETRY%GROUP has what the group failed on"),
        _column("queue_id", pa.int32(), "number of the queue at the broker"),
        _column("min_offset", pa.int64(), "queue offset of the first message that is still stored"),
        _column("committed_offset", pa.int64(), "queue offset of the next message for the group; null if it has none"),
        _column("max_offset", pa.int64(), "queue offset that the next new message will get"),
        _column("lag_messages", pa.int64(), "max_offset - committed_offset (0 if there is none); never below 0"),
        _column("lag_seconds", pa.float64(), "max_timestamp - next_timestamp; 0 if nothing waits, null if unknown"),
        _column("next_timestamp", TIMESTAMP, "store time of the next message for the group; null if nothing waits"),
        _column("max_timestamp", TIMESTAMP, "store time of the queue's newest message; null if nothing waits"),
    ]
)
TOPICS: Final = pa.schema(
    [
        *_BROKER,
        _column("topic", pa.string(), "the topic"),
        _column("read_queue_nums", pa.int32(), "queues that consumers see"),
        _column("write_queue_nums", pa.int32(), "queues that producers see"),
        _column("perm", pa.int32(), "permissions: 4 read, 2 write, 1 inherit, 8 priority, added"),
        _column("topic_filter_type", pa.string(), "SINGLE_TAG or MULTI_TAG"),
        _column("topic_sys_flag", pa.int32(), "1 unit, 2 unit-sub, added"),
        _column("order", pa.bool_(), "whether it is an ordered topic"),
        _column("attributes", _ATTRIBUTES, "attributes, such as message.type"),
    ]
)
GROUPS: Final = pa.schema(
    [
        *_BROKER,
        _column("group", pa.string(), "the consumer group"),
        _column("consume_enable", pa.bool_(), "whether it may consume"),
        _column("consume_from_min_enable", pa.bool_(), "whether a new member may begin with the first message"),
        _column("consume_broadcast_enable", pa.bool_(), "whether its members may each get every message"),
        _column("consume_message_orderly", pa.bool_(), "whether it consumes in order"),
        _column("retry_queue_nums", pa.int32(), "queues of its retry topic"),
        _column("retry_max_times", pa.int32(), "deliveries again of a message, before it becomes a dead letter"),
        _column("consume_timeout_minute", pa.int32(), "minutes that a listener may take for a message"),
        _column("group_sys_flag", pa.int32(), "flags of the group, added"),
        _column("attributes", _ATTRIBUTES, "attributes of the group"),
    ]
)
TIMERS: Final = pa.schema(
    [
        *_BROKER,
        _column("deliver_timestamp", TIMESTAMP, "start of the interval after which it is delivered"),
        _column("topic", pa.string(), "where it is delivered to"),
        _column("queue_id", pa.int32(), "queue of that topic"),
        _column("uniq_key", pa.string(), "the producer's id of the message"),
        _column("physical_offset", pa.int64(), "place of its record in the CommitLog, in bytes"),
        _column("size", pa.int32(), "size of its record, in bytes"),
        _column("store_timestamp", TIMESTAMP, "when it was stored"),
        _column("rolls", pa.bool_(), "whether it is stored again before it is delivered"),
        _column("is_recalled", pa.bool_(), "whether a recall of it is stored"),
        _column("is_taken_in", pa.bool_(), "whether timerlog has a unit of it"),
    ]
)


class Mode(StrEnum):
    """Read mode for damaged ranges, under Spark's names."""

    PERMISSIVE = "PERMISSIVE"  # a row with record_error
    DROPMALFORMED = "DROPMALFORMED"  # left out
    FAILFAST = "FAILFAST"  # an error


def schema_of(columns: Sequence[str], schema: pa.Schema = COMMITLOG) -> pa.Schema:
    """Select columns of an Arrow schema in order. Raises OptionError: an unknown or repeated column, or no column."""
    for name in columns:
        if name not in schema.names:
            raise OptionError(f"unknown column {name!r}; there are {', '.join(schema.names)}")
    if not columns or len(set(columns)) < len(columns):
        raise OptionError("columns must name at least one, and none twice")
    return pa.schema([schema.field(name) for name in columns])
