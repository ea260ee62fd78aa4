"""Codecs of BatchConsumeQueue, the queue of a topic with ``queue.type=BatchCQ``, and of the inner batches it points to.

::

    unit of a record   0               8    12        20         28          36          38        42       46
                       physical_offset size tags_code store_time base_offset batch_size compacted reserved
    inner message      0    4     8        12   16
                       size magic body_crc flag body_bytes body properties_bytes(2) properties

A record is one message, or an inner batch: its body has several messages, as the client that sent them encoded them.
Source: ``BatchConsumeQueue``, ``MessageDecoder#decodeMessages``, ``#decodeMessage``, ``#countInnerMsgNum``.
docs/formats/batchconsumequeue.md
"""

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.layout import BATCH_UNIT_BYTES, FLAG_INNER_BATCH
from rmq_formats.codecs.properties import decode_properties, raw_property
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.errors import FormatError

BATCH_UNIT: Final = Struct(">qiqqqhii")
BATCH_HEAD_BYTES: Final = 2 * BATCH_UNIT_BYTES  # enough to tell such a file from a ConsumeQueue's
NOT_COMPACTED: Final = -1

BATCH_UNIT_DTYPE: Final = np.dtype([
    ("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8"), ("store_timestamp", ">i8"),
    ("base_offset", ">i8"), ("batch_size", ">i2"), ("compacted_offset", ">i4"), ("reserved", ">i4"),
])  # fmt: skip
assert BATCH_UNIT_DTYPE.itemsize == BATCH_UNIT.size == BATCH_UNIT_BYTES


END_UNIT: Final = b"\xff" * 8 + bytes(30) + b"\xff" * 4 + bytes(4)  # SparseConsumeQueue#putEndPositionInfo
assert len(END_UNIT) == BATCH_UNIT_BYTES
_HEAD: Final = Struct(">iiiii")
_PROPERTIES_BYTES: Final = Struct(">h")


def used_count(units: NDArray[np.void]) -> int:
    """Count the units before the unit that marks the queue's end for RocketMQ."""
    ends = (units["physical_offset"] < 0) | (units["size"] <= 0) | (units["base_offset"] < 0)
    ends |= units["batch_size"] <= 0
    end_rows = np.flatnonzero(ends)
    return int(end_rows[0]) if len(end_rows) else len(units)


def split_file(data: bytes | NDArray[np.uint8]) -> tuple[NDArray[np.void], NDArray[np.uint8]]:
    """Split a file's bytes into the units in use, BATCH_UNIT_DTYPE[n], and the bytes after the units, uint8[m].

    Zeros at the file's end may be left out.
    """
    file_bytes = np.frombuffer(data, dtype=np.uint8)
    whole = np.concatenate([file_bytes, np.zeros(-len(file_bytes) % BATCH_UNIT_BYTES, dtype=np.uint8)])
    units = whole.view(BATCH_UNIT_DTYPE)
    used = used_count(units)
    return units[:used], whole[used * BATCH_UNIT_BYTES :]


def is_end(behind: NDArray[np.uint8]) -> bool:
    """Return whether bytes after the last unit are zeros, or a compacted topic's end mark and zeros."""
    return behind.tobytes().rstrip(b"\0") in {b"", END_UNIT.rstrip(b"\0")}


def batch_units(
    physical_offsets: NDArray[Any],
    sizes: NDArray[Any],
    tags_codes: NDArray[Any],
    timestamps_ms: NDArray[Any],
    base_offsets: NDArray[Any],
    batch_sizes: NDArray[Any],
) -> NDArray[np.void]:
    """Make the units of one queue out of columns, int64[n] each, in log order."""
    units = np.zeros(len(physical_offsets), dtype=BATCH_UNIT_DTYPE)
    units["physical_offset"], units["size"], units["tags_code"] = physical_offsets, sizes, tags_codes
    units["store_timestamp"], units["base_offset"], units["batch_size"] = timestamps_ms, base_offsets, batch_sizes
    units["compacted_offset"] = NOT_COMPACTED
    return units


