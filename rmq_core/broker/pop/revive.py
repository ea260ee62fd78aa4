"""Revival: unacknowledged messages are stored again, in the group's retry topic.

Each queue of the revive topic is read once, in order. Check points wait in memory until no acknowledgement can follow;
then their unacknowledged messages are stored again. The group CID_RMQ_SYS_REVIVE_GROUP commits the last check
point before which all are done, and a start reads from there.

Source: ``PopReviveService``.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Final

import msgspec

from rmq_core.broker.pop.journal import EarlyAcks, OutstandingPop, PopJournal
from rmq_core.broker.pop.records import Acknowledgement, CheckPoint, Key, decode_pop_record, get_queue_offset
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.consumer_offsets import NONE
from rmq_core.broker.timer.records import stored_messages
from rmq_core.broker.timer.service import Timers
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.pop import FIRST_POP_TIME, TopicKind, kind_of, retry_topic
from rmq_core.store.results import GetStatus, PutStatus
from rmq_formats.codecs.layout import PROPERTY_TIMER_DELIVER_MS
from rmq_formats.codecs.properties import encode_properties, parse_decimal
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.errors import DecodeError

log = logging.getLogger("rmq.broker.pop")
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
REVIVE_S: Final = 1.0  # ``reviveInterval``
_SLICE_S: Final = 0.005
_AT_ONCE: Final = 32
_EARLY_MS: Final = 1000  # an earlier check point, by the steady clock, waits on
_LATE_MS: Final = 2000  # from a check point's time to its end, by the times in the revive topic
_IDLE_MS: Final = 3000  # without records; then the clock's time counts
_RETRY_MS: Final = tuple(
    seconds * 1000 for seconds in (10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)  # ``ckRewriteIntervalsInSeconds``


class ReviveQueue:
    """Queue of the revive topic; ``points`` has unfinished check points by key, in the queue's order."""

    def __init__(self, state: BrokerState, journal: PopJournal, timers: Timers, queue_id: int) -> None:
        self.points: dict[Key, CheckPoint] = {}
        self._state = state
        self._journal = journal
        self._timers = timers
        self._queue_id = queue_id
        self._host = state.store_host.to_bytes()
        done = state.offsets.get(journal.topic, REVIVE_GROUP, queue_id)
        self._next = state.store.min_offset(journal.topic, queue_id) if done == NONE else done + 1
        self._early = EarlyAcks()
        self._end_ms = 0  # the latest time that a record of the queue was due

    def step(self) -> bool:
        """Read some records, or else revive one check point; return whether there is more to do at once."""
        if self._read():
            return True
        now_ms = self._state.clock_ms()
        if now_ms - self._end_ms > _IDLE_MS and not self._timers.has_due_messages:
            self._end_ms = now_ms
        point = next(iter(self.points.values()), None)
        if point is None or self._end_ms - point.visible_ms <= _LATE_MS:
            return False
        pop = self._journal.outstanding.pops.get(point.key)
        if pop is not None and pop.due_ms > self._state.steady_ms() + _EARLY_MS:
            # The check point is early since the clock was set.
            early_point = msgspec.structs.replace(point, bm=point.bm | pop.bits, ro=0)
            if not self._journal.try_put_checkpoint(early_point, self._queue_id, pop.due_ms):
                return False
        elif not self._revive(point):
            return False
        else:
            self._journal.outstanding.pops.pop(point.key, None)
        del self.points[point.key]
        self._state.offsets.commit(self._journal.topic, REVIVE_GROUP, self._queue_id, point.ro)
        return True

    def set_clock(self, step_ms: int) -> None:
        """Shift the queue's time after the time of day was set."""
        self._end_ms += step_ms

    def revive_late(self, pop: OutstandingPop) -> bool:
        """Revive and acknowledge messages that are late since the clock was set back; False if writes are refused."""
        point = msgspec.structs.replace(pop.point, bm=pop.bits)
        unacknowledged = [point.so + point.d[number] for number in range(point.n) if not point.bm >> number & 1]
        queued_point = self.points.get(point.key)
        if not self._revive(point):
            return False
        if queued_point is None:
            self.points.pop(point.key, None)
        else:
            self.points[point.key] = msgspec.structs.replace(queued_point, bm=(1 << queued_point.n) - 1)
        ack = Acknowledgement(
            aol=unacknowledged, bn=point.bn, c=point.c, pt=point.pt, q=point.q, so=point.so, t=point.t
        )
        with suppress(ResponseError):  # then they come once more
            self._journal.put_ack(ack, self._queue_id, point.visible_ms)
        self._journal.outstanding.pops.pop(point.key, None)
        return True

    def _read(self) -> bool:
        store, topic = self._state.store, self._journal.topic
        result = store.get(topic, self._queue_id, self._next, _AT_ONCE)
        if result.status is not GetStatus.FOUND:
            has_moved = result.next_offset != self._next and result.max_offset > 0
            self._next = result.next_offset if has_moved else self._next
            return has_moved
        for message in stored_messages(result.slices):
            self._put_checkpoint(message)
        self._next = result.next_offset
        return True

    def _put_checkpoint(self, message: StoredMessage) -> None:
        properties = message.properties
        deliver_ms = parse_decimal(properties.get(PROPERTY_TIMER_DELIVER_MS), self._end_ms)
        self._end_ms = max(self._end_ms, deliver_ms)
        try:
            record = decode_pop_record(message.tags, message.body)
        except DecodeError as error:
            log.error(
                "the record of the revive topic at %(physical_offset)d is skipped: %(why)s",
                {"physical_offset": message.physical_offset, "why": str(error)},
            )
            return
        if isinstance(record, Acknowledgement):
            self._acknowledge(record)
        else:
            bits = record.bm | record.bits_of(self._early.drain(record.key))
            self.points[record.key] = msgspec.structs.replace(record, ro=message.queue_offset, bm=bits)

    def _acknowledge(self, ack: Acknowledgement) -> None:
        point = self.points.get(ack.key)
        if point is not None:
            self.points[ack.key] = msgspec.structs.replace(point, bm=point.bm | point.bits_of(ack.offsets))
        else:
            self._early.put(ack)

    def _revive(self, point: CheckPoint) -> bool:
        """Store the unacknowledged messages of a check point again; return False if the store refuses writes now."""
        state = self._state
        if state.topics.get(point.t) is None or point.c not in state.groups.table:
            return True
        for number in range(point.n):
            if point.bm >> number & 1:
                continue
            is_stored = self._put_again(point, point.so + point.d[number])
            if is_stored is None:
                return False
            if not is_stored and not self._put_retry(point, number):
                return False
            self.points[point.key] = point = msgspec.structs.replace(point, bm=point.bm | 1 << number)
        return True

    def _put_again(self, point: CheckPoint, queue_offset: int) -> bool | None:
        """Store a message again; False if this message cannot be read or stored, None if the store refuses writes."""
        store, topic = self._state.store, point.t
        result = store.get(topic, point.q, queue_offset, 1)
        message = next(stored_messages(result.slices), None) if result.status is GetStatus.FOUND else None
        if message is None or get_queue_offset(message.properties, topic, message.queue_offset) != queue_offset:
            # A deleted message needs no revival. A light queue without messages is deleted, too.
            is_deleted = topic not in self._state.topics.table and not store.max_offset(topic, 0)
            return is_deleted or queue_offset < store.min_offset(topic, point.q)
        target = topic if kind_of(topic) is not TopicKind.NORMAL else retry_topic(point.c, topic, TopicKind.RETRY_V1)
        if target not in self._state.topics.table:
            self._state.topics.get_or_create(target, 1)
            if self._state.offsets.get(target, point.c, 0) == NONE:
                self._state.offsets.commit(target, point.c, 0, 0)
        properties = message.properties
        properties.setdefault(FIRST_POP_TIME, str(point.pt))
        encoded, now_ms = encode_properties(properties), self._state.clock_ms()
        put_result = self._state.put_copy(message, (target, 0), encoded, now_ms, added_tries=1, born_host=self._host)
        if put_result.status is PutStatus.PUT_OK:
            return True
        return False if put_result.status.is_permanent else None

    def _put_retry(self, point: CheckPoint, number: int) -> bool:
        """Write a check point of one message for a later try; after the last try, log an error."""
        if point.tries >= len(_RETRY_MS):
            log.error(
                "a popped message of %(topic)s cannot be read or stored again: queue %(queue)d, offset %(offset)d",
                {"topic": point.t, "queue": point.q, "offset": point.so + point.d[number]},
            )
            return True
        invisible_ms = point.it + _RETRY_MS[point.tries]
        tries, first = str(point.tries + 1), point.so + point.d[number]
        later = msgspec.structs.replace(
            point, bm=0, d=[0], it=invisible_ms, n=1, revive_time=point.pt + invisible_ms, ro=0, rp=tries, so=first
        )
        return self._journal.try_put_checkpoint(later, self._queue_id)


