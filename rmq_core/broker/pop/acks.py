"""Acknowledgements of popped messages, and changes of their invisible time (codes 200051, 200151, 200053).

Source: ``AckMessageProcessor``, ``ChangeInvisibleTimeProcessor``.
"""

import base64
from dataclasses import dataclass
from typing import Final

from rmq_core.broker.parked_requests import PopLongPolling
from rmq_core.broker.pop.checks import illegal_queue_remark
from rmq_core.broker.pop.journal import PopJournal
from rmq_core.broker.pop.order import ConsumerOrderInfo
from rmq_core.broker.pop.records import Acknowledgement, CheckPoint
from rmq_core.broker.processors.durable_responder import DurableResponder
from rmq_core.broker.state import APPLY_FIRST, BrokerState
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.pop import BatchAck, BatchAcks
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler, HandlerResponse
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields, write_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop import (
    IN_ORDER,
    MAX_INVISIBLE_MS,
    MAX_MESSAGES,
    AckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    PopHandle,
    TopicKind,
    normal_topic,
    retry_topic,
)
from rmq_core.store.results import PutResult, PutStatus

_MAX_LEAD_MS: Final = 100  # of a pop time before the clock; a longer one comes of a clock that was set back
_MAX_BITS: Final = 4096  # of a batch's bit set: far more than a pop gives


