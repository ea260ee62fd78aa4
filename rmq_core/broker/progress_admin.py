"""How far groups are, and having them be elsewhere (codes 43, 45, 208, 222, 303, 314, 317).

Source: ``AdminBrokerProcessor``.
"""

import logging

from rmq_core.broker import stats
from rmq_core.broker.consumer_offsets import NONE
from rmq_core.broker.held_pulls import HeldPulls
from rmq_core.broker.schedule import Schedule
from rmq_core.broker.state import BrokerState
from rmq_core.remoting.bodies import (
    BrokerConsumeStats,
    ConsumeOffset,
    ConsumeStats,
    ConsumeTimeSpans,
    MessageQueue,
    QueueOffsets,
    QueueTimeSpan,
    encode_body,
    encode_for_fastjson,
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


class ProgressAdmin:
    """Handles requests about how far groups are."""

    def __init__(self, state: BrokerState, held: HeldPulls, schedule: Schedule) -> None:
        self._state = state
        self._held = held
        self._schedule = schedule

    def handlers(self) -> dict[int, Handler]:
        """The table of handlers."""
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
        """GET_ALL_CONSUMER_OFFSET (43)."""
        return request.response(body=encode_body(self._state.offsets.body()))

    def get_delay_offsets(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """GET_ALL_DELAY_OFFSET (45)."""
        return request.response(body=encode_body(self._schedule.body()))

    def get_stats(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """GET_CONSUME_STATS (208)."""
        asked = read_fields(request, ConsumeStatsOf)
        if asked.topic_list:
            topics = [topic for topic in asked.topic_list.split(";") if topic]
        elif asked.topic:
            topics = [asked.topic]
        else:
            topics = [
                topic for topic in self._state.offsets.topics_of(asked.consumer_group)
                if self._is_consumed(asked.consumer_group, topic)
            ]  # fmt: skip
        table: dict[str, ConsumeOffset] = {}
        rate = 0.0
        for topic in topics:
            table |= self._progress(asked.consumer_group, topic)
            rate += self._state.stats.rate(stats.GROUP_GET_NUMS, f"{topic}@{asked.consumer_group}")
        return request.response(body=encode_for_fastjson(ConsumeStats(offset_table=table, consume_tps=rate)))

    def _is_consumed(self, group: str, topic: str) -> bool:
        """Whether a group with members subscribes a topic; one without may have."""
        members = self._state.consumers.groups.get(group)
        return members is None or not members.subscriptions or topic in members.subscriptions

    def _progress(self, group: str, topic: str) -> dict[str, ConsumeOffset]:
        """How far a group is in each queue of a topic; nothing if there is no such topic."""
        state = self._state
        config = state.topics.get(topic)
        table = {}
        for queue_id in range(config.read_queue_nums if config else 0):
            offset = max(0, state.offsets.get(topic, group, queue_id))
            seen_ms = state.store.store_timestamp_ms(topic, queue_id, offset - 1) if offset else None
            table[queue_key(self._queue(topic, queue_id))] = ConsumeOffset(
                broker_offset=state.store.max_offset(topic, queue_id),
                consumer_offset=offset,
                pull_offset=offset,
                last_timestamp=seen_ms or 0,
            )
        return table

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(broker_name=self._state.config.broker_name, queue_id=queue_id, topic=topic)

    def get_all_stats(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """GET_BROKER_CONSUME_STATS (317)."""
        asked = read_fields(request, ConsumeStatsInBroker)
        state = self._state
        found: list[dict[str, list[ConsumeStats]]] = []
        behind = 0
        for group in state.groups.table:
            tables = []
            for topic in state.offsets.topics_of(group):
                config = state.topics.get(topic)
                if config is None or (asked.is_order and not config.order) or not self._is_consumed(group, topic):
                    continue
                table = self._progress(group, topic)
                behind += sum(one.broker_offset - one.consumer_offset for one in table.values())
                rate = state.stats.rate(stats.GROUP_GET_NUMS, f"{topic}@{group}")
                tables.append(ConsumeStats(offset_table=table, consume_tps=rate))
            found.append({group: tables})
        body = BrokerConsumeStats(broker_addr=state.address, consume_stats_list=found, total_diff=behind)
        return request.response(body=encode_for_fastjson(body))

    def get_times(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """QUERY_CONSUME_TIME_SPAN (303)."""
        asked = read_fields(request, ConsumeTimeSpan)
        self._state.refuse_unknown_topic(asked.topic)
        queues = range(self._state.topics.table[asked.topic].write_queue_nums)
        spans = [self._time_span(asked.topic, asked.group, queue_id) for queue_id in queues]
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

    def reset(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """INVOKE_BROKER_TO_RESET_OFFSET (222): at once; consumers are told at their next pull."""
        asked = read_fields(request, ResetOffset)
        state = self._state
        topic = state.topics.get(asked.topic)
        if topic is None:
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {asked.topic} does not exist")
        if asked.group not in state.groups.table:
            raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {asked.group} does not exist")
        targets = {}
        for queue_id in range(topic.read_queue_nums) if asked.queue_id < 0 else [asked.queue_id]:
            targets[queue_id] = self._reset_target(asked, queue_id)
        if not targets:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        for queue_id, offset in targets.items():
            state.offsets.reset(asked.topic, asked.group, queue_id, offset)
            self._held.wake(asked.topic, queue_id)
        log.info(
            "%(client)s reset %(group)s of %(topic)s to %(offsets)s",
            {"client": connection.remote_address, "group": asked.group, "topic": asked.topic, "offsets": targets},
        )
        table = {queue_key(self._queue(asked.topic, queue_id)): offset for queue_id, offset in targets.items()}
        return request.response(body=encode_for_fastjson(QueueOffsets(offset_table=table)))

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
        """CLONE_GROUP_OFFSET (314)."""
        asked = read_fields(request, CloneGroupOffset)
        state = self._state
        for topic in [asked.topic] if asked.topic else state.offsets.topics_of(asked.src_group):
            if topic in state.topics.table and (asked.offline or self._is_consumed(asked.src_group, topic)):
                state.offsets.clone(asked.src_group, asked.dest_group, topic)
        return request.response()
