"""Messages as users see them: what is sent, what came of it, and what is received."""

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final

import msgspec

from rmq_core.client.errors import MessageError
from rmq_core.remoting.bodies import MessageQueue
from rmq_core.remoting.codes import ResponseCode
from rmq_formats.hosts import Host
from rmq_formats.layout import (
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
)
from rmq_formats.message_id import encode_message_id
from rmq_formats.properties import KEY_SEPARATOR, decode_properties, split_keys

PROPERTY_WAIT: Final = "WAIT"
PROPERTY_RETRY_TOPIC: Final = "RETRY_TOPIC"
PROPERTY_ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
PROPERTY_RECONSUME_TIME: Final = "RECONSUME_TIME"
PROPERTY_MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
PROPERTY_TRANSACTION_PREPARED: Final = "TRAN_MSG"
PROPERTY_TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
PROPERTY_TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
PROPERTY_TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
RETRY_TOPIC_PREFIX: Final = "%RETRY%"
_SET_BY_FIELDS: Final = frozenset({PROPERTY_TAGS, PROPERTY_KEYS, PROPERTY_DELAY, PROPERTY_WAIT})
_NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})


class Message(msgspec.Struct, frozen=True):
    """A message to be sent.

    Attributes:
        topic: where to.
        body: at least one byte.
        tags: what consumers filter by.
        keys: what it can be found by; a text, or several.
        properties: the user's own.
        flag: a number of the user's own.
        delay_level: 1 to 18: delivered after that level's time; 0 at once.
        wait_store: whether the broker waits for what its flush and replication settings promise.
        deliver_at_ms: delivered at that time; None at once.
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

    def all_properties(self) -> dict[str, str]:
        """The properties as they are sent; a unique key is the producer's to add.

        Raises:
            MessageError: one that would not come out as it went in.
        """
        made: dict[str, str] = {}
        if self.properties:
            _check_properties(self.properties)
            made.update(self.properties)
        if self.keys:
            made[PROPERTY_KEYS] = self.keys if isinstance(self.keys, str) else KEY_SEPARATOR.join(self.keys)
        if self.tags:
            made[PROPERTY_TAGS] = self.tags
        if self.delay_level > 0:
            made[PROPERTY_DELAY] = str(self.delay_level)
        if self.deliver_at_ms is not None:
            made[PROPERTY_TIMER_DELIVER_MS] = str(self.deliver_at_ms)
        made[PROPERTY_WAIT] = "true" if self.wait_store else "false"
        return made


def _check_properties(properties: Mapping[str, str]) -> None:
    """Refuse what the encoding would lose or take for something else."""
    for name, value in properties.items():
        if not name or not value:
            raise MessageError(f"property {name!r} is empty")
        if name in _SET_BY_FIELDS:
            raise MessageError(f"property {name} is set by the field of its name")
        if "\x01" in name or "\x02" in name or "\x02" in value:
            raise MessageError(f"property {name!r} has a separator in it")


class SendStatus(Enum):
    """How well it is stored. All four mean that it is stored."""

    SEND_OK = int(ResponseCode.SUCCESS)
    FLUSH_DISK_TIMEOUT = int(ResponseCode.FLUSH_DISK_TIMEOUT)
    SLAVE_NOT_AVAILABLE = int(ResponseCode.SLAVE_NOT_AVAILABLE)
    FLUSH_SLAVE_TIMEOUT = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """What came of a send.

    Attributes:
        status: how well it is stored.
        msg_id: the unique key; of a batch all of them, separated by commas.
        offset_msg_id: the id by place; of a batch all of them, separated by commas.
        queue: where it is.
        queue_offset: its number there; a batch's first.
        transaction_id: of a half message.
        recall_handle: what a timed message can be called back with.
    """

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None


class ReceivedMessage(msgspec.Struct, gc=False, eq=False):
    """A message as a consumer gets it.

    Attributes:
        queue: where it was pulled from; its topic is the retry topic's where it comes from there.
        topic: what it was sent to, also if it comes again from a retry topic.
        body: plain, also if it was sent compressed.
        queue_offset: its number in its queue.
        physical_offset: where it stands in the broker's log, in bytes.
        size: of the record, in bytes.
        flag: the sender's own.
        sys_flag: as stored.
        born_timestamp_ms: when it was made.
        store_timestamp_ms: when the broker stored it.
        reconsume_times: how often consuming it has failed.
        prepared_transaction_offset: of a commit, where its half message stands.
        raw_properties: as stored; ``properties`` has them decoded.
        raw_born_host: as stored; ``born_host`` has it as text.
        raw_store_host: as stored; ``store_host`` has it as text.
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
        """The properties, decoded when they are first asked for."""
        if self._properties is None:
            self._properties = decode_properties(self.raw_properties)
        return self._properties

    @property
    def tags(self) -> str | None:
        """What consumers filter by."""
        return self.properties.get(PROPERTY_TAGS)

    @property
    def keys(self) -> list[str]:
        """What it can be found by."""
        return split_keys(self.properties.get(PROPERTY_KEYS, ""))

    @property
    def queue_id(self) -> int:
        """The queue's number."""
        return self.queue.queue_id

    @property
    def born_host(self) -> str:
        """``host:port`` of the producer."""
        return Host.from_bytes(self.raw_born_host, 0, bool(self.sys_flag & FLAG_BORN_HOST_V6)).text

    @property
    def store_host(self) -> str:
        """``host:port`` of the broker."""
        return Host.from_bytes(self.raw_store_host, 0, bool(self.sys_flag & FLAG_STORE_HOST_V6)).text

    @property
    def msg_id(self) -> str:
        """The unique key, or the id by place where the producer gave none."""
        return self.properties.get(PROPERTY_UNIQ_KEY) or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """The id by place: the broker's address and the physical offset."""
        host = Host.from_bytes(self.raw_store_host, 0, bool(self.sys_flag & FLAG_STORE_HOST_V6))
        return encode_message_id(host, self.physical_offset)
