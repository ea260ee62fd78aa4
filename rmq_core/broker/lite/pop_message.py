"""Pops of lite topics (code 200070) and notifications about them (200054), both with long polling.

Source: ``PopLiteMessageProcessor``, ``NotificationProcessor#hasMsgForLiteConsumer``.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from rmq_core.broker.lite.dispatcher import LiteEventDispatcher
from rmq_core.broker.lite.groups import LiteGroups
from rmq_core.broker.lite.reader import LitePopReader, LitePopResult
from rmq_core.broker.lite.registry import LiteClient, LiteSubscriptionRegistry
from rmq_core.broker.parked_requests import ParkedRequest, ParkedRequests
from rmq_core.broker.pop.checks import check_pop_group
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names
from rmq_core.broker.tables.topics import is_lite
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler, HandlerAnswer
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import has_field, read_fields, write_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop import IN_ORDER, MOST_INVISIBLE_MS, MOST_MESSAGES
from rmq_core.remoting.pop_requests import Notification, NotificationAnswer, PopLiteAnswer, PopLiteMessage

_HELP: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
_MOST_ID_CHARS: Final = 255  # of a client, and of an attempt
_INVALID: Final = ResponseCode.INVALID_PARAMETER


class PopLiteMessageProcessor:
    """Handler of POP_LITE_MESSAGE."""

    def __init__(
        self, state: BrokerState, registry: LiteSubscriptionRegistry, groups: LiteGroups,
        dispatcher: LiteEventDispatcher, reader: LitePopReader, waiting: ParkedRequests[str],
    ) -> None:  # fmt: skip
        self._state = state
        self._registry = registry
        self._groups = groups
        self._dispatcher = dispatcher
        self._reader = reader
        self._waiting = waiting

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
        client = self._client(fields)
        result = self._reader.pop(fields, client)
        if client is not None:
            self._dispatcher.on_poll(client)
            if client.events and (self._waiting.of_key(fields.client_id) or not result.counts):
                self._dispatcher.wake_soon(fields.client_id)
        code, remark = ResponseCode.SUCCESS, "FOUND"
        if not result.counts:
            code, remark = ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE"
            if not is_over and pop.deadline_ms > self._state.steady_ms():
                if self._waiting.park(pop):
                    return None
                code = ResponseCode.POLLING_FULL
        return self._answer(pop.request, fields, result, code, remark)

    def _client(self, fields: PopLiteMessage) -> LiteClient | None:
        """Return the client of a request, if subscribed with the request's group."""
        client = self._registry.clients.get(fields.client_id)
        return client if client is not None and client.group == fields.consumer_group else None

    @staticmethod
    def _answer(
        request: RemotingCommand, fields: PopLiteMessage, result: LitePopResult, code: ResponseCode, remark: str
    ) -> RemotingCommand:
        answer_fields = PopLiteAnswer(
            pop_time=result.pop_time_ms, invisible_time=fields.invisible_time, revive_qid=IN_ORDER,
            order_count_info=";".join(map(str, result.counts)),
        )  # fmt: skip
        body = result.bodies[0] if len(result.bodies) == 1 else b"".join(result.bodies)
        return request.response(int(code), remark, write_fields(answer_fields), body)

    def _check(self, fields: PopLiteMessage) -> None:
        """Refuse an invalid pop. Raises ResponseError. Source: ``PopLiteMessageProcessor#preCheck``."""
        state = self._state
        if not state.config.broker_permission & names.PERM_READ:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"the broker[{state.address}] pop message is forbidden")
        if not 0 < fields.max_msg_num <= MOST_MESSAGES:
            problem = f"the broker[{state.address}] pop message's num is greater than {MOST_MESSAGES}, or none"
            raise ResponseError(_INVALID, problem)
        if not 0 < fields.invisible_time <= MOST_INVISIBLE_MS:
            raise ResponseError(
                _INVALID, f"invisibleTime {fields.invisible_time} is not of 1 to {MOST_INVISIBLE_MS} ms"
            )
        if not 0 < len(fields.client_id) <= _MOST_ID_CHARS or len(fields.attempt_id or "") > _MOST_ID_CHARS:
            raise ResponseError(_INVALID, f"clientId or attemptId is not of 1 to {_MOST_ID_CHARS} characters")
        topic = state.topics.get(fields.topic)
        if topic is None:
            problem = f"topic [{fields.topic}] not exist, apply first please! {_HELP}"
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, problem)
        if not topic.perm & names.PERM_READ:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"the topic [{fields.topic}] peeking message is forbidden")
        if not is_lite(topic):
            raise ResponseError(_INVALID, f"the topic [{fields.topic}] message type not match")
        group = state.groups.get(fields.consumer_group)
        if group is None:
            problem = f"subscription group [{fields.consumer_group}] not exist, {_HELP}"
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
        """Return the handlers by request code; ``pop_handlers`` are those of POP."""
        notify = pop_handlers[RequestCode.NOTIFICATION]

        def notify_any(request: RemotingCommand, connection: Connection) -> HandlerAnswer:
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
        answer_fields = write_fields(NotificationAnswer(has_msg=has_events, polling_full=must_wait))
        return notification.request.response(int(ResponseCode.SUCCESS), None, answer_fields)
