"""Copies tables of a slave's master: topics, groups, consumer offsets and delay offsets.

Source: ``SlaveSynchronize``, ``BrokerController#initializeBrokerScheduledTasks``.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import msgspec

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names
from rmq_core.broker.tables.attributes import BATCH_QUEUES, QUEUE_TYPE
from rmq_core.broker.tables.table_file import log
from rmq_core.broker.timer.schedule import DelayOffsets, Schedule
from rmq_core.remoting.bodies import (
    OffsetTable,
    SubscriptionGroups,
    TopicConfig,
    TopicConfigs,
    TopicsOfMaster,
    decode_body,
)
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.header import request as request_of
from rmq_core.store.results import Arrival
from rmq_formats.errors import FormatError

_RETRY_S: Final = 3.0  # how often a master that is not known or does not answer is tried
_T = TypeVar("_T", bound=msgspec.Struct)


class SlaveSync:
    """Polls the master periodically, and at once when a topic is not known. A failure is logged once."""

    def __init__(self, state: BrokerState, schedule: Schedule) -> None:
        self._state = state
        self._schedule = schedule
        self._client = RemotingClient(tls=state.config.tls.client(), credentials=state.config.own_credentials)
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False
        self._wanted = asyncio.Event()
        self._missed: set[str] = set()  # topics that were not known when messages of them came
        self._dropped = dict(state.store.dropped_topics)  # whose offsets are removed
        state.store.on_dispatched(self._arrived, lambda: True)
        if state.replication.slave is not None:
            state.replication.slave.on_joined(self._wanted.set)

    def _arrived(self, arrivals: list[Arrival]) -> None:
        """Poll at once for a topic that the master must have created since; once, as it may be deleted already."""
        unknown = {one.topic for one in arrivals} - self._state.topics.table.keys() - self._missed
        missed = {topic for topic in unknown if not names.is_light(topic)}
        if missed or self._state.store.dropped_topics != self._dropped:
            self._missed |= missed
            self._wanted.set()

    def start(self) -> None:
        """Start polling."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._client.close()

    async def _run(self) -> None:
        every_s = self._state.config.slave_sync_interval_ms / 1000
        while True:
            self._wanted.clear()
            done = await self.sync()
            if not done:
                self._name_topics()
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s if done else min(every_s, _RETRY_S)):
                    await self._wanted.wait()

    async def sync(self) -> bool:
        """Copy the master's tables of now; False if the master is not known, or has not answered all."""
        state, address = self._state, self._state.replication.master_address
        if not address or address == state.address:
            return False
        try:
            # Before it is asked: all that is there was of topics that it knew.
            log_end = state.store.max_physical_offset
            adopt_topics = partial(self._adopt_topics, log_end)
            await self._take(address, RequestCode.GET_ALL_TOPIC_CONFIG, TopicsOfMaster, adopt_topics)
            await self._take(address, RequestCode.GET_ALL_CONSUMER_OFFSET, OffsetTable, state.offsets.adopt)
            await self._take(address, RequestCode.GET_ALL_DELAY_OFFSET, DelayOffsets, self._schedule.adopt)
            await self._take(
                address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroups, state.groups.adopt
            )
        except (RemotingError, FormatError, OSError) as error:  # of the master, or of the disk here
            if not self._is_failing:
                log.warning("cannot copy topics, groups and offsets of the master: %(error)s", {"error": error})
            self._is_failing = True
            return False
        self._is_failing = False
        return True

    def _name_topics(self) -> None:
        """Name the topics of messages that are here, where the master has gone before it could tell of them.

        An acknowledged message of a new topic is on this slave at once, its topic's name a moment later. When the
        master is back, its topics replace them. One with inner batches has batch queues: as a master, this broker would
        else give places within the last batch once more.
        """
        state = self._state
        if state.replication.is_following:
            return
        for topic, queue_ids in state.store.topics().items():
            if topic not in state.topics.table and names.topic_fault(topic) is None:
                count = max(queue_ids) + 1
                attributes = {QUEUE_TYPE: BATCH_QUEUES} if topic in state.store.stray_batch_topics else {}
                state.topics.put(
                    TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count, attributes=attributes)
                )
                log.info("named the topic %(topic)s, which the master has not told of", {"topic": topic})

    async def _take(self, address: str, code: RequestCode, kind: type[_T], adopt: Callable[[_T], None]) -> None:
        answer = await self._client.invoke(address, request_of(code))
        if answer.code != ResponseCode.SUCCESS:
            raise RemotingError(f"{address}: code {answer.code}: {answer.remark}")
        adopt(decode_body(answer.body, kind))

    def _adopt_topics(self, log_end: int, found: TopicsOfMaster) -> None:
        """Take over the topics.

        Args:
            log_end: where this log ended, at the latest, when the master made its answer.
            found: the answer.
        """
        topics = self._state.topics
        topics.adopt(TopicConfigs(data_version=found.data_version, topic_config_table=found.topic_config_table))
        self._drop_topics(log_end, found)
        self._state.store.set_batch_topics(topics.with_batch_queues())

    def _drop_topics(self, log_end: int, found: TopicsOfMaster) -> None:
        """Drop the queues and offsets of topics that the master has deleted, though it may have made them anew.

        A master of ours says when it deleted them. Of Java's, a topic that has messages here and is unknown there was
        deleted behind those that were here before it was asked.
        """
        state = self._state
        if state.replication.has_diverged:  # places in the master's log are not places in this one
            return
        if isinstance(found.topics_dropped, dict):
            state.store.drop_before(found.topics_dropped)
        else:
            gone = state.store.topics().keys() - found.topic_config_table.keys()
            kept = {topic for topic in gone if state.topics.is_system(topic) or names.is_light(topic)}
            state.store.drop_before(dict.fromkeys(gone - kept, log_end), at_least=True)
        for topic, end in state.store.dropped_topics.items():
            if self._dropped.get(topic) != end:
                log.info("the master has deleted the topic %(topic)s", {"topic": topic})
                state.offsets.remove_topic(topic)
        self._dropped = dict(state.store.dropped_topics)
