"""Pops of lite topics (code 200070): messages of all children that a client subscribes to, with long polling.

Source: ``PopLiteMessageProcessor``.
"""

from collections.abc import Callable
from typing import Final

from rmq_core.broker.lite.dispatcher import Dispatcher
from rmq_core.broker.lite.groups import LiteGroups
from rmq_core.broker.lite.registry import LiteClient, Registry
from rmq_core.broker.lite.take import LiteTaken, LiteTaker
from rmq_core.broker.lite.waiting import Waiter, Waiting
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names
from rmq_core.broker.tables.topics import is_lite
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import WAITING_BYTES, Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.failure import failure
from rmq_core.remoting.fields import read_fields, write_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.lite_requests import PopLiteAnswer, PopLiteMessage
from rmq_core.remoting.pop import IN_ORDER, MOST_INVISIBLE_MS, MOST_MESSAGES

_HELP: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
_MOST_ID_CHARS: Final = 255  # of a client, and of an attempt
_INVALID: Final = ResponseCode.INVALID_PARAMETER


class LitePops:
    """Handles POP_LITE_MESSAGE."""

    def __init__(
        self, state: BrokerState, registry: Registry, groups: LiteGroups, dispatcher: Dispatcher, taker: LiteTaker,
        waiting: Waiting,
    ) -> None:  # fmt: skip
        self._state = state
        self._registry = registry
        self._groups = groups
        self._dispatcher = dispatcher
        self._taker = taker
        self._waiting = waiting

    def handlers(self) -> dict[int, Handler]:
        """Handlers by request code."""
        return {RequestCode.POP_LITE_MESSAGE: self.pop}

    def pop(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """POP_LITE_MESSAGE (200070): messages of lite topics; None while the pop is held."""
        asked = read_fields(request, PopLiteMessage)
        self._check(asked)
        return self._pop(request, connection, asked, self._state.steady_ms() + max(0, asked.poll_time))

    def _pop(
        self, request: RemotingCommand, connection: Connection, asked: PopLiteMessage, deadline_ms: int, *,
        is_over: bool = False, check: Callable[[], None] | None = None,
    ) -> RemotingCommand | None:  # fmt: skip
        client = self._client(asked)
        taken = self._taker.take(asked, client)
        if client is not None:
            self._dispatcher.record_pop(client)
            if client.events and (self._waiting.has(asked.client_id) or not taken.counts):
                self._dispatcher.wake_soon(asked.client_id)
        code, remark = ResponseCode.SUCCESS, "FOUND"
        if not taken.counts:
            code, remark = ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE"
            if not is_over and deadline_ms > self._state.steady_ms():
                check = check or self._state.rights.withdrawal_check(request, connection)
                if self._hold(request, connection, asked, deadline_ms, check):
                    return None
                code = ResponseCode.POLLING_FULL
        return self._answer(request, asked, taken, code, remark)

    def _client(self, asked: PopLiteMessage) -> LiteClient | None:
        """The client that asks, if it subscribes with that group."""
        client = self._registry.clients.get(asked.client_id)
        return client if client is not None and client.group == asked.consumer_group else None

    @staticmethod
    def _answer(
        request: RemotingCommand, asked: PopLiteMessage, taken: LiteTaken, code: ResponseCode, remark: str
    ) -> RemotingCommand:
        fields = PopLiteAnswer(
            pop_time=taken.pop_time_ms, invisible_time=asked.invisible_time, revive_qid=IN_ORDER,
            order_count_info=";".join(map(str, taken.counts)),
        )  # fmt: skip
        body = taken.bodies[0] if len(taken.bodies) == 1 else b"".join(taken.bodies)
        return request.response(int(code), remark, write_fields(fields), body)

    def _hold(
        self, request: RemotingCommand, connection: Connection, asked: PopLiteMessage, deadline_ms: int,
        check: Callable[[], None],
    ) -> bool:  # fmt: skip
        def answer(is_over: bool) -> None:
            try:
                check()
                self._check(asked)
                response = self._pop(request, connection, asked, deadline_ms, is_over=is_over, check=check)
            except ResponseError as error:
                response = failure(request, error)
            if response is not None:
                connection.send(response)

        if not self._waiting.hold(asked.client_id, Waiter(connection, deadline_ms, answer, WAITING_BYTES)):
            return False
        request.fields, request.body = {}, b""  # views of the receive buffer, which a held pop would keep for long
        return True

    def _check(self, asked: PopLiteMessage) -> None:
        """Refuse what cannot be popped. Raises ResponseError. Source: ``PopLiteMessageProcessor#preCheck``."""
        state = self._state
        if not state.config.broker_permission & names.PERM_READ:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"the broker[{state.address}] pop message is forbidden")
        if not 0 < asked.max_msg_num <= MOST_MESSAGES:
            what = f"the broker[{state.address}] pop message's num is greater than {MOST_MESSAGES}, or none"
            raise ResponseError(_INVALID, what)
        if not 0 < asked.invisible_time <= MOST_INVISIBLE_MS:
            raise ResponseError(_INVALID, f"invisibleTime {asked.invisible_time} is not of 1 to {MOST_INVISIBLE_MS} ms")
        if not 0 < len(asked.client_id) <= _MOST_ID_CHARS or len(asked.attempt_id or "") > _MOST_ID_CHARS:
            raise ResponseError(_INVALID, f"clientId or attemptId is not of 1 to {_MOST_ID_CHARS} characters")
        topic = state.topics.get(asked.topic)
        if topic is None:
            what = f"topic [{asked.topic}] not exist, apply first please! {_HELP}"
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, what)
        if not topic.perm & names.PERM_READ:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"the topic [{asked.topic}] peeking message is forbidden")
        if not is_lite(topic):
            raise ResponseError(_INVALID, f"the topic [{asked.topic}] message type not match")
        group = state.groups.get(asked.consumer_group)
        if group is None:
            what = f"subscription group [{asked.consumer_group}] not exist, {_HELP}"
            raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, what)
        if not group.consume_enable:
            what = f"subscription group no permission, {asked.consumer_group}"
            raise ResponseError(ResponseCode.NO_PERMISSION, what)
        if self._groups.parent(asked.consumer_group) != asked.topic:
            raise ResponseError(_INVALID, f"subscription bind topic not match, {asked.consumer_group}")
