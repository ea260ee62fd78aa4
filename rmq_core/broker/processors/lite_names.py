"""Light queues of messages to lite topics, named by the property ``__LITE_TOPIC``.

Source: ``SendMessageProcessor#sendMessage`` of 5.5, ``LiteUtil``.
"""

import re
from typing import Final, TypeVar

from msgspec import structs

from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.requests import SendMessage
from rmq_core.store.commitlog.lmq_offsets import is_lmq
from rmq_formats.codecs import layout
from rmq_formats.codecs.properties import decode_properties, encode_properties
from rmq_formats.codecs.topics import LITE_PREFIX, lite_queue

_IN_BATCH: Final = f"{layout.PROPERTY_LITE_TOPIC}\x01".encode()
# $ parts the names, a comma ends one in a message's list, @ in the file of offsets; none is valid in Java's proxy.
_CHILD: Final = re.compile(r"[^$,@/\x00-\x1f\x7f]*[^$,@/\s\x00-\x1f\x7f][^$,@/\x00-\x1f\x7f]*")
_MAX_CHARS: Final = 250  # the light queue's name has to be a directory's
_SHOWN_CHARS: Final = 60
_Send = TypeVar("_Send", bound=SendMessage)


def lite_queue_name(parent: str, child: str) -> str:
    """Return the name of the light queue of a lite topic. Raises ValueError."""
    queue = lite_queue(parent, child)
    if len(child) > _MAX_CHARS or _CHILD.fullmatch(child) is None or not is_lmq(queue):
        raise ValueError(f"{child[:_SHOWN_CHARS]!r} cannot be a lite topic of {parent[:_SHOWN_CHARS]}")
    return queue


def parse_lite_queue(parent: str, child: str) -> str:
    """Return the name of the light queue in a request. Raises ResponseError."""
    try:
        return lite_queue_name(parent, child)
    except ValueError as error:
        raise ResponseError(ResponseCode.INVALID_PARAMETER, str(error)) from error


def add_lite_queue(fields: _Send, body: bytes | memoryview, *, lmq_enabled: bool) -> _Send:
    """Add the light queue of the child to a message for a topic of the type LITE. Raises ResponseError.

    Messages that cannot reach the child are refused; the original stores them.
    """
    text = fields.properties or ""
    if fields.batch and (layout.PROPERTY_LITE_TOPIC in text or _IN_BATCH in bytes(body)):
        raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, "messages to lite topics are sent one by one, in no batch")
    if layout.PROPERTY_LITE_TOPIC not in text:
        return fields
    properties = decode_properties(text.encode("utf-8", "replace"))
    child = properties.get(layout.PROPERTY_LITE_TOPIC)
    if not child:
        return fields
    if properties.get(layout.PROPERTY_TRANSACTION_PREPARED) == "true":
        problem = "a half message would reach its lite topic before it is committed, and though it is rolled back"
        raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, problem)
    if not lmq_enabled:
        problem = "lite topics need a broker with enableLmq=true and enableMultiDispatch=true"
        raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, problem)
    try:
        properties[layout.PROPERTY_INNER_MULTI_DISPATCH] = lite_queue_name(fields.topic, child)
    except ValueError as error:
        raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
    return structs.replace(fields, properties=encode_properties(properties).decode())


def check_no_lite_queue(topic: str, names: list[str]) -> None:
    """Refuse a message that names the light queue of a lite topic: permission was checked for the message's topic only.

    The original stores the message there. Raises ResponseError.
    """
    child = next((name for name in (topic, *names) if name.startswith(LITE_PREFIX)), None)
    if child is not None:
        problem = (
            f"{child[:_SHOWN_CHARS]!r} is a lite topic, which takes messages by {layout.PROPERTY_LITE_TOPIC} alone"
        )
        raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, problem)


def remove_lite_queue(properties: dict[str, str]) -> None:
    """Remove the light queues of a lite topic from a dead letter's properties.

    In the original (5.5.1) the dead letter is the child's next message, which fails again. The dead letter of the
    child's first message replaces the second message, which is lost.
    """
    if layout.PROPERTY_LITE_TOPIC in properties:
        properties.pop(layout.PROPERTY_INNER_MULTI_DISPATCH, None)
        properties.pop(layout.PROPERTY_INNER_MULTI_QUEUE_OFFSET, None)
