"""Pop requests (code 200050), with long polling where there are no messages.

Source: ``PopMessageProcessor``.
"""

import random
from functools import partial
from typing import Final

from rmq_core.broker.parked_requests import ANY_QUEUE, ParkedRequest, PopLongPolling, TopicGroup
from rmq_core.broker.pop.checks import check_pop_group, parse_filter
from rmq_core.broker.pop.reader import PopReader, PopResult
from rmq_core.broker.state import BrokerState
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import ResponseError
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
        pop = ParkedRequest(
            (fields.topic, fields.consumer_group), request, connection,
            self._state.steady_ms() + max(0, fields.poll_time), partial(self._pop_again, fields), fields.exp,
            message_filter, max(ANY_QUEUE, fields.queue_id),
        )  # fmt: skip
        return self._pop(fields, pop)

    def _pop_again(self, fields: PopMessage, pop: ParkedRequest[TopicGroup], is_over: bool) -> RemotingCommand | None:
        try:
            check_pop_group(self._state, fields.consumer_group, fields.topic, fields.queue_id)
            return self._pop(fields, pop, is_over=is_over)
        finally:
            self._state.dispatch()  # the check point; for requests of a batch the caller dispatches

    def _pop(
        self, fields: PopMessage, pop: ParkedRequest[TopicGroup], *, is_over: bool = False
    ) -> RemotingCommand | None:
        result = self._reader.begin(fields)
        kinds = [TopicKind.NORMAL] if fields.order else [TopicKind.NORMAL, TopicKind.RETRY_V1, TopicKind.RETRY_V2]
        if len(kinds) > 1 and not result.is_by_priority and random.random() < _RETRY_FIRST:
            kinds = [*kinds[1:], kinds[0]]
        for kind in kinds:
            self._reader.pop_topic(result, fields, pop.filter, kind)
        if result.count:
            if result.rest > 0:
                self._polls.wake_soon(fields.topic, fields.consumer_group, pop.queue_id)
            return self._answer(pop.request, fields, result)
        if not is_over and pop.deadline_ms > self._state.steady_ms():
            if self._polls.park(pop):
                return None
            return self._respond_empty(pop.request, ResponseCode.POLLING_FULL, "POLLING_FULL")
        return self._respond_empty(pop.request, ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")

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
