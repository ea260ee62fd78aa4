"""Keys and values of a ConsumeQueue in RocksDB.

Source: ``RocksDBConsumeQueueTable``, ``RocksDBConsumeQueueOffsetTable``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.errors import DecodeError

UNITS_FAMILY: Final = "default"
OFFSETS_FAMILY: Final = "offset"
MAX: Final = b"max"
MIN: Final = b"min"

UNIT_VALUE_DTYPE: Final = np.dtype(
    [("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8"), ("store_timestamp", ">i8")]
)
UNIT_VALUE_BYTES: Final = 28
assert UNIT_VALUE_DTYPE.itemsize == UNIT_VALUE_BYTES

_SEPARATOR: Final = b"\x01"
_INT: Final = Struct(">i")
_LONG: Final = Struct(">q")
_BOUND: Final = Struct(">qq")
_OFFSET_BYTES: Final = _LONG.size
_QUEUE_BYTES: Final = 1 + _INT.size + 1  # behind the topic, with both separators


@dataclass(frozen=True, slots=True)
class QueueBound:
    """Value of a ``max`` or ``min`` key: the last or the first unit of a queue."""

    physical_offset: int
    queue_offset: int

    def encode(self) -> bytes:
        """Return the value's bytes."""
        return _BOUND.pack(self.physical_offset, self.queue_offset)

    @classmethod
    def decode(cls, value: bytes) -> "QueueBound":
        """Decode a value. Raises DecodeError."""
        if len(value) != _BOUND.size:
            raise DecodeError("a value of RocksDB that is no bound", expected=_BOUND.size, actual=len(value))
        return cls(*_BOUND.unpack(value))


def topic_prefix(topic: str) -> bytes:
    """Return the prefix that the keys of a topic's units have, and no other keys."""
    data = topic.encode()
    return _INT.pack(len(data)) + _SEPARATOR + data + _SEPARATOR


def queue_prefix(topic: str, queue_id: int) -> bytes:
    """Return the prefix of the keys of a queue's units; the queue offset follows."""
    return topic_prefix(topic) + _INT.pack(queue_id) + _SEPARATOR


def unit_key(topic: str, queue_id: int, queue_offset: int) -> bytes:
    """Return the key of a unit."""
    return queue_prefix(topic, queue_id) + _LONG.pack(queue_offset)


def key_after_queue(prefix: bytes) -> bytes:
    """Return a key after all keys of a queue, and before the keys of the next queue."""
    return prefix[:-1] + b"\x02"


def split_unit_key(key: bytes) -> tuple[str, int, bytes]:
    """Split the key of a unit: topic, queue id, and the prefix of its queue. Raises DecodeError."""
    prefix, offset = key[:-_OFFSET_BYTES], key[-_OFFSET_BYTES:]
    topic = prefix[_INT.size + 1 : -_QUEUE_BYTES]
    name, queue_id = topic.decode("utf-8", "replace"), prefix[-_QUEUE_BYTES + 1 : -1]
    is_whole = len(offset) == _OFFSET_BYTES and len(queue_id) == _INT.size
    if not is_whole or prefix != _INT.pack(len(topic)) + _SEPARATOR + topic + _SEPARATOR + queue_id + _SEPARATOR:
        raise DecodeError("a bad key of a ConsumeQueue in RocksDB", actual=key.hex())
    return name, int(_INT.unpack(queue_id)[0]), prefix


def bound_key(topic: str, queue_id: int, which: bytes = MAX) -> bytes:
    """Return the key of a queue's ``max`` or ``min``, in family ``offset``."""
    return topic_prefix(topic) + which + _SEPARATOR + _INT.pack(queue_id)


def split_bound_key(key: bytes) -> tuple[str, int, bytes] | None:
    """Split a key of family ``offset``: topic, queue id, and ``MAX`` or ``MIN``; None for a key of another form."""
    topic_end = _INT.size + 1 + int.from_bytes(key[: _INT.size], "big")
    topic, which, queue_id = key[_INT.size + 1 : topic_end], key[topic_end + 1 : -_INT.size - 1], key[-_INT.size :]
    name = topic.decode("utf-8", "replace")
    if which not in {MAX, MIN} or key != bound_key(name, int(_INT.unpack(queue_id)[0]), which):
        return None
    return name, int(_INT.unpack(queue_id)[0]), which


CHECKPOINT_KEY: Final = bound_key("CHECKPOINT_TOPIC", 0)


def encode_checkpoint(physical_offset: int) -> bytes:
    """Return the value of ``CHECKPOINT_KEY``: one past the last record that was dispatched."""
    return _LONG.pack(physical_offset)


def decode_checkpoint(value: bytes) -> int:
    """Decode the value of ``CHECKPOINT_KEY``. Raises DecodeError."""
    if len(value) != _LONG.size:
        raise DecodeError("a checkpoint of RocksDB of another size", expected=_LONG.size, actual=len(value))
    return int(_LONG.unpack(value)[0])


def decode_units(
    prefix: bytes, keys: Sequence[bytes], values: Sequence[bytes]
) -> tuple[NDArray[np.int64], NDArray[np.void]]:
    """Decode units of one queue. Raises DecodeError if a key or a value has another size.

    Returns:
        Queue offsets, int64[n], ascending as unsigned numbers, and the units, UNIT_VALUE_DTYPE[n].
    """
    key_bytes = len(prefix) + _OFFSET_BYTES
    for what, texts, size in (("key", keys, key_bytes), ("value", values, UNIT_VALUE_BYTES)):
        sizes = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        bad = np.flatnonzero(sizes != size)
        if len(bad):
            bad_text = texts[int(bad[0])]
            raise DecodeError(f"a {what} of RocksDB of another size", expected=size, actual=f"{len(bad_text)} bytes")
    dtype = np.dtype([("prefix", f"V{len(prefix)}"), ("queue_offset", ">i8")])
    offsets = np.frombuffer(b"".join(keys), dtype=dtype)["queue_offset"].astype(np.int64)
    return offsets, np.frombuffer(b"".join(values), dtype=UNIT_VALUE_DTYPE)


def encode_units(prefix: bytes, queue_offsets: NDArray[np.int64], units: NDArray[np.void]) -> tuple[bytes, bytes]:
    """Encode UNIT_VALUE_DTYPE[n] of one queue: all keys concatenated, and all values concatenated."""
    keys = np.empty(len(queue_offsets), dtype=np.dtype([("prefix", f"V{len(prefix)}"), ("queue_offset", ">i8")]))
    keys["prefix"] = np.void(prefix)
    keys["queue_offset"] = queue_offsets
    return keys.tobytes(), units.tobytes()
