"""Codec of CommitLog records: decodes stored messages, encodes messages to be stored.

Source: ``MessageDecoder#decode``, ``MessageExtEncoder#encode``, ``#calMsgLength``,
``CommitLog.DefaultAppendMessageCallback#doAppend``.
"""

from dataclasses import dataclass, fields
from typing import Final

from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.layout import (
    CRC_PROPERTY_BYTES,
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    MAGIC_V1,
    MAGIC_V2,
    MAX_BODY_BYTES,
    MAX_FRAME_BYTES,
    MAX_PROPERTIES_BYTES,
    MAX_RECORD_BYTES,
    PROPERTY_KEYS,
    PROPERTY_SEPARATOR,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    RECORD_VERSIONS,
    pack_fields,
)
from rmq_formats.codecs.message_id import encode_message_id
from rmq_formats.codecs.properties import decode_properties, split_keys
from rmq_formats.codecs.record_frame import (
    CRC_PROPERTY_START,
    DamageCode,
    FrameShape,
    body_crc,
    crc_fault,
    crc_property,
    fixed_bytes,
    frame_shape,
)
from rmq_formats.codecs.record_layout import (
    HEADS,
    MAX_TOPIC_BYTES_V1,
    MAX_TOPIC_BYTES_V2,
    PROPERTIES_LENGTH,
    SIZE_AND_MAGIC,
    SYS_FLAG,
    TOPIC_LENGTH,
    head_struct,
    host_kind,
)
from rmq_formats.errors import ChecksumError, FormatError, LengthError, MagicError, TruncatedError

RECORD_OVERHEAD_BYTES: Final = MAX_RECORD_BYTES - MAX_BODY_BYTES  # room for all but the body

