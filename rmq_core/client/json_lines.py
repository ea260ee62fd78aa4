"""Messages as lines of JSON: the output of ``rmq consume --json`` and the input of ``rmq produce --json``.

Lines of ``rmq dump --json`` and ``rmq query --json`` are input, too.
"""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from typing import Final

import msgspec

from rmq_core.client.errors import MessageError
from rmq_core.client.message import Message, ReceivedMessage
from rmq_formats.codecs.compression import decompress
from rmq_formats.codecs.layout import (
    PROPERTY_CLUSTER,
    PROPERTY_CRC,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_MSG_REGION,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRACE_SWITCH,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
)
from rmq_formats.errors import FormatError

# Properties that are fields of the line, or that producers and brokers set.
_PROPERTIES_NOT_COPIED: Final = frozenset(
    [
        PROPERTY_TAGS, PROPERTY_KEYS, PROPERTY_DELAY, PROPERTY_WAIT, PROPERTY_UNIQ_KEY, PROPERTY_CLUSTER,
        PROPERTY_MSG_REGION, PROPERTY_TRACE_SWITCH, "MIN_OFFSET", "MAX_OFFSET", PROPERTY_REAL_TOPIC,
        PROPERTY_REAL_QUEUE_ID, PROPERTY_CRC,
    ]
)  # fmt: skip


class MessageLine(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A message as a line of JSON. Members about its storage are printed, and ignored for a send.

    Attributes:
        body_base64: the body in base64, if it is not UTF-8.
        keys: keys for queries, separated by spaces.
        properties: user properties; all properties when printed.
        born_timestamp: born time, ms.
        store_timestamp: store time, ms.
        prepared_transaction_offset: physical offset of the half message.
    """

    topic: str = ""
    body: str | None = None
    body_base64: str | None = None
    tags: str | None = None
    keys: str = ""
    properties: dict[str, str] = {}
    flag: int = 0
    delay_level: int = 0
    queue_id: int | None = None
    queue_offset: int | None = None
    broker_name: str = ""
    msg_id: str = ""
    offset_msg_id: str = ""
    born_timestamp: int = 0
    born_host: str = ""
    store_timestamp: int = 0
    reconsume_times: int = 0
    sys_flag: int = 0
    physical_offset: int | None = None
    recorded_physical_offset: int | None = None
    prepared_transaction_offset: int | None = None
    size: int | None = None
    magic: int | None = None
    body_crc: int | None = None
    store_host: str = ""


_decode = msgspec.json.Decoder(MessageLine).decode
_encode = msgspec.json.Encoder().encode


def message_of_line(line: bytes, topic: str | None) -> Message:
    """Build the message to send from a line; without ``topic`` the line must name the topic. Raises MessageError."""
    try:
        read = _decode(line)
        body = None if read.body is None else read.body.encode()
        if read.body_base64 is not None:
            body = decompress(b64decode(read.body_base64, validate=True), read.sys_flag)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"not a message: {error}") from error
    except (Base64Error, FormatError) as error:
        raise MessageError(f"not a message: body_base64: {error}") from error
    if body is None:
        raise MessageError("not a message: has neither body nor body_base64. Give one.")
    to = topic or read.topic
    if not to:
        raise MessageError("no topic: give --topic, or a topic in the line")
    return Message(
        to,
        body,
        tags=read.tags or read.properties.get(PROPERTY_TAGS),
        keys=read.keys or read.properties.get(PROPERTY_KEYS, ""),
        properties={name: value for name, value in read.properties.items() if name not in _PROPERTIES_NOT_COPIED},
        flag=read.flag,
        delay_level=read.delay_level,
    )


def line_of_message(message: ReceivedMessage, charset: str = "utf-8") -> bytes:
    """Render a received message as a line; a body that is invalid in ``charset`` is in ``body_base64``."""
    body, body_base64 = None, None
    try:
        body = message.body.decode(charset)
        body.encode()  # some charsets decode to surrogates, which have no UTF-8
    except UnicodeError:
        body, body_base64 = None, b64encode(message.body).decode()
    line = MessageLine(
        topic=message.topic,
        body=body,
        body_base64=body_base64,
        tags=message.tags,
        keys=message.properties.get(PROPERTY_KEYS, ""),
        properties=message.properties,
        flag=message.flag,
        queue_id=message.queue.queue_id,
        queue_offset=message.queue_offset,
        broker_name=message.queue.broker_name,
        msg_id=message.msg_id,
        offset_msg_id=message.offset_msg_id,
        born_timestamp=message.born_timestamp_ms,
        born_host=message.born_host,
        store_timestamp=message.store_timestamp_ms,
        reconsume_times=message.reconsume_times,
    )
    return _encode(line) + b"\n"
