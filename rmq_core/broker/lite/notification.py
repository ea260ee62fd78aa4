"""Notifications about lite topics (code 200054 with ``isLiteConsumer``).

Source: ``NotificationProcessor#hasMsgForLiteConsumer``.
"""

from collections.abc import Callable, Mapping

from rmq_core.broker.lite.long_polling import LiteLongPolling, ParkedRequest
from rmq_core.broker.lite.registry import LiteSubscriptionRegistry
from rmq_core.broker.pop.checks import check_pop_group
from rmq_core.broker.state import BrokerState
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import WAITING_BYTES, Connection, Handler, HandlerAnswer
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.failure import failure
from rmq_core.remoting.fields import has_field, read_fields, write_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop_requests import Notification, NotificationAnswer


class LiteNotificationProcessor:
    """Handler of NOTIFICATION of lite consumers; other notifications go to the handler of POP."""

    def __init__(self, state: BrokerState, registry: LiteSubscriptionRegistry, waiting: LiteLongPolling) -> None:
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
            return self._notify(request, connection, fields, self._state.steady_ms() + max(0, fields.poll_time))

        return {RequestCode.NOTIFICATION: notify_any}

    def _notify(
        self, request: RemotingCommand, connection: Connection, fields: Notification, deadline_ms: int, *,
        is_over: bool = False, check: Callable[[], None] | None = None,
    ) -> RemotingCommand | None:  # fmt: skip
        client_id = fields.client_id or ""
        client = self._registry.clients.get(client_id)
        has_events = client is not None and bool(client.events)
        is_full = False
        if not has_events and not is_over and deadline_ms > self._state.steady_ms():
            check_rights = check or self._state.rights.withdrawal_check(request, connection)

            def respond(is_over: bool) -> None:
                try:
                    check_rights()
                    response = self._notify(
                        request, connection, fields, deadline_ms, is_over=is_over, check=check_rights
                    )
                except ResponseError as error:
                    response = failure(request, error)
                if response is not None:
                    connection.send(response)

            if self._waiting.park(client_id, ParkedRequest(connection, deadline_ms, respond, WAITING_BYTES)):
                request.fields, request.body = {}, b""
                return None
            is_full = True
        answer_fields = write_fields(NotificationAnswer(has_msg=has_events, polling_full=is_full))
        return request.response(int(ResponseCode.SUCCESS), None, answer_fields)
