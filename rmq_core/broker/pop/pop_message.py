"""Pop requests (code 200050), with long polling where there are no messages.

Source: ``PopMessageProcessor``.
"""

import random
from collections.abc import Callable
from typing import Final

from rmq_core.broker.pop.checks import check_pop_group, parse_filter
from rmq_core.broker.pop.long_polling import ANY_QUEUE, PopLongPolling, PopRequest
from rmq_core.broker.pop.reader import PopReader, PopResult
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.subscription_filter import Filter
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import WAITING_BYTES, Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.failure import failure
from rmq_core.remoting.fields import read_fields, write_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop import MOST_INVISIBLE_MS, MOST_MESSAGES, TopicKind, encode_offsets, encode_starts
from rmq_core.remoting.pop_requests import PopAnswer, PopMessage

_RETRY_FIRST: Final = 0.2  # of pops: ``popFromRetryProbability``
_MOST_ATTEMPT_CHARS: Final = 255  # the file of pops in order contains the attempt's id
_FOUND: Final = "FOUND"


class PopMessageProcessor:
    """Handler of POP_MESSAGE requests."""

    def __init__(self, state: BrokerState, reader: PopReader, polls: PopLongPolling) -> None:
        self._state = state
        self._reader = reader
        self._polls = polls

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.POP_MESSAGE: self.pop}

    def pop(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """Pop messages of a queue or a topic (POP_MESSAGE, 200050); None while the request is parked."""
        fields = read_fields(request, PopMessage)
        if not 0 < fields.max_msg_nums <= MOST_MESSAGES:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self._state.address}] pop message's num is greater than {MOST_MESSAGES}",
            )
        if not 0 < fields.invisible_time <= MOST_INVISIBLE_MS:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime {fields.invisible_time} is not of 1 to {MOST_INVISIBLE_MS} ms",
            )
        if len(fields.attempt_id or "") > _MOST_ATTEMPT_CHARS:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER, f"attemptId has more than {_MOST_ATTEMPT_CHARS} characters"
            )
        check_pop_group(self._state, fields.consumer_group, fields.topic, fields.queue_id)
        message_filter = parse_filter(self._state, fields.topic, fields.exp, fields.exp_type)
        deadline_ms = self._state.steady_ms() + max(0, fields.poll_time)
        return self._pop(request, connection, fields, message_filter, deadline_ms)

    def _pop(
        self, request: RemotingCommand, connection: Connection, fields: PopMessage, message_filter: Filter,
        deadline_ms: int, *, is_over: bool = False, check: Callable[[], None] | None = None,
    ) -> RemotingCommand | None:  # fmt: skip
        result = self._reader.begin(fields)
        kinds = [TopicKind.NORMAL] if fields.order else [TopicKind.NORMAL, TopicKind.RETRY_V1, TopicKind.RETRY_V2]
        if len(kinds) > 1 and not result.is_by_priority and random.random() < _RETRY_FIRST:
            kinds = [*kinds[1:], kinds[0]]
        for kind in kinds:
            self._reader.pop_topic(result, fields, message_filter, kind)
        if result.count:
            if result.rest > 0:
                self._polls.wake_soon(fields.topic, fields.consumer_group, max(ANY_QUEUE, fields.queue_id))
            return self._answer(request, fields, result)
        if not is_over and deadline_ms > self._state.steady_ms():
            check = check or self._state.rights.withdrawal_check(request, connection)
            if self._park(request, connection, fields, message_filter, deadline_ms, check):
                return None
            return self._respond_empty(request, ResponseCode.POLLING_FULL, "POLLING_FULL")
        return self._respond_empty(request, ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")

    def _answer(self, request: RemotingCommand, fields: PopMessage, result: PopResult) -> RemotingCommand:
        answer_fields = PopAnswer(
            pop_time=result.pop_time_ms, invisible_time=fields.invisible_time, revive_qid=result.revive_queue_id,
            rest_num=result.rest, start_offset_info=encode_starts(result.starts),
            msg_offset_info=encode_offsets(result.offsets),
            order_count_info=";".join(result.order_counts) if fields.order else None,
        )  # fmt: skip
        body = result.bodies[0] if len(result.bodies) == 1 else b"".join(result.bodies)
        return request.response(int(ResponseCode.SUCCESS), _FOUND, write_fields(answer_fields), body)

    @staticmethod
    def _respond_empty(request: RemotingCommand, code: ResponseCode, remark: str) -> RemotingCommand:
        return request.response(int(code), remark, write_fields(PopAnswer()))

    def _park(
        self, request: RemotingCommand, connection: Connection, fields: PopMessage, message_filter: Filter,
        deadline_ms: int, check: Callable[[], None],
    ) -> bool:  # fmt: skip
        def respond(is_over: bool) -> None:
            try:
                check()
                check_pop_group(self._state, fields.consumer_group, fields.topic, fields.queue_id)
                response = self._pop(
                    request, connection, fields, message_filter, deadline_ms, is_over=is_over, check=check
                )
            except ResponseError as error:
                response = failure(request, error)
            if response is not None:
                connection.send(response)
            self._state.dispatch()  # the check point; for requests of a batch the caller dispatches

        size = WAITING_BYTES + len(fields.exp or "") + message_filter.own_bytes
        pop = PopRequest(connection, max(ANY_QUEUE, fields.queue_id), message_filter, deadline_ms, respond, size)
        if not self._polls.park(fields.topic, fields.consumer_group, pop):
            return False
        request.fields, request.body = {}, b""  # views of the receive buffer, which a parked request would retain
        return True
