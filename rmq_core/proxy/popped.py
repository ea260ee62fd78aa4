"""Messages of a broker's response to a pop: records, receipts, and numbers of deliveries.

Source: ``MQClientAPIImpl#processPopResponse``, ``#processPopLiteResponse``.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Final, NamedTuple

from rmq_core.client.pop.handles import Handles
from rmq_core.proxy.checks import may_be_child
from rmq_core.proxy.errors import StatusError
from rmq_core.proxy.wire import v2
from rmq_core.remoting.pop import PopHandle, TopicKind
from rmq_core.remoting.pop_requests import PopAnswer
from rmq_formats.codecs.layout import PROPERTY_INNER_MULTI_DISPATCH, PROPERTY_INNER_MULTI_QUEUE_OFFSET
from rmq_formats.codecs.properties import parse_decimal
from rmq_formats.codecs.record import StoredMessage, decode_record
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.errors import FormatError

_QUEUE_OFFSET: Final = "qo"  # in the number of deliveries of an offset
_LMQ_PROPERTIES: Final = (PROPERTY_INNER_MULTI_DISPATCH, PROPERTY_INNER_MULTI_QUEUE_OFFSET)
_PARTS = 9


class Receipt(NamedTuple):
    """Handle that a message is acknowledged by: that of POP, with the record's physical offset and the child's name.

    Source: ``ReceiptHandle``. That of the original has no child, and its clients say it; but 5.2.0 of Java says none
    where it changes an invisible time.

    Attributes:
        lite_topic: that the message was popped of; empty of those that are no children.
    """

    handle: PopHandle
    physical_offset: int
    lite_topic: str = ""

    def encode(self) -> str:
        """Encode the handle as text, which clients do not parse."""
        text = f"{self.handle.encode()} {self.physical_offset}"
        return f"{text} {self.lite_topic}" if self.lite_topic else text

    @classmethod
    def decode(cls, text: str, lite_topic: str = "") -> "Receipt":
        """Parse a handle; ``lite_topic`` is the client's, for handles of other proxies without a child's name.

        Raises StatusError.
        """
        try:
            handle = PopHandle.decode(text)
        except ValueError:
            raise StatusError(v2.INVALID_RECEIPT_HANDLE, "the receipt handle is none of this service") from None
        last = text.split(" ", _PARTS)[_PARTS - 1 :]
        number = parse_decimal(last[0], None) if last else None
        if number is None:
            raise StatusError(v2.INVALID_RECEIPT_HANDLE, "the receipt handle is none of this service")
        if len(last) > 1:
            if not may_be_child(last[1]):
                raise StatusError(v2.INVALID_RECEIPT_HANDLE, "the receipt handle is of nothing that can be a child")
            return cls(handle, number, last[1])
        if lite_topic and not may_be_child(lite_topic):
            raise StatusError(v2.ILLEGAL_LITE_TOPIC, f"there is no lite topic {lite_topic[:200]!r}")
        return cls(handle, number, lite_topic)

    def check_time(self, now_ms: int) -> None:
        """Refuse a handle after its invisible time, when another client may have the message. Raises StatusError."""
        if self.handle.visible_ms <= now_ms:
            raise StatusError(v2.INVALID_RECEIPT_HANDLE, "receipt handle is expired")


class Popped(NamedTuple):
    """Popped message; ``deliveries`` counts the earlier ones."""

    record: StoredMessage
    receipt: Receipt
    deliveries: int


def popped_messages(fields: PopAnswer, body: bytes, broker: str) -> Iterator[Popped]:
    """Yield the messages of a response; a message that cannot be acknowledged comes back until it is a dead letter.

    Raises:
        StatusError: the answer is none of POP.
    """
    try:
        handles = Handles(fields, broker)
    except ValueError as error:
        raise StatusError(v2.INTERNAL_SERVER_ERROR, f"a broker's answer is none of POP: {error}") from error
    for record in decode_records(body):
        try:
            handle = handles.handle_of(record.properties, record.queue_id, record.queue_offset)
        except ValueError:
            continue
        deliveries = handles.deliveries(record.queue_id, record.queue_offset, record.reconsume_times)
        yield Popped(record, Receipt(handle, record.recorded_physical_offset), deliveries)


def popped_lite_messages(fields: PopAnswer, body: bytes, broker: str, parent: str) -> Iterator[Popped]:
    """Yield the messages of a response to a pop of lite topics. Raises StatusError.

    What is of none of them cannot be acknowledged. The original counts deliveries only where each message of an answer
    has a number, so that a message that fails with others behind it never becomes a dead letter.
    """
    records = decode_records(body)
    children = [lite_topic_offset(record, parent) for record in records]
    counts = _deliveries((fields.order_count_info or "").split(";"), children)
    for record, child, deliveries in zip(records, children, counts, strict=True):
        if child is not None:
            handle = PopHandle(
                0, fields.pop_time, fields.invisible_time, fields.revive_qid, TopicKind.NORMAL, broker, 0, child.offset
            )
            yield Popped(record, Receipt(handle, record.recorded_physical_offset, child.lite_topic), deliveries)


class LiteTopicOffset(NamedTuple):
    """Queue offset of a message in a lite topic."""

    lite_topic: str
    offset: int


def lite_topic_offset(record: StoredMessage, parent: str) -> LiteTopicOffset | None:
    """Return a record's location in a child of a topic; None if the record is in none, or in several."""
    prefix = f"{LIGHT_QUEUE_PREFIX}${parent}$"
    properties = record.properties
    names, offsets = (properties.get(name, "").split(",") for name in _LMQ_PROPERTIES)
    locations = [
        LiteTopicOffset(name[len(prefix) :], int(offset))
        for name, offset in zip(names, offsets, strict=False)
        if name.startswith(prefix) and name != prefix and parse_decimal(offset, None) is not None
    ]
    return locations[0] if len(locations) == 1 else None


def _deliveries(entries: list[str], locations: list[LiteTopicOffset | None]) -> list[int]:
    """Return delivery counts: a number for each message of a child, or ``0 qo0%7 1`` for delivered messages only.

    Source: ``PopLiteMessageProcessor#transformOrderCountInfo``, which is told one child after the other.
    """
    deliveries: list[int] = []
    for _, locations_of_child in groupby(locations, lambda location: location and location.lite_topic):
        offsets = [location and location.offset for location in locations_of_child]
        if entries and _QUEUE_OFFSET not in entries[0]:
            mine, entries = entries[: len(offsets)], entries[len(offsets) :]
            deliveries += [parse_decimal(text, 0) for text in mine] + [0] * (len(offsets) - len(mine))
            continue
        counts: dict[int | None, int] = {}
        while entries and (offset := _offset_of(entries[0])) in offsets and offset not in counts:
            counts[offset] = parse_decimal(entries[0].rpartition(" ")[2], 0)
            entries = entries[1:]
        deliveries += [counts.get(offset, 0) for offset in offsets]
    return deliveries


def _offset_of(text: str) -> int:
    _, _, offset = text.partition("%")
    return parse_decimal(offset.partition(" ")[0], 0)


def decode_records(body: bytes) -> list[StoredMessage]:
    """Decode the records of a broker's response. Raises StatusError."""
    records, position = [], 0
    while position < len(body):
        try:
            record = decode_record(body, position, verify_crc=False)
        except FormatError as error:
            raise StatusError(v2.INTERNAL_SERVER_ERROR, f"a broker's answer is damaged: {error}") from error
        records.append(record)
        position += record.size
    return records
