"""Pops of lite topics (code 200070) and notifications about them (200054), both with long polling.

A pop reads the messages of a client's events, each lite topic in order.

Source: ``PopLiteMessageProcessor``, ``NotificationProcessor#hasMsgForLiteConsumer``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from rmq_core.broker.lite.dispatcher import LiteEventDispatcher
from rmq_core.broker.lite.metadata import LiteGroups
from rmq_core.broker.lite.registry import LiteClient, LiteSubscriptionRegistry
from rmq_core.broker.parked_requests import ParkedRequest, ParkedRequests
from rmq_core.broker.pop.checks import check_pop_group
from rmq_core.broker.pop.order import ConsumerOrderInfo
from rmq_core.broker.pop.pop_message import ENOUGH_BYTES, OFFSET_MOVED, get_pop_offset
from rmq_core.broker.pop.records import read_queue_offset
from rmq_core.broker.state import APPLY_FIRST, HELP, BrokerState
from rmq_core.broker.tables import names, stats
from rmq_core.broker.tables.topics import is_lite
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler, HandlerResponse
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import has_field, read_fields, write_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop import (
    IN_ORDER,
    MAX_INVISIBLE_MS,
    MAX_MESSAGES,
    Notification,
    NotificationResponse,
    PopLiteMessage,
    PopLiteResponse,
)
from rmq_core.store.commitlog.lmq_offsets import LMQ_QUEUE_ID
from rmq_core.store.results import GetResult, GetStatus, split_records

_MAX_READ_LMQS: Final = 64  # light queues of a pop: some 0.2 ms without messages
_MAX_LMQS_WITH_MESSAGES: Final = 16  # light queues with messages, some 0.06 ms each, so that other requests do not wait
_MAX_ID_CHARS: Final = 255  # of a client, and of an attempt
_INVALID: Final = ResponseCode.INVALID_PARAMETER


@dataclass(slots=True)
class LitePopResult:
    """Result of a pop of lite topics: ``counts`` are earlier pops of each message, ``size`` is in bytes."""

    pop_time_ms: int
    bodies: list[memoryview] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    size: int = 0
    queue_count: int = 0


@dataclass(eq=False)
class PopLiteMessageProcessor:
    """Handler of POP_LITE_MESSAGE."""

    _state: BrokerState
    _registry: LiteSubscriptionRegistry
    _groups: LiteGroups
    _orders: ConsumerOrderInfo
    _dispatcher: LiteEventDispatcher
    _waiting: ParkedRequests[str]

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.POP_LITE_MESSAGE: self.pop}

    def pop(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """Pop messages of lite topics (POP_LITE_MESSAGE, 200070); None while the request is parked."""
        fields = read_fields(request, PopLiteMessage)
        self._check(fields)
        deadline_ms = self._state.steady_ms() + max(0, fields.poll_time)
        pop = ParkedRequest(fields.client_id, request, connection, deadline_ms, partial(self._pop_again, fields))
        return self._pop(fields, pop)

    def _pop_again(self, fields: PopLiteMessage, pop: ParkedRequest[str], is_over: bool) -> RemotingCommand | None:
        self._check(fields)
        return self._pop(fields, pop, is_over=is_over)

    def _pop(self, fields: PopLiteMessage, pop: ParkedRequest[str], *, is_over: bool = False) -> RemotingCommand | None:
        client = self._registry.clients.get(fields.client_id)
        if client is not None and client.group != fields.consumer_group:
            client = None
        result = self._pop_events(fields, client)
        if client is not None:
            self._dispatcher.on_poll(client)
            if client.events and (self._waiting.requests_of(fields.client_id) or not result.counts):
                self._dispatcher.wake_soon(fields.client_id)
        code, remark = ResponseCode.SUCCESS, "FOUND"
        if not result.counts:
            code, remark = ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE"
            if not is_over and pop.deadline_ms > self._state.steady_ms():
                if self._waiting.park(pop):
                    return None
                code = ResponseCode.POLLING_FULL
        answer_fields = PopLiteResponse(
            pop_time=result.pop_time_ms,
            invisible_time=fields.invisible_time,
            revive_qid=IN_ORDER,
            order_count_info=";".join(map(str, result.counts)),
        )
        body = result.bodies[0] if len(result.bodies) == 1 else b"".join(result.bodies)
        return pop.request.response(int(code), remark, write_fields(answer_fields), body)

    def _pop_events(self, fields: PopLiteMessage, client: LiteClient | None) -> LitePopResult:
        """Pop messages of the light queues of a client's events, up to the requested number."""
        result = LitePopResult(self._state.clock_ms())
        for _ in range(_MAX_READ_LMQS):
            has_enough = len(result.counts) >= fields.max_msg_num or result.size >= ENOUGH_BYTES
            if client is None or not client.events or has_enough or result.queue_count >= _MAX_LMQS_WITH_MESSAGES:
                break
            queue = next(iter(client.events))
            del client.events[queue]
            if queue not in client.evicted:
                self._pop_queue(queue, fields, result)
        if result.counts:
            key = stats.pull_key(fields.topic, fields.consumer_group)
            self._state.stats.count_messages(stats.GOT, key, len(result.counts), result.size)
        return result

    def _pop_queue(self, queue: str, fields: PopLiteMessage, result: LitePopResult) -> None:
        state, group = self._state, fields.consumer_group
        is_reset = state.offsets.is_reset(queue, group, LMQ_QUEUE_ID)
        if not is_reset and self._orders.is_blocked(queue, group, LMQ_QUEUE_ID, fields.attempt_id, result.pop_time_ms):
            return
        if not state.store.max_offset(queue, LMQ_QUEUE_ID):
            return  # no offset is committed for a light queue without messages
        offset = get_pop_offset(state, self._orders, queue, group, LMQ_QUEUE_ID, from_last=True)
        offset, messages = self._read(queue, group, offset, fields.max_msg_num - len(result.counts))
        if messages.status is not GetStatus.FOUND:
            return
        offsets = list(range(messages.next_offset - messages.message_count, messages.next_offset))
        if offsets[0] != offset:  # offsets were skipped
            offsets = [read_queue_offset(record, queue) for record in split_records(messages.slices)]
        counts = self._orders.record_pop(
            queue, group, LMQ_QUEUE_ID, offsets, fields.attempt_id, result.pop_time_ms, fields.invisible_time
        )
        result.bodies += messages.slices
        result.counts += [counts.get(popped, 0) for popped in offsets]
        result.size += messages.size
        result.queue_count += 1

    def _read(self, queue: str, group: str, offset: int, most: int) -> tuple[int, GetResult]:
        """Read messages, at the next existing offset if the wanted one has left the log; return the offset, too."""
        store = self._state.store
        messages = store.get(queue, LMQ_QUEUE_ID, offset, most)
        if messages.status in OFFSET_MOVED and messages.next_offset != offset:
            offset = messages.next_offset
            self._state.offsets.commit(queue, group, LMQ_QUEUE_ID, offset)
            messages = store.get(queue, LMQ_QUEUE_ID, offset, most)
        return offset, messages

    def _check(self, fields: PopLiteMessage) -> None:
        """Refuse an invalid pop. Raises ResponseError. Source: ``PopLiteMessageProcessor#preCheck``."""
        state = self._state
        if not state.config.broker_permission & names.PERM_READ:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"the broker[{state.address}] pop message is forbidden")
        if not 0 < fields.max_msg_num <= MAX_MESSAGES:
            problem = f"the broker[{state.address}] pop message's num is greater than {MAX_MESSAGES}, or none"
            raise ResponseError(_INVALID, problem)
        if not 0 < fields.invisible_time <= MAX_INVISIBLE_MS:
            problem = f"invisibleTime {fields.invisible_time} is not of 1 to {MAX_INVISIBLE_MS} ms"
            raise ResponseError(_INVALID, problem)
        if not 0 < len(fields.client_id) <= _MAX_ID_CHARS or len(fields.attempt_id or "") > _MAX_ID_CHARS:
            raise ResponseError(_INVALID, f"clientId or attemptId is not of 1 to {_MAX_ID_CHARS} characters")
        topic = state.topics.get(fields.topic)
        if topic is None:
            problem = f"topic [{fields.topic}] not exist{APPLY_FIRST}"
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, problem)
        if not topic.perm & names.PERM_READ:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"the topic [{fields.topic}] peeking message is forbidden")
        if not is_lite(topic):
            raise ResponseError(_INVALID, f"the topic [{fields.topic}] message type not match")
        group = state.groups.get(fields.consumer_group)
        if group is None:
            problem = f"subscription group [{fields.consumer_group}] not exist, {HELP}"
            raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, problem)
        if not group.consume_enable:
            problem = f"subscription group no permission, {fields.consumer_group}"
            raise ResponseError(ResponseCode.NO_PERMISSION, problem)
        if self._groups.parent_of(fields.consumer_group) != fields.topic:
            raise ResponseError(_INVALID, f"subscription bind topic not match, {fields.consumer_group}")