@dataclass(eq=False)
class AckMessageProcessor:
    """Handlers of acknowledgements and changes of invisible times."""

    _state: BrokerState
    _journal: PopJournal
    _orders: ConsumerOrderInfo
    _polls: PopLongPolling
    _responder: DurableResponder

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.ACK_MESSAGE: self.ack,
            RequestCode.BATCH_ACK_MESSAGE: self.ack_batch,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self.change,
        }

    def ack(self, request: RemotingCommand, _: Connection) -> HandlerResponse:
        """Acknowledge one message (ACK_MESSAGE, 200051). An expired handle is accepted, without effect."""
        fields = read_fields(request, AckMessage)
        handle = self._parse_handle(fields)
        if handle.revive_queue_id == IN_ORDER:
            self._ack_in_order(fields.topic, fields.consumer_group, fields.queue_id, fields.offset, handle.pop_time_ms)
            return request.response()
        return self._respond(request, request.response(), [self._ack_one(fields, handle)])

    def ack_batch(self, request: RemotingCommand, _: Connection) -> HandlerResponse:
        """Acknowledge messages of several check points (BATCH_ACK_MESSAGE, 200151)."""
        acks = decode_body(request.body, BatchAcks, is_request=True).acks
        if not acks:
            raise ResponseError(ResponseCode.NO_MESSAGE, "no messages to acknowledge")
        results: list[PutResult] = []
        for ack in acks:
            results += self._ack_several(ack)
        return self._respond(request, request.response(), results)

    def _ack_several(self, ack: BatchAck) -> list[PutResult]:
        """Acknowledge the messages of one entry of a batch; skip entries whose topic or offsets do not exist."""
        try:
            kind = TopicKind(int(ack.r))
            offsets = [ack.so + bit for bit in _parse_bit_set(ack.b)]
        except ValueError as error:
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, f"cannot decode an acknowledgement: {error}") from error
        topic = retry_topic(ack.c, ack.t, kind)
        if self._state.topics.get(topic) is None:
            return []
        low, high = self._bounds(topic, ack.q)
        offsets = [offset for offset in offsets if low <= offset <= high]
        if ack.rq == IN_ORDER:
            for offset in offsets:
                self._ack_in_order(topic, ack.c, ack.q, offset, ack.pt)
            return []
        handle = PopHandle(ack.so, ack.pt, ack.it, ack.rq, kind, self._state.config.broker_name, ack.q, ack.so)
        self._check_revive_queue(handle)
        results = []
        for start in range(0, len(offsets), MAX_MESSAGES):
            acknowledgement = Acknowledgement(
                aol=offsets[start : start + MAX_MESSAGES],
                bn=handle.broker_name,
                c=ack.c,
                pt=ack.pt,
                q=ack.q,
                so=ack.so,
                t=topic,
            )
            results.append(self._put_ack(acknowledgement, handle))
        return results

    def change(self, request: RemotingCommand, _: Connection) -> HandlerResponse:
        """Write a check point of its own for one message (CHANGE_MESSAGE_INVISIBLETIME, 200053)."""
        fields = read_fields(request, ChangeInvisibleTime)
        if not 0 <= fields.invisible_time <= MAX_INVISIBLE_MS:
            problem = f"invisibleTime {fields.invisible_time} is not of 0 to {MAX_INVISIBLE_MS} ms"
            raise ResponseError(ResponseCode.INVALID_PARAMETER, problem)
        handle = self._parse_handle(fields)
        now_ms = self._state.clock_ms()
        if handle.revive_queue_id == IN_ORDER:
            return self._change_in_order(request, fields, handle, now_ms)
        # Both check points may begin at the same message, so that their pop times have to differ. The handle's time is
        # ahead of the clock after several changes in one millisecond.
        is_same_time = 0 <= handle.pop_time_ms - now_ms < _MAX_LEAD_MS
        pop_time_ms = handle.pop_time_ms + 1 if is_same_time else now_ms
        point = CheckPoint(
            bn=handle.broker_name,
            c=fields.consumer_group,
            d=[0],
            it=fields.invisible_time,
            n=1,
            pt=pop_time_ms,
            q=fields.queue_id,
            revive_time=pop_time_ms + fields.invisible_time,
            so=fields.offset,
            t=fields.topic,
        )
        result = self._journal.put_checkpoint(point, handle.revive_queue_id)
        if result.status is not PutStatus.PUT_OK:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, result.status.value)
        results = [result, self._ack_one(fields, handle)]
        response = ChangeInvisibleTimeResponse(
            pop_time=pop_time_ms, invisible_time=fields.invisible_time, revive_qid=handle.revive_queue_id
        )
        return self._respond(request, request.response(ext_fields=write_fields(response)), results)

    def _change_in_order(
        self, request: RemotingCommand, fields: ChangeInvisibleTime, handle: PopHandle, now_ms: int
    ) -> RemotingCommand:
        visible_ms = now_ms + fields.invisible_time
        try:
            self._orders.change(
                fields.topic, fields.consumer_group, fields.queue_id, fields.offset, handle.pop_time_ms, visible_ms
            )
        except ValueError as error:
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        response = ChangeInvisibleTimeResponse(
            pop_time=handle.pop_time_ms, invisible_time=visible_ms - handle.pop_time_ms, revive_qid=IN_ORDER
        )
        return request.response(ext_fields=write_fields(response))

    def _parse_handle(self, fields: AckMessage | ChangeInvisibleTime) -> PopHandle:
        """Parse the handle of a request, and check topic, queue and offset. Raises ResponseError."""
        topic, queue_id, offset = fields.topic, fields.queue_id, fields.offset
        config = self._state.require_topic(topic, APPLY_FIRST)
        if not 0 <= queue_id < config.read_queue_nums:
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, illegal_queue_remark(queue_id, topic, config))
        low, high = self._bounds(topic, queue_id)
        if not low <= offset <= high:
            problem = f"offset is illegal, key:{topic}@{queue_id}, commit:{offset}, store:{low}~{high}"
            raise ResponseError(ResponseCode.NO_MESSAGE, problem)
        try:
            handle = PopHandle.decode(fields.extra_info)
        except ValueError as error:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        self._check_revive_queue(handle)
        return handle

    def _check_revive_queue(self, handle: PopHandle) -> None:
        if not (handle.revive_queue_id == IN_ORDER or 0 <= handle.revive_queue_id < self._journal.queue_count):
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, f"revive queue {handle.revive_queue_id} does not exist")

    def _bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        store = self._state.store
        return store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)

    def _ack_one(self, fields: AckMessage | ChangeInvisibleTime, handle: PopHandle) -> PutResult:
        acknowledgement = Acknowledgement(
            ao=fields.offset,
            bn=handle.broker_name,
            c=fields.consumer_group,
            pt=handle.pop_time_ms,
            q=handle.queue_id,
            so=handle.start_offset,
            t=fields.topic,
        )
        return self._put_ack(acknowledgement, handle)

    def _put_ack(self, ack: Acknowledgement, handle: PopHandle) -> PutResult:
        result = self._journal.put_ack(ack, handle.revive_queue_id, handle.visible_ms)
        if result.status is not PutStatus.PUT_OK:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, result.status.value)
        return result

    def _ack_in_order(self, topic: str, group: str, queue_id: int, offset: int, pop_time_ms: int) -> None:
        """Acknowledge a message popped in order; advance the group's offset to the first unacknowledged message."""
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
            self._polls.wake_soon(normal_topic(topic, group), group, queue_id)

    def _respond(
        self, request: RemotingCommand, response: RemotingCommand, results: list[PutResult]
    ) -> HandlerResponse:
        """Respond after all appended records are as durable as messages must be."""
        if results and self._responder.must_wait:
            return self._responder.respond_when_durable(request, response, results[-1])
        return response


def _parse_bit_set(text: str) -> list[int]:
    """Return the numbers of the set bits of a base64 bit set. Raises ValueError."""
    data = base64.b64decode(text, validate=True)
    if len(data) * 8 > _MAX_BITS:
        raise ValueError(f"{len(data) * 8} bits, more than {_MAX_BITS}")
    return [at * 8 + bit for at, byte in enumerate(data) for bit in range(8) if byte >> bit & 1]
