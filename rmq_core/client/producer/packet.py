"""Encodes a message as a send request: properties, compression, size limits, batches; reads a batch's messages.

Source: ``DefaultMQProducerImpl#sendKernelImpl``, ``MessageDecoder#encodeMessage``, ``Validators``.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from rmq_core.client.errors import MessageError
from rmq_core.client.message import PROPERTY_MAX_RECONSUME_TIMES, PROPERTY_RECONSUME_TIME, RETRY_TOPIC_PREFIX, Message
from rmq_core.client.options import ProducerOptions
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.header import RemotingCommand, encode_json, request
from rmq_core.remoting.uniq_key import UniqKeys
from rmq_formats.codecs.compression import compress
from rmq_formats.codecs.layout import MAX_PROPERTIES_BYTES, PROPERTY_UNIQ_KEY, PROPERTY_WAIT
from rmq_formats.codecs.properties import decode_properties, encode_properties
from rmq_formats.codecs.record_layout import BATCH_HEAD, PROPERTIES_LENGTH

MAX_TOPIC_CHARACTERS: Final = 127
MAX_GROUP_CHARACTERS: Final = 255
PROPERTY_MESSAGE_TYPE: Final = "MSG_TYPE"
REPLY: Final = "reply"
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)
_NO_RECONSUME_TIMES: Final = b'"j":"0"'


class Packet(msgspec.Struct, gc=False):
    """An encoded send request.

    Attributes:
        head: extension fields of ``SendMessageV2`` as JSON, before the queue id.
        tail: extension fields after the queue id.
        msg_id: unique key, or the unique keys of a batch.
    """

    topic: str
    code: int
    head: bytes
    tail: bytes
    properties: bytes
    body: bytes
    msg_id: str

    def request(self, queue_id: int) -> RemotingCommand:
        """Build the command for one attempt."""
        return request(self.code, b"%b%d%b" % (self.head, queue_id, self.tail), self.body)


def check_name(what: str, name: str, max_characters: int) -> None:
    """Refuse an empty, too long or invalid topic or group name, as every broker does. Raises MessageError."""
    if not _NAME.fullmatch(name):
        raise MessageError(f"{what} {name!r}: a name may have letters, digits, % | _ -")
    if len(name) > max_characters:
        raise MessageError(f"{what} of {len(name)} characters: more than {max_characters}")


class Packer:
    """Encodes a producer's messages as send requests."""

    def __init__(self, group: str, options: ProducerOptions) -> None:
        self._group = group
        self._options = options
        self._keys = UniqKeys()
        self._heads: dict[str, bytes] = {}  # by topic

    def single(self, message: Message) -> Packet:
        """Encode a single message. Raises MessageError if a broker would refuse it."""
        body, options = message.body, self._options
        head = self._check(message)
        now_ms = options.clock_ms()
        properties = message.all_properties()
        msg_id = properties.get(PROPERTY_UNIQ_KEY)
        if msg_id is None:
            msg_id = properties[PROPERTY_UNIQ_KEY] = self._keys.next(now_ms)
        sys_flag = 0
        if len(body) >= options.compress_above_bytes:
            body = compress(body, options.compression, options.compression_level)
            sys_flag = options.compression.sys_flag
        retries = (
            _pop_reconsume_fields(properties) if message.topic.startswith(RETRY_TOPIC_PREFIX) else _NO_RECONSUME_TIMES
        )
        encoded = _check_size(encode_properties(properties))
        tail = _tail(sys_flag, now_ms, message.flag, encoded, retries, b"false")
        is_reply = properties.get(PROPERTY_MESSAGE_TYPE) == REPLY
        code = RequestCode.SEND_REPLY_MESSAGE_V2 if is_reply else RequestCode.SEND_MESSAGE_V2
        return Packet(message.topic, code, head, tail, encoded, body, msg_id)

    def batch(self, messages: Sequence[Message]) -> Packet:
        """Encode messages of a topic as a batch. Raises MessageError if a broker would refuse the batch."""
        _check_batch(messages)
        first = messages[0]
        now_ms = self._options.clock_ms()
        msg_ids, pieces = [], []
        for message in messages:
            head = self._check(message)  # the same for all messages of a topic
            properties = message.all_properties()
            msg_ids.append(properties.setdefault(PROPERTY_UNIQ_KEY, self._keys.next(now_ms)))
            pieces.append(_encode_inner(message, _check_size(encode_properties(properties))))
        body = b"".join(pieces)
        if len(body) > self._options.max_body_bytes:
            raise MessageError(f"a batch of {len(body)} bytes: more than {self._options.max_body_bytes}")
        # A key of the batch would override the messages' keys, as its properties are appended to theirs.
        properties = {
            PROPERTY_WAIT: "true" if first.wait_store else "false",
            PROPERTY_UNIQ_KEY: self._keys.next(now_ms),
        }
        encoded = encode_properties(properties)
        tail = _tail(0, now_ms, 0, encoded, _NO_RECONSUME_TIMES, b"true")
        return Packet(first.topic, RequestCode.SEND_BATCH_MESSAGE, head, tail, encoded, body, ",".join(msg_ids))

    def _check(self, message: Message) -> bytes:
        """Refuse a message that every broker refuses; return the head of its request."""
        head = self._heads.get(message.topic)
        if head is None:
            check_name("topic", message.topic, MAX_TOPIC_CHARACTERS)
            head = self._head(message.topic)
            if len(self._heads) < 1 << 16:
                self._heads[message.topic] = head
        if not message.body:
            raise MessageError("a message without a body: brokers refuse it")
        if len(message.body) > self._options.max_body_bytes:
            raise MessageError(f"a body of {len(message.body)} bytes: more than {self._options.max_body_bytes}")
        return head

    def _head(self, topic: str) -> bytes:
        """Encode the fields of ``SendMessageV2`` that all messages of a topic share."""
        options = self._options
        shared = {
            "a": self._group, "b": topic, "c": options.create_topic_key, "d": str(options.default_topic_queue_nums),
        }  # fmt: skip
        return encode_json(shared)[:-1] + b',"e":"'