class PopReviveService:
    """Revival of all queues of the revive topic, in time slices of the event loop."""

    def __init__(self, state: BrokerState, journal: PopJournal, timers: Timers) -> None:
        self._state = state
        self._journal = journal
        self._lead_ms = state.clock_ms.lead_ms
        self._queues = [ReviveQueue(state, journal, timers, number) for number in range(journal.queue_count)]
        self._more: asyncio.Handle | None = None
        self._is_closed = False

    def run(self) -> None:
        """Work for one time slice; to be called periodically. With more to do, the method schedules itself again."""
        if self._more is not None:
            self._more.cancel()
            self._more = None
        if self._is_closed:
            return
        loop = asyncio.get_running_loop()
        end_s, store = loop.time() + _SLICE_S, self._state.store
        before = store.max_physical_offset
        busy = list(self._queues)
        try:
            self._follow_clock(end_s)
            while busy and loop.time() < end_s:
                busy = [queue for queue in busy if queue.step()]
        finally:
            if store.max_physical_offset != before:
                self._state.dispatch()
        if busy:
            self._more = loop.call_soon(self.run)

    def _follow_clock(self, end_s: float) -> None:
        """Detect changes of the time of day, and revive check points that are late since then."""
        state, loop = self._state, asyncio.get_running_loop()
        state.clock_ms()  # notices a step
        step_ms = state.clock_ms.lead_ms - self._lead_ms
        if step_ms:
            self._lead_ms += step_ms
            for queue in self._queues:
                queue.set_clock(step_ms)
            if step_ms < 0:
                self._journal.outstanding.schedule_all()
        for pop in self._journal.outstanding.pop_due(state.steady_ms()):
            if not self._queues[pop.queue_id].revive_late(pop):
                self._journal.outstanding.retry(pop)
                return
            if loop.time() > end_s:
                return

    def close(self) -> None:
        self._is_closed = True
        if self._more is not None:
            self._more.cancel()
            self._more = None
