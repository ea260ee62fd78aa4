"""Encodes Arrow columns as the messages of a batch send request, vectorised: no Python object for a message.

::

    0      4       8     12     16          20     20+b               22+b
    +------+-------+-----+------+-----------+------+------------------+------------+
    | size | magic | CRC | flag | body size | body | properties' size | properties |
    +------+-------+-----+------+-----------+------+------------------+------------+
    magic and CRC are 0; big-endian

Source: ``MessageDecoder#encodeMessage``, ``#messageProperties2String``.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_formats.codecs.layout import (
    PROPERTY_CLUSTER,
    PROPERTY_CRC,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    PROPERTY_MSG_REGION,
    PROPERTY_TRACE_SWITCH,
)
from rmq_formats.codecs.record_layout import BATCH_FIELDS, HEAD

_HEAD: Final = np.dtype([(name, f">i{HEAD[name].width}") for name in BATCH_FIELDS])
_SHORT: Final = np.dtype(">i2")
_NAME_END: Final = b"\x01"
_VALUE_END: Final = b"\x02"
MAX_BATCH_MESSAGES: Final = 16_384  # a property block's length is a short
# Properties that the storing broker adds: old values would be repeated, or be wrong for light queues (LMQ).
SET_BY_BROKERS: Final = (
    PROPERTY_MSG_REGION, PROPERTY_TRACE_SWITCH, PROPERTY_CLUSTER, PROPERTY_CRC, PROPERTY_INNER_MULTI_QUEUE_OFFSET,
)  # fmt: skip


def encode_messages(bodies: pa.BinaryArray, properties: pa.BinaryArray, flags: NDArray[np.int32]) -> pa.BinaryArray:
    """Encode messages for the body of a batch send request.

    Args:
        bodies: without nulls.
        properties: encoded properties without nulls, of at most MAX_PROPERTIES_BYTES each.
        flags: int32[rows], of the users.
    """
    body_bytes = lengths(bodies)
    property_bytes = lengths(properties)
    heads = np.zeros(len(bodies), dtype=_HEAD)
    heads["size"] = _HEAD.itemsize + body_bytes + _SHORT.itemsize + property_bytes
    heads["flag"] = flags
    heads["body_bytes"] = body_bytes
    return pc.binary_join_element_wise(
        fixed_width(heads), bodies, fixed_width(property_bytes.astype(_SHORT)), properties, b""
    )


def encode_property_maps(maps: pa.MapArray, dropped: Sequence[str] = SET_BY_BROKERS) -> pa.BinaryArray:
    """Encode maps of properties; a null map becomes empty, a null value is left out."""
    names, values, offsets = map_entries(maps)
    keep = ~np.asarray(pc.is_in(names, value_set=pa.array(dropped, names.type)), dtype=np.bool_)
    keep &= np.asarray(values.is_valid(), dtype=np.bool_)
    if maps.null_count:
        keep &= np.repeat(np.asarray(maps.is_valid(), dtype=np.bool_), np.diff(offsets))
    kept = pa.array(keep)
    entries = property_entries(names.filter(kept), values.filter(kept))
    new_offsets = np.concatenate([[0], np.cumsum(keep)])[offsets].astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(new_offsets), entries), b"")


def property_entries(names: pa.Array | str, values: pa.Array) -> pa.BinaryArray:
    """Encode one property a row; null for a null value."""
    name = pa.scalar(names.encode(), pa.binary()) if isinstance(names, str) else names.cast(pa.binary())
    return pc.binary_join_element_wise(name, _NAME_END, values.cast(pa.binary()), _VALUE_END, b"")


def join(*parts: pa.Array) -> pa.BinaryArray:
    """Concatenate byte strings of several columns row by row; a null adds nothing."""
    return pc.binary_join_element_wise(*parts, b"", null_handling="skip")


def map_entries(maps: pa.MapArray) -> tuple[pa.Array, pa.Array, NDArray[np.int64]]:
    """Return names, values, and int64[rows + 1] with the first entry of each row; ``maps`` may be a slice."""
    offsets = np.asarray(maps.offsets, dtype=np.int64)
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    return maps.keys.slice(first, count), maps.items.slice(first, count), offsets - first


def rows_with(maps: pa.MapArray, name: str) -> NDArray[np.bool_]:
    """Return whether each row's map has a value of a name that is neither null nor empty, bool[rows]."""
    names, values, offsets = map_entries(maps)
    is_entry = pc.and_(pc.equal(names, name), pc.greater(pc.fill_null(pc.binary_length(values), 0), 0))
    entry_numbers = np.flatnonzero(np.asarray(is_entry, dtype=np.bool_))
    has = np.zeros(len(maps), dtype=np.bool_)
    has[np.searchsorted(offsets, entry_numbers, side="right") - 1] = True
    return has


def lengths(values: pa.Array) -> NDArray[np.int64]:
    """Return the bytes of each value, int64[rows]; 0 for null."""
    byte_counts: NDArray[np.int64] = np.asarray(pc.fill_null(pc.binary_length(values), 0), dtype=np.int64)
    return byte_counts


def fixed_width(values: NDArray[np.generic]) -> pa.BinaryArray:
    """Return the fixed-width bytes of each row of an array as a byte string."""
    width = values.nbytes // max(len(values), 1)
    offsets = np.arange(len(values) + 1, dtype=np.int32) * np.int32(width)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def chunks_by_lane(
    messages: pa.BinaryArray, lanes: NDArray[np.int64], max_bytes: int, kinds: NDArray[np.int32] | None = None
) -> Iterator[tuple[int, memoryview, int]]:
    """Cut messages into chunks of one lane and of one kind each, in order within a lane.

    Args:
        lanes: int64[rows].
        max_bytes: of a chunk, unless a single message has more.
        kinds: int32[rows]; None is the same kind for all.

    Yields:
        The first row of a chunk, the chunk's bytes, and the number of messages.
    """
    if not len(messages):
        return
    order = np.argsort(lanes, kind="stable")
    ordered = messages if (order[:-1] < order[1:]).all() else messages.take(pa.array(order))
    changes = np.diff(lanes[order]) != 0
    if kinds is not None:
        changes |= np.diff(kinds[order]) != 0
    run_ends = [*(np.flatnonzero(changes) + 1).tolist(), len(ordered)]
    _, offsets_buffer, data = ordered.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[ordered.offset : ordered.offset + len(ordered) + 1]
    view = memoryview(data)
    begin = 0
    for run_end in run_ends:
        while begin < run_end:
            fits = int(np.searchsorted(offsets, int(offsets[begin]) + max_bytes, side="right")) - 1
            end = min(run_end, max(fits, begin + 1), begin + MAX_BATCH_MESSAGES)
            yield int(order[begin]), view[int(offsets[begin]) : int(offsets[end])], end - begin
            begin = end