def _tail(sys_flag: int, born_ms: int, flag: int, properties: bytes, retries: bytes, batch: bytes) -> bytes:
    return b'","f":"%d","g":"%d","h":"%d","i":%b,%b,"k":"false","m":"%b"}' % (
        sys_flag,
        born_ms,
        flag,
        encode_json(properties.decode()),
        retries,
        batch,
    )


def _pop_reconsume_fields(properties: dict[str, str]) -> bytes:
    """Remove two properties of a message in a retry topic, which Java sends as separate fields."""
    reconsume_times = properties.pop(PROPERTY_RECONSUME_TIME, "0")
    max_reconsume_times = properties.pop(PROPERTY_MAX_RECONSUME_TIMES, None)
    fields = {"j": reconsume_times} | ({} if max_reconsume_times is None else {"l": max_reconsume_times})
    return encode_json(fields)[1:-1]


def _check_size(properties: bytes) -> bytes:
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise MessageError(f"properties of {len(properties)} bytes: more than {MAX_PROPERTIES_BYTES}")
    return properties


def _check_batch(messages: Sequence[Message]) -> None:
    """Refuse the batches that Java's ``MessageBatch#generateFromList`` refuses."""
    if not messages:
        raise MessageError("a batch without messages")
    topic, wait_store = messages[0].topic, messages[0].wait_store
    if topic.startswith(RETRY_TOPIC_PREFIX):
        raise MessageError("a batch cannot be sent to a retry topic")
    for message in messages:
        if message.topic != topic:
            raise MessageError(f"a batch with the topics {topic} and {message.topic}")
        if message.wait_store != wait_store:
            raise MessageError("a batch whose messages differ in wait_store")
        if message.delay_level > 0 or message.deliver_at_ms is not None:
            raise MessageError("delayed messages cannot be sent in batches")
        if message.light_queues:
            raise MessageError("messages in a batch cannot name light queues. Send them one by one.")


def _encode_inner(message: Message, properties: bytes) -> bytes:
    size = BATCH_HEAD.size + len(message.body) + PROPERTIES_LENGTH.size + len(properties)
    head = BATCH_HEAD.pack(size, 0, 0, message.flag, len(message.body))
    return b"".join((head, message.body, PROPERTIES_LENGTH.pack(len(properties)), properties))


def split_batch(messages: Sequence[Message], max_bytes: int) -> Iterator[list[Message]]:
    """Split messages of one topic into batches of ``max_bytes`` at most, with properties and framing.

    A single message may be larger.
    """
    batch: list[Message] = []
    batch_bytes = 0
    for message in messages:
        # A unique key has 32 characters, its name and its separators ten more.
        size = len(_encode_inner(message, encode_properties(message.all_properties()))) + 42
        if batch and batch_bytes + size > max_bytes:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(message)
        batch_bytes += size
    if batch:
        yield batch


def message_ends(data: bytes | memoryview) -> list[int]:
    """Return where each message of a batch's body ends; empty if the bytes are no messages."""
    ends, position = [], 0
    while position + BATCH_HEAD.size <= len(data):
        size = BATCH_HEAD.unpack_from(data, position)[0]
        if size < BATCH_HEAD.size + PROPERTIES_LENGTH.size:
            return []
        position += size
        ends.append(position)
    return ends if position == len(data) else []


def message_properties(data: bytes | memoryview) -> dict[str, str]:
    """Decode the properties of a single message."""
    *_, body_bytes = BATCH_HEAD.unpack_from(data)
    return decode_properties(bytes(data[BATCH_HEAD.size + body_bytes + PROPERTIES_LENGTH.size :]))
