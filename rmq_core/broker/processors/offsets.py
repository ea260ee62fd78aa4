"""Consumer offsets and queue bounds: query, commit, reset, copy and progress of groups.

Request codes 14, 15, 29, 30, 31, 32; of administrators 43, 45, 208, 222, 303, 314, 317.

Source: ``ConsumerManageProcessor``, ``AdminBrokerProcessor``.
"""

import asyncio
import logging
from typing import Final

from rmq_core.broker.parked_requests import PullLongPolling
from rmq_core.broker.processors.lite_names import parse_lite_queue
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import stats
from rmq_core.broker.tables.consumer_offsets import NONE
from rmq_core.broker.timer.schedule import Schedule
from rmq_core.remoting import requests
from rmq_core.remoting.bodies.codec import BodyStruct, MessageQueue, encode_body, queue_key
from rmq_core.remoting.bodies.stats import (
    BrokerConsumeStats,
    ConsumeOffset,
    ConsumeStats,
    ConsumeTimeSpans,
    OffsetsBody,
    QueueTimeSpan,
)
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.store.results import Boundary

log = logging.getLogger("rmq.broker.admin")
_MAX_QUEUES: Final = 131_072  # of one response, whose size a frame limits


class OffsetProcessor:
    """Handlers of requests for bounds of queues and offsets by time, and for the progress of consumer groups."""

    def __init__(self, state: BrokerState, polls: PullLongPolling, schedule: Schedule) -> None:
        self._state = state
        self._parked_pulls = polls
        self._schedule = schedule
        self._in_slices = state.slices.each

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query_consumer_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update_consumer_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_time,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.get_all_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self.get_delay_offsets,
            RequestCode.GET_CONSUME_STATS: self.get_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.get_all_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.get_times,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
        }

    def query_consumer_offset(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """QUERY_CONSUMER_OFFSET (14). A new group on a young queue begins at 0."""
        fields = read_fields(request, requests.QueryConsumerOffset)
        offset = self._state.offsets.get(fields.topic, fields.consumer_group, fields.queue_id)
        if offset == NONE and fields.set_zero_if_not_found:
            store, topic, queue_id = self._state.store, fields.topic, fields.queue_id
            if store.min_offset(topic, queue_id) <= 0 and store.is_in_memory(topic, queue_id, 0):
                offset = 0
        if offset == NONE:
            raise ResponseError(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")
        return request.response(ext_fields={"offset": str(offset)})

    def update_consumer_offset(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        fields = read_fields(request, requests.UpdateConsumerOffset)
        state = self._state
        if state.groups.get(fields.consumer_group) is None:
            raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {fields.consumer_group} not exist!")
        topic = state.topics.get(fields.topic)
        if topic is None:
            return request.response(int(ResponseCode.TOPIC_NOT_EXIST), f"Topic {fields.topic} not exist!")
        is_queue = 0 <= fields.queue_id < max(topic.read_queue_nums, topic.write_queue_nums)
        if not is_queue and state.store.queue(fields.topic, fields.queue_id) is None:  # the table would grow endlessly
            remark = f"queueId[{fields.queue_id}] is illegal, topic:[{fields.topic}] has no such queue"
            return request.response(int(ResponseCode.INVALID_PARAMETER), remark)
        if state.offsets.is_reset(fields.topic, fields.consumer_group, fields.queue_id):
            return request.response(remark="Offset has been previously reset")
        state.offsets.commit(fields.topic, fields.consumer_group, fields.queue_id, fields.commit_offset)
        return request.response()

    def search_offset(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        fields = read_fields(request, requests.SearchOffset)
        boundary = Boundary.UPPER if fields.boundary_type.upper() == "UPPER" else Boundary.LOWER
        topic = parse_lite_queue(fields.topic, fields.lite_topic) if fields.lite_topic else fields.topic
        offset = self._state.store.offset_by_time(topic, fields.queue_id, fields.timestamp, boundary)
        return request.response(ext_fields={"offset": str(offset)})

    def max_offset(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        fields = read_fields(request, requests.Queue)
        return request.response(ext_fields={"offset": str(self._state.store.max_offset(fields.topic, fields.queue_id))})

    def min_offset(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        fields = read_fields(request, requests.Queue)
        return request.response(ext_fields={"offset": str(self._state.store.min_offset(fields.topic, fields.queue_id))})

    def earliest_time(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        fields, store = read_fields(request, requests.Queue), self._state.store
        first = store.min_offset(fields.topic, fields.queue_id)
        timestamp_ms = store.store_timestamp_ms(fields.topic, fields.queue_id, first)
        return request.response(ext_fields={"timestamp": str(-1 if timestamp_ms is None else timestamp_ms)})

    def get_all_offsets(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        return request.response(body=encode_body(self._state.offsets.body()))

    def get_delay_offsets(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        return request.response(body=encode_body(self._schedule.body()))

    async def get_stats(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        fields = read_fields(request, requests.GetConsumeStats)
        if fields.topic_list:
            topics = list(dict.fromkeys(topic for topic in fields.topic_list.split(";") if topic))
        elif fields.topic:
            topics = [fields.topic]
        else:
            group = fields.consumer_group
            topics = [topic for topic in self._state.offsets.topics_of(group) if self._is_consumed(group, topic)]
        table: dict[str, ConsumeOffset] = {}
        rate = 0.0
        async with self._state.long_requests:
            async for topic in self._in_slices(topics):
                table |= await self._get_progress(fields.consumer_group, topic)
                _check_count(len(table))
                rate += self._state.stats.rate(stats.GROUP_GET_NUMS, f"{topic}@{fields.consumer_group}")
            return await _respond(request, ConsumeStats(offset_table=table, consume_tps=rate))

    def _is_consumed(self, group: str, topic: str) -> bool:
        """Return whether a group subscribes to a topic, or has no subscriptions at all now."""
        members = self._state.consumers.groups.get(group)
        return members is None or not members.subscriptions or topic in members.subscriptions

    async def _get_progress(self, group: str, topic: str) -> dict[str, ConsumeOffset]:
        """Return a group's progress in each queue of a topic; empty for an unknown topic."""
        state = self._state
        config = state.topics.get(topic)
        table = {}
        async for queue_id in self._in_slices(range(config.read_queue_nums if config else 0)):
            offset = max(0, state.offsets.get(topic, group, queue_id))
            last_ms = state.store.store_timestamp_ms(topic, queue_id, offset - 1) if offset else None
            table[queue_key(self._queue(topic, queue_id))] = ConsumeOffset(
                broker_offset=state.store.max_offset(topic, queue_id),
                consumer_offset=offset,
                pull_offset=max(offset, state.offsets.next_pull_offset(topic, group, queue_id)),
                last_timestamp=last_ms or 0,
            )
        return table

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(broker_name=self._state.config.broker_name, queue_id=queue_id, topic=topic)

    async def get_all_stats(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        fields = read_fields(request, requests.ConsumeStatsInBroker)
        state = self._state
        stats_by_group: list[dict[str, list[ConsumeStats]]] = []
        total_lag = count = 0
        async with state.long_requests:
            async for group in self._in_slices(list(state.groups.table)):
                tables = []
                for topic in state.offsets.topics_of(group):
                    config = state.topics.get(topic)
                    if config is None or (fields.is_order and not config.order) or not self._is_consumed(group, topic):
                        continue
                    table = await self._get_progress(group, topic)
                    count += len(table)
                    _check_count(count)
                    total_lag += sum(progress.broker_offset - progress.consumer_offset for progress in table.values())
                    rate = state.stats.rate(stats.GROUP_GET_NUMS, f"{topic}@{group}")
                    tables.append(ConsumeStats(offset_table=table, consume_tps=rate))
                stats_by_group.append({group: tables})
            body = BrokerConsumeStats(
                broker_addr=state.address, consume_stats_list=stats_by_group, total_diff=total_lag
            )
            return await _respond(request, body)

    async def get_times(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """QUERY_CONSUME_TIME_SPAN (303): for each queue, store timestamps of its bounds and of a group's progress."""
        fields = read_fields(request, requests.ConsumeTimeSpan)
        queues = range(self._state.require_topic(fields.topic).write_queue_nums)
        async with self._state.long_requests:
            spans = [
                self._time_span(fields.topic, fields.group, queue_id) async for queue_id in self._in_slices(queues)
            ]
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
        fields = read_fields(request, requests.ResetOffset)
        state = self._state
        topic = state.topics.get(fields.topic)
        if topic is None:
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {fields.topic} does not exist")
        if state.groups.get(fields.group) is None:
            raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {fields.group} does not exist")
        queues = range(topic.read_queue_nums) if fields.queue_id < 0 else [fields.queue_id]
        async with state.long_requests:
            targets = {queue_id: self._reset_target(fields, queue_id) async for queue_id in self._in_slices(queues)}
        if not targets:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        async for queue_id, offset in self._in_slices(targets.items()):
            state.offsets.reset(fields.topic, fields.group, queue_id, offset)
            self._parked_pulls.wake_all((fields.topic, queue_id))
        log.info(
            "%(client)s reset %(group)s of %(topic)s to %(offsets)s",
            {"client": connection.remote_address, "group": fields.group, "topic": fields.topic, "offsets": targets},
        )
        table = {
            queue_key(self._queue(fields.topic, queue_id)): offset
            async for queue_id, offset in self._in_slices(targets.items())
        }
        return await _respond(request, OffsetsBody(offset_table=table))

    def _reset_target(self, fields: requests.ResetOffset, queue_id: int) -> int:
        store = self._state.store
        high = store.max_offset(fields.topic, queue_id)
        if fields.queue_id >= 0 and fields.offset is not None and fields.offset != NONE:
            low = store.min_offset(fields.topic, queue_id)
            if not low <= fields.offset <= high + 1:
                problem = f"Target offset {fields.offset} not in consume queue range [{low}-{high}]"
                raise ResponseError(ResponseCode.SYSTEM_ERROR, problem)
            return fields.offset
        return high if fields.timestamp < 0 else store.offset_by_time(fields.topic, queue_id, fields.timestamp)

    def clone(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        fields = read_fields(request, requests.CloneGroupOffset)
        state = self._state
        for topic in [fields.topic] if fields.topic else state.offsets.topics_of(fields.src_group):
            if topic in state.topics.table and (fields.offline or self._is_consumed(fields.src_group, topic)):
                state.offsets.clone(fields.src_group, fields.dest_group, topic)
        return request.response()


def _check_count(queues: int) -> None:
    if queues > _MAX_QUEUES:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"more than {_MAX_QUEUES} queues: ask for a group or a topic")


async def _respond(request: RemotingCommand, body: BodyStruct) -> RemotingCommand:
    """Encode the body of a response on another thread, as it may have tens of thousands of queues."""
    return request.response(body=await asyncio.to_thread(encode_body, body))
