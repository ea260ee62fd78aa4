"""Reading for a pop of lite topics: messages of the events of a client, each lite topic in order.

Source: ``PopLiteMessageProcessor#popByClientId``, ``#popLiteTopic``, ``#getMessage``.
"""

from dataclasses import dataclass, field
from typing import Final

from rmq_core.broker.lite.registry import LiteClient
from rmq_core.broker.pop.order import ConsumerOrderInfo
from rmq_core.broker.pop.reader import ENOUGH_BYTES, OFFSET_MOVED, get_pop_offset
from rmq_core.broker.pop.records import read_queue_offset
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import stats
from rmq_core.remoting.lite_requests import PopLiteMessage
from rmq_core.store.results import GetResult, GetStatus, split_records

_QUEUE_ID: Final = 0
_MOST_LOOKED: Final = 64  # light queues of a pop: some 0.2 ms without messages
_MOST_READ: Final = 16  # light queues with messages, some 0.06 ms each, so that other requests do not wait


@dataclass(slots=True)
class LitePopResult:
    """Result of a pop of lite topics.

    Attributes:
        bodies: records, as slices of the mapped log.
        counts: number of earlier pops of each message.
        size: of the records, B.
        queues: number of light queues with messages.
    """

    pop_time_ms: int
    bodies: list[memoryview] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    size: int = 0
    queues: int = 0


class LitePopReader:
    """Reader of light queues for pops."""

    def __init__(self, state: BrokerState, orders: ConsumerOrderInfo) -> None:
        self._state = state
        self._orders = orders

    def pop(self, fields: PopLiteMessage, client: LiteClient | None) -> LitePopResult:
        """Pop messages of the light queues of a client's events, up to the requested number."""
        result = LitePopResult(self._state.clock_ms())
        for _ in range(_MOST_LOOKED):
            if client is None or not client.events:
                break
            if len(result.counts) >= fields.max_msg_num or result.size >= ENOUGH_BYTES or result.queues >= _MOST_READ:
                break
            queue = next(iter(client.events))
            del client.events[queue]
            if queue not in client.evicted:
                self._pop_queue(queue, fields, result)
        if result.counts:
            key = stats.pull_key(fields.topic, fields.consumer_group)
            self._state.stats.count_messages(stats.GOT, key, len(result.counts), result.size)
        return result

    def _pop_queue(self, queue: str, fields: PopLiteMessage, result: LitePopResult) -> None:
        state, group = self._state, fields.consumer_group
        is_reset = state.offsets.is_reset(queue, group, _QUEUE_ID)
        if not is_reset and self._orders.is_blocked(queue, group, _QUEUE_ID, fields.attempt_id, result.pop_time_ms):
            return
        if not state.store.max_offset(queue, _QUEUE_ID):
            return  # no offset is committed for a light queue without messages
        offset = get_pop_offset(state, self._orders, queue, group, _QUEUE_ID, from_last=True)
        offset, messages = self._read(queue, group, offset, fields.max_msg_num - len(result.counts))
        if messages.status is not GetStatus.FOUND:
            return
        offsets = list(range(messages.next_offset - messages.message_count, messages.next_offset))
        if offsets[0] != offset:  # offsets were skipped
            offsets = [read_queue_offset(record, queue) for record in split_records(messages.slices)]
        counts = self._orders.record_pop(
            queue, group, _QUEUE_ID, offsets, fields.attempt_id, result.pop_time_ms, fields.invisible_time
        )
        result.bodies += messages.slices
        result.counts += [counts.get(popped, 0) for popped in offsets]
        result.size += messages.size
        result.queues += 1

    def _read(self, queue: str, group: str, offset: int, most: int) -> tuple[int, GetResult]:
        """Read messages, at the next existing offset if the wanted one has left the log; return the offset, too."""
        store = self._state.store
        messages = store.get(queue, _QUEUE_ID, offset, most)
        if messages.status in OFFSET_MOVED and messages.next_offset != offset:
            offset = messages.next_offset
            self._state.offsets.commit(queue, group, _QUEUE_ID, offset)
            messages = store.get(queue, _QUEUE_ID, offset, most)
        return offset, messages
