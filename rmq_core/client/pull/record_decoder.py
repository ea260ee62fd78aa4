"""Decoder of a pull's records, in a single pass with a compiled struct for the fixed fields.

``rmq_formats.codecs.record.decode_record`` is the oracle: the same values, at a tenth of the speed.

A body that does not decompress is returned as it is stored, and so is a batch that cannot be unwrapped: the next pull
would return the same records, so that an error would stop the queue. Java drops such a message with all that follow in
the response (``MessageDecoder#decodes``).
"""

import logging
from collections.abc import Iterator
from functools import lru_cache
from struct import error as StructError  # a class by its lower-case name
from typing import Final

from msgspec.structs import replace

from rmq_core.client.message import RETRY_TOPIC_PREFIX, ReceivedMessage
from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_formats.codecs.compression import decompress
from rmq_formats.codecs.layout import (
    FLAG_COMPRESSED,
    FLAG_INNER_BATCH,
    FLAG_NEED_UNWRAP,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    PROPERTY_RETRY_TOPIC,
)
from rmq_formats.codecs.properties import parse_decimal
from rmq_formats.codecs.record_layout import (
    BATCH_HEAD,
    HEAD,
    HEADS,
    HOST_FLAGS,
    PROPERTIES_LENGTH,
    TOPIC_LENGTH,
    host_kind,
)
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.errors import FormatError, LengthError, MagicError, TruncatedError

log = logging.getLogger("rmq.client")
_V4 = HEADS[0]
_TOPIC_LENGTH_V2: Final = TOPIC_LENGTH[MAGIC_V2]
_SYS_FLAG: Final = [*HEAD].index("sys_flag")
_INNER: Final = FLAG_INNER_BATCH | FLAG_NEED_UNWRAP
_RETRY_TOPIC: Final = f"{PROPERTY_RETRY_TOPIC}\x01".encode()


@lru_cache(maxsize=1024)
def _topic_text(topic: bytes) -> str:
    return topic.decode("utf-8", "replace")


def decode_records(
    data: bytes | memoryview, queue: MessageQueue | None = None, *, broker_name: str = ""
) -> list[ReceivedMessage]:
    """Decode the messages of a pull's body.

    ``queue`` is the pulled queue, None for records of several queues or without a pull; then ``broker_name`` names
    their broker. Messages of a light queue (LMQ) get their offset in that queue as queue offset. Raises FormatError.
    """
    messages: list[ReceivedMessage] = []
    at, end = 0, len(data)
    try:
        while at < end:
            message = _decode(data, at, end, queue, broker_name)
            at += message.size
            messages += _unwrap_batch(message) if message.sys_flag & _INNER else [message]
    except StructError as error:
        raise TruncatedError("the bytes end within a record", at, expected="a record", actual=end - at) from error
    if queue is not None and queue.topic.startswith(LIGHT_QUEUE_PREFIX):
        for message in messages:
            message.queue_offset = _lmq_offset(message, queue.topic)
    return messages


def _lmq_offset(message: ReceivedMessage, name: str) -> int:
    """Return a message's offset in a light queue (LMQ); its queue offset if that is the message's own queue."""
    if message.topic != name:
        names = message.properties.get(PROPERTY_INNER_MULTI_DISPATCH, "").split(",")
        offsets = message.properties.get(PROPERTY_INNER_MULTI_QUEUE_OFFSET, "").split(",")
        for lmq, offset in zip(names, offsets, strict=False):
            if lmq == name and (number := parse_decimal(offset, None, 19)) is not None:
                return number
    return message.queue_offset


def _decode(
    data: bytes | memoryview, at: int, end: int, queue: MessageQueue | None, broker_name: str
) -> ReceivedMessage:
    layout = _V4
    values = layout.unpack_from(data, at)
    if values[_SYS_FLAG] & HOST_FLAGS:
        layout = HEADS[host_kind(values[_SYS_FLAG])]
        values = layout.unpack_from(data, at)
    (size, magic, _crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms, born_host, store_ms,
     store_host, reconsume_times, prepared_offset, body_bytes) = values  # fmt: skip
    body_at = at + layout.size
    topic_at = body_at + body_bytes
    record_end = at + size
    if magic == MAGIC_V1:
        topic_at += 1
        topic_end = topic_at + data[topic_at - 1] if body_at < topic_at <= end else -1
    elif magic == MAGIC_V2:
        topic_at += 2
        topic_end = topic_at + _TOPIC_LENGTH_V2.unpack_from(data, topic_at - 2)[0] if body_at < topic_at <= end else -1
    else:
        raise MagicError("not a record", at, actual=f"{magic & 0xFFFFFFFF:08X}")
    # Each part begins after the previous one, and the last part ends with the record.
    properties_at = topic_end + 2
    if not (body_bytes >= 0 and topic_at <= topic_end and properties_at <= record_end <= end):
        raise LengthError("lengths in a record that do not add up", at, actual=size)
    if properties_at + PROPERTIES_LENGTH.unpack_from(data, topic_end)[0] != record_end:
        raise LengthError("lengths in a record that do not add up", at, actual=size)
    body = bytes(data[body_at : body_at + body_bytes])
    topic = _topic_text(bytes(data[topic_at:topic_end]))
    if sys_flag & FLAG_COMPRESSED:
        try:
            body = decompress(body, sys_flag)
        except FormatError as error:
            log.warning("%s: the message at %d has its body as it is stored: %s", topic, physical_offset, error)
    properties = bytes(data[properties_at:record_end])
    message = ReceivedMessage(
        queue or MessageQueue(topic=topic, broker_name=broker_name, queue_id=queue_id),
        topic,
        body,
        queue_offset,
        physical_offset,
        size,
        flag,
        sys_flag,
        born_ms,
        store_ms,
        reconsume_times,
        prepared_offset,
        properties,
        born_host,
        store_host,
    )
    if topic.startswith(RETRY_TOPIC_PREFIX) and _RETRY_TOPIC in properties:
        message.topic = message.properties.get(PROPERTY_RETRY_TOPIC, topic)
    return message


def _unwrap_batch(message: ReceivedMessage) -> list[ReceivedMessage]:
    """Return the messages of a batch that is stored as a single record; the record itself if it is no batch."""
    try:
        return list(_inner_messages(message))
    except (LengthError, StructError) as error:
        log.warning("%s: the batch at %d is given as one message: %s", message.topic, message.physical_offset, error)
        return [message]


def _inner_messages(message: ReceivedMessage) -> Iterator[ReceivedMessage]:
    data, at = message.body, 0
    queue_offset = message.queue_offset
    while at < len(data):
        size, _, _, flag, body_bytes = BATCH_HEAD.unpack_from(data, at)
        body_at = at + BATCH_HEAD.size
        properties_at = body_at + body_bytes + 2
        if body_bytes < 0 or properties_at > at + size or at + size > len(data):
            raise LengthError("lengths in a batch that do not add up", message.physical_offset, actual=size)
        if PROPERTIES_LENGTH.unpack_from(data, properties_at - 2)[0] != at + size - properties_at:
            raise LengthError("lengths in a batch that do not add up", message.physical_offset, actual=size)
        yield replace(
            message,
            body=data[body_at : body_at + body_bytes],
            queue_offset=queue_offset,
            flag=flag,
            raw_properties=data[properties_at : at + size],
            _properties=None,
        )
        at += size
        queue_offset += 1
