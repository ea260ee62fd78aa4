"""Takes messages for a pop: of the queues of a topic and of its retry topic, each take with a check point.

Source: ``PopMessageProcessor#popMsgFromTopic``, ``#popMsgFromQueue``, ``#getInitOffset``, ``#appendCheckPoint``.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import Final

from rmq_core.broker.pop.journal import PopJournal
from rmq_core.broker.pop.order import OrderTable
from rmq_core.broker.pop.places import place_of_record
from rmq_core.broker.pop.records import CheckPoint
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import stats
from rmq_core.broker.tables.attributes import MESSAGE_TYPE, PRIORITY, PRIORITY_FACTOR
from rmq_core.broker.tables.consumer_offsets import NONE
from rmq_core.broker.tables.subscription_filter import Filter
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.pop import HANDLE, IN_ORDER, PopHandle, TopicKind, retry_topic
from rmq_core.remoting.pop_requests import PopMessage
from rmq_core.store.results import GetResult, GetStatus, PutStatus
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import decode_record, encode_record
from rmq_formats.errors import FormatError

_SIZE: Final = Struct(">i")
ENOUGH_BYTES: Final = 1 << 20  # of an answer; the last take may add as much as a pull gives
_PERCENT: Final = 100
_FROM_LAST: Final = 1  # initMode of a group that wants what comes from now on
MOVED: Final = (
    GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL,
    GetStatus.MESSAGE_WAS_REMOVING, GetStatus.NO_MATCHED_MESSAGE,
)  # fmt: skip


@dataclass(slots=True)
class Taken:
    """What a pop has taken so far.

    Attributes:
        most: messages at most.
        pop_time_ms: when.
        revive_queue_id: where its check points go; IN_ORDER for a pop in order.
        bodies: records, as the answer has them.
        starts: kind, queue id and start offset of each take.
        offsets: queue offsets of the messages, by kind and queue id.
        counts: texts of ``orderCountInfo``.
        count: messages.
        size: their bytes.
        rest: messages that are left in the queues that were looked at.
        by_priority: queues are looked at from the highest number on, and retry topics last.
    """

    most: int
    pop_time_ms: int
    revive_queue_id: int
    bodies: list[bytes | memoryview] = field(default_factory=list)
    starts: list[tuple[TopicKind, int, int]] = field(default_factory=list)
    offsets: dict[tuple[TopicKind, int], list[int]] = field(default_factory=dict)
    counts: list[str] = field(default_factory=list)
    count: int = 0
    size: int = 0
    rest: int = 0
    by_priority: bool = False


class Taker:
    """Takes messages of queues for consumer groups."""

    def __init__(self, state: BrokerState, journal: PopJournal, orders: OrderTable) -> None:
        self._state = state
        self._journal = journal
        self._orders = orders
        self._next_revive_queue = 0

    def begin(self, asked: PopMessage) -> Taken:
        """Begin a pop."""
        revive_queue_id = IN_ORDER
        if not asked.order:
            revive_queue_id = self._next_revive_queue % self._journal.queue_count
            self._next_revive_queue += 1
        return Taken(
            asked.max_msg_nums, self._state.clock_ms(), revive_queue_id, by_priority=self._is_by_priority(asked)
        )

    def _is_by_priority(self, asked: PopMessage) -> bool:
        """Whether a pop is one by priorities, as all but a part of those of such a topic are that its group asks for.

        Source: ``PopMessageProcessor#processRequest``, ``SubscriptionGroupConfig#getPriorityFactor`` of 5.4.
        """
        topic, group = self._state.topics.get(asked.topic), self._state.groups.table.get(asked.consumer_group)
        if asked.order or topic is None or topic.attributes.get(MESSAGE_TYPE) != PRIORITY:
            return False
        factor = None if group is None else group.attributes.get(PRIORITY_FACTOR)
        return random.randrange(_PERCENT) < (int(factor) if factor and factor.isdecimal() else _PERCENT)

    def take(self, taken: Taken, asked: PopMessage, wanted: Filter, kind: TopicKind) -> None:
        """Take messages of a topic, or of its retry topic of some kind, until the pop is full."""
        name = retry_topic(asked.consumer_group, asked.topic, kind)
        topic = self._state.topics.get(name)
        if topic is None or (name not in self._state.topics.table and not self._state.store.max_offset(name, 0)):
            return  # a light queue that has no message yet leaves no offset of the group either
        count = topic.read_queue_nums
        if kind is TopicKind.NORMAL and asked.queue_id >= 0:
            queues: Iterable[int] = (asked.queue_id,)
        else:
            first = random.randrange(max(1, count))
            turned = ((first + number) % count for number in range(count))
            queues = range(count - 1, -1, -1) if taken.by_priority else turned
        for queue_id in queues:
            self._take_queue(taken, asked, wanted, kind, (name, queue_id))

    def _take_queue(
        self, taken: Taken, asked: PopMessage, wanted: Filter, kind: TopicKind, place: tuple[str, int]
    ) -> None:
        store, group, (topic, queue_id) = self._state.store, asked.consumer_group, place
        from_last = asked.init_mode == _FROM_LAST and kind is TopicKind.NORMAL
        offset = begin_of(self._state, self._orders, topic, group, queue_id, from_last=from_last)
        if (
            taken.count >= taken.most
            or taken.size >= ENOUGH_BYTES
            or (asked.order and self._orders.is_blocked(topic, group, queue_id, asked.attempt_id, taken.pop_time_ms))
        ):
            taken.rest += max(0, store.max_offset(topic, queue_id) - offset)
            return
        result = self._read(topic, queue_id, offset, taken.most - taken.count, wanted)
        if result.status in MOVED and result.next_offset != offset:
            offset = result.next_offset
            self._state.offsets.commit(topic, group, queue_id, offset)
            result = self._read(topic, queue_id, offset, taken.most - taken.count, wanted)
        if result.status is not GetStatus.FOUND:
            if result.status in MOVED and result.next_offset != offset:
                self._state.offsets.commit(topic, group, queue_id, result.next_offset)
            taken.rest += max(0, result.max_offset - result.next_offset)
            return
        records = list(records_of(result.slices))
        offsets = [place_of_record(record, topic) for record in records]
        if asked.order:
            counts = self._orders.took(
                topic, group, queue_id, offsets, asked.attempt_id, taken.pop_time_ms, asked.invisible_time
            )
            taken.counts += [f"{int(kind)} qo{queue_id}%{one} {times}" for one, times in counts.items()]
            taken.counts.append(f"{int(kind)} {queue_id} {min(counts.get(one, 0) for one in offsets)}")
            self._state.offsets.commit(topic, group, queue_id, offset)
        elif not self._note(taken, asked, place, offset, offsets, result.next_offset):
            taken.rest += max(0, result.max_offset - offset)
            return
        self._add(taken, asked, kind, queue_id, offset, offsets, records)
        taken.rest += max(0, result.max_offset - result.next_offset)

    def _read(self, topic: str, queue_id: int, offset: int, most: int, wanted: Filter) -> GetResult:
        return self._state.store.get(
            topic, queue_id, offset, most,
            tags_codes=wanted.tags_codes, matches=wanted.matches, may_match_unit=wanted.may_match_unit,
        )  # fmt: skip

    def _note(
        self, taken: Taken, asked: PopMessage, place: tuple[str, int], offset: int, offsets: list[int], next_offset: int
    ) -> bool:
        """Append the check point of a take, and commit behind it; False if the store takes none now."""
        topic, queue_id = place
        point = CheckPoint(
            bn=self._state.config.broker_name, c=asked.consumer_group, d=[one - offset for one in offsets],
            it=asked.invisible_time, n=len(offsets), pt=taken.pop_time_ms, q=queue_id,
            revive_time=taken.pop_time_ms + asked.invisible_time, so=offset, t=topic,
        )  # fmt: skip
        try:
            status = self._journal.put_checkpoint(point, taken.revive_queue_id).status
        except ResponseError:  # too many timer messages are due then: what other queues gave must reach its consumer
            return False
        if status is not PutStatus.PUT_OK:
            return False
        self._state.offsets.commit(topic, asked.consumer_group, queue_id, next_offset)
        return True

    def _add(
        self, taken: Taken, asked: PopMessage, kind: TopicKind, queue_id: int, offset: int, offsets: list[int],
        records: list[memoryview],
    ) -> None:  # fmt: skip
        taken.starts.append((kind, queue_id, offset))
        taken.offsets[kind, queue_id] = offsets
        taken.count += len(records)
        size = sum(map(len, records))
        taken.size += size
        if kind is TopicKind.NORMAL:
            taken.bodies += records
        else:
            broker = self._state.config.broker_name
            for one, record in zip(offsets, records, strict=True):
                handle = PopHandle(
                    offset, taken.pop_time_ms, asked.invisible_time, taken.revive_queue_id, kind, broker, queue_id, one
                )
                taken.bodies.append(_as_of(record, asked.topic, handle))
        key = f"{asked.topic}@{asked.consumer_group}"
        self._state.stats.count_messages(stats.GOT, key, len(records), size)


def begin_of(state: BrokerState, orders: OrderTable, topic: str, group: str, queue_id: int, *, from_last: bool) -> int:
    """Queue offset that a take begins at; where the group has none, it gets one, and that is noted.

    Args:
        state: of the broker.
        orders: takes in order, which a reset of the offset ends.
        topic: of the queue.
        group: that takes.
        queue_id: of the queue.
        from_last: a group that has no offset begins with the last message, not with the first, unless the queue is new.
    """
    store = state.store
    reset = state.offsets.take_reset(topic, group, queue_id)
    if reset is not None:
        orders.forget(topic, group, queue_id)
        return reset
    offset = state.offsets.get(topic, group, queue_id)
    if offset != NONE:
        return offset
    offset = store.min_offset(topic, queue_id)
    if from_last:
        is_young = offset == 0 and store.is_in_memory(topic, queue_id, 0)
        offset = 0 if is_young else max(0, store.max_offset(topic, queue_id) - 1)
    state.offsets.commit(topic, group, queue_id, offset)
    return offset


def _as_of(record: memoryview, topic: str, handle: PopHandle) -> bytes | memoryview:
    """A record of a retry topic, as its consumer gets it: of the topic that it was sent to, with its handle."""
    try:
        message = decode_record(record, verify_crc=False)
    except FormatError:  # it is read by nobody then, and comes back until it is given up
        return record
    properties = message.properties | {HANDLE: handle.encode()}
    told = replace(message.to_store(), topic=topic, properties_bytes=encode_properties(properties))
    return encode_record(
        told, queue_offset=message.queue_offset, physical_offset=message.recorded_physical_offset,
        store_timestamp_ms=message.store_timestamp_ms,
    )  # fmt: skip


def records_of(slices: list[memoryview]) -> Iterable[memoryview]:
    """Split slices of the log into records."""
    for data in slices:
        at = 0
        while at < len(data):
            (size,) = _SIZE.unpack_from(data, at)
            yield data[at : at + size]
            at += size
