"""Pop requests (code 200050): messages of a topic for a time, with long polling where there are none.

Source: ``PopMessageProcessor``.
"""

import random
from collections.abc import Callable
from typing import Final

from rmq_core.broker.pop.checks import checked, filter_asked
from rmq_core.broker.pop.held import ANY_QUEUE, HeldPop, HeldPops
from rmq_core.broker.pop.take import Taken, Taker
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
_MOST_ATTEMPT_CHARS: Final = 255  # the id of a take in order is kept in a file
_FOUND: Final = "FOUND"


class Pops:
    """Handles POP_MESSAGE requests."""

    def __init__(self, state: BrokerState, taker: Taker, held: HeldPops) -> None:
        self._state = state
        self._taker = taker
        self._held = held

    def handlers(self) -> dict[int, Handler]:
        """Handlers by request code."""
        return {RequestCode.POP_MESSAGE: self.pop}

    def pop(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """POP_MESSAGE (200050): messages of any queue; None while the pop is held."""
        asked = read_fields(request, PopMessage)
        if not 0 < asked.max_msg_nums <= MOST_MESSAGES:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self._state.address}] pop message's num is greater than {MOST_MESSAGES}",
            )
        if not 0 < asked.invisible_time <= MOST_INVISIBLE_MS:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime {asked.invisible_time} is not of 1 to {MOST_INVISIBLE_MS} ms",
            )
        if len(asked.attempt_id or "") > _MOST_ATTEMPT_CHARS:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER, f"attemptId has more than {_MOST_ATTEMPT_CHARS} characters"
            )
        checked(self._state, asked.consumer_group, asked.topic, asked.queue_id)
        wanted = filter_asked(self._state, asked.topic, asked.exp, asked.exp_type)
        deadline_ms = self._state.steady_ms() + max(0, asked.poll_time)
        return self._pop(request, connection, asked, wanted, deadline_ms)

    def _pop(
        self, request: RemotingCommand, connection: Connection, asked: PopMessage, wanted: Filter, deadline_ms: int,
        *, is_over: bool = False, check: Callable[[], None] | None = None,
    ) -> RemotingCommand | None:  # fmt: skip
        taken = self._taker.begin(asked)
        kinds = [TopicKind.NORMAL] if asked.order else [TopicKind.NORMAL, TopicKind.RETRY_V1, TopicKind.RETRY_V2]
        if len(kinds) > 1 and not taken.by_priority and random.random() < _RETRY_FIRST:
            kinds = [*kinds[1:], kinds[0]]
        for kind in kinds:
            self._taker.take(taken, asked, wanted, kind)
        if taken.count:
            if taken.rest > 0:
                self._held.wake_soon(asked.topic, asked.consumer_group, max(ANY_QUEUE, asked.queue_id))
            return self._answer(request, asked, taken)
        if not is_over and deadline_ms > self._state.steady_ms():
            check = check or self._state.rights.withdrawal_check(request, connection)
            if self._hold(request, connection, asked, wanted, deadline_ms, check):
                return None
            return self._nothing(request, ResponseCode.POLLING_FULL, "POLLING_FULL")
        return self._nothing(request, ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")

    def _answer(self, request: RemotingCommand, asked: PopMessage, taken: Taken) -> RemotingCommand:
        fields = PopAnswer(
            pop_time=taken.pop_time_ms, invisible_time=asked.invisible_time, revive_qid=taken.revive_queue_id,
            rest_num=taken.rest, start_offset_info=encode_starts(taken.starts),
            msg_offset_info=encode_offsets(taken.offsets),
            order_count_info=";".join(taken.counts) if asked.order else None,
        )  # fmt: skip
        body = taken.bodies[0] if len(taken.bodies) == 1 else b"".join(taken.bodies)
        return request.response(int(ResponseCode.SUCCESS), _FOUND, write_fields(fields), body)

    @staticmethod
    def _nothing(request: RemotingCommand, code: ResponseCode, remark: str) -> RemotingCommand:
        return request.response(int(code), remark, write_fields(PopAnswer()))

    def _hold(
        self, request: RemotingCommand, connection: Connection, asked: PopMessage, wanted: Filter, deadline_ms: int,
        check: Callable[[], None],
    ) -> bool:  # fmt: skip
        def answer(is_over: bool) -> None:
            try:
                check()
                checked(self._state, asked.consumer_group, asked.topic, asked.queue_id)
                response = self._pop(request, connection, asked, wanted, deadline_ms, is_over=is_over, check=check)
            except ResponseError as error:
                response = failure(request, error)
            if response is not None:
                connection.send(response)
            self._state.dispatch()  # the check point; after a batch of requests that is done anyway

        size = WAITING_BYTES + len(asked.exp or "") + wanted.own_bytes
        pop = HeldPop(connection, max(ANY_QUEUE, asked.queue_id), wanted, deadline_ms, answer, size)
        if not self._held.hold(asked.topic, asked.consumer_group, pop):
            return False
        request.fields, request.body = {}, b""  # views of the receive buffer, which a held pop would keep for long
        return True
