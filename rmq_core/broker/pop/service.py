"""POP as a whole: its handlers, and what runs periodically."""

from rmq_core.broker.parked_requests import PopLongPolling
from rmq_core.broker.pop.acks import AckMessageProcessor
from rmq_core.broker.pop.assignment import QueryAssignmentProcessor, Route
from rmq_core.broker.pop.journal import PopJournal
from rmq_core.broker.pop.order import ConsumerOrderInfo
from rmq_core.broker.pop.polling import PollingProcessor
from rmq_core.broker.pop.pop_message import PopMessageProcessor
from rmq_core.broker.pop.revive import PopReviveService
from rmq_core.broker.processors.durable_responder import DurableResponder
from rmq_core.broker.state import BrokerState
from rmq_core.broker.timer.service import Timers
from rmq_core.remoting.connection import Handler


class PopService:
    """POP of a broker."""

    def __init__(self, state: BrokerState, timers: Timers | None, route: Route) -> None:
        """Load the last pops in order. Without ``timers``, as at a slave, there is no revival."""
        self._state = state
        self.polls = PopLongPolling(state)
        self.orders = ConsumerOrderInfo(state.files, state.store, state.clock_ms)
        self.assignment = QueryAssignmentProcessor(state, route)
        self._journal = PopJournal(state)
        self._reviver = None if timers is None else PopReviveService(state, self._journal, timers)

    def handlers(self, responder: DurableResponder) -> dict[int, Handler]:
        return {
            **PopMessageProcessor(self._state, self._journal, self.orders, self.polls).handlers(),
            **PollingProcessor(self._state, self.orders, self.polls).handlers(),
            **self.assignment.handlers(),
            **AckMessageProcessor(self._state, self._journal, self.orders, self.polls, responder).handlers(),
        }

    def revive(self) -> None:
        """Store unacknowledged messages again; to be called periodically."""
        if self._reviver is not None:
            self._reviver.run()

    def expire(self) -> None:
        """Respond to expired requests, and to those for queues that are free again; to be called periodically."""
        now_ms = self._state.steady_ms()
        for topic, group, queue_id in self.orders.free_queues(now_ms):
            self.polls.wake_soon(topic, group, queue_id)
        self.polls.expire(now_ms)

    def clean_order_info(self) -> None:
        topics, groups = self._state.topics, self._state.groups.table
        self.orders.auto_clean(lambda topic, group: topics.get(topic) is not None and group in groups)

    def close(self) -> None:
        if self._reviver is not None:
            self._reviver.close()
        self.orders.save()
