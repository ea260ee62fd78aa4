"""Takes messages of the lite topics that a client was told of, each in its order.

Source: ``PopLiteMessageProcessor#popByClientId``, ``#popLiteTopic``, ``#getMessage``.
"""

from dataclasses import dataclass, field
from typing import Final

from rmq_core.broker.lite.registry import LiteClient
from rmq_core.broker.pop.order import ConsumerOrderInfo
from rmq_core.broker.pop.queue_offsets import read_queue_offset
from rmq_core.broker.pop.reader import ENOUGH_BYTES, OFFSET_MOVED, get_pop_offset, records_of
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import stats
from rmq_core.remoting.lite_requests import PopLiteMessage
from rmq_core.store.results import GetResult, GetStatus

_QUEUE_ID: Final = 0
_MOST_LOOKED: Final = 64  # light queues that a pop looks at: some 0.2 ms where none has a message
_MOST_READ: Final = 16  # of them with messages, which take some 0.06 ms each: others are served in between


@dataclass(slots=True)
class LiteTaken:
    """What a pop has taken.

    Attributes:
        pop_time_ms: when.
        bodies: records, as slices of the mapped log.
        counts: how often each was taken before.
        size: their bytes.
        queues: light queues that they are of.
    """

    pop_time_ms: int
    bodies: list[memoryview] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    size: int = 0
    queues: int = 0


class LiteTaker:
    """Takes messages for clients."""

    def __init__(self, state: BrokerState, orders: ConsumerOrderInfo) -> None:
        self._state = state
        self._orders = orders

    def take(self, asked: PopLiteMessage, client: LiteClient | None) -> LiteTaken:
        """Take messages of the light queues that a client has events of, until there are as many as it asked for."""
        taken = LiteTaken(self._state.clock_ms())
        for _ in range(_MOST_LOOKED):
            if client is None or not client.events:
                break
            if len(taken.counts) >= asked.max_msg_num or taken.size >= ENOUGH_BYTES or taken.queues >= _MOST_READ:
                break
            queue = next(iter(client.events))
            del client.events[queue]
            if queue not in client.evicted:
                self._take_of(queue, asked, taken)
        if taken.counts:
            key = stats.pull_key(asked.topic, asked.consumer_group)
            self._state.stats.count_messages(stats.GOT, key, len(taken.counts), taken.size)
        return taken

    def _take_of(self, queue: str, asked: PopLiteMessage, taken: LiteTaken) -> None:
        state, group = self._state, asked.consumer_group
        is_reset = state.offsets.is_reset(queue, group, _QUEUE_ID)
        if not is_reset and self._orders.is_blocked(queue, group, _QUEUE_ID, asked.attempt_id, taken.pop_time_ms):
            return
        if not state.store.max_offset(queue, _QUEUE_ID):
            return  # a light queue that has no message leaves no offset of the group either
        offset = get_pop_offset(state, self._orders, queue, group, _QUEUE_ID, from_last=True)
        offset, found = self._read(queue, group, offset, asked.max_msg_num - len(taken.counts))
        if found.status is not GetStatus.FOUND:
            return
        offsets = list(range(found.next_offset - found.message_count, found.next_offset))
        if offsets[0] != offset:  # places were passed over
            offsets = [read_queue_offset(record, queue) for record in records_of(found.slices)]
        counts = self._orders.record_pop(
            queue, group, _QUEUE_ID, offsets, asked.attempt_id, taken.pop_time_ms, asked.invisible_time
        )
        taken.bodies += found.slices
        taken.counts += [counts.get(one, 0) for one in offsets]
        taken.size += found.size
        taken.queues += 1

    def _read(self, queue: str, group: str, offset: int, most: int) -> tuple[int, GetResult]:
        """Read messages; where there are none any more, from the next one that is there. Gives its offset, too."""
        store = self._state.store
        found = store.get(queue, _QUEUE_ID, offset, most)
        if found.status in OFFSET_MOVED and found.next_offset != offset:
            offset = found.next_offset
            self._state.offsets.commit(queue, group, _QUEUE_ID, offset)
            found = store.get(queue, _QUEUE_ID, offset, most)
        return offset, found
