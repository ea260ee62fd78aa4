"""One CommitLog record: decoding what is stored, encoding what is to be stored, and message ids."""

from dataclasses import dataclass, fields
from struct import Struct
from typing import Final

from rmq_formats.damage import DamageCode
from rmq_formats.errors import (
    ChecksumError,
    FormatError,
    LengthError,
    MagicError,
    TruncatedError,
)
from rmq_formats.frame import (
    CRC_PROPERTY_START,
    FrameShape,
    crc_fault,
    crc_property,
    crc_property_holds,
    fixed_bytes,
    frame_shape,
)
from rmq_formats.frame import body_crc as body_crc  # noqa: PLC0414 # a part of this module's interface
from rmq_formats.hosts import Host
from rmq_formats.layout import (
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
    RECORD_BORN_HOST_AT,
    RECORD_PHYSICAL_OFFSET_AT,
)
from rmq_formats.message_id import decode_message_id as decode_message_id  # noqa: PLC0414 # likewise
from rmq_formats.message_id import encode_message_id as encode_message_id  # noqa: PLC0414
from rmq_formats.packing import pack_fields
from rmq_formats.properties import decode_properties, split_keys

MAX_TOPIC_BYTES_V1: Final = 127
MAX_TOPIC_BYTES_V2: Final = 32767  # what the field holds; a broker takes 255 at most
RECORD_OVERHEAD_BYTES: Final = MAX_RECORD_BYTES - MAX_BODY_BYTES  # room for all but the body

_SIZE_AND_MAGIC = Struct(">ii")
# size, magic, body CRC, queue id, flag, queue offset, physical offset, sys_flag, born timestamp
_HEAD = Struct(">iiiiiqqiq")
_STORE_TIMESTAMP = Struct(">q")
_BEFORE_BODY = Struct(">iqi")  # reconsume times, prepared transaction offset, body length
_TOPIC_LENGTH = {MAGIC_V1: Struct(">b"), MAGIC_V2: Struct(">h")}
_PROPERTIES_LENGTH = Struct(">h")
_PHYSICAL_OFFSET = Struct(">q")
assert _HEAD.size == RECORD_BORN_HOST_AT

_ERRORS: Final[dict[DamageCode, type[FormatError]]] = {
    DamageCode.TRUNCATED: TruncatedError,
    DamageCode.MAGIC: MagicError,
    DamageCode.SIZE: LengthError,
    DamageCode.PHYSICAL_OFFSET: FormatError,
    DamageCode.BODY_LENGTH: LengthError,
    DamageCode.TOPIC_LENGTH: LengthError,
    DamageCode.PROPERTIES_LENGTH: LengthError,
    DamageCode.TOTAL: LengthError,
    DamageCode.BODY_CRC: ChecksumError,
    DamageCode.PROPERTIES_CRC: ChecksumError,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageToStore:
    """A message that has no place yet.

    Attributes:
        topic: at most 127 UTF-8 bytes, or a record of version 2 is made of it.
        queue_id: the queue within the topic.
        body: as it is to be stored, compressed if sys_flag says so.
        properties_bytes: encoded, see ``rmq_formats.properties``.
        flag: the user's own.
        sys_flag: bits of ``rmq_formats.layout``; those of the hosts are set by encoding.
        born_timestamp_ms: when the producer made it.
        born_host: the producer.
        store_host: the broker.
        reconsume_times: how often consuming it failed.
        prepared_transaction_offset: of a commit, the physical offset of its half message.
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
    """A record as it stands in the log; the attributes beyond those of ``MessageToStore`` tell its place.

    Attributes:
        queue_offset: its number in its queue.
        physical_offset: where it stands in the log, in bytes.
        recorded_physical_offset: where it says that it stands.
        size: bytes of the record.
        magic: MAGIC_V1 or MAGIC_V2.
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
        """1, or 2 where the topic's length takes two bytes."""
        return 1 if self.magic == MAGIC_V1 else 2

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
        """The same message without its place, to store it again."""
        names = (attribute.name for attribute in fields(MessageToStore))
        return MessageToStore(**{name: getattr(self, name) for name in names})


def decode_record(
    buffer: bytes | bytearray | memoryview,
    position: int = 0,
    *,
    physical_offset: int | None = None,
    verify_crc: bool = True,
    path: str | None = None,
) -> StoredMessage:
    """Decode the record that begins at a position.

    Args:
        buffer: bytes that hold the whole record; more may follow.
        position: where it begins in the buffer.
        physical_offset: where it stands in the log, in bytes, which it must say too; None does not check
            and takes what it says.
        verify_crc: check the body's CRC, and the record's own if it has one.
        path: the file that errors name.

    Raises:
        TruncatedError: the buffer ends before the record does.
        MagicError: not a record; a BLANK neither.
        LengthError: a length that is out of bounds or does not add up.
        ChecksumError: a CRC that does not match.
        FormatError: the record says that it stands elsewhere.

    Source: ``MessageDecoder#decode``.
    """
    view = memoryview(buffer)
    shape = frame_shape(view, position, physical_offset)
    if isinstance(shape, DamageCode):
        raise _error(shape, view, position, physical_offset, path)
    fault = crc_fault(view, shape) if verify_crc else None
    if fault is not None:
        raise _error(fault, view, position, physical_offset, path)
    return _read(view, shape, physical_offset)


def _read(view: memoryview, shape: FrameShape, physical_offset: int | None) -> StoredMessage:
    (size, magic, crc, queue_id, flag, queue_offset, recorded_offset, sys_flag, born_timestamp_ms) = _HEAD.unpack_from(
        view, shape.position
    )
    at = shape.position + RECORD_BORN_HOST_AT
    born_host = Host.from_bytes(view, at, bool(sys_flag & FLAG_BORN_HOST_V6))
    at += len(born_host.to_bytes())
    store_timestamp_ms = _STORE_TIMESTAMP.unpack_from(view, at)[0]
    at += _STORE_TIMESTAMP.size
    store_host = Host.from_bytes(view, at, bool(sys_flag & FLAG_STORE_HOST_V6))
    at += len(store_host.to_bytes())
    reconsume_times, prepared_transaction_offset, _ = _BEFORE_BODY.unpack_from(view, at)
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
        born_host=born_host,
        store_timestamp_ms=store_timestamp_ms,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        body=bytes(view[shape.body_at : shape.body_at + shape.body_bytes]),
        properties_bytes=bytes(view[shape.properties_at : shape.end]),
    )


