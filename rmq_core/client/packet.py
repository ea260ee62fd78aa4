"""A message as a send request: properties, compression, limits, batches.

Source: ``DefaultMQProducerImpl#sendKernelImpl``, ``MessageDecoder#encodeMessage``, ``Validators``.
"""

import re
import time
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

import msgspec

from rmq_core.client.errors import MessageError
from rmq_core.client.message import PROPERTY_MAX_RECONSUME_TIMES, PROPERTY_RECONSUME_TIME, RETRY_TOPIC_PREFIX, Message
from rmq_core.client.options import ProducerOptions
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.remoting.uniq_key import UniqKeys
from rmq_formats.compression import compress
from rmq_formats.layout import MAX_PROPERTIES_BYTES, PROPERTY_UNIQ_KEY
from rmq_formats.properties import encode_properties

MAX_TOPIC_CHARACTERS: Final = 127
MAX_GROUP_CHARACTERS: Final = 255
PROPERTY_MESSAGE_TYPE: Final = "MSG_TYPE"
REPLY: Final = "reply"
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)
_BATCH_HEAD = Struct(">iiiii")  # size, magic 0, CRC 0, flag, body length
_SHORT = Struct(">h")


class Packet(msgspec.Struct, gc=False):
    """A send request.

    Attributes:
        topic: where to.
        code: of the request.
        fields: all extension fields; that of the queue's number is set by each attempt.
        body: as it is sent.
        msg_id: the unique key, or several.
    """

    topic: str
    code: int
    fields: dict[str, str]
    body: bytes
    msg_id: str

    def request(self, queue_id: int) -> RemotingCommand:
        """The command for an attempt; it is encoded before the next attempt is made."""
        self.fields["e"] = str(queue_id)
        return request(self.code, self.fields, self.body)


def check_name(what: str, name: str, max_characters: int) -> None:
    """Refuse a topic or group that no broker would take.

    Raises:
        MessageError: it is empty, too long, or has a character that names do not have.
    """
    if not _NAME.fullmatch(name):
        raise MessageError(f"{what} {name!r}: a name has letters, digits, and % | _ -")
    if len(name) > max_characters:
        raise MessageError(f"{what} of {len(name)} characters: more than {max_characters}")


