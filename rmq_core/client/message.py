"""Messages of the client's users: message to send, result of a send, received message."""

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final

import msgspec

from rmq_core.client.errors import MessageError
from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_core.remoting.codes import ResponseCode
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.layout import (
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    PROPERTY_DELAY,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
)
from rmq_formats.codecs.message_id import encode_message_id
from rmq_formats.codecs.paths import is_safe_topic
from rmq_formats.codecs.properties import KEY_SEPARATOR, decode_properties, split_keys
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.times import check_milliseconds

PROPERTY_RECONSUME_TIME: Final = "RECONSUME_TIME"
PROPERTY_MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
RETRY_TOPIC_PREFIX: Final = "%RETRY%"
_SET_BY_FIELDS: Final = frozenset({PROPERTY_TAGS, PROPERTY_KEYS, PROPERTY_DELAY, PROPERTY_WAIT})
_NOT_IN_LIGHT_NAMES: Final = re.compile("[,\x00-\x1f\x7f]")
_NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})


class Message(msgspec.Struct, frozen=True):
    """A message to send.

    Attributes:
        topic: the topic to send to.
        body: at least one byte.
        tags: tags, by which consumers filter.
        keys: keys for queries; one string, or several.
        properties: properties of the user.
        flag: number of the user, passed through.
        delay_level: level of the delay before the delivery, 1 to 18; 0 for no delay.
        wait_store: the broker waits for flush and replication, if its settings require them.
        deliver_at_ms: time of the delivery; None for no delay.
        light_queues: light queues (LMQ) that get the message, too, at brokers that have light queues; names begin with
            ``%LMQ%``.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: str | Sequence[str] = ()
    properties: Mapping[str, str] = _NO_PROPERTIES
    flag: int = 0
    delay_level: int = 0
    wait_store: bool = True
    deliver_at_ms: int | None = None
    light_queues: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Check the fields' types. Raises TypeError, or MessageError for a value out of range."""
        if type(self.body) is not bytes and not isinstance(self.body, bytearray | memoryview):
            what = "encode it, as by .encode()" if isinstance(self.body, str) else "give bytes"
            raise TypeError(f"Message.body: is {type(self.body).__name__}, not bytes; {what}")
        if not isinstance(self.topic, str) or not isinstance(self.tags, str | None):
            name, value = ("tags", self.tags) if isinstance(self.topic, str) else ("topic", self.topic)
            raise TypeError(f"Message.{name}: is {type(value).__name__}, not text; give a str")
        if self.keys != ():
            _check_texts("keys", self.keys, may_be_one=True)
        if self.light_queues != ():
            _check_texts("light_queues", self.light_queues, may_be_one=False)
        if self.properties is not _NO_PROPERTIES:
            _check_property_types(self.properties)
        if type(self.flag) is not int or type(self.delay_level) is not int or self.deliver_at_ms is not None:
            for name in ("flag", "delay_level", "deliver_at_ms"):
                _check_number(name, getattr(self, name), may_be_none=name == "deliver_at_ms")
        if self.deliver_at_ms is not None:
            try:
                check_milliseconds(self.deliver_at_ms)
            except ValueError as error:
                raise MessageError(f"deliver_at_ms: {error}") from None
        if type(self.wait_store) is not bool:
            raise TypeError(f"Message.wait_store: is {type(self.wait_store).__name__}; give True or False")
        if not -(1 << 31) <= self.flag < 1 << 31:
            raise MessageError(f"flag {self.flag}: is no number of 32 bits; give one")
        if self.delay_level < 0:
            raise MessageError(f"delay_level {self.delay_level}: is below 0; give 0, or a level from 1 on")

    def all_properties(self) -> dict[str, str]:
        """Return the properties to send; the producer adds the unique key.

        Raises:
            MessageError: a property cannot be encoded.
        """
        properties: dict[str, str] = {}
        if self.properties:
            _check_properties(self.properties)
            properties.update(self.properties)
        if self.keys:
            properties[PROPERTY_KEYS] = _join_keys(self.keys)
        if self.tags:
            _check_separator("tags", self.tags)
            properties[PROPERTY_TAGS] = self.tags
        if self.delay_level > 0:
            properties[PROPERTY_DELAY] = str(self.delay_level)
        if self.deliver_at_ms is not None:
            properties[PROPERTY_TIMER_DELIVER_MS] = str(self.deliver_at_ms)
        if self.light_queues:
            _check_light_queues(self.light_queues)
            properties[PROPERTY_INNER_MULTI_DISPATCH] = ",".join(self.light_queues)
        properties[PROPERTY_WAIT] = "true" if self.wait_store else "false"
        return properties


def _check_number(field: str, value: object, *, may_be_none: bool) -> None:
    if (not isinstance(value, int) or isinstance(value, bool)) and not (value is None and may_be_none):
        raise TypeError(f"Message.{field}: is {type(value).__name__}, not a number; give an int")


def _check_texts(field: str, values: object, *, may_be_one: bool) -> None:
    if isinstance(values, str):
        if may_be_one:
            return
        raise TypeError(f"Message.{field}: is one text, not several; give a list of str")
    if not isinstance(values, Sequence) or isinstance(values, bytes | bytearray | memoryview):
        raise TypeError(f"Message.{field}: is {type(values).__name__}, not text; give a str, or a list of str")
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"Message.{field}: has {type(value).__name__} {value!r:.40}, not text; give str")


