"""Requests of a POP consumer: pop, notification, acknowledgement, change of the invisible time, dead letters.

Source: ``MQClientAPIImpl#popMessageAsync``, ``#ackMessageAsync``, ``#batchAckMessageAsync``,
``#changeInvisibleTimeAsync``.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from rmq_core.client.cluster import Cluster
from rmq_core.client.errors import MessageError
from rmq_core.client.message import ReceivedMessage
from rmq_core.client.options import PopOptions, StartPosition
from rmq_core.client.pop.handles import (
    Handles,
    ack_fields,
    batch_ack_entries,
    changed_handle,
    dead_letter_fields,
    fits_into_batch,
)
from rmq_core.client.pull.record_decoder import decode_records
from rmq_core.client.pull.request import filter_messages
from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.bodies.pop import BatchAcks
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.pop import (
    MAX_MESSAGES,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    Notification,
    NotificationResponse,
    PopHandle,
    PopMessage,
    PopResponse,
    retry_topic,
)
from rmq_core.remoting.uniq_key import UniqKeys
from rmq_formats.codecs.layout import PROPERTY_POP_CK
from rmq_formats.errors import DecodeError

log = logging.getLogger("rmq.client")
_CODES_WITHOUT_MESSAGES: Final = (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND)
_ANY_QUEUE: Final = -1
_FROM_FIRST, _FROM_LAST = 0, 1  # ConsumeInitMode


class PopRequests:
    """Requests to brokers for one consumer group; methods raise BrokerError, NoRouteError or TransportError."""

    def __init__(self, cluster: Cluster, group: str, options: PopOptions) -> None:
        self._cluster = cluster
        self._group = group
        self._options = options
        self._attempt_ids = UniqKeys()
        self._attempts: dict[tuple[str, str], str] = {}  # attempt ids of orderly pops without a response

    async def pop(
        self, broker_name: str, data: SubscriptionData, max_messages: int, wait_s: float
    ) -> list[ReceivedMessage]:
        """Pop at a broker; each message has its receipt handle as the property POP_CK.

        ``max_messages`` is 1 to 32; the broker parks the request for ``wait_s`` at most.

        Raises:
            TransportError: no response. Popped messages are delivered again after their invisible time; in orderly
                consumption the next pop returns them.
            FormatError: the response is damaged.
        """
        options, topic = self._options, data.topic
        attempt = None
        if options.in_order:  # after a lost response the same id again, so that the broker returns the same messages
            attempt_id = self._attempt_ids.next(options.clock_ms())
            attempt = self._attempts.setdefault((topic, broker_name), attempt_id)
        fields = PopMessage(
            consumer_group=self._group,
            topic=topic,
            queue_id=_ANY_QUEUE,
            max_msg_nums=min(max_messages, MAX_MESSAGES),
            invisible_time=int(options.invisible_time_s * 1000),
            poll_time=int(wait_s * 1000),
            born_time=options.clock_ms(),
            init_mode=_FROM_FIRST if options.start is StartPosition.FIRST else _FROM_LAST,
            exp_type=str(data.expression_type),
            exp=data.sub_string,
            order=options.in_order,
            attempt_id=attempt,
        )
        address = self._cluster.address(broker_name)
        timeout_s = wait_s + options.request_timeout_s
        answer = await self._cluster.request(
            address, RequestCode.POP_MESSAGE, fields, timeout_s=timeout_s, also=_CODES_WITHOUT_MESSAGES
        )
        self._attempts.pop((topic, broker_name), None)
        if answer.code != ResponseCode.SUCCESS:
            return []
        messages = decode_records(answer.body, broker_name=broker_name)
        response = read_fields(answer, PopResponse)
        try:
            handles = Handles(response, broker_name)
            for message in messages:
                handle = handles.handle_of(message.properties, message.queue_id, message.queue_offset)
                message.properties[PROPERTY_POP_CK] = handle.encode()
                message.reconsume_times = handles.deliveries(handle.queue_id, handle.offset, message.reconsume_times)
                message.topic = topic
        except ValueError as error:
            raise DecodeError(f"{broker_name}: the response to a pop cannot be decoded: {error}") from error
        matching = filter_messages(messages, data)
        if len(matching) < len(messages):
            await self._ack_others(messages, matching)
        return matching

    async def _ack_others(self, messages: list[ReceivedMessage], matching: list[ReceivedMessage]) -> None:
        """Acknowledge the messages of other tags: in orderly consumption such a message would block its queue.

        Source: ``DefaultMQPushConsumerImpl#processPopResult``.
        """
        try:
            await self.ack([message for message in messages if message not in matching])
        except RemotingError as error:
            log.warning("messages of other tags come back: %s", error)

    async def wait(self, broker_name: str, data: SubscriptionData, wait_s: float) -> bool:
        """Wait until a broker has messages, without popping; return False if there are none in time."""
        options = self._options
        fields = Notification(
            consumer_group=self._group,
            topic=data.topic,
            queue_id=_ANY_QUEUE,
            poll_time=int(wait_s * 1000),
            born_time=options.clock_ms(),
            order=options.in_order,
            exp_type=str(data.expression_type),
            exp=data.sub_string,
        )
        address = self._cluster.address(broker_name)
        response = await self._cluster.request(
            address, RequestCode.NOTIFICATION, fields, timeout_s=wait_s + options.request_timeout_s
        )
        return read_fields(response, NotificationResponse).has_msg

    async def ack(self, messages: Sequence[ReceivedMessage]) -> None:
        """Acknowledge messages, several by a request for each topic and broker. Raises MessageError if not popped."""
        single: list[tuple[str, PopHandle]] = []
        batched: dict[tuple[str, str], list[PopHandle]] = {}
        for message in messages:
            handle = handle_of(message)
            if len(messages) > 1 and fits_into_batch(handle):
                batched.setdefault((handle.broker_name, message.topic), []).append(handle)
            else:
                single.append((message.topic, handle))
        acks = [self._ack_one(topic, handle) for topic, handle in single]
        acks += [self._ack_several(*key, handles) for key, handles in batched.items()]
        for result in await asyncio.gather(*acks, return_exceptions=True):  # a failed request stops no other
            if isinstance(result, BaseException):
                raise result

    async def _ack_one(self, topic: str, handle: PopHandle) -> None:
        fields = ack_fields(self._group, topic, handle)
        await self._cluster.request(self._cluster.address(handle.broker_name), RequestCode.ACK_MESSAGE, fields)

    async def _ack_several(self, broker_name: str, topic: str, handles: Sequence[PopHandle]) -> None:
        body = encode_body(BatchAcks(broker_name=broker_name, acks=batch_ack_entries(self._group, topic, handles)))
        await self._cluster.request(self._cluster.address(broker_name), RequestCode.BATCH_ACK_MESSAGE, None, body)

    async def change(self, message: ReceivedMessage, invisible_s: float) -> None:
        """Change a message's invisible time, and set its new receipt handle. Raises MessageError if not popped."""
        handle = handle_of(message)
        fields = ChangeInvisibleTime(
            consumer_group=self._group,
            topic=retry_topic(self._group, message.topic, handle.kind),
            queue_id=handle.queue_id,
            extra_info=handle.encode(),
            offset=handle.offset,
            invisible_time=int(invisible_s * 1000),
        )
        address = self._cluster.address(handle.broker_name)
        response = await self._cluster.request_fields(
            address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields, ChangeInvisibleTimeResponse
        )
        message.properties[PROPERTY_POP_CK] = changed_handle(handle, response).encode()

    async def send_to_dead_letters(self, message: ReceivedMessage) -> None:
        """Send a message to the group's dead letter queue, and acknowledge it. Raises MessageError if not popped."""
        handle = handle_of(message)
        fields = dead_letter_fields(self._group, message.topic, message.physical_offset, message.msg_id)
        address = self._cluster.address(handle.broker_name)
        await self._cluster.request(address, RequestCode.CONSUMER_SEND_MSG_BACK, fields)
        await self._ack_one(message.topic, handle)


def handle_of(message: ReceivedMessage) -> PopHandle:
    """Return the receipt handle of a popped message. Raises MessageError."""
    try:
        return PopHandle.decode(message.properties.get(PROPERTY_POP_CK, ""))
    except ValueError as error:
        raise MessageError(f"{message.msg_id} of {message.topic} was not popped: it has no receipt handle") from error
