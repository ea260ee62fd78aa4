"""What a broker's answer to a pop has: records, the receipts of them, and how often they were delivered.

Source: ``MQClientAPIImpl#processPopResponse``, ``#processPopLiteResponse``.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Final, NamedTuple

from rmq_core.client.pop.handles import Handles
from rmq_core.proxy.errors import StatusError
from rmq_core.proxy.handles import Receipt
from rmq_core.proxy.wire import v2
from rmq_core.remoting.pop import PopHandle, TopicKind
from rmq_core.remoting.pop_requests import PopAnswer
from rmq_formats.codecs.layout import PROPERTY_LIGHT_NAMES, PROPERTY_LIGHT_OFFSETS
from rmq_formats.codecs.record import StoredMessage, decode_record
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.errors import FormatError

_QUEUE_OFFSET: Final = "qo"  # in the number of deliveries of an offset
_PLACES: Final = (PROPERTY_LIGHT_NAMES, PROPERTY_LIGHT_OFFSETS)
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


def popped_children(told: PopAnswer, body: bytes, broker: str, parent: str) -> Iterator[Popped]:
    """The messages of an answer that may have some of many children of a topic. Raises StatusError.

    What is of none of them cannot be acknowledged. The original counts deliveries only where each message of an answer
    has a number, so that a message that fails with others behind it never becomes a dead letter.
    """
    records = records_of(body)
    places = [child_place(record, parent) for record in records]
    counts = _deliveries((told.order_count_info or "").split(";"), places)
    for record, place, deliveries in zip(records, places, counts, strict=True):
        if place is not None:
            handle = PopHandle(
                0, told.pop_time, told.invisible_time, told.revive_qid, TopicKind.NORMAL, broker, 0, place.offset
            )
            yield Popped(record, Receipt(handle, record.recorded_physical_offset, place.lite_topic), deliveries)


class ChildPlace(NamedTuple):
    """The place of a message in a child.

    Attributes:
        lite_topic: name of the child.
        offset: queue offset there.
    """

    lite_topic: str
    offset: int


def child_place(record: StoredMessage, parent: str) -> ChildPlace | None:
    """The place of a record in a child of a topic; None if it is in none, or in several."""
    prefix = f"{LIGHT_QUEUE_PREFIX}${parent}$"
    properties = record.properties
    names, offsets = (properties.get(name, "").split(",") for name in _PLACES)
    found = [
        ChildPlace(name[len(prefix) :], int(offset))
        for name, offset in zip(names, offsets, strict=False)
        if name.startswith(prefix) and name != prefix and _is_number(offset)
    ]
    return found[0] if len(found) == 1 else None


def _deliveries(entries: list[str], places: list[ChildPlace | None]) -> list[int]:
    """How often messages were delivered: a number for each of a child, or ``0 qo0%7 1`` for those that were at all.

    Source: ``PopLiteMessageProcessor#transformOrderCountInfo``, which is told one child after the other.
    """
    found: list[int] = []
    for _, some in groupby(places, lambda place: place and place.lite_topic):
        offsets = [place and place.offset for place in some]
        if entries and _QUEUE_OFFSET not in entries[0]:
            mine, entries = entries[: len(offsets)], entries[len(offsets) :]
            found += [_count(text) for text in mine] + [0] * (len(offsets) - len(mine))
            continue
        counts: dict[int | None, int] = {}
        while entries and (offset := _offset_of(entries[0])) in offsets and offset not in counts:
            counts[offset] = _count(entries[0].rpartition(" ")[2])
            entries = entries[1:]
        found += [counts.get(offset, 0) for offset in offsets]
    return found


def _offset_of(text: str) -> int:
    _, _, offset = text.partition("%")
    return _count(offset.partition(" ")[0])


def _count(text: str) -> int:
    return int(text) if _is_number(text) else 0


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


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
