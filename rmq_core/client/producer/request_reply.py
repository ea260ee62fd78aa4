"""Request and reply: a producer waits for the reply to its message, which a broker pushes to the producer.

::

    async with Producer("127.0.0.1:9876", "askers") as producer:
        reply = await producer.request(Message("Prices", b"4711"), timeout_s=3)

    async def on_messages(messages: list[ReceivedMessage]) -> None:  # of a consumer of Prices
        for message in messages:
            await answerer.send(reply_to(message, b"12.50"))  # a producer too

Source: ``DefaultMQProducerImpl#request``, ``MessageUtil#createReplyMessage``, ``ClientRemotingProcessor``.
"""

import asyncio
import logging
from typing import Final
from uuid import uuid4

import msgspec

from rmq_core.client.errors import MessageError
from rmq_core.client.message import Message, ReceivedMessage
from rmq_core.client.producer.packet import PROPERTY_MESSAGE_TYPE, REPLY
from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import PushReply
from rmq_formats.codecs.compression import decompress
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.layout import (
    FLAG_COMPRESSED,
    PROPERTY_CLUSTER,
    PROPERTY_CORRELATION_ID,
    PROPERTY_REPLY_TO_CLIENT,
)

log = logging.getLogger("rmq.client")
_TTL_MS: Final = "TTL"


def reply_topic(cluster: str) -> str:
    """Return the topic of replies, which every broker of a cluster has."""
    return f"{cluster}_REPLY_TOPIC"


def reply_to(message: ReceivedMessage, body: bytes) -> Message:
    """Build the reply to a request message, for a producer to send.

    Raises:
        MessageError: the message is no request.
    """
    properties = message.properties
    cluster, names = properties.get(PROPERTY_CLUSTER), (PROPERTY_CORRELATION_ID, PROPERTY_REPLY_TO_CLIENT, _TTL_MS)
    if cluster is None or any(name not in properties for name in names):
        raise MessageError(f"{message.msg_id} of {message.topic}: is no request message, so that no reply can be sent")
    reply_properties = {PROPERTY_MESSAGE_TYPE: REPLY, **{name: properties[name] for name in names}}
    return Message(reply_topic(cluster), body, properties=reply_properties)


class PendingReplies:
    """The requests of a producer that wait for replies."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}

    def prepare(
        self, message: Message, client_id: str, timeout_s: float
    ) -> tuple[Message, asyncio.Future[ReceivedMessage]]:
        """Prepare a request message and the future of its reply."""
        correlation_id = str(uuid4())
        request_properties = {
            PROPERTY_CORRELATION_ID: correlation_id,
            PROPERTY_REPLY_TO_CLIENT: client_id,
            _TTL_MS: str(int(timeout_s * 1000)),
        }
        reply: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = reply
        reply.add_done_callback(lambda _: self._waiting.pop(correlation_id, None))
        return msgspec.structs.replace(message, properties={**message.properties, **request_properties}), reply

    def on_reply(self, command: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Handle a reply that a broker pushes: PUSH_REPLY_MESSAGE_TO_CLIENT (326)."""
        message = _message(read_fields(command, PushReply), bytes(command.body))
        waiting = self._waiting.get(message.properties.get(PROPERTY_CORRELATION_ID, ""))
        if waiting is None or waiting.done():
            log.warning("%s: dropped a reply whose request has ended", connection.remote_address)
        else:
            waiting.set_result(message)
        return command.response()


def _message(fields: PushReply, body: bytes) -> ReceivedMessage:
    return ReceivedMessage(
        queue=MessageQueue(topic=fields.topic, broker_name="", queue_id=fields.queue_id),
        topic=fields.topic,
        body=decompress(body, fields.sys_flag) if fields.sys_flag & FLAG_COMPRESSED else body,
        queue_offset=0,
        physical_offset=0,
        size=len(body),
        flag=fields.flag,
        sys_flag=fields.sys_flag,
        born_timestamp_ms=fields.born_timestamp,
        store_timestamp_ms=fields.store_timestamp,
        reconsume_times=fields.reconsume_times or 0,
        prepared_transaction_offset=0,
        raw_properties=fields.properties_bytes,
        raw_born_host=_host_bytes(fields.born_host),
        raw_store_host=_host_bytes(fields.store_host),
    )


def _host_bytes(text: str) -> bytes:
    return Host.parse(text.lstrip("/")).to_bytes()  # Java's addresses may begin with a slash
