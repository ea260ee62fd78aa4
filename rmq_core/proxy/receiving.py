"""Receives: what a broker's pop gives, to one client, or else to others.

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
from rmq_core.proxy.checks import group_name, topic_name
from rmq_core.proxy.errors import StatusError, ok
from rmq_core.proxy.handles import Receipt
from rmq_core.proxy.lite_groups import bound_topic, check_bound
from rmq_core.proxy.lite_subscriptions import known_as
from rmq_core.proxy.messages import tags_of, to_wire
from rmq_core.proxy.popped import popped, popped_children
from rmq_core.proxy.receipts import MOST_INVISIBLE_MS, Receipts
from rmq_core.proxy.renewal import GONE_MS
from rmq_core.proxy.sessions import POLL_S, RECEIVE_BATCH, Sessions
from rmq_core.proxy.wire import ms_of, rpc, v2
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.lite_requests import PopLiteMessage
from rmq_core.remoting.pop_requests import PopAnswer, PopMessage
from rmq_formats.codecs.layout import PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.errors import RmqError

log = logging.getLogger("rmq.proxy")
_RENEWED_MS: Final = 60_000  # what push consumers' messages are popped for, and renewed
_LEAST_INVISIBLE_MS: Final = 10_000
_LEAST_POLL_S: Final = 5.0
_SPARE_S: Final = 0.5  # of a call's deadline, for the way back
_MOST_UNACKNOWLEDGED: Final = 100  # messages of children: ``maxLiteRenewNumPerChannel``
_DEAD_LETTERS: Final = "%DLQ%"
_MOST_ATTEMPT_CHARS: Final = 255  # a broker keeps the id of a take in order, in a file


@dataclass(frozen=True, slots=True)
class _Read:
    """One receive: for whom, and of what.

    Attributes:
        tags: that are wanted; None for all.
        is_lite: it is one of the children that the client has subscribed to.
    """

    client_id: str
    group: str
    topic: str
    broker: str
    most_attempts: int
    tags: frozenset[str] | None
    renews: bool
    is_lite: bool


class _Popped(NamedTuple):
    """A message that was popped for a client."""

    receipt: Receipt
    message: Any


class Receiving:
    """Handles receives."""

    def __init__(self, brokers: Brokers, sessions: Sessions, receipts: Receipts) -> None:
        self._brokers = brokers
        self._sessions = sessions
        self._receipts = receipts

    async def receive(self, asked: Any, client_id: str, left_s: float | None) -> AsyncGenerator[Any]:
        """ReceiveMessage: a status, messages, and when they were delivered.

        What the client does not get, since the call ends before, others get a second later.
        """
        group, topic = group_name(asked.group), topic_name(asked.message_queue.topic)
        self._sessions.of(client_id)
        fields = self._fields(asked, group, topic, left_s)
        config = await self._brokers.group(group, topic)
        broker, queue_id = await self._place(asked, topic)
        is_lite = bool(bound_topic(config))
        if is_lite:
            check_bound(config, group, topic)
            self._check_unacknowledged(client_id)
        elif config.consume_message_orderly:
            fields = structs.replace(fields, queue_id=queue_id, order=True)
        read = _Read(
            client_id, group, topic, broker, config.retry_max_times + 1, tags_of(asked.filter_expression),
            renews=bool(asked.auto_renew), is_lite=is_lite,
        )  # fmt: skip
        popping = self._receipts.begin(self._pop(read, fields))
        left: deque[_Popped] | None = None
        try:
            status, found = await asyncio.shield(popping)
            left = deque(found)
            yield rpc.ReceiveMessageResponse(status=status)
            while left:
                one = left.popleft()  # what is being written counts as written: the client may have it already
                if read.renews:
                    self._receipts.renewal.keep(client_id, group, topic, one.receipt)
                yield rpc.ReceiveMessageResponse(message=one.message)
        except asyncio.CancelledError:
            if left is None:
                popping.add_done_callback(lambda done: self._give_back_late(read, done))
            raise
        finally:
            if left:
                self._receipts.begin(self._give_back(read, list(left)))
        last = rpc.ReceiveMessageResponse()
        last.delivery_timestamp.GetCurrentTime()
        yield last

    def _check_unacknowledged(self, client_id: str) -> None:
        """Refuse a client that does not acknowledge: each of its messages holds up a child. Raises StatusError."""
        count = self._receipts.renewal.count(client_id)
        if count > _MOST_UNACKNOWLEDGED:
            name = client_id.rpartition("\n")[2]
            told = f"The client [{name}] has too many unacked messages. Unacked count: {count}"
            raise StatusError(v2.FORBIDDEN, told)

    def _fields(self, asked: Any, group: str, topic: str, left_s: float | None) -> PopMessage:
        expression, kind = asked.filter_expression.expression, asked.filter_expression.type
        if kind == v2.SQL and not expression:
            raise StatusError(v2.ILLEGAL_FILTER_EXPRESSION, "Expression can't be null! SQL92")
        if len(asked.attempt_id) > _MOST_ATTEMPT_CHARS:
            raise StatusError(v2.BAD_REQUEST, f"the attempt id has more than {_MOST_ATTEMPT_CHARS} characters")
        if asked.batch_size < 0:  # as of the original, whose broker fails with an IllegalArgumentException
            raise StatusError(v2.INTERNAL_SERVER_ERROR, f"the batch size {asked.batch_size} is negative")
        return PopMessage(
            consumer_group=group, topic=topic, queue_id=-1, max_msg_nums=min(asked.batch_size, RECEIVE_BATCH),
            invisible_time=self._invisible_ms(asked), poll_time=self._poll_ms(asked, left_s),
            born_time=time.time_ns() // 1_000_000, init_mode=1, exp_type="SQL92" if kind == v2.SQL else "TAG",
            exp=expression or "*", order=False, attempt_id=asked.attempt_id or None,
        )  # fmt: skip

    async def _pop(self, read: _Read, fields: PopMessage) -> tuple[Any, list[_Popped]]:
        """Pop messages; the status, and what there is for the client."""
        if not fields.max_msg_nums:  # the original's broker holds the poll: a client that asks so must not spin
            await asyncio.sleep(fields.poll_time / 1000)
            return v2.Status(code=v2.MESSAGE_NOT_FOUND, message="no new message"), []
        address = await self._brokers.address(read.topic, read.broker)
        code = RequestCode.POP_LITE_MESSAGE if read.is_lite else RequestCode.POP_MESSAGE
        answer = await self._brokers.ask(
            address, code, _of_children(fields, read.client_id) if read.is_lite else fields,
            timeout_s=fields.poll_time / 1000 + 10,
            also=(ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND),
        )  # fmt: skip
        found = await self._popped(read, answer) if answer.code == ResponseCode.SUCCESS else []
        if answer.code == ResponseCode.POLLING_FULL:
            return v2.Status(code=v2.TOO_MANY_REQUESTS, message="too many polls"), []
        return ok() if found else v2.Status(code=v2.MESSAGE_NOT_FOUND, message="no new message"), found

    def _give_back_late(self, read: _Read, popping: "asyncio.Task[tuple[Any, list[_Popped]]]") -> None:
        if not popping.cancelled() and popping.exception() is None:
            _, found = popping.result()
            if found:
                self._receipts.begin(self._give_back(read, found))

    async def _give_back(self, read: _Read, found: list[_Popped]) -> None:
        """Have others get messages that the client did not get."""
        for receipt, _ in found:
            async with self._receipts.renewal.taken(read.client_id, read.group, receipt.encode()):
                pass
            try:
                await self._receipts.change(read.group, read.topic, receipt, GONE_MS)
            except RmqError as error:
                log.info("a message that its client did not get comes back later: %(error)s", {"error": error})

    async def _place(self, asked: Any, topic: str) -> tuple[str, int]:
        """Name of the broker that is asked, and id of the queue, -1 for any; another broker, if that one is not there.

        Source: ``ReceiveMessageQueueSelector``.
        """
        queues = (await self._brokers.route(topic)).read_queues
        if not queues:
            raise StatusError(v2.FORBIDDEN, f"no readable queue of topic {topic}")
        wanted = asked.message_queue.broker.name
        if any(queue.broker_name == wanted for queue in queues):
            return wanted, max(-1, asked.message_queue.id)
        return random.choice(queues).broker_name, -1

    @staticmethod
    def _invisible_ms(asked: Any) -> int:
        if asked.auto_renew:
            return _RENEWED_MS
        invisible_ms = ms_of(asked.invisible_duration)
        if not _LEAST_INVISIBLE_MS <= invisible_ms <= MOST_INVISIBLE_MS:
            bounds = f"{_LEAST_INVISIBLE_MS} to {MOST_INVISIBLE_MS} ms"
            raise StatusError(v2.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime of {invisible_ms} ms is not of {bounds}")
        return invisible_ms

    @staticmethod
    def _poll_ms(asked: Any, left_s: float | None) -> int:
        """How long to wait for messages: as asked, but the answer has to be back in time."""
        poll_s = float(POLL_S)
        if asked.HasField("long_polling_timeout"):
            poll_s = ms_of(asked.long_polling_timeout) / 1000
        poll_s = min(max(poll_s, _LEAST_POLL_S), POLL_S)
        if left_s is not None and poll_s > left_s - _SPARE_S:
            if left_s < _LEAST_POLL_S:
                raise StatusError(v2.ILLEGAL_POLLING_TIME, "the deadline time remaining is not enough for polling")
            poll_s = left_s - _SPARE_S
        return int(poll_s * 1000)

    async def _popped(self, read: _Read, answer: RemotingCommand) -> list[_Popped]:
        """The messages of an answer; those that were delivered too often become dead letters."""
        try:
            told = read_fields(answer, PopAnswer)
        except ValueError as error:
            raise StatusError(v2.INTERNAL_SERVER_ERROR, f"a broker's answer is none of POP: {error}") from error
        self._brokers.note_clock(read.broker, told.pop_time)
        found = []
        body = bytes(answer.body)
        taken = (
            popped_children(told, body, read.broker, read.topic) if read.is_lite else popped(told, body, read.broker)
        )
        for one in taken:
            properties, receipt = one.record.properties, one.receipt
            if not _is_wanted(read, one.record):
                await self._settle(self._receipts.tell_acked(read.group, read.topic, receipt))
            elif one.deliveries >= read.most_attempts:
                await self._settle(
                    self._receipts.bury(read.group, read.topic, receipt, properties.get(PROPERTY_UNIQ_KEY, ""))
                )
            else:
                message = to_wire(one.record, read.topic, receipt.encode(), one.deliveries + 1)
                if read.is_lite:
                    message.system_properties.lite_topic = receipt.lite_topic
                    message.system_properties.queue_offset = receipt.handle.offset
                found.append(_Popped(receipt, message))
        return found

    @staticmethod
    async def _settle(work: Awaitable[None]) -> None:
        """Do what must not keep the other messages from their client: where it fails, the message comes back."""
        try:
            await work
        except RmqError as error:
            log.warning("a message that is for no client comes back: %(error)s", {"error": error})


def _is_wanted(read: _Read, record: StoredMessage) -> bool:
    """Whether a message is one for the client: a broker compares hashes of tags, and gives a child its dead letters."""
    if read.is_lite and record.topic.startswith(_DEAD_LETTERS):
        return False
    return read.tags is None or record.properties.get(PROPERTY_TAGS) in read.tags


def _of_children(fields: PopMessage, client_id: str) -> PopLiteMessage:
    return PopLiteMessage(
        client_id=known_as(client_id), consumer_group=fields.consumer_group, topic=fields.topic,
        max_msg_num=fields.max_msg_nums, invisible_time=fields.invisible_time, poll_time=fields.poll_time,
        born_time=fields.born_time, attempt_id=fields.attempt_id,
    )  # fmt: skip