def _check_property_types(properties: object) -> None:
    if not isinstance(properties, Mapping):
        raise TypeError(f"Message.properties: is {type(properties).__name__}, not a mapping; give a dict of str")
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"Message.properties: {name!r:.40} is {type(value).__name__}, not text; give a str")


def _check_properties(properties: Mapping[str, str]) -> None:
    """Refuse properties that the encoding would lose or change. Raises MessageError."""
    for name, value in properties.items():
        if not name or not value:
            raise MessageError(f"property {name!r} is empty")
        if name in _SET_BY_FIELDS:
            raise MessageError(f"property {name} is reserved: set the message's field of its name")
        if "\x01" in name or "\x02" in name or "\x02" in value:
            raise MessageError(f"property {name!r} contains a separator, byte 1 or 2")


def _join_keys(keys: str | Sequence[str]) -> str:
    """Return the property of keys. Raises MessageError for a key that the property would change."""
    if not isinstance(keys, str):
        invalid_key = next((key for key in keys if not key or KEY_SEPARATOR in key), None)
        if invalid_key is not None:
            raise MessageError(f"key {invalid_key!r:.60}: is empty or has a blank, which separates keys")
        keys = KEY_SEPARATOR.join(keys)
    _check_separator("keys", keys)
    return keys


def _check_separator(field: str, text: str) -> None:
    """Refuse a text that would end its property, so that the rest were other properties. Raises MessageError."""
    if "\x02" in text:
        raise MessageError(f"{field} {text!r:.60}: has a separator of properties, byte 2")


def _check_light_queues(names: Sequence[str]) -> None:
    for name in names:
        if not (name.startswith(LIGHT_QUEUE_PREFIX) and is_safe_topic(name)) or _NOT_IN_LIGHT_NAMES.search(name):
            raise MessageError(f"{name!r} cannot be the name of a light queue, such as {LIGHT_QUEUE_PREFIX}device7")


class SendStatus(Enum):
    """Durability of a stored message: the message is stored, whichever of the four values it is."""

    SEND_OK = int(ResponseCode.SUCCESS)
    FLUSH_DISK_TIMEOUT = int(ResponseCode.FLUSH_DISK_TIMEOUT)
    SLAVE_NOT_AVAILABLE = int(ResponseCode.SLAVE_NOT_AVAILABLE)
    FLUSH_SLAVE_TIMEOUT = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a send.

    Attributes:
        status: durability of the message.
        msg_id: unique key; for a batch, all unique keys separated by commas. A batch in a topic with batch queues,
            stored as one record, has only its own unique key.
        offset_msg_id: offset message id; for a batch, all ids separated by commas.
        queue: queue of the message.
        queue_offset: queue offset of the message, or of a batch's first message.
        transaction_id: id of the transaction of a half message.
        recall_handle: handle for the recall of a timer message.
    """

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None


class ReceivedMessage(msgspec.Struct, gc=False, eq=False):
    """Message of a consumer.

    Attributes:
        queue: queue from which the message was pulled; its topic may be the group's retry topic.
        topic: topic to which the message was sent, also if it was pulled from a retry topic.
        body: the body, decompressed.
        queue_offset: queue offset of the message.
        physical_offset: position of the record in the broker's CommitLog, in bytes.
        size: bytes of the record.
        flag: number set by the sender.
        sys_flag: flag of the stored record.
        born_timestamp_ms: born time.
        store_timestamp_ms: store time.
        reconsume_times: number of failed consumptions.
        prepared_transaction_offset: physical offset of a committed message's half message.
        raw_properties: stored properties, encoded; ``properties`` decodes them.
        raw_born_host: stored host of the producer; ``born_host`` is its text.
        raw_store_host: stored host of the broker; ``store_host`` is its text.
    """

    queue: MessageQueue
    topic: str
    body: bytes
    queue_offset: int
    physical_offset: int
    size: int
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    store_timestamp_ms: int
    reconsume_times: int
    prepared_transaction_offset: int
    raw_properties: bytes
    raw_born_host: bytes
    raw_store_host: bytes
    _properties: dict[str, str] | None = None

    @property
    def properties(self) -> dict[str, str]:
        """The properties, decoded on first use."""
        if self._properties is None:
            self._properties = decode_properties(self.raw_properties)
        return self._properties

    @property
    def tags(self) -> str | None:
        """The tags, by which consumers filter."""
        return self.properties.get(PROPERTY_TAGS)

    @property
    def keys(self) -> list[str]:
        """The keys, by which the message can be queried."""
        return split_keys(self.properties.get(PROPERTY_KEYS, ""))

    @property
    def queue_id(self) -> int:
        """The queue id."""
        return self.queue.queue_id

    @property
    def born_host(self) -> str:
        """The producer's address, ``host:port``."""
        return Host.from_bytes(self.raw_born_host, 0, bool(self.sys_flag & FLAG_BORN_HOST_V6)).text

    @property
    def store_host(self) -> str:
        """The broker's address, ``host:port``."""
        return self._store_host().text

    @property
    def msg_id(self) -> str:
        """The unique key, or the offset message id if the producer set none."""
        return self.properties.get(PROPERTY_UNIQ_KEY) or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """The offset message id: the broker's address and the physical offset."""
        return encode_message_id(self._store_host(), self.physical_offset)

    def _store_host(self) -> Host:
        return Host.from_bytes(self.raw_store_host, 0, bool(self.sys_flag & FLAG_STORE_HOST_V6))
