"""Pop requests (code 200050), with long polling where there are no messages.

A pop reads the queues of a topic and its retry topics, with a check point for each. Source: ``PopMessageProcessor``.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from rmq_core.broker.parked_requests import ANY_QUEUE, ParkedRequest, PopLongPolling, TopicGroup
from rmq_core.broker.pop.checks import check_pop_group, parse_filter
from rmq_core.broker.pop.journal import PopJournal
from rmq_core.broker.pop.order import ConsumerOrderInfo
from rmq_core.broker.pop.records import CheckPoint, read_queue_offset
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import stats
from rmq_core.broker.tables.attributes import MESSAGE_TYPE, PRIORITY, PRIORITY_FACTOR
from rmq_core.broker.tables.consumer_offsets import NONE
from rmq_core.broker.tables.subscription_filter import Filter
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields, write_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop import (
    IN_ORDER,
    MAX_INVISIBLE_MS,
    MAX_MESSAGES,
    PopHandle,
    PopMessage,
    PopResponse,
    TopicKind,
    encode_offsets,
    encode_starts,
    retry_topic,
)
from rmq_core.store.results import GetResult, GetStatus, split_records
from rmq_formats.codecs.layout import PROPERTY_POP_CK
from rmq_formats.codecs.properties import encode_properties, parse_decimal
from rmq_formats.codecs.record import decode_record, encode_record
from rmq_formats.errors import FormatError

ENOUGH_BYTES: Final = 1 << 20  # of a response; the last queue may add as much as one pull
_PERCENT: Final = 100
_FROM_LAST: Final = 1  # initMode of a group that begins with new messages
OFFSET_MOVED: Final = (
    GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL,
    GetStatus.MESSAGE_WAS_REMOVING, GetStatus.NO_MATCHED_MESSAGE,
)  # fmt: skip
_RETRY_FIRST: Final = 0.2  # of pops: ``popFromRetryProbability``
_MAX_ATTEMPT_CHARS: Final = 255  # the file of pops in order contains the attempt's id


@dataclass(slots=True)
class PopResult:
    """Result of a pop so far.

    Attributes:
        revive_queue_id: queue of the check points; IN_ORDER for a pop in order.
        starts: kind, queue id and start offset of each queue.
        offsets: queue offsets of the messages, by kind and queue id.
        order_counts: texts of ``orderCountInfo``.
        size: bytes of the messages.
        rest: number of messages that are left in the queues.
        is_by_priority: queues are read from the highest number on, retry topics last.
    """

    max_count: int
    pop_time_ms: int
    revive_queue_id: int
    bodies: list[bytes | memoryview] = field(default_factory=list)
    starts: list[tuple[TopicKind, int, int]] = field(default_factory=list)
    offsets: dict[tuple[TopicKind, int], list[int]] = field(default_factory=dict)
    order_counts: list[str] = field(default_factory=list)
    count: int = 0
    size: int = 0
    rest: int = 0
    is_by_priority: bool = False


class PopMessageProcessor:
    """Handler of POP_MESSAGE requests."""

    def __init__(
        self, state: BrokerState, journal: PopJournal, orders: ConsumerOrderInfo, polls: PopLongPolling
    ) -> None:
        self._state = state
        self._journal = journal
        self._orders = orders
        self._polls = polls
        self._next_revive_queue = 0

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.POP_MESSAGE: self.pop}

    def pop(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """Pop messages of a queue or a topic (POP_MESSAGE, 200050); None while the request is parked."""
        fields = read_fields(request, PopMessage)
        if not 0 < fields.max_msg_nums <= MAX_MESSAGES:
            problem = f"the broker[{self._state.address}] pop message's num is greater than {MAX_MESSAGES}"
            raise ResponseError(ResponseCode.INVALID_PARAMETER, problem)
        if not 0 < fields.invisible_time <= MAX_INVISIBLE_MS:
            problem = f"invisibleTime {fields.invisible_time} is not of 1 to {MAX_INVISIBLE_MS} ms"
            raise ResponseError(ResponseCode.INVALID_PARAMETER, problem)
        if len(fields.attempt_id or "") > _MAX_ATTEMPT_CHARS:
            problem = f"attemptId has more than {_MAX_ATTEMPT_CHARS} characters"
            raise ResponseError(ResponseCode.INVALID_PARAMETER, problem)
        check_pop_group(self._state, fields.consumer_group, fields.topic, fields.queue_id)
        message_filter = parse_filter(self._state, fields.topic, fields.exp, fields.exp_type)
        pop = ParkedRequest(
            (fields.topic, fields.consumer_group),
            request,
            connection,
            self._state.steady_ms() + max(0, fields.poll_time),
            partial(self._pop_again, fields),
            fields.exp,
            message_filter,
            max(ANY_QUEUE, fields.queue_id),
        )
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
        result = self._begin(fields)
        kinds = [TopicKind.NORMAL] if fields.order else [TopicKind.NORMAL, TopicKind.RETRY_V1, TopicKind.RETRY_V2]
        if len(kinds) > 1 and not result.is_by_priority and random.random() < _RETRY_FIRST:
            kinds = [*kinds[1:], kinds[0]]
        for kind in kinds:
            self._pop_topic(result, fields, pop.filter, kind)
        if result.count:
            if result.rest > 0:
                self._polls.wake_soon(fields.topic, fields.consumer_group, pop.queue_id)
            return self._respond(pop.request, fields, result)
        if not is_over and pop.deadline_ms > self._state.steady_ms():
            if self._polls.park(pop):
                return None
            return self._respond_empty(pop.request, ResponseCode.POLLING_FULL, "POLLING_FULL")
        return self._respond_empty(pop.request, ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")

    def _respond(self, request: RemotingCommand, fields: PopMessage, result: PopResult) -> RemotingCommand:
        answer_fields = PopResponse(
            pop_time=result.pop_time_ms,
            invisible_time=fields.invisible_time,
            revive_qid=result.revive_queue_id,
            rest_num=result.rest,
            start_offset_info=encode_starts(result.starts),
            msg_offset_info=encode_offsets(result.offsets),
            order_count_info=";".join(result.order_counts) if fields.order else None,
        )
        body = result.bodies[0] if len(result.bodies) == 1 else b"".join(result.bodies)
        return request.response(int(ResponseCode.SUCCESS), "FOUND", write_fields(answer_fields), body)

    @staticmethod
    def _respond_empty(request: RemotingCommand, code: ResponseCode, remark: str) -> RemotingCommand:
        return request.response(int(code), remark, write_fields(PopResponse()))

    def _begin(self, fields: PopMessage) -> PopResult:
        revive_queue_id = IN_ORDER
        if not fields.order:
            revive_queue_id = self._next_revive_queue % self._journal.queue_count
            self._next_revive_queue += 1
        return PopResult(
            fields.max_msg_nums, self._state.clock_ms(), revive_queue_id, is_by_priority=self._is_by_priority(fields)
        )

    def _is_by_priority(self, fields: PopMessage) -> bool:
        """Return whether a pop reads by priority, for the group's share. Source: ``getPriorityFactor`` of 5.4."""
        topic, group = self._state.topics.get(fields.topic), self._state.groups.table.get(fields.consumer_group)
        if fields.order or topic is None or topic.attributes.get(MESSAGE_TYPE) != PRIORITY:
            return False
        factor = None if group is None else group.attributes.get(PRIORITY_FACTOR)
        return random.randrange(_PERCENT) < parse_decimal(factor, _PERCENT)

    def _pop_topic(self, result: PopResult, fields: PopMessage, message_filter: Filter, kind: TopicKind) -> None:
        """Pop messages of a topic, or of its retry topic of a kind, until the pop is full."""
        name = retry_topic(fields.consumer_group, fields.topic, kind)
        topic = self._state.topics.get(name)
        if topic is None or (name not in self._state.topics.table and not self._state.store.max_offset(name, 0)):
            return  # no offset is committed for a light queue without messages
        count = topic.read_queue_nums
        if kind is TopicKind.NORMAL and fields.queue_id >= 0:
            queues: Iterable[int] = (fields.queue_id,)
        else:
            first = random.randrange(max(1, count))
            rotated = ((first + number) % count for number in range(count))
            queues = range(count - 1, -1, -1) if result.is_by_priority else rotated
        for queue_id in queues:
            self._pop_queue(result, fields, message_filter, kind, (name, queue_id))

    def _pop_queue(
        self, result: PopResult, fields: PopMessage, message_filter: Filter, kind: TopicKind, queue: tuple[str, int]
    ) -> None:
        store, group, (topic, queue_id) = self._state.store, fields.consumer_group, queue
        from_last = fields.init_mode == _FROM_LAST and kind is TopicKind.NORMAL
        offset = get_pop_offset(self._state, self._orders, topic, group, queue_id, from_last=from_last)
        has_enough = result.count >= result.max_count or result.size >= ENOUGH_BYTES
        attempt, now_ms = fields.attempt_id, result.pop_time_ms
        if has_enough or (fields.order and self._orders.is_blocked(topic, group, queue_id, attempt, now_ms)):
            result.rest += max(0, store.max_offset(topic, queue_id) - offset)
            return
        get_result = self._read(topic, queue_id, offset, result.max_count - result.count, message_filter)
        if get_result.status in OFFSET_MOVED and get_result.next_offset != offset:
            offset = get_result.next_offset
            self._state.offsets.commit(topic, group, queue_id, offset)
            get_result = self._read(topic, queue_id, offset, result.max_count - result.count, message_filter)
        if get_result.status is not GetStatus.FOUND:
            if get_result.status in OFFSET_MOVED and get_result.next_offset != offset:
                self._state.offsets.commit(topic, group, queue_id, get_result.next_offset)
            result.rest += max(0, get_result.max_offset - get_result.next_offset)
            return
        records = list(split_records(get_result.slices))
        offsets = [read_queue_offset(record, topic) for record in records]
        if fields.order:
            counts = self._orders.record_pop(topic, group, queue_id, offsets, attempt, now_ms, fields.invisible_time)
            result.order_counts += [f"{int(kind)} qo{queue_id}%{popped} {times}" for popped, times in counts.items()]
            result.order_counts.append(f"{int(kind)} {queue_id} {min(counts.get(popped, 0) for popped in offsets)}")
            self._state.offsets.commit(topic, group, queue_id, offset)
        else:
            point = CheckPoint(
                bn=self._state.config.broker_name,
                c=group,
                d=[popped - offset for popped in offsets],
                it=fields.invisible_time,
                n=len(offsets),
                pt=result.pop_time_ms,
                q=queue_id,
                revive_time=result.pop_time_ms + fields.invisible_time,
                so=offset,
                t=topic,
            )
            if not self._journal.try_put_checkpoint(point, result.revive_queue_id):
                result.rest += max(0, get_result.max_offset - offset)
                return  # the messages of other queues must reach the consumer
            # After the check point: a kill between them repeats messages, and loses none.
            self._state.offsets.commit(topic, group, queue_id, get_result.next_offset)
        self._add_records(result, fields, kind, queue_id, offset, offsets, records)
        result.rest += max(0, get_result.max_offset - get_result.next_offset)

    def _read(self, topic: str, queue_id: int, offset: int, most: int, message_filter: Filter) -> GetResult:
        return self._state.store.get(
            topic,
            queue_id,
            offset,
            most,
            tags_codes=message_filter.tags_codes,
            matches=message_filter.matches,
            may_match_unit=message_filter.may_match_unit,
        )

    def _add_records(
        self,
        result: PopResult,
        fields: PopMessage,
        kind: TopicKind,
        queue_id: int,
        offset: int,
        offsets: list[int],
        records: list[memoryview],
    ) -> None:
        result.starts.append((kind, queue_id, offset))
        result.offsets[kind, queue_id] = offsets
        result.count += len(records)
        size = sum(map(len, records))
        result.size += size
        if kind is TopicKind.NORMAL:
            result.bodies += records
        else:
            broker = self._state.config.broker_name
            for message_offset, record in zip(offsets, records, strict=True):
                handle = PopHandle(
                    offset,
                    result.pop_time_ms,
                    fields.invisible_time,
                    result.revive_queue_id,
                    kind,
                    broker,
                    queue_id,
                    message_offset,
                )
                result.bodies.append(_restore_topic(record, fields.topic, handle))
        key = f"{fields.topic}@{fields.consumer_group}"
        self._state.stats.count_messages(stats.GOT, key, len(records), size)


def get_pop_offset(
    state: BrokerState, orders: ConsumerOrderInfo, topic: str, group: str, queue_id: int, *, from_last: bool
) -> int:
    """Return the queue offset at which a pop begins; commit the first offset of a new group.

    With ``from_last``, a new group begins with the last message instead of the first, unless the queue is new.
    """
    store = state.store
    reset = state.offsets.pop_reset(topic, group, queue_id)
    if reset is not None:
        orders.remove(topic, group, queue_id)
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


def _restore_topic(record: memoryview, topic: str, handle: PopHandle) -> bytes | memoryview:
    """Convert a record of a retry topic for its consumer: original topic, and handle as a property."""
    try:
        message = decode_record(record, verify_crc=False)
    except FormatError:  # the consumer cannot read the record either, which returns until its last try
        return record
    properties = message.properties | {PROPERTY_POP_CK: handle.encode()}
    stored = replace(message.to_store(), topic=topic, properties_bytes=encode_properties(properties))
    return encode_record(
        stored,
        queue_offset=message.queue_offset,
        physical_offset=message.recorded_physical_offset,
        store_timestamp_ms=message.store_timestamp_ms,
    )
