"""Vectorised functions over Arrow columns: tags codes, Index key hashes, body CRCs, plain bodies, properties."""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_formats.arrow.builder import bitmap
from rmq_formats.codecs.compression import decompress
from rmq_formats.codecs.layout import FLAG_COMPRESSED
from rmq_formats.errors import FormatError, OptionError
from rmq_formats.kernels.columns import functions as function_kernel
from rmq_formats.kernels.columns import gather as kernel
from rmq_formats.kernels.columns import text as text_kernel

_MAX_COLUMN_BYTES: Final = (1 << 31) - 1  # of binary values


def tags_codes(tags: pa.Array) -> pa.Array:
    """Compute the tags codes of a string column, int64; 0 for null and for the empty string.

    Source: ``MessageExtBrokerInner#tagsString2tagsCode``.
    """
    data, spans = _spans(tags.cast(pa.string()))
    codes = np.empty(len(spans), dtype=np.int64)
    function_kernel.tags_codes(data, spans, codes)
    return pa.array(codes)


def key_hashes(topics: pa.Array, keys: pa.Array) -> pa.Array:
    """Compute the Index hashes of ``topic#key``, int32; null for a null topic or key.

    Source: ``IndexService#buildKey``, ``IndexFile#indexKeyHashMethod``.
    """
    topic_data, topic_spans = _spans(topics.cast(pa.string()))
    key_data, key_spans = _spans(keys.cast(pa.string()))
    hashes = np.empty(len(key_spans), dtype=np.int32)
    function_kernel.key_hashes(topic_data, topic_spans, key_data, key_spans, hashes)
    valid = (topic_spans[:, 0] >= 0) & (key_spans[:, 0] >= 0)
    return pa.Array.from_buffers(pa.int32(), len(hashes), [bitmap(valid), pa.py_buffer(hashes)])


def body_crcs(bodies: pa.Array) -> pa.Array:
    """Compute the CRC-32 without its highest bit, as in a record's ``body_crc``, int32; null for null.

    Source: ``UtilAll#crc32``.
    """
    data, spans = _spans(bodies.cast(pa.binary()))
    sums = np.empty(len(spans), dtype=np.int32)
    function_kernel.body_crcs(data, spans, sums)
    valid = spans[:, 0] >= 0
    return pa.Array.from_buffers(pa.int32(), len(sums), [bitmap(valid), pa.py_buffer(sums)])


def plain_bodies(bodies: pa.Array, sys_flags: pa.Array) -> pa.Array:
    """Decompress bodies that are compressed by their ``sys_flag``, binary; null for null and for damaged bodies.

    Raises OptionError: more bytes than a column of Arrow can have. Source: ``MessageDecoder#decode``.
    """
    bodies = bodies.cast(pa.binary())
    compressed = pc.not_equal(pc.bit_wise_and(sys_flags.cast(pa.int32()), FLAG_COMPRESSED), 0)
    rows = np.flatnonzero(compressed.fill_null(False).to_numpy(zero_copy_only=False))
    if not len(rows):
        return bodies
    compressed_bodies, flags = (column.take(pa.array(rows)).to_pylist() for column in (bodies, sys_flags))
    decompressed = [_plain_body(body, flag) for body, flag in zip(compressed_bodies, flags, strict=True)]
    byte_count = bodies.nbytes + sum(len(body) for body in decompressed if body is not None)
    if byte_count > _MAX_COLUMN_BYTES:
        raise OptionError(
            f"rmq_body: {len(bodies)} decompressed bodies take up to {byte_count} bytes, and a batch of Arrow's 2 GiB. "
            f"Set spark.sql.execution.arrow.maxRecordsPerBatch to less than {len(bodies)}"
        )
    return pc.replace_with_mask(bodies, compressed.fill_null(False), pa.array(decompressed, pa.binary()))


def _plain_body(body: bytes | None, sys_flag: int) -> bytes | None:
    try:
        return None if body is None else decompress(body, sys_flag)
    except FormatError:
        return None


def properties(blocks: pa.Array) -> pa.MapArray:
    """Decode property blocks of records to maps; null for null. Bytes that are not UTF-8 become U+FFFD.

    Source: ``MessageDecoder#string2messageProperties``.
    """
    data, spans = _spans(_repair_utf8(blocks.cast(pa.binary())))
    longest = int(spans[:, 1].max(initial=1))
    separators = np.empty(longest, dtype=np.int32)
    slots = np.empty(1 << max(6, (longest // 2 + 1).bit_length()), dtype=np.int32)
    capacity = int(spans[:, 1].sum()) // text_kernel.ENTRY_MIN_BYTES + len(spans)
    entries = np.empty((capacity, text_kernel.ENTRY_COLUMNS), dtype=np.int64)
    well_known = np.empty((len(spans), text_kernel.WELL_KNOWN_COLUMNS), dtype=np.int64)
    offsets = np.zeros(len(spans) + 1, dtype=np.int32)
    count = text_kernel.parse_properties(data, spans, 0, separators, slots, 0, 0, offsets, entries, well_known)
    names, values = (
        _strings(data, entries[:count], column) for column in (text_kernel.ENTRY_NAME_AT, text_kernel.ENTRY_VALUE_AT)
    )
    kind = pa.map_(pa.string(), pa.string())
    items = pa.StructArray.from_arrays([names, values], fields=[kind.key_field, kind.item_field])
    return pa.MapArray.from_buffers(
        kind, len(spans), [bitmap(spans[:, 0] >= 0), pa.py_buffer(offsets)], children=[items]
    )


def _strings(data: NDArray[np.uint8], table: NDArray[np.int64], column: int) -> pa.Array:
    offsets = np.zeros(len(table) + 1, dtype=np.int32)
    out = np.empty(int(kernel.total_bytes(table, column)) + kernel.SLACK_BYTES, dtype=np.uint8)
    kernel.append_spans(data, table, column, 0, offsets, out, 0)
    return pa.Array.from_buffers(pa.string(), len(table), [None, pa.py_buffer(offsets), pa.py_buffer(out)])


def _spans(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return a string or binary array's data, and each value's position and length in it; -1 and 0 for null."""
    _, offsets_buffer, values = array.buffers()
    count = len(array)
    spans = np.zeros((count, 2), dtype=np.int64)
    if count:
        offsets = np.frombuffer(offsets_buffer, dtype=np.int32, count=count + 1, offset=4 * array.offset)
        spans[:, 0] = offsets[:-1]
        spans[:, 1] = np.diff(offsets)
    if array.null_count:
        nulls = array.is_null().to_numpy(zero_copy_only=False)
        spans[nulls] = (-1, 0)
    # A copy: for kernels, Arrow's read-only memory has another type.
    data = np.frombuffer(values, dtype=np.uint8).copy() if values is not None and values.size else _NO_BYTES
    return data, spans


_NO_BYTES = np.zeros(1, dtype=np.uint8)


def _repair_utf8(blocks: pa.Array) -> pa.Array:
    data, spans = _spans(blocks)
    invalid = np.empty(len(spans), dtype=np.bool_)
    if not kernel.find_invalid_utf8(data, spans, 0, invalid):
        return blocks
    values = blocks.to_pylist()
    for row in np.flatnonzero(invalid).tolist():
        values[row] = values[row].decode("utf-8", "replace").encode()
    return pa.array(values, pa.binary())
