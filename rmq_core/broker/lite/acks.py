"""Acknowledgements and changes of invisible time of lite topics (200051, 200151, 200053 with ``liteTopic``).

Messages popped before the broker's last start return. Then only the acknowledgement of the first open message advances
the group; the original skips the messages before.

Source: ``AckMessageProcessor#ackLite``, ``ChangeInvisibleTimeProcessor#processChangeInvisibleTimeForLite``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from rmq_core.broker.lite.dispatcher import LiteEventDispatcher
from rmq_core.broker.lite.metadata import LiteGroups
from rmq_core.broker.pop.order import ConsumerOrderInfo
from rmq_core.broker.processors.lite_names import lite_queue_name
from rmq_core.broker.state import APPLY_FIRST, BrokerState
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler, HandlerResponse
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import has_field, read_fields, write_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop import (
    IN_ORDER,
    MAX_INVISIBLE_MS,
    AckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    PopHandle,
)
from rmq_core.store.commitlog.lmq_offsets import LMQ_QUEUE_ID

_Fields = TypeVar("_Fields", AckMessage, ChangeInvisibleTime)
_LITE_TOPIC: Final = "liteTopic"
_NOTHING: Final = ChangeInvisibleTimeResponse(pop_time=0, invisible_time=0, revive_qid=0)


@dataclass(eq=False)
class LiteAckProcessor:
    """Handlers of acknowledgements of lite topics; requests without ``liteTopic`` go to the handlers of POP."""

    _state: BrokerState
    _groups: LiteGroups
    _orders: ConsumerOrderInfo
    _dispatcher: LiteEventDispatcher

    def handlers(self, pop_handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        ack, change = pop_handlers[RequestCode.ACK_MESSAGE], pop_handlers[RequestCode.CHANGE_MESSAGE_INVISIBLETIME]
        return {
            RequestCode.ACK_MESSAGE: _lite_or_pop(AckMessage, self.ack, ack),
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _lite_or_pop(ChangeInvisibleTime, self.change, change),
        }

    def ack(self, request: RemotingCommand, fields: AckMessage) -> RemotingCommand:
        queue, handle = self._parse_handle(fields)
        group, offset = fields.consumer_group, fields.offset
        committed = self._state.offsets.get(queue, group, LMQ_QUEUE_ID)
        if offset < committed:
            return request.response()
        next_offset = self._acknowledge(queue, group, offset, committed, handle)
        if next_offset is not None:
            self._commit(queue, group, next_offset)
        return request.response()

    def _acknowledge(self, queue: str, group: str, offset: int, committed: int, handle: PopHandle) -> int | None:
        """Acknowledge a message; return the offset to commit, or None without a change."""
        last_pop_ms = self._orders.last_pop_ms(queue, group, LMQ_QUEUE_ID)
        if last_pop_ms is None:
            return offset + 1 if offset == committed else None
        if last_pop_ms != handle.pop_time_ms:
            return None  # of an earlier pop: the message returns
        try:
            return self._orders.acknowledge(queue, group, LMQ_QUEUE_ID, offset, handle.pop_time_ms)
        except ValueError as error:
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, f"ack offset illegal. {error}") from error

    def _commit(self, queue: str, group: str, next_offset: int) -> None:
        state = self._state
        if not state.offsets.is_reset(queue, group, LMQ_QUEUE_ID):
            if next_offset > state.offsets.get(queue, group, LMQ_QUEUE_ID):
                state.offsets.commit(queue, group, LMQ_QUEUE_ID, next_offset)
            self._orders.remove_acknowledged(queue, group, LMQ_QUEUE_ID)
        if self._orders.is_blocked(queue, group, LMQ_QUEUE_ID, None, state.clock_ms()):
            return
        if state.store.max_offset(queue, LMQ_QUEUE_ID) > next_offset:
            self._dispatcher.notify_group(queue, group)

    def change(self, request: RemotingCommand, fields: ChangeInvisibleTime) -> RemotingCommand:
        """Change the invisible time of a message, or with ``suspend`` of all messages of its pop (200053)."""
        if not 0 <= fields.invisible_time <= MAX_INVISIBLE_MS:
            what = f"invisibleTime {fields.invisible_time} is not of 0 to {MAX_INVISIBLE_MS} ms"
            raise ResponseError(ResponseCode.INVALID_PARAMETER, what)
        queue, handle = self._parse_handle(fields)
        group, pop_time_ms = fields.consumer_group, handle.pop_time_ms
        if fields.offset < self._state.offsets.get(queue, group, LMQ_QUEUE_ID):  # the message is acknowledged
            return request.response(ext_fields=write_fields(_NOTHING))
        visible_ms = self._state.clock_ms() + fields.invisible_time
        if fields.suspend:
            self._orders.suspend(queue, group, LMQ_QUEUE_ID, pop_time_ms, visible_ms)
        elif self._orders.last_pop_ms(queue, group, LMQ_QUEUE_ID) == pop_time_ms:
            try:
                self._orders.change(queue, group, LMQ_QUEUE_ID, fields.offset, pop_time_ms, visible_ms)
            except ValueError as error:
                raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        response = ChangeInvisibleTimeResponse(
            pop_time=pop_time_ms, invisible_time=visible_ms - pop_time_ms, revive_qid=handle.revive_queue_id
        )
        return request.response(ext_fields=write_fields(response))

    def _parse_handle(self, fields: AckMessage | ChangeInvisibleTime) -> tuple[str, PopHandle]:
        """Return the light queue and the handle of a request. Raises ResponseError."""
        self._state.require_topic(fields.topic, APPLY_FIRST)
        if self._groups.parent_of(fields.consumer_group) != fields.topic:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, "group type or bind topic not match.")
        try:
            queue = lite_queue_name(fields.topic, fields.lite_topic or "")
            handle = PopHandle.decode(fields.extra_info)
        except ValueError as error:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if not 0 <= fields.offset <= self._state.store.max_offset(queue, LMQ_QUEUE_ID):
            raise ResponseError(ResponseCode.NO_MESSAGE, "ack offset illegal.")
        if fields.queue_id != LMQ_QUEUE_ID or handle.revive_queue_id != IN_ORDER:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, "ack queue illegal.")
        return queue, handle


def _lite_or_pop(
    kind: type[_Fields], handle_lite: Callable[[RemotingCommand, _Fields], RemotingCommand], handle_pop: Handler
) -> Handler:
    """Return a handler that chooses by the presence of a lite topic in the request."""

    def handle(request: RemotingCommand, connection: Connection) -> HandlerResponse:
        if has_field(request, _LITE_TOPIC):
            fields = read_fields(request, kind)
            if (fields.lite_topic or "").strip():
                return handle_lite(request, fields)
        return handle_pop(request, connection)

    return handle
