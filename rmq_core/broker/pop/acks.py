"""Acknowledgements of popped messages, and changes of their invisible time (codes 200051, 200151, 200053).

Source: ``AckMessageProcessor``, ``ChangeInvisibleTimeProcessor``.
"""

import base64
import binascii
from typing import Final

from rmq_core.broker.pop.checks import topic_of
from rmq_core.broker.pop.held import HeldPops
from rmq_core.broker.pop.journal import PopJournal
from rmq_core.broker.pop.order import OrderTable
from rmq_core.broker.pop.records import Acknowledgement, CheckPoint
from rmq_core.broker.processors.acknowledge import Acknowledgements
from rmq_core.broker.state import BrokerState
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.pop import BatchAck, BatchAcks
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler, HandlerAnswer
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields, write_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop import (
    IN_ORDER,
    MOST_INVISIBLE_MS,
    MOST_MESSAGES,
    PopHandle,
    TopicKind,
    normal_topic,
    retry_topic,
)
from rmq_core.remoting.pop_requests import AckMessage, ChangeInvisibleTime, ChangeInvisibleTimeAnswer
from rmq_core.store.results import PutResult, PutStatus
from rmq_formats.errors import DecodeError

_MOST_BITS: Final = 4096  # of a batch's bit set: far more than a pop gives


