"""Conversion of messages between the gRPC service and the remoting protocol: of sends, and of responses to pops.

A popped message has its record, its receipt, and the number of earlier deliveries.

Source: ``SendMessageActivity#buildMessageProperty``, ``GrpcConverter#buildMessage``,
``MQClientAPIImpl#processPopResponse``, ``#processPopLiteResponse``.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from hashlib import md5
from itertools import groupby
from typing import Any, Final, NamedTuple

from rmq_core.client.pop.handles import Handles
from rmq_core.proxy import checks
from rmq_core.proxy.checks import may_be_child
from rmq_core.proxy.wire import StatusError, ms_of, v2
from rmq_core.remoting import clock
from rmq_core.remoting.pop import PopHandle, PopResponse, TopicKind
from rmq_formats.codecs.batch_consumequeue import inner_messages
from rmq_formats.codecs.compression import decompress
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.layout import (
    FLAG_COMPRESSED,
    FLAG_INNER_BATCH,
    FLAG_TRANSACTION_PREPARED,
    PROPERTY_CHECK_IMMUNITY_SECONDS,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    PROPERTY_KEYS,
    PROPERTY_LITE_TOPIC,
    PROPERTY_POP_CK,
    PROPERTY_PRIORITY,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQ_KEY,
)
from rmq_formats.codecs.properties import encode_properties, parse_decimal, split_keys
from rmq_formats.codecs.record import StoredMessage, decode_record
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.errors import FormatError

_BORN_HOST: Final = "__BORNHOST"
_BORN_MS: Final = "BORN_TIMESTAMP"
_TRACE: Final = "TRACE_CONTEXT"
_DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
_DLQ_ORIGIN_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
_GZIP_BEGIN: Final = b"\x1f\x8b"
_MAX_INFLATED_BYTES: Final = 16 << 20  # of a body; one ReceiveMessage returns up to 32
_MAX_MS: Final = 253_402_300_799_000  # end of the year 9999, protobuf's last
_MAX_INT: Final = (1 << 31) - 1
_BATCH_FLAGS: Final = FLAG_INNER_BATCH | FLAG_COMPRESSED
_QUEUE_OFFSET: Final = "qo"  # marks the delivery count of an offset
_LMQ_PROPERTIES: Final = (PROPERTY_INNER_MULTI_DISPATCH, PROPERTY_INNER_MULTI_QUEUE_OFFSET)
_HANDLE_PARTS: Final = 9


def properties_of(message: Any, topic: str, kind: int, peer: str) -> dict[str, str]:
    """Return the properties of a message's record."""
    system = message.system_properties
    properties: dict[str, str] = dict(message.user_properties)
    properties[PROPERTY_UNIQ_KEY] = system.message_id
    if system.HasField("tag"):
        properties[PROPERTY_TAGS] = system.tag
    if system.keys:
        properties[PROPERTY_KEYS] = " ".join(system.keys)
    if kind == v2.TRANSACTION:
        properties[PROPERTY_TRANSACTION_PREPARED] = "true"
        properties[PROPERTY_PRODUCER_GROUP] = topic
        if system.HasField("orphaned_transaction_recovery_duration"):
            properties[PROPERTY_CHECK_IMMUNITY_SECONDS] = str(system.orphaned_transaction_recovery_duration.seconds)
    if system.HasField("message_group"):
        properties[PROPERTY_SHARDING_KEY] = system.message_group
    if kind == v2.PRIORITY:
        properties[PROPERTY_PRIORITY] = str(system.priority)
    if kind == v2.LITE:
        properties[PROPERTY_LITE_TOPIC] = system.lite_topic
    if system.HasField("delivery_timestamp"):
        properties[PROPERTY_TIMER_DELIVER_MS] = str(ms_of(system.delivery_timestamp))
    if system.HasField("trace_context"):
        properties[_TRACE] = system.trace_context
    properties[_BORN_HOST] = system.born_host or peer
    properties[_BORN_MS] = str(born_ms(message))
    return properties


def born_ms(message: Any) -> int:
    """Return a message's born time, ms since 1970; now if the producer's time is impossible."""
    timestamp_ms = ms_of(message.system_properties.born_timestamp)
    return int(timestamp_ms) if 0 <= timestamp_ms <= _MAX_MS else clock.now_ms()


def sys_flag_of(message: Any, kind: int) -> int:
    """Return the sys_flag of a message's record."""
    flag = FLAG_COMPRESSED if message.system_properties.body_encoding == v2.GZIP else 0
    return flag | (FLAG_TRANSACTION_PREPARED if kind == v2.TRANSACTION else 0)


def tags_of(expression: Any) -> frozenset[str] | None:
    """Return the tags in an expression; None for all, and for SQL92."""
    text = expression.expression
    if expression.type == v2.SQL or text in ("", "*"):
        return None
    return frozenset(tag.strip() for tag in text.split("||") if tag.strip())


