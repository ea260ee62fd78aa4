"""POP as a whole: its handlers, and what runs periodically."""

from rmq_core.broker.pop.acks import Acks
from rmq_core.broker.pop.assignment import Assigner, Route
from rmq_core.broker.pop.held import HeldPops
from rmq_core.broker.pop.journal import PopJournal
from rmq_core.broker.pop.looks import Looks
from rmq_core.broker.pop.order import OrderTable
from rmq_core.broker.pop.pops import Pops
from rmq_core.broker.pop.revive import Revival, TimersBehind
from rmq_core.broker.pop.take import Taker
from rmq_core.broker.processors.acknowledge import Acknowledgements
from rmq_core.broker.state import BrokerState
from rmq_core.remoting.connection import Handler


class Pop:
    """POP at a broker.

    Attributes:
        held: pops that wait for messages.
        orders: takes in order that are under way.
    """

    def __init__(self, state: BrokerState, timers: TimersBehind | None) -> None:
        """Load what is under way.

        Args:
            state: of the broker.
            timers: None if they are switched off, or at a slave: then nothing is revived.
        """
        self._state = state
        self.held = HeldPops(state.config.max_held_pulls)
        self.orders = OrderTable(state.files, state.store, state.clock_ms, state.steady_ms)
        self._journal = PopJournal(state)
        self._revival = None if timers is None else Revival(state, self._journal, timers)

    def handlers(self, acknowledgements: Acknowledgements, route: Route) -> dict[int, Handler]:
        """Handlers by request code.

        Args:
            acknowledgements: of what is stored.
            route: asks the name servers for a topic's route.
        """
        taker = Taker(self._state, self._journal, self.orders)
        return {
            **Pops(self._state, taker, self.held).handlers(),
            **Looks(self._state, self.orders, self.held).handlers(),
            **Assigner(self._state, route).handlers(),
            **Acks(self._state, self._journal, self.orders, self.held, acknowledgements).handlers(),
        }

    def revive(self) -> None:
        """Store again what was not acknowledged in time; to be called periodically."""
        if self._revival is not None:
            self._revival.run()

    def expire(self) -> None:
        """Answer pops whose time is over, and those for queues that are free again; to be called periodically."""
        now_ms = self._state.steady_ms()
        for topic, group, queue_id in self.orders.freed(now_ms):
            self.held.wake_soon(topic, group, queue_id)
        self.held.expire(now_ms)

    def keep_house(self) -> None:
        """Forget takes in order that are old; to be called periodically."""
        topics, groups = self._state.topics, self._state.groups.table
        self.orders.keep_house(lambda topic, group: topics.get(topic) is not None and group in groups)

    def close(self) -> None:
        """Stop reviving, and save what is under way."""
        if self._revival is not None:
            self._revival.close()
        self.orders.save()
