"""Looks at what could be popped, without taking it (codes 200052, 200054, 200055).

Source: ``NotificationProcessor``, ``PollingInfoProcessor``, ``PeekMessageProcessor``.
"""

from collections.abc import Callable
from typing import Final

from rmq_core.broker.pop.checks import checked, filter_asked, topic_of
from rmq_core.broker.pop.held import HeldPop, HeldPops
from rmq_core.broker.pop.order import OrderTable
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.consumer_offsets import NONE
from rmq_core.broker.tables.subscription_filter import EVERYTHING, Filter
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import WAITING_BYTES, Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.failure import failure
from rmq_core.remoting.fields import read_fields, write_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop import MOST_MESSAGES, TopicKind, retry_topic
from rmq_core.remoting.pop_requests import (
    Notification,
    NotificationAnswer,
    PeekMessage,
    PollingInfo,
    PollingInfoAnswer,
    PopAnswer,
)
from rmq_core.store.results import GetResult, GetStatus

_RETRIES: Final = (TopicKind.RETRY_V1, TopicKind.RETRY_V2)


class Looks:
    """Handles NOTIFICATION, POLLING_INFO and PEEK_MESSAGE."""

    def __init__(self, state: BrokerState, orders: OrderTable, held: HeldPops) -> None:
        self._state = state
        self._orders = orders
        self._held = held

    def handlers(self) -> dict[int, Handler]:
        """Handlers by request code."""
        return {
            RequestCode.NOTIFICATION: self.notify,
            RequestCode.POLLING_INFO: self.polling_info,
            RequestCode.PEEK_MESSAGE: self.peek,
        }

    def notify(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """NOTIFICATION (200054): whether there is something to pop; None while it is held."""
        asked = read_fields(request, Notification)
        checked(self._state, asked.consumer_group, asked.topic, asked.queue_id)
        wanted = EVERYTHING
        if asked.exp:
            wanted = filter_asked(self._state, asked.topic, asked.exp, asked.exp_type)
        deadline_ms = self._state.steady_ms() + max(0, asked.poll_time)
        return self._notify(request, connection, asked, wanted, deadline_ms)

    def _notify(
        self, request: RemotingCommand, connection: Connection, asked: Notification, wanted: Filter, deadline_ms: int,
        *, is_over: bool = False, check: Callable[[], None] | None = None,
    ) -> RemotingCommand | None:  # fmt: skip
        has = self._has(asked)
        is_full = False
        if not has and not is_over and deadline_ms > self._state.steady_ms():
            still_may = check or self._state.rights.withdrawal_check(request, connection)

            def answer(is_over: bool) -> None:
                try:
                    still_may()
                    response = self._notify(
                        request, connection, asked, wanted, deadline_ms, is_over=is_over, check=still_may
                    )
                except ResponseError as error:
                    response = failure(request, error)
                if response is not None:
                    connection.send(response)

            size = WAITING_BYTES + len(asked.exp or "") + wanted.own_bytes
            pop = HeldPop(connection, max(-1, asked.queue_id), wanted, deadline_ms, answer, size, asks_only=True)
            if self._held.hold(asked.topic, asked.consumer_group, pop):
                request.fields, request.body = {}, b""
                return None
            is_full = True
        fields = write_fields(NotificationAnswer(has_msg=has, polling_full=is_full))
        return request.response(int(ResponseCode.SUCCESS), None, fields)

    def _has(self, asked: Notification) -> bool:
        group, topics = asked.consumer_group, self._state.topics
        names = [asked.topic]
        if not asked.order:
            names += [retry_topic(group, asked.topic, kind) for kind in _RETRIES]
        for name in names:
            config = topics.get(name)
            if config is None:
                continue
            queues = [asked.queue_id] if asked.queue_id >= 0 and name == asked.topic else range(config.read_queue_nums)
            if any(self._is_there(asked, name, queue_id) for queue_id in queues):
                return True
        return False

    def _is_there(self, asked: Notification, topic: str, queue_id: int) -> bool:
        group, now_ms = asked.consumer_group, self._state.clock_ms()
        if asked.order and self._orders.is_blocked(topic, group, queue_id, asked.attempt_id, now_ms):
            return False
        return self._begin(topic, group, queue_id) < self._state.store.max_offset(topic, queue_id)

    def _begin(self, topic: str, group: str, queue_id: int) -> int:
        store = self._state.store
        low = store.min_offset(topic, queue_id)
        offset = self._state.offsets.get(topic, group, queue_id)
        return low if offset == NONE else max(offset, low)

    def polling_info(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """POLLING_INFO (200055): how many pops wait."""
        asked = read_fields(request, PollingInfo)
        checked(self._state, asked.consumer_group, asked.topic, asked.queue_id)
        count = self._held.count_of(asked.topic, asked.consumer_group, asked.queue_id)
        return request.response(int(ResponseCode.SUCCESS), None, write_fields(PollingInfoAnswer(polling_num=count)))

    def peek(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """PEEK_MESSAGE (200052): the messages that a pop would give, which stay."""
        asked = read_fields(request, PeekMessage)
        if not 0 < asked.max_msg_nums <= MOST_MESSAGES:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self._state.address}] peek message's num is greater than {MOST_MESSAGES}",
            )
        checked(self._state, asked.consumer_group, asked.topic, asked.queue_id)
        queue_count = topic_of(self._state, asked.topic).read_queue_nums
        queues = [asked.queue_id] if asked.queue_id >= 0 else range(queue_count)
        slices: list[memoryview] = []
        count = rest = 0
        for queue_id in queues:
            found = self._read(asked, queue_id, asked.max_msg_nums - count)
            if found.status is GetStatus.FOUND:
                slices += found.slices
                count += found.message_count
            rest += max(0, found.max_offset - found.next_offset)
            if count >= asked.max_msg_nums:
                break
        fields = write_fields(PopAnswer(pop_time=self._state.clock_ms(), rest_num=rest))
        if not count:
            return request.response(int(ResponseCode.PULL_NOT_FOUND), "NO_MESSAGE_IN_QUEUE", fields)
        return request.response(int(ResponseCode.SUCCESS), "FOUND", fields, b"".join(slices))

    def _read(self, asked: PeekMessage, queue_id: int, most: int) -> GetResult:
        begin = self._begin(asked.topic, asked.consumer_group, queue_id)
        return self._state.store.get(asked.topic, queue_id, begin, most)