def messages_of(record: StoredMessage) -> Iterator[StoredMessage]:
    """Yield the messages of a record one by one, as the service has no batches."""
    if not record.sys_flag & FLAG_INNER_BATCH:
        yield record
        return
    try:
        if record.sys_flag & FLAG_COMPRESSED:
            body = decompress(record.body, record.sys_flag, max_bytes=_MAX_INFLATED_BYTES)
            inner = inner_messages(replace(record, body=body))
        else:
            inner = inner_messages(record)
    except FormatError:  # the consumer may be able to decode the body
        yield record
        return
    for message in inner:
        yield replace(
            record,
            queue_offset=message.queue_offset,
            flag=message.flag,
            sys_flag=record.sys_flag & ~_BATCH_FLAGS,
            body=message.body,
            properties_bytes=encode_properties(message.properties),
        )


def to_wire(record: StoredMessage, topic: str, handle: str | None, attempt: int | None = None) -> Any:
    """Build the message of the service for a consumer.

    ``topic`` is that of the consumer's subscription. A pulled message has no receipt handle; without ``attempt`` the
    record's count of deliveries applies.
    """
    properties = record.properties
    body, encoding = _body(record)
    attempt = record.reconsume_times + 1 if attempt is None else attempt
    system = v2.SystemProperties(
        keys=split_keys(properties.get(PROPERTY_KEYS, "")),
        message_id=properties.get(PROPERTY_UNIQ_KEY) or record.msg_id,
        body_digest=v2.Digest(type=v2.MD5, checksum=md5(body, usedforsecurity=False).hexdigest().upper()),
        body_encoding=encoding,
        message_type=_message_type(properties),
        born_host=properties.get(_BORN_HOST) or _text(record.born_host).rpartition(":")[0],
        store_host=_text(record.store_host),
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        delivery_attempt=min(attempt, _MAX_INT),
    )
    system.born_timestamp.FromMilliseconds(_time_ms(properties.get(_BORN_MS), record.born_timestamp_ms))
    system.store_timestamp.FromMilliseconds(_time_ms(None, record.store_timestamp_ms))
    if PROPERTY_TAGS in properties:
        system.tag = properties[PROPERTY_TAGS]
    if handle is not None:
        system.receipt_handle = handle
    if PROPERTY_SHARDING_KEY in properties:
        system.message_group = properties[PROPERTY_SHARDING_KEY]
    if PROPERTY_LITE_TOPIC in properties:
        system.lite_topic = properties[PROPERTY_LITE_TOPIC]
    if PROPERTY_PRIORITY in properties:
        system.priority = min(parse_decimal(properties[PROPERTY_PRIORITY], 0), _MAX_INT)
    if _TRACE in properties:
        system.trace_context = properties[_TRACE]
    if PROPERTY_TIMER_DELIVER_MS in properties:
        system.delivery_timestamp.FromMilliseconds(_time_ms(properties[PROPERTY_TIMER_DELIVER_MS], 0))
    if _DLQ_ORIGIN_TOPIC in properties:
        system.dead_letter_queue.topic = properties[_DLQ_ORIGIN_TOPIC]
        system.dead_letter_queue.message_id = properties.get(_DLQ_ORIGIN_ID, "")
    user_properties = {
        name: value for name, value in properties.items() if name not in checks.RESERVED and name != PROPERTY_POP_CK
    }
    message = v2.Message(topic=v2.Resource(name=topic), user_properties=user_properties, body=body)
    message.system_properties.CopyFrom(system)
    return message


def _message_type(properties: dict[str, str]) -> Any:
    if properties.get(PROPERTY_TRANSACTION_PREPARED, "").lower() == "true":
        return v2.TRANSACTION
    if PROPERTY_TIMER_DELIVER_MS in properties or "DELAY" in properties:
        return v2.DELAY
    if PROPERTY_SHARDING_KEY in properties:
        return v2.FIFO
    if PROPERTY_PRIORITY in properties:
        return v2.PRIORITY
    return v2.LITE if PROPERTY_LITE_TOPIC in properties else v2.NORMAL


@lru_cache(maxsize=1024)
def _text(host: Host) -> str:
    return host.text


def _body(record: StoredMessage) -> tuple[bytes, Any]:
    """Return a body in an encoding of the service; other compressions of the remoting protocol are decompressed."""
    if not record.sys_flag & FLAG_COMPRESSED:
        return record.body, v2.IDENTITY
    if record.body.startswith(_GZIP_BEGIN):
        return record.body, v2.GZIP
    try:
        return decompress(record.body, record.sys_flag, max_bytes=_MAX_INFLATED_BYTES), v2.IDENTITY
    except FormatError:  # the consumer may be able to decode the body
        return record.body, v2.GZIP


