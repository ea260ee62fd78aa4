"""Names the light queue of a message to a lite topic, which its property ``__LITE_TOPIC`` tells.

Source: ``SendMessageProcessor#sendMessage`` of 5.5, ``LiteUtil``.
"""

import re
from typing import Final, TypeVar

from msgspec import structs

from rmq_core.broker.transaction.half import TRANSACTION
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.requests import SendMessage
from rmq_core.store.commitlog.light_places import is_light_queue
from rmq_formats.codecs.layout import PROPERTY_LIGHT_NAMES, PROPERTY_LIGHT_OFFSETS, PROPERTY_LITE_TOPIC
from rmq_formats.codecs.properties import decode_properties, encode_properties
from rmq_formats.codecs.topics import LITE_PREFIX, lite_queue

_IN_BATCH: Final = f"{PROPERTY_LITE_TOPIC}\x01".encode()
# $ parts the names, a comma ends one in a message's list, @ in the file of offsets; none is valid in Java's proxy.
_CHILD: Final = re.compile(r"[^$,@/\x00-\x1f\x7f]*[^$,@/\s\x00-\x1f\x7f][^$,@/\x00-\x1f\x7f]*")
_MOST_CHARS: Final = 250  # the light queue's name has to be a directory's
_SHOWN_CHARS: Final = 60
_Send = TypeVar("_Send", bound=SendMessage)


def lite_queue_name(parent: str, child: str) -> str:
    """Name of the light queue of a lite topic.

    Raises:
        ValueError: the name cannot be a lite topic's.
    """
    queue = lite_queue(parent, child)
    if len(child) > _MOST_CHARS or _CHILD.fullmatch(child) is None or not is_light_queue(queue):
        raise ValueError(f"{child[:_SHOWN_CHARS]!r} cannot be a lite topic of {parent[:_SHOWN_CHARS]}")
    return queue


def parse_lite_queue(parent: str, child: str) -> str:
    """The same where a request names it. Raises ResponseError."""
    try:
        return lite_queue_name(parent, child)
    except ValueError as error:
        raise ResponseError(ResponseCode.INVALID_PARAMETER, str(error)) from error


def with_lite_queue(asked: _Send, body: bytes | memoryview, *, has_light_queues: bool) -> _Send:
    """Name the light queue of a message to a topic of the type LITE; one without a child is the topic's own.

    The original stores what cannot get there, and no consumer of the child gets it.

    Raises:
        ResponseError: the child cannot be a lite topic, there are no light queues, or it is a batch or a half message.
    """
    text = asked.properties or ""
    if asked.batch and (PROPERTY_LITE_TOPIC in text or _IN_BATCH in bytes(body)):
        raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, "messages to lite topics are sent one by one, in no batch")
    if PROPERTY_LITE_TOPIC not in text:
        return asked
    properties = decode_properties(text.encode("utf-8", "replace"))
    child = properties.get(PROPERTY_LITE_TOPIC)
    if not child:
        return asked
    if properties.get(TRANSACTION) == "true":
        what = "a half message would reach its lite topic before it is committed, and though it is rolled back"
        raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, what)
    if not has_light_queues:
        what = "lite topics need a broker with enableLmq=true and enableMultiDispatch=true"
        raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, what)
    try:
        properties[PROPERTY_LIGHT_NAMES] = lite_queue_name(asked.topic, child)
    except ValueError as error:
        raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
    return structs.replace(asked, properties=encode_properties(properties).decode())


def check_names_no_child(topic: str, names: list[str]) -> None:
    """Refuse a message that names a lite topic's light queue: rights are asked for its own topic alone.

    Args:
        topic: of the message.
        names: of the light queues that its sender wants it in.

    Raises:
        ResponseError: one of them is a lite topic's. The original stores the message there.
    """
    child = next((name for name in (topic, *names) if name.startswith(LITE_PREFIX)), None)
    if child is not None:
        what = f"{child[:_SHOWN_CHARS]!r} is a lite topic, which takes messages by {PROPERTY_LITE_TOPIC} alone"
        raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, what)


def leave_child(properties: dict[str, str]) -> None:
    """Have a dead letter of a lite topic go to no light queue.

    In the original (5.5.1) it is the child's next message, which fails again, and again is a dead letter; of the
    child's first message it takes the place of the next, which is lost.
    """
    if PROPERTY_LITE_TOPIC in properties:
        properties.pop(PROPERTY_LIGHT_NAMES, None)
        properties.pop(PROPERTY_LIGHT_OFFSETS, None)
