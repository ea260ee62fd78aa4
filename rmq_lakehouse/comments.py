"""Comments of table columns: meaning and unit."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COMMENTS: Final = {
    "topic": "topic of the message",
    "queue_id": "number of the queue in its topic",
    "queue_offset": "position in the queue, in messages",
    "physical_offset": "where the record begins in the CommitLog, in bytes; one a record in a store",
    "size": "length of the record in the CommitLog, in bytes",
    "tags": "tag of the message",
    "keys": "keys that the producer gave, for queries",
    "uniq_key": "identifier that the producer's client made",
    "msg_id": "identifier of the record: the broker's address and the physical offset",
    "body": "bytes of the body, as they were sent",
    "properties": "properties of the message",
    "store_timestamp": "when the broker stored it, to the millisecond, UTC",
    "born_timestamp": "when the producer sent it, by its own clock, to the millisecond, UTC",
    "born_host": "address and port of the producer",
    "store_host": "address and port of the broker",
    "flag": "number that the producer gave",
    "sys_flag": "bits of compression, transactions and addresses, see MessageSysFlag",
    "reconsume_times": "how often it was consumed again",
    "prepared_transaction_offset": "physical offset of a transaction's half message, in bytes; else 0",
    "body_crc": "CRC32 of the body in the log",
    "cluster": "name of the broker's cluster",
    "broker_name": "name of the broker; with cluster and physical_offset it is one message",
    "version": "of the record's layout: 1, or 2 for long topics",
    "date": "day of store_timestamp, UTC",
    "hour": "hour of store_timestamp, UTC: the time at which it begins",
    "born_date": "day of born_timestamp, UTC",
    "born_hour": "hour of born_timestamp, UTC: the time at which it begins",
    "element_index": "index of the row's element in the array that the body is",
    "reason": "why the body does not decode",
}
"""By the name of a column."""


def with_comments(schema: "StructType", prefix: str = "") -> "StructType":
    """Add the comments of ``COMMENTS`` to columns without a comment, whose names begin with a prefix."""
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415 # a second to load

    fields = []
    for field in schema:
        comment = COMMENTS.get(field.name.removeprefix(prefix)) if field.name.startswith(prefix) else None
        metadata = ({} if comment is None else {"comment": comment}) | (field.metadata or {})
        fields.append(StructField(field.name, field.dataType, field.nullable, metadata))
    return StructType(fields)
