"""Messages in the body of a batch request: where each ends, and its properties.

A message there has ``BATCH_HEAD``, its body, the size of its properties in 2 bytes, and the properties.

Source: ``MessageDecoder#encodeMessage``.
"""

from rmq_formats.codecs.properties import decode_properties
from rmq_formats.codecs.record_layout import BATCH_HEAD, PROPERTIES_LENGTH


def message_ends(data: bytes | memoryview) -> list[int]:
    """Return where each message ends; empty if the bytes are no messages."""
    ends, position = [], 0
    while position + BATCH_HEAD.size <= len(data):
        size = BATCH_HEAD.unpack_from(data, position)[0]
        if size < BATCH_HEAD.size + PROPERTIES_LENGTH.size:
            return []
        position += size
        ends.append(position)
    return ends if position == len(data) else []


def message_properties(data: bytes | memoryview) -> dict[str, str]:
    """Decode the properties of a single message."""
    *_, body_bytes = BATCH_HEAD.unpack_from(data)
    return decode_properties(bytes(data[BATCH_HEAD.size + body_bytes + PROPERTIES_LENGTH.size :]))
