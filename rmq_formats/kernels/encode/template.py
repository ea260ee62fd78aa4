"""Encodes generated CommitLog records, which differ only in their numbers; `rmq_offline.generate` drives it.

A record is a fixed head, a body, and a tail that is fixed for its topic; the kernel copies the three and
writes into them what changes from one message to the next.
"""

from typing import Any, Final

import numpy as np
from numba import njit

from rmq_formats.codecs.record_layout import (
    RECORD_BODY_CRC_AT,
    RECORD_BORN_TIMESTAMP_AT,
    RECORD_HEAD_BYTES,
    RECORD_PHYSICAL_OFFSET_AT,
    RECORD_QUEUE_ID_AT,
    RECORD_QUEUE_OFFSET_AT,
    RECORD_SIZE_AT,
    RECORD_STORE_TIMESTAMP_AT,
)
from rmq_formats.kernels.bytes import COMPILED, write_i32, write_i64
from rmq_formats.kernels.crc import crc32

MESSAGES_PER_MS: Final = 10

# A body is a slice of one pool XORed with a slice of another: two pools that fit into the L2 cache give
# BODY_SLICES**2 texts that share nothing a compressor could find, so that files, Parquet and Delta tables
# made of them have honest sizes. The strides differ, lest neighbours be shifted copies of each other.
BODY_SLICES: Final = 512
TEXT_STRIDE: Final = 704
MASK_STRIDE: Final = 640

SEQUENCE_DIGITS: Final = 10  # of the message's number, at the end of its body and in its key
TAG_COUNT: Final = 5  # TagA to TagE
VARYING_UNIQ_KEY_BYTES: Final = 12  # hex digits: 8 of the time, 4 of a counter

_TAG_A = ord("A")


@njit("void(uint8[::1], int64, int64, uint64)", **COMPILED)
def _put_decimal(out: Any, at: int, width: int, value: np.uint64) -> None:
    """Write the last ``width`` decimal digits of ``value`` at ``out[at]``, zeros in front."""
    ten = np.uint64(10)
    for place in range(width - 1, -1, -1):
        rest = value // ten
        out[at + place] = np.uint8(48 + (value - rest * ten))
        value = rest


@njit("void(uint8[::1], int64, int64, uint64)", **COMPILED)
def _put_hex(out: Any, at: int, width: int, value: np.uint64) -> None:
    """Write the last ``width`` hexadecimal digits of ``value`` at ``out[at]``, in upper case."""
    for place in range(width - 1, -1, -1):
        digit = value & np.uint64(15)
        out[at + place] = np.uint8(digit + (48 if digit < 10 else 55))
        value >>= np.uint64(4)


@njit("void(uint8[::1], uint8[::1])", **COMPILED)
def _put_bytes(out: Any, source: Any) -> None:
    """Copy ``source`` to the start of ``out``: a loop, ten times as fast here as ``out[:n] = source``."""
    for place in range(source.size):
        out[place] = source[place]


@njit("void(uint8[::1], uint8[::1], uint8[::1], int64)", **COMPILED)
def _put_body(body: Any, text: Any, mask: Any, sequence: int) -> None:
    """Fill ``body``: pool text, then the message's number, which makes it unlike any other."""
    digits = min(SEQUENCE_DIGITS, body.size)
    text_at = sequence % BODY_SLICES * TEXT_STRIDE
    mask_at = sequence // BODY_SLICES % BODY_SLICES * MASK_STRIDE
    text_slice = text[text_at : text_at + body.size]  # slices: LLVM vectorizes a loop that starts at 0
    mask_slice = mask[mask_at : mask_at + body.size]
    for place in range(body.size - digits):
        body[place] = text_slice[place] ^ mask_slice[place]
    _put_decimal(body, body.size - digits, digits, np.uint64(sequence))


@njit(
    "int64(uint8[::1], int64, int64, int64, int64, int64, int64,"
    " uint8[::1], uint8[:, ::1], int64[::1], uint8[::1], uint8[::1], int64[::1])",
    **COMPILED,
)
def encode_records(
    out: Any,
    first: int,
    count: int,
    physical_offset: int,
    epoch_ms: int,
    queues: int,
    body_bytes: int,
    head: Any,
    tails: Any,
    tail_bytes: Any,
    text: Any,
    mask: Any,
    from_end: Any,
) -> int:
    """Encode messages ``first`` to ``first + count - 1``; message i goes round robin over topic, then queue.

    Args:
        out: uint8[n], receives the records; the caller owns it and has made it large enough.
        physical_offset: where ``out[0]`` will be in the log, in bytes.
        epoch_ms: born time of message 0.
        queues: queues a topic.
        head: uint8[RECORD_HEAD_BYTES], a record's bytes before the body, varying fields in any state.
        tails: uint8[topics, widest], what follows the body, one row a topic.
        tail_bytes: int64[topics], bytes in use of each row.
        text: uint8[BODY_SLICES * TEXT_STRIDE + body_bytes], pool of bodies.
        mask: uint8[BODY_SLICES * MASK_STRIDE + body_bytes], second pool, XORed with the first.
        from_end: int64[3], bytes from the record's end back to the varying part of UNIQ_KEY, to the tag's
            letter and to the key's digits; 0 for a property that the records do not have.

    Returns:
        Bytes written to ``out``.
    """
    topics = tail_bytes.size
    topic = first % topics
    queue_id = first // topics % queues
    queue_offset = first // (topics * queues)
    written = 0
    for sequence in range(first, first + count):
        body_end = RECORD_HEAD_BYTES + body_bytes
        size = body_end + tail_bytes[topic]
        record = out[written : written + size]
        born_ms = epoch_ms + sequence // MESSAGES_PER_MS

        _put_bytes(record, head)
        _put_body(record[RECORD_HEAD_BYTES:body_end], text, mask, sequence)
        _put_bytes(record[body_end:], tails[topic, : tail_bytes[topic]])

        write_i32(record, RECORD_SIZE_AT, size)
        write_i32(record, RECORD_BODY_CRC_AT, crc32(record, RECORD_HEAD_BYTES, body_end) & 0x7FFFFFFF)
        write_i32(record, RECORD_QUEUE_ID_AT, queue_id)
        write_i64(record, RECORD_QUEUE_OFFSET_AT, queue_offset)
        write_i64(record, RECORD_PHYSICAL_OFFSET_AT, physical_offset + written)
        write_i64(record, RECORD_BORN_TIMESTAMP_AT, born_ms)
        write_i64(record, RECORD_STORE_TIMESTAMP_AT, born_ms + 1)

        # Time and counter as in MessageClientIDSetter#createUniqIDBuffer; together they never repeat.
        uniq_at = size - from_end[0]
        _put_hex(record, uniq_at, 8, np.uint64(sequence // MESSAGES_PER_MS))
        _put_hex(record, uniq_at + 8, VARYING_UNIQ_KEY_BYTES - 8, np.uint64(sequence))
        if from_end[1] > 0:  # by queue offset: each queue has each tag, whatever the number of topics
            record[size - from_end[1]] = np.uint8(_TAG_A + queue_offset % TAG_COUNT)
        if from_end[2] > 0:
            _put_decimal(record, size - from_end[2], SEQUENCE_DIGITS, np.uint64(sequence))

        written += size
        topic += 1
        if topic == topics:
            topic = 0
            queue_id += 1
            if queue_id == queues:
                queue_id = 0
                queue_offset += 1
    return written
