"""Check points and acknowledgements: written as timer messages in the revive topic, and retained until they are due.

Timer messages follow the time of day: they are early after the clock was set forward, and late after it was set back.
The table of popped and unacknowledged messages has their true times, by the steady clock. It is in memory: after a
start the time of day counts.

Source: ``PopMessageProcessor#buildCkMsg``, ``AckMessageProcessor#appendAck``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from rmq_core.broker.pop.records import CHECKPOINT, Acknowledgement, CheckPoint, Key, PopRecord, encode_pop_record
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names
from rmq_core.remoting.errors import ResponseError
from rmq_core.store.results import PutResult, PutStatus
from rmq_formats.codecs.layout import PROPERTY_TAGS, PROPERTY_TIMER_DELIVER_MS, PROPERTY_UNIQ_KEY
from rmq_formats.codecs.properties import encode_properties

_MAX_OUTSTANDING: Final = 200_000  # check points; for the oldest ones above it the time of day counts
_BEFORE_MS: Final = 1000  # from a check point to its acknowledgements: ``PopAckConstants.ackTimeInterval``


@dataclass(slots=True)
class OutstandingPop:
    """Unfinished check point, due by the steady clock; ``bits`` are its acknowledged messages."""

    point: CheckPoint
    queue_id: int
    due_ms: int
    bits: int = 0

    @property
    def is_done(self) -> bool:
        return self.bits == (1 << self.point.n) - 1


class OutstandingPops:
    """Unfinished check points, by key."""

    def __init__(self) -> None:
        self.pops: dict[Key, OutstandingPop] = {}
        self._late: list[tuple[int, Key]] = []  # a heap of those that wait for a time of day that was set back

    def add(self, point: CheckPoint, queue_id: int, due_ms: int) -> None:
        """Add a check point after its write."""
        self.pops.pop(point.key, None)
        if len(self.pops) >= _MAX_OUTSTANDING:
            del self.pops[next(iter(self.pops))]
        self.pops[point.key] = OutstandingPop(point, queue_id, due_ms, point.bm)

    def acknowledge(self, ack: Acknowledgement) -> None:
        pop = self.pops.get(ack.key)
        if pop is not None:
            pop.bits |= pop.point.bits_of(ack.offsets)
            if pop.is_done:
                del self.pops[ack.key]

    def retry(self, pop: OutstandingPop) -> None:
        """Schedule a late check point again whose revival failed for now."""
        heappush(self._late, (pop.due_ms, pop.point.key))

    def schedule_all(self) -> None:
        """Schedule all check points after the clock was set back: as timer messages they would be late."""
        self._late = [(pop.due_ms, key) for key, pop in self.pops.items()]
        heapify(self._late)

    def pop_due(self, steady_ms: int) -> Iterator[OutstandingPop]:
        """Yield the scheduled check points that are due, each once."""
        while self._late and self._late[0][0] <= steady_ms:
            due_ms, key = heappop(self._late)
            pop = self.pops.get(key)
            if pop is not None and pop.due_ms == due_ms:
                yield pop


MAX_KEYS: Final = 10_000
MAX_OFFSETS: Final = 32  # queue offsets of a check point; repeated acknowledgements must not fill the memory


class EarlyAcks:
    """Bounded buffer of acknowledgements that arrive before their check point, which may be finished already."""

    def __init__(self) -> None:
        self._offsets: dict[Key, set[int]] = {}

    def put(self, ack: Acknowledgement) -> None:
        """Add an acknowledgement. A full buffer evicts the oldest check point, which must be finished."""
        if ack.key not in self._offsets and len(self._offsets) >= MAX_KEYS:
            del self._offsets[next(iter(self._offsets))]
        offsets = self._offsets.setdefault(ack.key, set())
        for offset in ack.offsets[:MAX_OFFSETS]:
            if len(offsets) < MAX_OFFSETS:
                offsets.add(offset)

    def drain(self, key: Key) -> set[int]:
        """Remove and return the queue offsets of a check point."""
        return self._offsets.pop(key, set())


class PopJournal:
    """Writer of the revive topic; ``outstanding`` has unfinished check points written since the start."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._host = state.store_host.to_bytes()
        self.outstanding = OutstandingPops()
        self.topic = f"{names.REVIVE_PREFIX}{state.config.broker_cluster_name}"

    @property
    def queue_count(self) -> int:
        topic_config = self._state.topics.table.get(self.topic)
        return self._state.config.revive_queue_num if topic_config is None else topic_config.write_queue_nums

    def put_checkpoint(self, point: CheckPoint, queue_id: int, due_ms: int | None = None) -> PutResult:
        """Append a check point, due by its own time or at a time of the steady clock.

        Raises ResponseError if there are too many due timer messages, or timer messages are switched off.
        """
        state, visible_ms = self._state, point.visible_ms
        if due_ms is None:
            due_ms = state.steady_ms() + visible_ms - state.clock_ms()
        else:
            visible_ms = state.time_of_day(due_ms)
        result = self._put(point, CHECKPOINT, queue_id, visible_ms - _BEFORE_MS)
        if result.status is PutStatus.PUT_OK:
            self.outstanding.add(point, queue_id, due_ms)
        return result

    def try_put_checkpoint(self, point: CheckPoint, queue_id: int, due_ms: int | None = None) -> bool:
        """Append a check point; return False if the store refuses writes, or there are too many due timer messages."""
        try:
            return self.put_checkpoint(point, queue_id, due_ms).status is PutStatus.PUT_OK
        except ResponseError:
            return False

    def put_ack(self, ack: Acknowledgement, queue_id: int, visible_ms: int) -> PutResult:
        """Append an acknowledgement of messages that would return at a time. Raises as ``put_checkpoint``."""
        result = self._put(ack, ack.tag, queue_id, visible_ms)
        if result.status is PutStatus.PUT_OK:
            self.outstanding.acknowledge(ack)
        return result

    def _put(self, record: PopRecord, tag: str, queue_id: int, deliver_ms: int) -> PutResult:
        state, now_ms = self._state, self._state.clock_ms()
        properties = {
            PROPERTY_TAGS: tag,
            PROPERTY_TIMER_DELIVER_MS: str(deliver_ms),
            PROPERTY_UNIQ_KEY: record.unique_key,
        }
        topic, to_queue = state.timers.redirect(self.topic, queue_id, properties)
        return state.store.appender.put(
            topic, to_queue, encode_pop_record(record), encode_properties(properties), now_ms, self._host, now_ms
        )
