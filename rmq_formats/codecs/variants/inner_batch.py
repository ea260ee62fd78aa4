"""Codec of an inner batch: the messages in the body of one record, as the client that sent them encoded them.

::

    0    4     8        12   16
    size magic body_crc flag body_bytes body properties_bytes(2) properties

All integers are big-endian. Source: ``MessageDecoder#decodeMessages``, ``MessageDecoder#decodeMessage``.
docs/formats/batchconsumequeue.md
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final

from rmq_formats.codecs.layout import FLAG_INNER_BATCH
from rmq_formats.codecs.properties import decode_properties, raw_property
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.errors import FormatError

_HEAD: Final = Struct(">iiiii")
_PROPERTIES_BYTES: Final = Struct(">h")


@dataclass(frozen=True, slots=True)
class InnerMessage:
    """One message of an inner batch; what it lacks (topic, hosts, times) is its record's.

    Attributes:
        body: as it was sent.
    """

    queue_offset: int
    flag: int
    properties: dict[str, str]
    body: bytes


def is_inner_batch(message: StoredMessage) -> bool:
    """Return whether a record contains several messages: by its flag and its body (a repair's filler has the flag)."""
    return bool(message.sys_flag & FLAG_INNER_BATCH and raw_property(message.properties_bytes, b"INNER_BASE"))


def inner_messages(message: StoredMessage) -> list[InnerMessage]:
    """Decode the messages of an inner batch.

    Raises:
        FormatError: a length in the body does not fit it.
    """
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
    """Count a client's batch; 0 where a length in it lies. Source: ``MessageDecoder#countInnerMsgNum``.

    Args:
        most: messages that may be in it; of more than these the next one is counted, and no other.
    """
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
    return FormatError(f"an inner batch whose message at byte {at} of the body has a length that lies",
                       message.physical_offset)  # fmt: skip
