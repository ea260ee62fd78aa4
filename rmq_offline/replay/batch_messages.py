"""Encodes rows of the CommitLog as batch messages: body, flag and properties unchanged, with their origin.

A body that its producer compressed is sent as it is stored, under the same bits of the sys_flag. Properties that the
old broker has set are dropped: the new one sets its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_formats.arrow.messages import (
    SET_BY_BROKERS,
    chunks_by_lane,
    encode_messages,
    encode_property_maps,
    join,
    lengths,
    property_entries,
)
from rmq_formats.arrow.sql_filter import distinct_rows
from rmq_formats.codecs.layout import FLAG_COMPRESSED, FLAG_COMPRESSION_MASK, MAX_BODY_BYTES, MAX_PROPERTIES_BYTES

ORIGIN: Final = "RMQ_ORIGIN"  # the property that identifies a message sent twice
COLUMNS: Final = (
    "topic",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "size",
    "body",
    "properties",
    "flag",
    "sys_flag",
    "record_error",
)
_COPIED_FLAGS: Final = FLAG_COMPRESSED | FLAG_COMPRESSION_MASK
_BROKER_BYTES: Final = 1024  # of properties that the new broker adds: region, trace, cluster


@dataclass(frozen=True, slots=True)
class Origin:
    """Identity of a store's messages in the property RMQ_ORIGIN.

    Attributes:
        by_queue: whether TOPIC/QUEUE/OFFSET, as in a tier, or the physical offset identifies a message.
    """

    store_id: str
    by_queue: bool = False

    def places(self, rows: pa.RecordBatch) -> tuple[pa.Array, ...]:
        """Return binary columns, each of a row's length, which join to STORE@PLACE."""
        store = _repeat(f"{self.store_id}@", rows.num_rows)
        if not self.by_queue:
            return store, _text(rows["physical_offset"])
        slash = _repeat("/", rows.num_rows)
        topic = pc.cast(pc.cast(rows["topic"], pa.string()), pa.binary())
        return store, topic, slash, _text(rows["queue_id"]), slash, _text(rows["queue_offset"])


@dataclass(frozen=True, slots=True)
class QueueBatch:
    """Batch of messages of one queue of the store, encoded as a batch request carries them."""

    topic: str
    queue_id: int
    sys_flag: int
    data: memoryview
    messages: int


@dataclass(frozen=True, slots=True)
class EncodedBatches:
    """Encoded messages of a batch of rows; ``refused`` rows are without a body, or too large for a broker."""

    batches: list[QueueBatch]
    messages: int
    record_bytes: int
    refused: int


def encode_rows(rows: pa.RecordBatch, origin: Origin, batch_bytes: int) -> EncodedBatches:
    """Encode sound records, with the columns COLUMNS, as batch messages by queue, in order within each queue.

    A batch has at most ``batch_bytes``, unless a single message has more.
    """
    properties = join(
        encode_property_maps(rows["properties"], (*SET_BY_BROKERS, ORIGIN)),
        property_entries(ORIGIN, join(*origin.places(rows))),
    )
    body_bytes, property_bytes = lengths(rows["body"]), lengths(properties)
    is_sendable = (body_bytes > 0) & (property_bytes <= MAX_PROPERTIES_BYTES - _BROKER_BYTES)
    is_sendable &= body_bytes + property_bytes <= MAX_BODY_BYTES - 64  # a batch is one body to a broker
    refused = int(rows.num_rows - is_sendable.sum())
    if refused:
        sendable = pa.array(is_sendable)
        rows, properties = rows.filter(sendable), properties.filter(sendable)
    messages = encode_messages(rows["body"], properties, np.asarray(rows["flag"]))
    batches = list(_batches(rows, messages, batch_bytes))
    return EncodedBatches(batches, rows.num_rows, pc.sum(rows["size"]).as_py() or 0, refused)


def _batches(rows: pa.RecordBatch, messages: pa.BinaryArray, batch_bytes: int) -> Iterator[QueueBatch]:
    _, lanes = distinct_rows([rows["topic"], rows["queue_id"]], rows.num_rows)
    kinds: NDArray[np.int32] = np.asarray(rows["sys_flag"]) & np.int32(_COPIED_FLAGS)
    for row, data, count in chunks_by_lane(messages, lanes, batch_bytes, kinds):
        yield QueueBatch(rows["topic"][row].as_py(), rows["queue_id"][row].as_py(), int(kinds[row]), data, count)


def _repeat(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text.encode(), pa.binary()), count)


def _text(numbers: pa.Array) -> pa.Array:
    return pc.cast(pc.cast(numbers, pa.string()), pa.binary())