def _time_ms(text: str | None, default: int) -> int:
    """Return a time within protobuf's limits: an impossible time must not block a message forever."""
    return min(max(0, parse_decimal(text, default)), _MAX_MS)


class ReceiptHandle(NamedTuple):
    """Receipt handle of the service: a POP handle with the record's physical offset and the lite topic.

    Source: ``ReceiptHandle``, which has no lite topic: clients send it with each call, except Java's 5.2.0 for a new
    invisible time.

    ``lite_topic`` is empty for messages of other topics.
    """

    handle: PopHandle
    physical_offset: int
    lite_topic: str = ""

    def encode(self) -> str:
        """Encode the handle as text, which clients do not parse."""
        text = f"{self.handle.encode()} {self.physical_offset}"
        return f"{text} {self.lite_topic}" if self.lite_topic else text

    @classmethod
    def decode(cls, text: str, lite_topic: str = "") -> "ReceiptHandle":
        """Parse a handle; those of other proxies lack the ``lite_topic`` of the client's call. Raises StatusError."""
        try:
            handle = PopHandle.decode(text)
        except ValueError:
            raise StatusError(v2.INVALID_RECEIPT_HANDLE, "the receipt handle was not issued by this service") from None
        suffix = text.split(" ", _HANDLE_PARTS)[_HANDLE_PARTS - 1 :]
        physical_offset = parse_decimal(suffix[0], None) if suffix else None
        if physical_offset is None:
            raise StatusError(v2.INVALID_RECEIPT_HANDLE, "the receipt handle was not issued by this service")
        if len(suffix) > 1:
            if not may_be_child(suffix[1]):
                raise StatusError(v2.INVALID_RECEIPT_HANDLE, "the receipt handle names an invalid lite topic")
            return cls(handle, physical_offset, suffix[1])
        if lite_topic and not may_be_child(lite_topic):
            raise StatusError(v2.ILLEGAL_LITE_TOPIC, f"there is no lite topic {lite_topic[:200]!r}")
        return cls(handle, physical_offset, lite_topic)


class PoppedMessage(NamedTuple):
    """Popped message, with the number of earlier deliveries."""

    record: StoredMessage
    receipt: ReceiptHandle
    deliveries: int


def popped_messages(fields: PopResponse, body: bytes, broker: str) -> Iterator[PoppedMessage]:
    """Yield the messages of a response; skip messages that cannot be acknowledged.

    Raises StatusError if the response cannot be decoded.
    """
    try:
        handles = Handles(fields, broker)
    except ValueError as error:
        raise StatusError(v2.INTERNAL_SERVER_ERROR, f"cannot decode the response to a pop: {error}") from error
    for record in decode_records(body):
        try:
            handle = handles.handle_of(record.properties, record.queue_id, record.queue_offset)
        except ValueError:
            continue
        deliveries = handles.deliveries(record.queue_id, record.queue_offset, record.reconsume_times)
        yield PoppedMessage(record, ReceiptHandle(handle, record.recorded_physical_offset), deliveries)


def popped_lite_messages(fields: PopResponse, body: bytes, broker: str, parent: str) -> Iterator[PoppedMessage]:
    """Yield the messages of a response to a pop of lite topics. Raises StatusError.

    Messages of no lite topic are skipped, as they cannot be acknowledged. Java's proxy reads delivery counts only if
    all messages of a response have one: there a message that fails before others never becomes a dead letter.
    """
    records = decode_records(body)
    children = [lite_topic_offset(record, parent) for record in records]
    counts = _deliveries((fields.order_count_info or "").split(";"), children)
    for record, child, deliveries in zip(records, children, counts, strict=True):
        if child is not None:
            handle = PopHandle(
                0, fields.pop_time, fields.invisible_time, fields.revive_qid, TopicKind.NORMAL, broker, 0, child.offset
            )
            receipt = ReceiptHandle(handle, record.recorded_physical_offset, child.lite_topic)
            yield PoppedMessage(record, receipt, deliveries)


class LiteTopicOffset(NamedTuple):
    """Queue offset of a message in a lite topic."""

    lite_topic: str
    offset: int


def lite_topic_offset(record: StoredMessage, parent: str) -> LiteTopicOffset | None:
    """Return a record's lite topic and queue offset; None if it is in no lite topic of ``parent``, or in several."""
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

    Source: ``PopLiteMessageProcessor#transformOrderCountInfo``, which handles one lite topic after the other.
    """
    deliveries: list[int] = []
    for _, locations_of_child in groupby(locations, lambda location: location and location.lite_topic):
        offsets = [location and location.offset for location in locations_of_child]
        if entries and _QUEUE_OFFSET not in entries[0]:
            counts_of_child, entries = entries[: len(offsets)], entries[len(offsets) :]
            deliveries += [parse_decimal(text, 0) for text in counts_of_child]
            deliveries += [0] * (len(offsets) - len(counts_of_child))
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
