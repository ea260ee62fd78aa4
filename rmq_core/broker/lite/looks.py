"""Notifications about lite topics (code 200054 with ``isLiteConsumer``): whether a client has something to pop.

Source: ``NotificationProcessor#hasMsgForLiteConsumer``.
"""

from collections.abc import Callable, Mapping

from rmq_core.broker.lite.registry import Registry
from rmq_core.broker.lite.waiting import Waiter, Waiting
from rmq_core.broker.pop.checks import check_pop_group
from rmq_core.broker.state import BrokerState
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import WAITING_BYTES, Connection, Handler, HandlerAnswer
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.failure import failure
from rmq_core.remoting.fields import has_field, read_fields, write_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop_requests import Notification, NotificationAnswer


class LiteLooks:
    """Handles NOTIFICATION of clients of lite topics, and leaves others to others."""

    def __init__(self, state: BrokerState, registry: Registry, waiting: Waiting) -> None:
        self._state = state
        self._registry = registry
        self._waiting = waiting

    def handlers(self, others: Mapping[int, Handler]) -> dict[int, Handler]:
        """Handlers by request code; ``others`` are those of POP."""
        notify = others[RequestCode.NOTIFICATION]

        def notify_any(request: RemotingCommand, connection: Connection) -> HandlerAnswer:
            if not has_field(request, "isLiteConsumer"):
                return notify(request, connection)
            asked = read_fields(request, Notification)
            if not (asked.is_lite_consumer and asked.client_id):
                return notify(request, connection)
            check_pop_group(self._state, asked.consumer_group, asked.topic, asked.queue_id)
            return self._notify(request, connection, asked, self._state.steady_ms() + max(0, asked.poll_time))

        return {RequestCode.NOTIFICATION: notify_any}

    def _notify(
        self, request: RemotingCommand, connection: Connection, asked: Notification, deadline_ms: int, *,
        is_over: bool = False, check: Callable[[], None] | None = None,
    ) -> RemotingCommand | None:  # fmt: skip
        client_id = asked.client_id or ""
        client = self._registry.clients.get(client_id)
        has = client is not None and bool(client.events)
        is_full = False
        if not has and not is_over and deadline_ms > self._state.steady_ms():
            still_may = check or self._state.rights.withdrawal_check(request, connection)

            def answer(is_over: bool) -> None:
                try:
                    still_may()
                    response = self._notify(request, connection, asked, deadline_ms, is_over=is_over, check=still_may)
                except ResponseError as error:
                    response = failure(request, error)
                if response is not None:
                    connection.send(response)

            if self._waiting.hold(client_id, Waiter(connection, deadline_ms, answer, WAITING_BYTES)):
                request.fields, request.body = {}, b""
                return None
            is_full = True
        fields = write_fields(NotificationAnswer(has_msg=has, polling_full=is_full))
        return request.response(int(ResponseCode.SUCCESS), None, fields)