def batch_images(units: NDArray[np.void], file_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Build the files of one queue: start offset in bytes, and the used bytes without the zeros after them."""
    per_file = file_bytes // BATCH_UNIT_BYTES
    for begin in range(0, len(units), per_file):
        yield begin * BATCH_UNIT_BYTES, units[begin : begin + per_file].tobytes()


def is_batch_queue_file(head: bytes) -> bool:
    """Return whether a file's first bytes are a BatchConsumeQueue's; no two ConsumeQueue units have such bytes."""
    if len(head) < BATCH_HEAD_BYTES:
        return False
    units = np.frombuffer(head, dtype=BATCH_UNIT_DTYPE, count=2)
    first, second = units
    if not _is_written(first):
        return False
    return not any(second.tolist()) or (
        _is_written(second) and bool(second["base_offset"] >= first["base_offset"] + first["batch_size"])
    )


def _is_written(unit: np.void) -> bool:
    is_unit = unit["physical_offset"] >= 0 and unit["size"] > 0 and unit["store_timestamp"] > 0
    is_unit = is_unit and unit["base_offset"] >= 0 and unit["batch_size"] > 0
    return bool(is_unit and unit["compacted_offset"] == NOT_COMPACTED and unit["reserved"] == 0)


@dataclass(frozen=True, slots=True)
class InnerMessage:
    """One message of an inner batch; what it lacks (topic, hosts, times) is its record's."""

    queue_offset: int
    flag: int
    properties: dict[str, str]
    body: bytes


def is_inner_batch(message: StoredMessage) -> bool:
    """Return whether a record contains several messages: by its flag and its body (a repair's filler has the flag)."""
    return bool(message.sys_flag & FLAG_INNER_BATCH and raw_property(message.properties_bytes, b"INNER_BASE"))


def inner_messages(message: StoredMessage) -> list[InnerMessage]:
    """Decode the messages of an inner batch. Raises FormatError if a length in the body does not fit."""
    messages: list[InnerMessage] = []
    at, body = 0, message.body
    while at < len(body):
        end = at + _HEAD.size
        size, _, _, flag, body_bytes = _HEAD.unpack_from(body.ljust(end, b"\0"), at)
        body_end = end + body_bytes
        if end > len(body) or body_bytes < 0 or body_end + _PROPERTIES_BYTES.size > len(body):
            raise _error(message, at)
        properties_at = body_end + _PROPERTIES_BYTES.size
        properties_bytes = _PROPERTIES_BYTES.unpack_from(body, body_end)[0]
        next_at = properties_at + properties_bytes
        if properties_bytes < 0 or next_at > len(body) or next_at - at != size:
            raise _error(message, at)
        properties = decode_properties(body[properties_at:next_at])
        messages.append(InnerMessage(message.queue_offset + len(messages), flag, properties, body[end:body_end]))
        at = next_at
    return messages


def count_messages(batch: bytes, most: int) -> int:
    """Count the messages of a client's batch; 0 if a length in the batch is wrong. Stop at the one after ``most``."""
    count = at = 0
    while at < len(batch) and count <= most:
        body_at = at + _HEAD.size
        if body_at > len(batch):
            return 0
        size, _, _, _, body_bytes = _HEAD.unpack_from(batch, at)
        properties_at = body_at + body_bytes + _PROPERTIES_BYTES.size
        if body_bytes < 0 or properties_at > len(batch):
            return 0
        next_at = properties_at + _PROPERTIES_BYTES.unpack_from(batch, properties_at - _PROPERTIES_BYTES.size)[0]
        if not properties_at <= next_at <= len(batch) or next_at - at != size:
            return 0
        count += 1
        at = next_at
    return count


def _error(message: StoredMessage, at: int) -> FormatError:
    return FormatError(
        f"an inner batch whose message at byte {at} of the body has a length that lies", message.physical_offset
    )
