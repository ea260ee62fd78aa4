"""Administration of timer messages: checkpoint and metrics (request codes 60, 61).

Source: ``AdminBrokerProcessor#getTimerCheckPoint``, ``#getTimerMetrics``, ``#prepareRuntimeInfo``.
"""

from rmq_core.broker.state import BrokerState
from rmq_core.broker.timer.service import Timers
from rmq_core.remoting.bodies import encode_body
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.header import RemotingCommand
from rmq_formats.codecs.topics import TIMER_TOPIC


class TimerAdmin:
    """Handlers of requests about timer messages."""

    def __init__(self, state: BrokerState, timers: Timers | None) -> None:
        """Use the broker's timer messages; None if timer messages are switched off."""
        self._state = state
        self._timers = timers

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.GET_TIMER_CHECK_POINT: self.get_checkpoint,
            RequestCode.GET_TIMER_METRICS: self.get_metrics,
        }

    def get_checkpoint(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """GET_TIMER_CHECK_POINT (60): the timer checkpoint of now, for slaves."""
        if self._timers is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
        return request.response(body=self._timers.files.checkpoint(self._state.clock_ms()).encode())

    def get_metrics(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """GET_TIMER_METRICS (61): the number of waiting timer messages by topic."""
        if self._timers is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "The timer message store is null")
        return request.response(body=encode_body(self._timers.metrics.body()))

    def runtime_info(self) -> dict[str, str]:
        """Runtime info of the broker about timer messages."""
        if self._timers is None:
            return {}
        files, state = self._timers.files, self._state
        return {
            "timerReadBehind": str(max(state.clock_ms() - files.read_time_ms, 0) // 1000),
            "timerOffsetBehind": str(state.store.max_offset(TIMER_TOPIC, 0) - files.queue_offset),
            "timerCongestNum": str(files.wheel.count_from(files.read_time_ms)),
        }
