"""What a broker's answer to a pop has: records, the receipts of them, and how often they were delivered.

Source: ``MQClientAPIImpl#processPopResponse``, ``#processPopLiteResponse``.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from rmq_core.client.pop.handles import Handles
from rmq_core.proxy.errors import StatusError
from rmq_core.proxy.handles import Receipt
from rmq_core.proxy.messages import LITE_TOPIC
from rmq_core.proxy.wire import v2
from rmq_core.remoting.pop import PopHandle, TopicKind
from rmq_core.remoting.pop_requests import PopAnswer
from rmq_formats.codecs.layout import PROPERTY_LIGHT_NAMES, PROPERTY_LIGHT_OFFSETS
from rmq_formats.codecs.record import StoredMessage, decode_record
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.errors import FormatError

_QUEUE_OFFSET: Final = "qo"  # in the number of deliveries of an offset
_MOST_DIGITS: Final = 18


class Popped(NamedTuple):
    """A message that was popped.

    Attributes:
        record: of it.
        receipt: that it is acknowledged by.
        deliveries: how often it was delivered before.
    """

    record: StoredMessage
    receipt: Receipt
    deliveries: int


def popped(told: PopAnswer, body: bytes, broker: str) -> Iterator[Popped]:
    """The messages of an answer. One that cannot be acknowledged comes back until it is a dead letter.

    Raises:
        StatusError: the answer is none of POP.
    """
    try:
        handles = Handles(told, broker)
    except ValueError as error:
        raise StatusError(v2.INTERNAL_SERVER_ERROR, f"a broker's answer is none of POP: {error}") from error
    for record in records_of(body):
        try:
            handle = handles.of(record.properties, record.queue_id, record.queue_offset)
        except ValueError:
            continue
        deliveries = handles.deliveries(record.queue_id, record.queue_offset, record.reconsume_times)
        yield Popped(record, Receipt(handle, record.recorded_physical_offset), deliveries)


def popped_children(told: PopAnswer, body: bytes, broker: str) -> Iterator[Popped]:
    """The messages of an answer that may have some of many children. Raises StatusError."""
    records = records_of(body)
    counts = (told.order_count_info or "").split(";")
    for number, record in enumerate(records):
        place = child_place(record)
        if place is None:
            continue
        lite_topic, offset = place
        handle = PopHandle(0, told.pop_time, told.invisible_time, told.revive_qid, TopicKind.NORMAL, broker, 0, offset)
        deliveries = _count(counts[number]) if len(counts) == len(records) else 0
        yield Popped(record, Receipt(handle, record.recorded_physical_offset, lite_topic), deliveries)


def _count(text: str) -> int:
    """How often a message was delivered: the number alone, or behind the queue and its offset."""
    words = text.split(" ")
    number = words[-1] if len(words) in (1, 3) and (len(words) == 3) == (_QUEUE_OFFSET in text) else ""
    return int(number) if number.isascii() and number.isdecimal() and len(number) <= _MOST_DIGITS else 0


def child_place(record: StoredMessage) -> tuple[str, int] | None:
    """The child that a record is a message of, and its offset there; None if it is of no child, or of several."""
    properties = record.properties
    lite_topic = properties.get(LITE_TOPIC, "")
    name, offset = properties.get(PROPERTY_LIGHT_NAMES, ""), properties.get(PROPERTY_LIGHT_OFFSETS, "")
    if not lite_topic or name != f"{LIGHT_QUEUE_PREFIX}${record.topic}${lite_topic}":
        return None
    is_number = offset.isascii() and offset.isdecimal() and len(offset) <= _MOST_DIGITS
    return (lite_topic, int(offset)) if is_number else None


def records_of(body: bytes) -> list[StoredMessage]:
    """The records of a broker's answer. Raises StatusError."""
    found, at = [], 0
    while at < len(body):
        try:
            record = decode_record(body, at, verify_crc=False)
        except FormatError as error:
            raise StatusError(v2.INTERNAL_SERVER_ERROR, f"a broker's answer is damaged: {error}") from error
        found.append(record)
        at += record.size
    return found