_PHYSICAL_OFFSET = head_struct("physical_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageToStore:
    """A message that is to be stored, without physical offset and queue offset.

    Attributes:
        topic: more than 127 UTF-8 bytes make a record of version 2.
        queue_id: the queue within the topic.
        body: as it is to be stored, compressed if sys_flag says so.
        properties_bytes: encoded, see ``rmq_formats.codecs.properties``.
        flag: the user's own.
        sys_flag: bits of ``rmq_formats.codecs.layout``; those of the hosts are set by encoding.
        born_timestamp_ms: when the producer made it.
        born_host: the producer.
        store_host: the broker.
        reconsume_times: how often consuming it failed.
        prepared_transaction_offset: of a committed message, the physical offset of its half message.
    """

    topic: str
    queue_id: int
    body: bytes
    properties_bytes: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int
    born_host: Host
    store_host: Host
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """Record in the log; the attributes beyond ``MessageToStore`` are its offsets and store time.

    Attributes:
        queue_offset: its offset in its queue.
        physical_offset: where it stands in the log, in bytes.
        recorded_physical_offset: physical offset that the record itself states.
        size: bytes of the record.
        magic: one of RECORD_VERSIONS.
        body_crc: as recorded.
        store_timestamp_ms: when the broker stored it.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    recorded_physical_offset: int
    size: int
    magic: int
    body_crc: int
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: Host
    store_timestamp_ms: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    properties_bytes: bytes

    @property
    def version(self) -> int:
        """Record version: 1, or 2 if the topic's length has two bytes."""
        return RECORD_VERSIONS[self.magic]

    @property
    def properties(self) -> dict[str, str]:
        """The properties, decoded anew at each call."""
        return decode_properties(self.properties_bytes)

    @property
    def tags(self) -> str | None:
        """The TAGS property."""
        return self.properties.get(PROPERTY_TAGS)

    @property
    def keys(self) -> list[str]:
        """The parts of the KEYS property."""
        return split_keys(self.properties.get(PROPERTY_KEYS, ""))

    @property
    def uniq_key(self) -> str | None:
        """The UNIQ_KEY property: the id that the producer gave it."""
        return self.properties.get(PROPERTY_UNIQ_KEY)

    @property
    def msg_id(self) -> str:
        """The offset message id: store host and recorded physical offset."""
        return encode_message_id(self.store_host, self.recorded_physical_offset)

    def to_store(self) -> MessageToStore:
        """Return the same message without its offsets, to store it again."""
        names = (attribute.name for attribute in fields(MessageToStore))
        return MessageToStore(**{name: getattr(self, name) for name in names})


def decode_record(
    buffer: bytes | bytearray | memoryview,
    position: int = 0,
    *,
    physical_offset: int | None = None,
    verify_crc: bool = True,
) -> StoredMessage:
    """Decode the record that begins at a position.

    Args:
        buffer: bytes that hold the whole record; more may follow.
        position: where it begins in the buffer.
        physical_offset: where it stands in the log, in bytes, which it must state; None does not check
            and takes what it states.
        verify_crc: check the body's CRC, and the record's own if it has one.

    Raises:
        TruncatedError: the buffer ends before the record does.
        MagicError: not a record; a BLANK neither.
        LengthError: a length that is out of bounds or does not add up.
        ChecksumError: a CRC that does not match.
        FormatError: the record states another physical offset.

    Source: ``MessageDecoder#decode``.
    """
    view = memoryview(buffer)
    shape = frame_shape(view, position, physical_offset)
    if isinstance(shape, DamageCode):
        raise _error(shape, view, position, physical_offset)
    fault = crc_fault(view, shape) if verify_crc else None
    if fault is not None:
        raise _error(fault, view, position, physical_offset)
    return _read(view, shape, physical_offset)


def _read(view: memoryview, shape: FrameShape, physical_offset: int | None) -> StoredMessage:
    head = HEADS[host_kind(SYS_FLAG.unpack_from(view, shape.position)[0])]
    (size, magic, crc, queue_id, flag, queue_offset, recorded_offset, sys_flag, born_timestamp_ms, born_host,
     store_timestamp_ms, store_host, reconsume_times, prepared_transaction_offset, _) = head.unpack_from(
        view, shape.position)  # fmt: skip
    topic = bytes(view[shape.topic_at : shape.topic_at + shape.topic_bytes])
    return StoredMessage(
        topic=topic.decode("utf-8", "replace"),
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=recorded_offset if physical_offset is None else physical_offset,
        recorded_physical_offset=recorded_offset,
        size=size,
        magic=magic,
        body_crc=crc,
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp_ms=born_timestamp_ms,
        born_host=Host.from_bytes(born_host, 0, bool(sys_flag & FLAG_BORN_HOST_V6)),
        store_timestamp_ms=store_timestamp_ms,
        store_host=Host.from_bytes(store_host, 0, bool(sys_flag & FLAG_STORE_HOST_V6)),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        body=bytes(view[shape.body_at : shape.body_at + shape.body_bytes]),
        properties_bytes=bytes(view[shape.properties_at : shape.end]),
    )


def _error(code: DamageCode, view: memoryview, position: int, physical_offset: int | None) -> FormatError:
    at = position if physical_offset is None else physical_offset
    available_bytes = len(view) - position
    if code is DamageCode.TRUNCATED:
        return TruncatedError(code.text, at, actual=max(available_bytes, 0))
    size, magic = SIZE_AND_MAGIC.unpack_from(view, position)
    if magic not in TOPIC_LENGTH:  # a BLANK too, which is no record
        return MagicError(DamageCode.MAGIC.text, at, actual=f"{magic & 0xFFFFFFFF:08X}")
    if code is DamageCode.SIZE:
        if fixed_bytes(magic, 0) <= size <= MAX_FRAME_BYTES and size > available_bytes:
            return TruncatedError("the bytes end within a record", at, expected=size, actual=available_bytes)
        return LengthError(code.text, at, actual=size)
    if code is DamageCode.PHYSICAL_OFFSET:
        recorded = _PHYSICAL_OFFSET.unpack_from(view, position)[0]
        return FormatError(code.text, at, expected=physical_offset, actual=recorded)
    kind = ChecksumError if code in {DamageCode.BODY_CRC, DamageCode.PROPERTIES_CRC} else LengthError
    return kind(code.text, at)


def record_bytes(message: MessageToStore, *, append_crc_property: bool = False) -> int:
    """Compute the size of the record that ``encode_record`` makes of a message."""
    topic = _topic_bytes(message.topic)
    properties_bytes = len(_properties_before_crc(message.properties_bytes, append_crc_property))
    return (
        fixed_bytes(_magic(topic), _sys_flag(message))
        + len(message.body)
        + len(topic)
        + properties_bytes
        + (CRC_PROPERTY_BYTES if append_crc_property else 0)
    )


def encode_record(
    message: MessageToStore,
    *,
    queue_offset: int,
    physical_offset: int,
    store_timestamp_ms: int,
    append_crc_property: bool = False,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> bytes:
    """Encode a message as the record at a physical offset.

    An older ``__CRC32#`` property of the message is replaced by the new one; without
    ``append_crc_property`` it stays as it is. Both as in ``CommitLog#asyncPutMessage``.

    Args:
        physical_offset: where the record will stand in the log, in bytes.
        store_timestamp_ms: the broker's clock.
        append_crc_property: end the properties with the record's own CRC (``enabledAppendPropCRC``).
        max_body_bytes: the broker's ``maxMessageSize``; the record may be 64 KiB larger.

    Raises:
        LengthError: the topic, the properties, the body, the record or a number is larger than its limit.

    Source: ``MessageExtEncoder#encode``, ``CommitLog.DefaultAppendMessageCallback#doAppend``.
    """
    topic = _topic_bytes(message.topic)
    properties = _properties_before_crc(message.properties_bytes, append_crc_property)
    properties_bytes = len(properties) + (CRC_PROPERTY_BYTES if append_crc_property else 0)
    size = record_bytes(message, append_crc_property=append_crc_property)
    _check_limit("topic", len(topic), MAX_TOPIC_BYTES_V2)
    _check_limit("properties", properties_bytes, MAX_PROPERTIES_BYTES)
    _check_limit("body", len(message.body), max_body_bytes)
    _check_limit("record", size, min(max_body_bytes + RECORD_OVERHEAD_BYTES, MAX_FRAME_BYTES))
    magic = _magic(topic)
    sys_flag = _sys_flag(message)
    head = pack_fields(
        HEADS[host_kind(sys_flag)],
        size,
        magic,
        body_crc(message.body),
        message.queue_id,
        message.flag,
        queue_offset,
        physical_offset,
        sys_flag,
        message.born_timestamp_ms,
        message.born_host.to_bytes(),
        store_timestamp_ms,
        message.store_host.to_bytes(),
        message.reconsume_times,
        message.prepared_transaction_offset,
        len(message.body),
    )
    topic_length, properties_length = TOPIC_LENGTH[magic].pack(len(topic)), PROPERTIES_LENGTH.pack(properties_bytes)
    record = b"".join((head, message.body, topic_length, topic, properties_length, properties))
    return record + crc_property(record) if append_crc_property else record


def _topic_bytes(topic: str) -> bytes:
    return topic.encode("utf-8", "replace")


def _magic(topic: bytes) -> int:
    # Java counts characters; a broker's topics are ASCII, so that these are bytes. Counting bytes is also
    # right for other topics, of which Java would write a length that reads as negative.
    return MAGIC_V1 if len(topic) <= MAX_TOPIC_BYTES_V1 else MAGIC_V2


def _sys_flag(message: MessageToStore) -> int:
    flags = message.sys_flag & ~(FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6)
    flags |= FLAG_BORN_HOST_V6 if message.born_host.is_v6 else 0
    return flags | (FLAG_STORE_HOST_V6 if message.store_host.is_v6 else 0)


def _properties_before_crc(properties: bytes, append_crc_property: bool) -> bytes:
    """Remove an older CRC property and terminate the properties, so that a CRC property can follow."""
    if not append_crc_property or not properties:
        return properties
    end = bytes([PROPERTY_SEPARATOR])
    if CRC_PROPERTY_START in properties:
        entries = properties.split(end)
        properties = end.join(entry for entry in entries if not entry.startswith(CRC_PROPERTY_START))
    return properties if not properties or properties.endswith(end) else properties + end


def _check_limit(what: str, size: int, limit: int) -> None:
    if size > limit:
        raise LengthError(f"{what} too large", expected=f"at most {limit} bytes", actual=size)
