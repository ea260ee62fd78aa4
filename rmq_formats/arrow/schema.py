"""Schemas of the Arrow columns and the read modes for damage; light to import, without kernels."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import pyarrow as pa

from rmq_formats.errors import OptionError

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")  # null where Spark has no year for it: before 1, after 9999
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
    ]
)
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


class Mode(StrEnum):
    """Read mode: what becomes of a damaged stretch; Spark's names for it."""

    PERMISSIVE = "PERMISSIVE"  # a row with record_error
    DROPMALFORMED = "DROPMALFORMED"  # left out
    FAILFAST = "FAILFAST"  # an error


def schema_of(columns: Sequence[str], schema: pa.Schema = COMMITLOG) -> pa.Schema:
    """Select columns of an Arrow schema, in the order given.

    Raises:
        OptionError: an unknown column, one that comes twice, or none at all.
    """
    for name in columns:
        if name not in schema.names:
            raise OptionError(f"unknown column {name!r}; there are {', '.join(schema.names)}")
    if not columns or len(set(columns)) < len(columns):
        raise OptionError("columns must name at least one, and none twice")
    return pa.schema([schema.field(name) for name in columns])
