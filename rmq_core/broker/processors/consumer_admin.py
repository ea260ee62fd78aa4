"""Consumer progress administration: query, reset and copy of consumer offsets (codes 43, 45, 208, 222, 303, 314, 317).

Source: ``AdminBrokerProcessor``.
"""

import asyncio
import logging
from typing import Final

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import stats
from rmq_core.broker.tables.consumer_offsets import NONE
from rmq_core.broker.tables.held_pulls import HeldPulls
from rmq_core.broker.timer.schedule import Schedule
from rmq_core.remoting.bodies import (
    BodyStruct,
    BrokerConsumeStats,
    ConsumeOffset,
    ConsumeStats,
    ConsumeTimeSpans,
    MessageQueue,
    OffsetsBody,
    QueueTimeSpan,
    encode_body,
    queue_key,
)
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import (
    CloneGroupOffset,
    ConsumeStatsInBroker,
    ConsumeStatsOf,
    ConsumeTimeSpan,
    ResetOffset,
)

log = logging.getLogger("rmq.broker.admin")
_MAX_QUEUES: Final = 131_072  # in one answer: with more it would be larger than a frame


class ProgressAdmin:
    """Handles requests that query or change the progress of consumer groups."""

    def __init__(self, state: BrokerState, held: HeldPulls, schedule: Schedule) -> None:
        self._state = state
        self._held = held
        self._schedule = schedule
        self._in_slices = state.slices.each

    def handlers(self) -> dict[int, Handler]:
        """Handlers by request code."""
        return {
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.get_all_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self.get_delay_offsets,
            RequestCode.GET_CONSUME_STATS: self.get_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.get_all_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.get_times,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
        }

    def get_all_offsets(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """GET_ALL_CONSUMER_OFFSET (43): the table of consumer offsets, for slaves."""
        return request.response(body=encode_body(self._state.offsets.body()))

    def get_delay_offsets(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """GET_ALL_DELAY_OFFSET (45): the table of delay offsets, for slaves."""
        return request.response(body=encode_body(self._schedule.body()))

    async def get_stats(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """GET_CONSUME_STATS (208): a group's progress in each queue of its topics."""
        asked = read_fields(request, ConsumeStatsOf)
        if asked.topic_list:
            topics = list(dict.fromkeys(topic for topic in asked.topic_list.split(";") if topic))
        elif asked.topic:
            topics = [asked.topic]
        else:
            topics = [
                topic for topic in self._state.offsets.topics_of(asked.consumer_group)
                if self._is_consumed(asked.consumer_group, topic)
            ]  # fmt: skip
        table: dict[str, ConsumeOffset] = {}
        rate = 0.0
        async with self._state.long_requests:
            async for topic in self._in_slices(topics):
                table |= await self._progress(asked.consumer_group, topic)
                _check_count(len(table))
                rate += self._state.stats.rate(stats.GROUP_GET_NUMS, f"{topic}@{asked.consumer_group}")
            return await _answer(request, ConsumeStats(offset_table=table, consume_tps=rate))

    def _is_consumed(self, group: str, topic: str) -> bool:
        """Whether a group subscribes to a topic; a group without members is taken to do so."""
        members = self._state.consumers.groups.get(group)
        return members is None or not members.subscriptions or topic in members.subscriptions

    async def _progress(self, group: str, topic: str) -> dict[str, ConsumeOffset]:
        """A group's progress in each queue of a topic; empty if the topic does not exist."""
        state = self._state
        config = state.topics.get(topic)
        table = {}
        async for queue_id in self._in_slices(range(config.read_queue_nums if config else 0)):
            offset = max(0, state.offsets.get(topic, group, queue_id))
            seen_ms = state.store.store_timestamp_ms(topic, queue_id, offset - 1) if offset else None
            table[queue_key(self._queue(topic, queue_id))] = ConsumeOffset(
                broker_offset=state.store.max_offset(topic, queue_id),
                consumer_offset=offset,
                pull_offset=max(offset, state.offsets.pulled(topic, group, queue_id)),
                last_timestamp=seen_ms or 0,
            )
        return table

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(broker_name=self._state.config.broker_name, queue_id=queue_id, topic=topic)

    async def get_all_stats(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """GET_BROKER_CONSUME_STATS (317): the progress of all groups in their topics."""
        asked = read_fields(request, ConsumeStatsInBroker)
        state = self._state
        found: list[dict[str, list[ConsumeStats]]] = []
        behind = count = 0
        async with state.long_requests:
            async for group in self._in_slices(list(state.groups.table)):
                tables = []
                for topic in state.offsets.topics_of(group):
                    config = state.topics.get(topic)
                    if config is None or (asked.is_order and not config.order) or not self._is_consumed(group, topic):
                        continue
                    table = await self._progress(group, topic)
                    count += len(table)
                    _check_count(count)
                    behind += sum(one.broker_offset - one.consumer_offset for one in table.values())
                    rate = state.stats.rate(stats.GROUP_GET_NUMS, f"{topic}@{group}")
                    tables.append(ConsumeStats(offset_table=table, consume_tps=rate))
                found.append({group: tables})
            body = BrokerConsumeStats(broker_addr=state.address, consume_stats_list=found, total_diff=behind)
            return await _answer(request, body)

    async def get_times(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """QUERY_CONSUME_TIME_SPAN (303): for each queue, store timestamps of its bounds and of a group's progress."""
        asked = read_fields(request, ConsumeTimeSpan)
        self._state.refuse_unknown_topic(asked.topic)
        topic = self._state.topics.get(asked.topic)
        queues = range(topic.write_queue_nums if topic else 0)
        async with self._state.long_requests:
            spans = [self._time_span(asked.topic, asked.group, queue_id) async for queue_id in self._in_slices(queues)]
        return request.response(body=encode_body(ConsumeTimeSpans(consume_time_span_set=spans)))

    def _time_span(self, topic: str, group: str, queue_id: int) -> QueueTimeSpan:
        store = self._state.store

        def stored_ms(offset: int) -> int:
            return store.store_timestamp_ms(topic, queue_id, offset) or -1

        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        offset = self._state.offsets.get(topic, group, queue_id)
        earliest_ms = stored_ms(low)
        return QueueTimeSpan(
            message_queue=self._queue(topic, queue_id),
            min_time_stamp=earliest_ms,
            max_time_stamp=stored_ms(high - 1),
            consume_time_stamp=stored_ms(offset - 1) if offset > 0 else earliest_ms,
            delay_time=self._state.clock_ms() - stored_ms(max(offset, low)) if offset < high else 0,
        )

    async def reset(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """INVOKE_BROKER_TO_RESET_OFFSET (222): resets offsets at once; consumers learn of it at their next pull."""
        asked = read_fields(request, ResetOffset)
        state = self._state
        topic = state.topics.get(asked.topic)
        if topic is None:
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {asked.topic} does not exist")
        if state.groups.get(asked.group) is None:
            raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {asked.group} does not exist")
        queues = range(topic.read_queue_nums) if asked.queue_id < 0 else [asked.queue_id]
        async with state.long_requests:
            targets = {queue_id: self._reset_target(asked, queue_id) async for queue_id in self._in_slices(queues)}
        if not targets:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        async for queue_id, offset in self._in_slices(targets.items()):
            state.offsets.reset(asked.topic, asked.group, queue_id, offset)
            self._held.wake(asked.topic, queue_id)
        log.info(
            "%(client)s reset %(group)s of %(topic)s to %(offsets)s",
            {"client": connection.remote_address, "group": asked.group, "topic": asked.topic, "offsets": targets},
        )
        table = {
            queue_key(self._queue(asked.topic, queue_id)): offset
            async for queue_id, offset in self._in_slices(targets.items())
        }
        return await _answer(request, OffsetsBody(offset_table=table))

    def _reset_target(self, asked: ResetOffset, queue_id: int) -> int:
        store = self._state.store
        high = store.max_offset(asked.topic, queue_id)
        if asked.queue_id >= 0 and asked.offset is not None and asked.offset != NONE:
            low = store.min_offset(asked.topic, queue_id)
            if not low <= asked.offset <= high + 1:
                raise ResponseError(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {asked.offset} not in consume queue range [{low}-{high}]",
                )
            return asked.offset
        return high if asked.timestamp < 0 else store.offset_by_time(asked.topic, queue_id, asked.timestamp)

    def clone(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """CLONE_GROUP_OFFSET (314): copies a group's consumer offsets to another group."""
        asked = read_fields(request, CloneGroupOffset)
        state = self._state
        for topic in [asked.topic] if asked.topic else state.offsets.topics_of(asked.src_group):
            if topic in state.topics.table and (asked.offline or self._is_consumed(asked.src_group, topic)):
                state.offsets.clone(asked.src_group, asked.dest_group, topic)
        return request.response()


def _check_count(queues: int) -> None:
    if queues > _MAX_QUEUES:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"more than {_MAX_QUEUES} queues: ask for a group or a topic")


async def _answer(request: RemotingCommand, body: BodyStruct) -> RemotingCommand:
    """The answer with a body that is encoded on another thread: it may have tens of thousands of queues."""
    return request.response(body=await asyncio.to_thread(encode_body, body))