def _error(
    code: DamageCode, view: memoryview, position: int, physical_offset: int | None, path: str | None
) -> FormatError:
    at = position if physical_offset is None else physical_offset
    left = len(view) - position
    if code is DamageCode.TRUNCATED:
        return TruncatedError(code.text, at, path, actual=max(left, 0))
    size, magic = _SIZE_AND_MAGIC.unpack_from(view, position)
    if magic not in _TOPIC_LENGTH:  # a BLANK too, which is no record
        return MagicError(DamageCode.MAGIC.text, at, path, actual=f"{magic & 0xFFFFFFFF:08X}")
    if code is DamageCode.SIZE:
        if fixed_bytes(magic, 0) <= size <= MAX_FRAME_BYTES and size > left:
            return TruncatedError("the bytes end within a record", at, path, expected=size, actual=left)
        return LengthError(code.text, at, path, actual=size)
    if code is DamageCode.PHYSICAL_OFFSET:
        recorded = _PHYSICAL_OFFSET.unpack_from(view, position + RECORD_PHYSICAL_OFFSET_AT)[0]
        return FormatError(code.text, at, path, expected=physical_offset, actual=recorded)
    return _ERRORS[code](code.text, at, path)


def record_bytes(message: MessageToStore, *, append_crc_property: bool = False) -> int:
    """Size of the record that ``encode_record`` makes of a message.

    Source: ``MessageExtEncoder#calMsgLength``.
    """
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
    """Encode a message as the record that stands at a physical offset.

    A ``__CRC32#`` property that the message has from an earlier life gives way to the new one; without
    ``append_crc_property`` it stays as it is. Both as in ``CommitLog#asyncPutMessage``.

    Args:
        message: what to store.
        queue_offset: its number in its queue.
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
    head = (
        size,
        magic,
        body_crc(message.body),
        message.queue_id,
        message.flag,
        queue_offset,
        physical_offset,
        _sys_flag(message),
        message.born_timestamp_ms,
    )
    before_body = (message.reconsume_times, message.prepared_transaction_offset, len(message.body))
    record = b"".join(
        (
            pack_fields(_HEAD, *head),
            message.born_host.to_bytes(),
            pack_fields(_STORE_TIMESTAMP, store_timestamp_ms),
            message.store_host.to_bytes(),
            pack_fields(_BEFORE_BODY, *before_body),
            message.body,
            pack_fields(_TOPIC_LENGTH[magic], len(topic)),
            topic,
            pack_fields(_PROPERTIES_LENGTH, properties_bytes),
            properties,
        )
    )
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
    """The properties as the CRC property can follow them: without an older one, and ended."""
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


def verify_crc_property(record: bytes | bytearray | memoryview) -> bool | None:
    """Whether a record's ``__CRC32#`` property matches its bytes; None if it does not end in one.

    Args:
        record: the bytes of one whole record.

    Raises:
        FormatError: not a record, see ``decode_record``.
    """
    view = memoryview(record)
    shape = frame_shape(view, 0, None)
    if isinstance(shape, DamageCode):
        raise _error(shape, view, 0, None, None)
    return crc_property_holds(view, shape)
