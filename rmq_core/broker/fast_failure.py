"""Refusal of requests that waited too long, and of sends while the store is busy. Source: ``BrokerFastFailure``.

In the original a request waits in the queue of its thread pool. Here a request waits for the event loop: from the read
off its connection until its turn, after earlier requests and slices of other work. Waits for a client that does not
read responses, for a flush or in the kernel do not count.

The store is busy after an append of more than ``osPageCacheBusyTimeOutMills``, for the rest of that turn of the loop.
No other request ran during the append. Sends that had arrived before its end are refused: those read before, and those
of connections that the loop reads in the same turn. A send that its client began after the append is never refused.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler, HandlerResponse
from rmq_core.remoting.header import RemotingCommand

_SENDS: Final = frozenset({
    RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.RECALL_MESSAGE,
})  # fmt: skip
_PULLS: Final = frozenset({
    RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE, RequestCode.PEEK_MESSAGE, RequestCode.NOTIFICATION,
    RequestCode.POLLING_INFO,
})  # fmt: skip
_ACKS: Final = frozenset({
    RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
})  # fmt: skip
# Requests of the thread pools that the original never cleans.
_WITHOUT_LIMIT: Final = frozenset({
    RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UNREGISTER_CLIENT,
    RequestCode.CHECK_CLIENT_CONFIG, RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.QUERY_ASSIGNMENT, RequestCode.SET_MESSAGE_REQUEST_MODE,
})  # fmt: skip
# Settings with the longest wait of a request by code; all other requests have that of the administrators' queue.
_LIMITS: Final[dict[int, str | None]] = {
    **dict.fromkeys(_SENDS, "wait_time_mills_in_send_queue"),
    **dict.fromkeys(_PULLS, "wait_time_mills_in_pull_queue"),
    RequestCode.LITE_PULL_MESSAGE: "wait_time_mills_in_lite_pull_queue",
    RequestCode.HEART_BEAT: "wait_time_mills_in_heartbeat_queue",
    RequestCode.END_TRANSACTION: "wait_time_mills_in_transaction_queue",
    **dict.fromkeys(_ACKS, "wait_time_mills_in_ack_queue"),
    **dict.fromkeys(_WITHOUT_LIMIT, None),
}
_REMARK: Final = "[%s]broker busy, start flow control for a while, period in queue: %dms, size of queue: %d"
_MIN_WAIT_MS: Final = 1.0  # shorter waits do not count


class PageCache:
    """State of the page cache: busy after a slow append, until the end of the loop's turn.

    Attributes:
        busy_ms: what the append took; 0 while the page cache is not busy.
        slow_ms: what the last slow append took.
        slow_end_s: its end, by the clock of the connections; what was read before waited for it.
        timeout_s: longer appends are slow.
    """

    def __init__(self, timeout_ms: int) -> None:
        """Count longer appends as slow; ``timeout_ms`` is ``osPageCacheBusyTimeOutMills``."""
        self.busy_ms = 0
        self.timeout_s = timeout_ms / 1000
        self.slow_ms = 0
        self.slow_end_s = 0.0

    def record_slow_append(self, begin_s: float, end_s: float) -> None:
        """Mark the store as busy for this turn of the loop; both times are of the clock of the connections."""
        self.busy_ms = self.slow_ms = max(1, int((end_s - begin_s) * 1000))
        self.slow_end_s = end_s
        asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        self.busy_ms = 0


def fail_fast(
    code: int, handler: Handler, config: Callable[[], BrokerConfig], page_cache: PageCache, now_s: Callable[[], float]
) -> Handler:
    """Wrap the handler of a request code: refuse requests that waited too long."""
    limit = _LIMITS.get(code, "wait_time_mills_in_admin_broker_queue")
    if limit is None:
        return handler
    is_send = code in _SENDS

    def handle(request: RemotingCommand, connection: Connection) -> HandlerResponse:
        waited_ms = (now_s() - connection.read_time_s) * 1000
        if is_send and (page_cache.busy_ms or connection.read_time_s < page_cache.slow_end_s):
            return _refusal(request, connection, "PCBUSY_CLEAN_QUEUE", max(waited_ms, page_cache.slow_ms))
        if waited_ms >= _MIN_WAIT_MS:
            settings = config()
            if settings.broker_fast_failure_enable and waited_ms >= getattr(settings, limit):
                return _refusal(request, connection, "TIMEOUT_CLEAN_QUEUE", waited_ms)
        return handler(request, connection)

    return handle


def _refusal(request: RemotingCommand, connection: Connection, cause: str, waited_ms: float) -> RemotingCommand:
    return request.response(
        int(ResponseCode.SYSTEM_BUSY), _REMARK % (cause, int(waited_ms), connection.pending_response_count)
    )