class Acks:
    """Handles acknowledgements and changes of invisible times."""

    def __init__(
        self, state: BrokerState, journal: PopJournal, orders: OrderTable, held: HeldPops,
        acknowledgements: Acknowledgements,
    ) -> None:  # fmt: skip
        self._state = state
        self._journal = journal
        self._orders = orders
        self._held = held
        self._acknowledgements = acknowledgements

    def handlers(self) -> dict[int, Handler]:
        """Handlers by request code."""
        return {
            RequestCode.ACK_MESSAGE: self.ack,
            RequestCode.BATCH_ACK_MESSAGE: self.ack_batch,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self.change,
        }

    def ack(self, request: RemotingCommand, _: Connection) -> HandlerAnswer:
        """ACK_MESSAGE (200051). The acknowledgement of a handle that has expired is taken, and does nothing."""
        asked = read_fields(request, AckMessage)
        handle = self._handle(asked.extra_info, asked.topic, asked.queue_id, asked.offset)
        if handle.revive_queue_id == IN_ORDER:
            self._ack_in_order(asked.topic, asked.consumer_group, asked.queue_id, asked.offset, handle.pop_time_ms)
            return request.response()
        ack = self._ack_of(asked.topic, asked.consumer_group, handle, asked.offset)
        return self._answer(request, request.response(), [self._put_ack(ack, handle)])

    def ack_batch(self, request: RemotingCommand, _: Connection) -> HandlerAnswer:
        """BATCH_ACK_MESSAGE (200151): messages of several check points."""
        try:
            asked = decode_body(request.body, BatchAcks, is_request=True).acks
        except DecodeError as error:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        if not asked:
            raise ResponseError(ResponseCode.NO_MESSAGE, "no messages to acknowledge")
        results: list[PutResult] = []
        for one in asked:
            results += self._ack_several(one)
        return self._answer(request, request.response(), results)

    def _ack_several(self, one: BatchAck) -> list[PutResult]:
        """Acknowledge what one entry of a batch names; entries that name nothing that is there are passed over."""
        try:
            kind = TopicKind(int(one.r))
            offsets = [one.so + bit for bit in _bits(one.b)]
        except ValueError as error:
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, f"an acknowledgement is broken: {error}") from error
        topic = retry_topic(one.c, one.t, kind)
        if self._state.topics.get(topic) is None:
            return []
        low, high = self._bounds(topic, one.q)
        offsets = [offset for offset in offsets if low <= offset <= high]
        if one.rq == IN_ORDER:
            for offset in offsets:
                self._ack_in_order(topic, one.c, one.q, offset, one.pt)
            return []
        handle = PopHandle(one.so, one.pt, one.it, one.rq, kind, self._state.config.broker_name, one.q, one.so)
        self._check_revive_queue(handle)
        results = []
        for at in range(0, len(offsets), MOST_MESSAGES):
            ack = Acknowledgement(
                aol=offsets[at : at + MOST_MESSAGES], bn=handle.broker_name, c=one.c, pt=one.pt, q=one.q, so=one.so,
                t=topic,
            )  # fmt: skip
            results.append(self._put_ack(ack, handle))
        return results

    def change(self, request: RemotingCommand, _: Connection) -> HandlerAnswer:
        """CHANGE_MESSAGE_INVISIBLETIME (200053): a check point of its own for the message, for the time asked."""
        asked = read_fields(request, ChangeInvisibleTime)
        if not 0 <= asked.invisible_time <= MOST_INVISIBLE_MS:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime {asked.invisible_time} is not of 0 to {MOST_INVISIBLE_MS} ms",
            )
        handle = self._handle(asked.extra_info, asked.topic, asked.queue_id, asked.offset)
        now_ms = self._state.clock_ms()
        if handle.revive_queue_id == IN_ORDER:
            return self._change_in_order(request, asked, handle, now_ms)
        point = CheckPoint(
            bn=handle.broker_name, c=asked.consumer_group, d=[0], it=asked.invisible_time, n=1, pt=now_ms,
            q=asked.queue_id, revive_time=now_ms + asked.invisible_time, so=asked.offset, t=asked.topic,
        )  # fmt: skip
        result = self._journal.put_checkpoint(point, handle.revive_queue_id)
        if result.status is not PutStatus.PUT_OK:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, result.status.value)
        ack = self._ack_of(asked.topic, asked.consumer_group, handle, asked.offset)
        results = [result, self._put_ack(ack, handle)]
        fields = ChangeInvisibleTimeAnswer(
            pop_time=now_ms, invisible_time=asked.invisible_time, revive_qid=handle.revive_queue_id
        )
        return self._answer(request, request.response(int(ResponseCode.SUCCESS), None, write_fields(fields)), results)

    def _change_in_order(
        self, request: RemotingCommand, asked: ChangeInvisibleTime, handle: PopHandle, now_ms: int
    ) -> RemotingCommand:
        visible_ms = now_ms + asked.invisible_time
        try:
            self._orders.change(
                asked.topic, asked.consumer_group, asked.queue_id, asked.offset, handle.pop_time_ms, visible_ms
            )
        except ValueError as error:
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        fields = ChangeInvisibleTimeAnswer(
            pop_time=handle.pop_time_ms, invisible_time=visible_ms - handle.pop_time_ms, revive_qid=IN_ORDER
        )
        return request.response(int(ResponseCode.SUCCESS), None, write_fields(fields))

    # --- parts ----------------------------------------------------------------------------
    def _handle(self, text: str, topic: str, queue_id: int, offset: int) -> PopHandle:
        """Parse a handle and check what a request says beside it. Raises ResponseError."""
        found = topic_of(self._state, topic)
        if not 0 <= queue_id < found.read_queue_nums:
            raise ResponseError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{found.read_queue_nums}]",
            )
        low, high = self._bounds(topic, queue_id)
        if not low <= offset <= high:
            raise ResponseError(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{topic}@{queue_id}, commit:{offset}, store:{low}~{high}",
            )
        try:
            handle = PopHandle.decode(text)
        except ValueError as error:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        self._check_revive_queue(handle)
        return handle

    def _check_revive_queue(self, handle: PopHandle) -> None:
        if not (handle.revive_queue_id == IN_ORDER or 0 <= handle.revive_queue_id < self._journal.queue_count):
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, f"revive queue {handle.revive_queue_id} is not there")

    def _bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        store = self._state.store
        return store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)

    @staticmethod
    def _ack_of(topic: str, group: str, handle: PopHandle, offset: int) -> Acknowledgement:
        return Acknowledgement(
            ao=offset, bn=handle.broker_name, c=group, pt=handle.pop_time_ms, q=handle.queue_id, so=handle.start_offset,
            t=topic,
        )  # fmt: skip

    def _put_ack(self, ack: Acknowledgement, handle: PopHandle) -> PutResult:
        result = self._journal.put_ack(ack, handle.revive_queue_id, handle.visible_ms)
        if result.status is not PutStatus.PUT_OK:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, result.status.value)
        return result

    def _ack_in_order(self, topic: str, group: str, queue_id: int, offset: int, pop_time_ms: int) -> None:
        """Acknowledge a message that was popped in order: the group's offset moves to the first that is not."""
        offsets = self._state.offsets
        if offset < offsets.get(topic, group, queue_id):
            return
        try:
            next_offset = self._orders.acknowledge(topic, group, queue_id, offset, pop_time_ms)
        except ValueError as error:
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        if next_offset is not None and next_offset > offsets.get(topic, group, queue_id):
            offsets.commit(topic, group, queue_id, next_offset)
        if not self._orders.is_blocked(topic, group, queue_id, None, self._state.clock_ms()):
            self._held.wake_soon(normal_topic(topic, group), group, queue_id)

    def _answer(self, request: RemotingCommand, answer: RemotingCommand, results: list[PutResult]) -> HandlerAnswer:
        """The answer, once all that was appended is as safe as messages are."""
        if results and self._acknowledgements.must_wait:
            return self._acknowledgements.when_safe(request, answer, results[-1])
        return answer


def _bits(text: str) -> list[int]:
    """Numbers of the bits that are set. Raises ValueError."""
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
    if len(data) * 8 > _MOST_BITS:
        raise ValueError(f"{len(data) * 8} bits, more than {_MOST_BITS}")
    return [at * 8 + bit for at, byte in enumerate(data) for bit in range(8) if byte >> bit & 1]
