"""Messages in the body of a batch request: where each ends, and its properties.

A message there has its size, a magic number, a CRC, its flag and the size of its body, 4 bytes each; then the body, the
size of its properties in 2 bytes, and the properties.

Source: ``MessageDecoder#encodeMessage``.
"""

from struct import Struct
from typing import Final

from rmq_formats.codecs.properties import decode_properties

_SIZE: Final = Struct(">i")
_BODY_SIZE_AT: Final = 16
_BODY_AT: Final = 20
_PROPERTIES_SIZE_BYTES: Final = 2


def message_ends(data: bytes | memoryview) -> list[int]:
    """Return where each message ends; empty if the bytes are no messages."""
    ends, position = [], 0
    while position + _BODY_AT <= len(data):
        size = _SIZE.unpack_from(data, position)[0]
        if size < _BODY_AT + _PROPERTIES_SIZE_BYTES:
            return []
        position += size
        ends.append(position)
    return ends if position == len(data) else []


def message_properties(data: bytes | memoryview) -> dict[str, str]:
    """Decode the properties of a single message."""
    body_bytes = _SIZE.unpack_from(data, _BODY_SIZE_AT)[0]
    return decode_properties(bytes(data[_BODY_AT + body_bytes + _PROPERTIES_SIZE_BYTES :]))