class Packer:
    """Makes send requests of a producer's messages."""

    def __init__(self, group: str, options: ProducerOptions) -> None:
        self._group = group
        self._options = options
        self._keys = UniqKeys()
        self._queue_nums = str(options.default_topic_queue_nums)
        self._known_topics: set[str] = set()

    def single(self, message: Message) -> Packet:
        """The request for a message.

        Raises:
            MessageError: a broker would refuse it.
        """
        body, options = message.body, self._options
        self._check(message)
        properties = message.all_properties()
        msg_id = properties.get(PROPERTY_UNIQ_KEY)
        if msg_id is None:
            msg_id = properties[PROPERTY_UNIQ_KEY] = self._keys.next()
        sys_flag = 0
        if len(body) >= options.compress_above_bytes:
            body = compress(body, options.compression, options.compression_level)
            sys_flag = options.compression.sys_flag
        fields = self._fields(message.topic, properties, message.flag, sys_flag, batch=False)
        is_reply = properties.get(PROPERTY_MESSAGE_TYPE) == REPLY
        code = RequestCode.SEND_REPLY_MESSAGE_V2 if is_reply else RequestCode.SEND_MESSAGE_V2
        return Packet(message.topic, code, fields, body, msg_id)

    def batch(self, messages: Sequence[Message]) -> Packet:
        """The request for several messages of one topic.

        Raises:
            MessageError: they do not go together, or a broker would refuse them.
        """
        _check_batch(messages)
        first = messages[0]
        msg_ids, pieces = [], []
        for message in messages:
            self._check(message)
            properties = message.all_properties()
            msg_ids.append(properties.setdefault(PROPERTY_UNIQ_KEY, self._keys.next()))
            pieces.append(_encode_inner(message, _checked(encode_properties(properties))))
        body = b"".join(pieces)
        if len(body) > self._options.max_body_bytes:
            raise MessageError(f"a batch of {len(body)} bytes: more than {self._options.max_body_bytes}")
        # Its own key comes back in place of those of its messages: properties of a batch stand behind theirs.
        properties = {"WAIT": "true" if first.wait_store else "false", PROPERTY_UNIQ_KEY: self._keys.next()}
        fields = self._fields(first.topic, properties, 0, 0, batch=True)
        return Packet(first.topic, RequestCode.SEND_BATCH_MESSAGE, fields, body, ",".join(msg_ids))

    def _check(self, message: Message) -> None:
        if message.topic not in self._known_topics:
            check_name("topic", message.topic, MAX_TOPIC_CHARACTERS)
            if len(self._known_topics) < 1 << 16:
                self._known_topics.add(message.topic)
        if not message.body:
            raise MessageError("a message without a body: brokers refuse it")
        if len(message.body) > self._options.max_body_bytes:
            raise MessageError(f"a body of {len(message.body)} bytes: more than {self._options.max_body_bytes}")

    def _fields(
        self, topic: str, properties: dict[str, str], flag: int, sys_flag: int, *, batch: bool
    ) -> dict[str, str]:
        """The fields of ``SendMessageV2``, made directly: this runs for each message."""
        reconsume_times = max_reconsume_times = None
        if topic.startswith(RETRY_TOPIC_PREFIX):  # Java tells these two in fields of their own
            reconsume_times = properties.pop(PROPERTY_RECONSUME_TIME, None)
            max_reconsume_times = properties.pop(PROPERTY_MAX_RECONSUME_TIMES, None)
        fields = {
            "a": self._group,
            "b": topic,
            "c": self._options.create_topic_key,
            "d": self._queue_nums,
            "f": str(sys_flag),
            "g": str(time.time_ns() // 1_000_000),
            "h": str(flag),
            "i": _checked(encode_properties(properties)).decode(),
            "j": reconsume_times or "0",
            "k": "false",
            "m": "true" if batch else "false",
        }
        if max_reconsume_times is not None:
            fields["l"] = max_reconsume_times
        return fields


def _checked(properties: bytes) -> bytes:
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise MessageError(f"properties of {len(properties)} bytes: more than {MAX_PROPERTIES_BYTES}")
    return properties


def _check_batch(messages: Sequence[Message]) -> None:
    """What Java's ``MessageBatch#generateFromList`` refuses."""
    if not messages:
        raise MessageError("a batch without messages")
    topic, wait_store = messages[0].topic, messages[0].wait_store
    if topic.startswith(RETRY_TOPIC_PREFIX):
        raise MessageError("retry topics take no batches")
    for message in messages:
        if message.topic != topic:
            raise MessageError(f"a batch with the topics {topic} and {message.topic}")
        if message.wait_store != wait_store:
            raise MessageError("a batch whose messages differ in wait_store")
        if message.delay_level > 0 or message.deliver_at_ms is not None:
            raise MessageError("delayed messages cannot be sent in batches")


def _encode_inner(message: Message, properties: bytes) -> bytes:
    size = _BATCH_HEAD.size + len(message.body) + _SHORT.size + len(properties)
    head = _BATCH_HEAD.pack(size, 0, 0, message.flag, len(message.body))
    return b"".join((head, message.body, _SHORT.pack(len(properties)), properties))


def split_batch(messages: Sequence[Message], max_bytes: int) -> Iterator[list[Message]]:
    """Cut messages into batches of at most so many bytes; a single message may have more.

    Args:
        messages: of one topic.
        max_bytes: of bodies, properties and what stands between them.
    """
    batch: list[Message] = []
    held = 0
    for message in messages:
        # A unique key has 32 characters, its name and its separators ten more.
        size = len(_encode_inner(message, encode_properties(message.all_properties()))) + 42
        if batch and held + size > max_bytes:
            yield batch
            batch, held = [], 0
        batch.append(message)
        held += size
    if batch:
        yield batch
