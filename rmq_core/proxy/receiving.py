"""Receives: pops at a broker, whose messages go to one client, or back to the broker for other clients.

Source: ``ReceiveMessageActivity``, ``ReceiveMessageResponseStreamWriter``.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from msgspec import structs

from rmq_core.proxy.brokers import Brokers
from rmq_core.proxy.checks import bound_topic, check_bound_topic, group_name, topic_name
from rmq_core.proxy.lite_subscriptions import broker_client_id
from rmq_core.proxy.messages import ReceiptHandle, popped_lite_messages, popped_messages, tags_of, to_wire
from rmq_core.proxy.receipts import PROXY_MAX_INVISIBLE_MS, RELEASE_MS, Receipts
from rmq_core.proxy.sessions import POLL_S, RECEIVE_BATCH, Sessions
from rmq_core.proxy.wire import StatusError, ms_of, ok, rpc, v2
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop import PopLiteMessage, PopMessage, PopResponse
from rmq_formats.codecs.layout import PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.errors import RmqError

log = logging.getLogger("rmq.proxy")
_RENEWAL_MS: Final = 60_000  # invisible time of push consumers' messages, which are renewed
_MIN_INVISIBLE_MS: Final = 10_000
_MIN_POLL_S: Final = 5.0
_RESPONSE_S: Final = 0.5  # of a call's deadline, for the way back
_MAX_UNACKNOWLEDGED: Final = 100  # messages of children: ``maxLiteRenewNumPerChannel``
_DEAD_LETTERS: Final = "%DLQ%"
_MAX_ATTEMPT_CHARS: Final = 255  # a broker stores the attempt id of an orderly pop in a file


@dataclass(frozen=True, slots=True)
class _Receive:
    """Parameters of one receive; ``tags`` is None for all messages."""

    client_id: str
    group: str
    topic: str
    broker: str
    most_attempts: int
    tags: frozenset[str] | None
    renews: bool
    is_lite: bool


class _ClientMessage(NamedTuple):
    receipt: ReceiptHandle
    message: Any


class ReceiveMessageActivity:
    """Handler of ReceiveMessage."""

    def __init__(self, brokers: Brokers, sessions: Sessions, receipts: Receipts) -> None:
        self._brokers = brokers
        self._sessions = sessions
        self._receipts = receipts

    async def receive(self, request: Any, client_id: str, remaining_s: float | None) -> AsyncGenerator[Any]:
        """ReceiveMessage: a status, messages, and the time of their delivery.

        If the call ends early, other clients get the remaining messages a second later.
        """
        group, topic = group_name(request.group), topic_name(request.message_queue.topic)
        self._sessions.get_or_create(client_id)
        fields = self._fields(request, group, topic, remaining_s)
        config = await self._brokers.group(group, topic)
        broker, queue_id = await self._select_queue(request, topic)
        is_lite = bool(bound_topic(config))
        if is_lite:
            check_bound_topic(config, group, topic)
            self._check_unacknowledged(client_id)
        elif config.consume_message_orderly:
            fields = structs.replace(fields, queue_id=queue_id, order=True)
        tags, renews = tags_of(request.filter_expression), bool(request.auto_renew)
        receive = _Receive(client_id, group, topic, broker, config.retry_max_times + 1, tags, renews, is_lite)
        popping = self._receipts.start_task(self._pop(receive, fields))
        pending: deque[_ClientMessage] | None = None
        try:
            status, messages = await asyncio.shield(popping)
            pending = deque(messages)
            yield rpc.ReceiveMessageResponse(status=status)
            while pending:
                message = pending.popleft()  # before the write, as the client may get the message although it fails
                if receive.renews:
                    self._receipts.renewal.start(client_id, group, topic, message.receipt)
                yield rpc.ReceiveMessageResponse(message=message.message)
        except asyncio.CancelledError:
            if pending is None:
                popping.add_done_callback(lambda done: self._release_late(receive, done))
            raise
        finally:
            if pending:
                self._receipts.start_task(self._release(receive, list(pending)))
        last = rpc.ReceiveMessageResponse()
        last.delivery_timestamp.GetCurrentTime()
        yield last

    def _check_unacknowledged(self, client_id: str) -> None:
        """Refuse a client that does not acknowledge: each pending message blocks a child. Raises StatusError."""
        count = self._receipts.renewal.count(client_id)
        if count > _MAX_UNACKNOWLEDGED:
            name = client_id.rpartition("\n")[2]
            reason = f"The client [{name}] has too many unacked messages. Unacked count: {count}"
            raise StatusError(v2.FORBIDDEN, reason)

    def _fields(self, request: Any, group: str, topic: str, remaining_s: float | None) -> PopMessage:
        expression, kind = request.filter_expression.expression, request.filter_expression.type
        if kind == v2.SQL and not expression:
            raise StatusError(v2.ILLEGAL_FILTER_EXPRESSION, "Expression can't be null! SQL92")
        if len(request.attempt_id) > _MAX_ATTEMPT_CHARS:
            raise StatusError(v2.BAD_REQUEST, f"the attempt id has more than {_MAX_ATTEMPT_CHARS} characters")
        if request.batch_size < 0:  # as of the original, whose broker fails with an IllegalArgumentException
            raise StatusError(v2.INTERNAL_SERVER_ERROR, f"the batch size {request.batch_size} is negative")
        return PopMessage(
            consumer_group=group,
            topic=topic,
            queue_id=-1,
            max_msg_nums=min(request.batch_size, RECEIVE_BATCH),
            invisible_time=self._invisible_ms(request),
            poll_time=self._poll_ms(request, remaining_s),
            born_time=time.time_ns() // 1_000_000,
            init_mode=1,
            exp_type="SQL92" if kind == v2.SQL else "TAG",
            exp=expression or "*",
            order=False,
            attempt_id=request.attempt_id or None,
        )

    async def _pop(self, receive: _Receive, fields: PopMessage) -> tuple[Any, list[_ClientMessage]]:
        if not fields.max_msg_nums:  # Java's broker parks the poll, too: otherwise the client would poll in a busy loop
            await asyncio.sleep(fields.poll_time / 1000)
            return v2.Status(code=v2.MESSAGE_NOT_FOUND, message="no new message"), []
        address = await self._brokers.address(receive.topic, receive.broker)
        code = RequestCode.POP_LITE_MESSAGE if receive.is_lite else RequestCode.POP_MESSAGE
        pop = _lite_fields(fields, receive.client_id) if receive.is_lite else fields
        also = (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND)
        response = await self._brokers.request(address, code, pop, timeout_s=fields.poll_time / 1000 + 10, also=also)
        messages = await self._decode_messages(receive, response) if response.code == ResponseCode.SUCCESS else []
        if response.code == ResponseCode.POLLING_FULL:
            return v2.Status(code=v2.TOO_MANY_REQUESTS, message="too many polls"), []
        return ok() if messages else v2.Status(code=v2.MESSAGE_NOT_FOUND, message="no new message"), messages

    def _release_late(self, receive: _Receive, popping: "asyncio.Task[tuple[Any, list[_ClientMessage]]]") -> None:
        if not popping.cancelled() and popping.exception() is None:
            _, messages = popping.result()
            if messages:
                self._receipts.start_task(self._release(receive, messages))

    async def _release(self, receive: _Receive, messages: list[_ClientMessage]) -> None:
        """Make messages that the client did not get visible for other clients."""
        for receipt, _ in messages:
            async with self._receipts.renewal.stop_renewal(receive.client_id, receive.group, receipt.encode()):
                pass
            try:
                await self._receipts.change(receive.group, receive.topic, receipt, RELEASE_MS)
            except RmqError as error:
                log.info("a message that its client did not get comes back later: %(error)s", {"error": error})

    async def _select_queue(self, request: Any, topic: str) -> tuple[str, int]:
        """Choose the broker, and the queue, -1 for any; another broker where the client's is not in the route.

        Source: ``ReceiveMessageQueueSelector``.
        """
        queues = (await self._brokers.route(topic)).read_queues
        if not queues:
            raise StatusError(v2.FORBIDDEN, f"no readable queue of topic {topic}")
        broker = request.message_queue.broker.name
        if any(queue.broker_name == broker for queue in queues):
            return broker, max(-1, request.message_queue.id)
        return random.choice(queues).broker_name, -1

    @staticmethod
    def _invisible_ms(request: Any) -> int:
        if request.auto_renew:
            return _RENEWAL_MS
        invisible_ms = ms_of(request.invisible_duration)
        if not _MIN_INVISIBLE_MS <= invisible_ms <= PROXY_MAX_INVISIBLE_MS:
            bounds = f"{_MIN_INVISIBLE_MS} to {PROXY_MAX_INVISIBLE_MS} ms"
            raise StatusError(v2.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime of {invisible_ms} ms is not of {bounds}")
        return invisible_ms

    @staticmethod
    def _poll_ms(request: Any, remaining_s: float | None) -> int:
        """Return the poll time in ms: the client's, shortened to the call's deadline."""
        poll_s = float(POLL_S)
        if request.HasField("long_polling_timeout"):
            poll_s = ms_of(request.long_polling_timeout) / 1000
        poll_s = min(max(poll_s, _MIN_POLL_S), POLL_S)
        if remaining_s is not None and poll_s > remaining_s - _RESPONSE_S:
            if remaining_s < _MIN_POLL_S:
                raise StatusError(v2.ILLEGAL_POLLING_TIME, "the deadline time remaining is not enough for polling")
            poll_s = remaining_s - _RESPONSE_S
        return int(poll_s * 1000)

    async def _decode_messages(self, receive: _Receive, response: RemotingCommand) -> list[_ClientMessage]:
        """Return the messages of a response; a message with too many deliveries becomes a dead letter."""
        try:
            fields = read_fields(response, PopResponse)
        except ValueError as error:
            raise StatusError(v2.INTERNAL_SERVER_ERROR, f"cannot decode the response to a pop: {error}") from error
        self._brokers.record_clock(receive.broker, fields.pop_time)
        messages = []
        body, group, topic = bytes(response.body), receive.group, receive.topic
        if receive.is_lite:
            popped = popped_lite_messages(fields, body, receive.broker, topic)
        else:
            popped = popped_messages(fields, body, receive.broker)
        for item in popped:
            receipt, uniq_key = item.receipt, item.record.properties.get(PROPERTY_UNIQ_KEY, "")
            if not _matches(receive, item.record):
                await self._best_effort(self._receipts.acknowledge(group, topic, receipt))
            elif item.deliveries >= receive.most_attempts:
                await self._best_effort(self._receipts.send_to_dead_letters(group, topic, receipt, uniq_key))
            else:
                message = to_wire(item.record, topic, receipt.encode(), item.deliveries + 1)
                if receive.is_lite:
                    message.system_properties.lite_topic = receipt.lite_topic
                    message.system_properties.queue_offset = receipt.handle.offset
                messages.append(_ClientMessage(receipt, message))
        return messages

    @staticmethod
    async def _best_effort(work: Awaitable[None]) -> None:
        """Await work; log a failure, so that the client gets the other messages and the failed message comes back."""
        try:
            await work
        except RmqError as error:
            log.warning("a message that is for no client comes back: %(error)s", {"error": error})


def _matches(receive: _Receive, record: StoredMessage) -> bool:
    """Return True if a message is for the client: a broker compares only hashes of tags."""
    if receive.is_lite and record.topic.startswith(_DEAD_LETTERS):
        return False
    return receive.tags is None or record.properties.get(PROPERTY_TAGS) in receive.tags


def _lite_fields(fields: PopMessage, client_id: str) -> PopLiteMessage:
    return PopLiteMessage(
        client_id=broker_client_id(client_id),
        consumer_group=fields.consumer_group,
        topic=fields.topic,
        max_msg_num=fields.max_msg_nums,
        invisible_time=fields.invisible_time,
        poll_time=fields.poll_time,
        born_time=fields.born_time,
        attempt_id=fields.attempt_id,
    )
