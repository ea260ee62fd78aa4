"""Polling without popping: NOTIFICATION, POLLING_INFO, PEEK_MESSAGE (codes 200054, 200055, 200052).

Source: ``NotificationProcessor``, ``PollingInfoProcessor``, ``PeekMessageProcessor``.
"""

from functools import partial

from rmq_core.broker.parked_requests import ANY_QUEUE, ParkedRequest, PopLongPolling, TopicGroup
from rmq_core.broker.pop.checks import check_pop_group, parse_filter
from rmq_core.broker.pop.order import ConsumerOrderInfo
from rmq_core.broker.state import APPLY_FIRST, BrokerState
from rmq_core.broker.tables.consumer_offsets import NONE
from rmq_core.broker.tables.subscription_filter import EVERYTHING
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields, write_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop import (
    MAX_MESSAGES,
    Notification,
    NotificationResponse,
    PeekMessage,
    PollingInfo,
    PollingInfoResponse,
    PopResponse,
    TopicKind,
    retry_topic,
)
from rmq_core.store.results import GetStatus


class PollingProcessor:
    """Handlers of NOTIFICATION, POLLING_INFO and PEEK_MESSAGE."""

    def __init__(self, state: BrokerState, orders: ConsumerOrderInfo, polls: PopLongPolling) -> None:
        self._state = state
        self._orders = orders
        self._polls = polls

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.NOTIFICATION: self.notify,
            RequestCode.POLLING_INFO: self.polling_info,
            RequestCode.PEEK_MESSAGE: self.peek,
        }

    def notify(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """Respond whether there are messages to pop (NOTIFICATION, 200054); None while the request is parked."""
        fields = read_fields(request, Notification)
        check_pop_group(self._state, fields.consumer_group, fields.topic, fields.queue_id)
        message_filter = EVERYTHING
        if fields.exp:
            message_filter = parse_filter(self._state, fields.topic, fields.exp, fields.exp_type)
        notification = ParkedRequest(
            (fields.topic, fields.consumer_group),
            request,
            connection,
            self._state.steady_ms() + max(0, fields.poll_time),
            partial(self._notify, fields),
            fields.exp,
            message_filter,
            max(ANY_QUEUE, fields.queue_id),
            is_notification=True,
        )
        return self._notify(fields, notification, False)

    def _notify(
        self, fields: Notification, notification: ParkedRequest[TopicGroup], is_over: bool
    ) -> RemotingCommand | None:
        has_messages = self._has_messages(fields)
        must_wait = not has_messages and not is_over and notification.deadline_ms > self._state.steady_ms()
        if must_wait and self._polls.park(notification):
            return None
        answer_fields = write_fields(NotificationResponse(has_msg=has_messages, polling_full=must_wait))
        return notification.request.response(ext_fields=answer_fields)

    def _has_messages(self, fields: Notification) -> bool:
        group, names = fields.consumer_group, [fields.topic]
        if not fields.order:
            names += [retry_topic(group, fields.topic, kind) for kind in (TopicKind.RETRY_V1, TopicKind.RETRY_V2)]
        for name in names:
            config = self._state.topics.get(name)
            if config is None:
                continue
            has_queue = fields.queue_id >= 0 and name == fields.topic
            queues = [fields.queue_id] if has_queue else range(config.read_queue_nums)
            if any(self._has_queue_messages(fields, name, queue_id) for queue_id in queues):
                return True
        return False

    def _has_queue_messages(self, fields: Notification, topic: str, queue_id: int) -> bool:
        group, now_ms = fields.consumer_group, self._state.clock_ms()
        if fields.order and self._orders.is_blocked(topic, group, queue_id, fields.attempt_id, now_ms):
            return False
        return self._begin(topic, group, queue_id) < self._state.store.max_offset(topic, queue_id)

    def _begin(self, topic: str, group: str, queue_id: int) -> int:
        store = self._state.store
        low = store.min_offset(topic, queue_id)
        offset = self._state.offsets.get(topic, group, queue_id)
        return low if offset == NONE else max(offset, low)

    def polling_info(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        fields = read_fields(request, PollingInfo)
        check_pop_group(self._state, fields.consumer_group, fields.topic, fields.queue_id)
        polls = self._polls.requests_of((fields.topic, fields.consumer_group))
        count = sum(poll.queue_id == fields.queue_id for poll in polls)
        return request.response(ext_fields=write_fields(PollingInfoResponse(polling_num=count)))

    def peek(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        fields = read_fields(request, PeekMessage)
        if not 0 < fields.max_msg_nums <= MAX_MESSAGES:
            problem = f"the broker[{self._state.address}] peek message's num is greater than {MAX_MESSAGES}"
            raise ResponseError(ResponseCode.INVALID_PARAMETER, problem)
        check_pop_group(self._state, fields.consumer_group, fields.topic, fields.queue_id)
        queue_count = self._state.require_topic(fields.topic, APPLY_FIRST).read_queue_nums
        queues = [fields.queue_id] if fields.queue_id >= 0 else range(queue_count)
        slices: list[memoryview] = []
        count = rest = 0
        for queue_id in queues:
            begin = self._begin(fields.topic, fields.consumer_group, queue_id)
            result = self._state.store.get(fields.topic, queue_id, begin, fields.max_msg_nums - count)
            if result.status is GetStatus.FOUND:
                slices += result.slices
                count += result.message_count
            rest += max(0, result.max_offset - result.next_offset)
            if count >= fields.max_msg_nums:
                break
        answer_fields = write_fields(PopResponse(pop_time=self._state.clock_ms(), rest_num=rest))
        if not count:
            return request.response(int(ResponseCode.PULL_NOT_FOUND), "NO_MESSAGE_IN_QUEUE", answer_fields)
        return request.response(int(ResponseCode.SUCCESS), "FOUND", answer_fields, b"".join(slices))