class LiteNotificationProcessor:
    """Handler of NOTIFICATION of lite consumers; other notifications go to the handler of POP."""

    def __init__(self, state: BrokerState, registry: LiteSubscriptionRegistry, waiting: ParkedRequests[str]) -> None:
        self._state = state
        self._registry = registry
        self._waiting = waiting

    def handlers(self, pop_handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        notify = pop_handlers[RequestCode.NOTIFICATION]

        def notify_any(request: RemotingCommand, connection: Connection) -> HandlerResponse:
            if not has_field(request, "isLiteConsumer"):
                return notify(request, connection)
            fields = read_fields(request, Notification)
            if not (fields.is_lite_consumer and fields.client_id):
                return notify(request, connection)
            check_pop_group(self._state, fields.consumer_group, fields.topic, fields.queue_id)
            deadline_ms = self._state.steady_ms() + max(0, fields.poll_time)
            return self._notify(
                ParkedRequest(fields.client_id, request, connection, deadline_ms, self._notify), is_over=False
            )

        return {RequestCode.NOTIFICATION: notify_any}

    def _notify(self, notification: ParkedRequest[str], is_over: bool) -> RemotingCommand | None:
        client = self._registry.clients.get(notification.key)
        has_events = client is not None and bool(client.events)
        must_wait = not has_events and not is_over and notification.deadline_ms > self._state.steady_ms()
        if must_wait and self._waiting.park(notification):
            return None
        answer_fields = write_fields(NotificationResponse(has_msg=has_events, polling_full=must_wait))
        return notification.request.response(ext_fields=answer_fields)
