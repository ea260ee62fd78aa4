"""A slave: copies its master's topics, groups, offsets and request modes, and refuses requests for masters.

Source: ``SlaveSynchronize``, ``BrokerController#initializeBrokerScheduledTasks``; of refusals
``SendMessageProcessor#rejectRequest``, ``NettyRemotingAbstract#processRequestCommand``, ``EndTransactionProcessor``,
``RecallMessageProcessor``, ``AdminBrokerProcessor#resetOffsetInner``.
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
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.configs import (
    MessageRequestModes,
    OffsetTable,
    SubscriptionGroups,
    TopicConfig,
    TopicConfigs,
    TopicsOfMaster,
)
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.header import request as build_request
from rmq_core.store.results import Arrival
from rmq_formats.errors import FormatError

_RETRY_S: Final = 3.0  # interval of retries while the master is unknown or does not respond
_T = TypeVar("_T", bound=msgspec.Struct)
BUSY: Final = "[REJECTREQUEST]system busy, start flow control for a while"
_REFUSED: Final = {
    **dict.fromkeys(
        (
            RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
            RequestCode.CONSUMER_SEND_MSG_BACK,
        ),
        (ResponseCode.SYSTEM_BUSY, BUSY),
    ),
    **dict.fromkeys(
        (
            RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME, RequestCode.NOTIFICATION, RequestCode.POP_LITE_MESSAGE,
            RequestCode.LITE_SUBSCRIPTION_CTL, RequestCode.TRIGGER_LITE_DISPATCH,
        ),
        (ResponseCode.NO_PERMISSION, "this broker is a slave: messages are popped from its master"),
    ),
    RequestCode.END_TRANSACTION: (ResponseCode.SLAVE_NOT_AVAILABLE, "this broker is a slave"),
    RequestCode.RECALL_MESSAGE: (ResponseCode.SLAVE_NOT_AVAILABLE, "recall failed, operation is forbidden"),
    RequestCode.RESET_MASTER_FLUSH_OFFSET: (
        ResponseCode.SYSTEM_ERROR, "a slave has no flush offset of its master: it fsyncs its own log"
    ),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: (ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker"),
}  # fmt: skip


class SlaveSync:
    """Periodic copy of the master's tables, at once for an unknown topic. A failure is logged once."""

    def __init__(
        self, state: BrokerState, schedule: Schedule, adopt_modes: Callable[[MessageRequestModes], None]
    ) -> None:
        self._state = state
        self._schedule = schedule
        self._adopt_modes = adopt_modes
        self._client = RemotingClient(tls=state.config.tls.client(), credentials=state.config.broker_credentials)
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False
        self._wake = asyncio.Event()
        self._unknown_topics: set[str] = set()  # topics unknown at the arrival of their messages
        self._dropped = dict(state.store.deleted_topics)  # topics whose offsets are removed
        state.store.on_dispatched(self._on_arrivals, lambda: True)
        if state.replication.slave is not None:
            state.replication.slave.on_log_confirmed(self._wake.set)

    def _on_arrivals(self, arrivals: list[Arrival]) -> None:
        """Poll at once for a topic that the master must have created; once, as the topic may be deleted already."""
        unknown = {arrival.topic for arrival in arrivals} - self._state.topics.table.keys() - self._unknown_topics
        missed = {topic for topic in unknown if not names.has_lmq_prefix(topic)}
        if missed or self._state.store.deleted_topics != self._dropped:
            self._unknown_topics |= missed
            self._wake.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._client.close()

    async def _run(self) -> None:
        every_s = self._state.config.slave_sync_interval_ms / 1000
        while True:
            self._wake.clear()
            try:
                done = await self.sync()
            except Exception:
                log.exception("copying the tables of the master failed")
                done = False
            if not done:
                self._create_missing_topics()
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s if done else min(every_s, _RETRY_S)):
                    await self._wake.wait()

    async def sync(self) -> bool:
        """Copy the master's current tables; return False if the master is unknown or a request fails."""
        state, address = self._state, self._state.replication.master_address
        if not address or address == state.address:
            return False
        try:
            # Before the request: all messages here are of topics that the master has.
            log_end = state.store.max_physical_offset
            adopt_topics = partial(self._adopt_topics, log_end)
            await self._copy_table(address, RequestCode.GET_ALL_TOPIC_CONFIG, TopicsOfMaster, adopt_topics)
            await self._copy_table(address, RequestCode.GET_ALL_CONSUMER_OFFSET, OffsetTable, state.offsets.adopt)
            await self._copy_table(address, RequestCode.GET_ALL_DELAY_OFFSET, DelayOffsets, self._schedule.adopt)
            await self._copy_table(
                address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroups, state.groups.adopt
            )
            modes = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
            await self._copy_table(address, modes, MessageRequestModes, self._adopt_modes)
        except (RemotingError, FormatError, OSError) as error:  # from the master, or from the disk here
            if not self._is_failing:
                log.warning(
                    "cannot copy topics, groups, offsets and request modes of the master: %(error)s", {"error": error}
                )
            self._is_failing = True
            return False
        self._is_failing = False
        return True

    def _create_missing_topics(self) -> None:
        """Create the topics of messages here that an unreachable master has not sent.

        An acknowledged message of a new topic arrives before the topic's settings. The topics of a returning master
        replace those created here. A topic with inner batches gets batch queues: as a master, this broker would
        otherwise assign offsets within the last batch again.
        """
        state = self._state
        if state.replication.is_following:
            return
        for topic, queue_ids in state.store.topics().items():
            if topic not in state.topics.table and names.find_topic_name_problem(topic) is None:
                count = max(queue_ids) + 1
                attributes = {QUEUE_TYPE: BATCH_QUEUES} if topic in state.store.stray_batch_topics else {}
                state.topics.put(
                    TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count, attributes=attributes)
                )
                log.info("created the topic %(topic)s, which the master has not sent", {"topic": topic})

    async def _copy_table(self, address: str, code: RequestCode, kind: type[_T], adopt: Callable[[_T], None]) -> None:
        response = await self._client.invoke(address, build_request(code))
        if response.code != ResponseCode.SUCCESS:
            raise RemotingError(f"{address}: code {response.code}: {response.remark}")
        adopt(decode_body(response.body, kind))

    def _adopt_topics(self, log_end: int, master_topics: TopicsOfMaster) -> None:
        """Replace the topics by the master's; ``log_end`` is the end of this log before the master's response."""
        topics = self._state.topics
        topics.adopt(
            TopicConfigs(data_version=master_topics.data_version, topic_config_table=master_topics.topic_config_table)
        )
        self._delete_topics(log_end, master_topics)
        self._state.store.set_batch_topics(topics.batch_topics())

    def _delete_topics(self, log_end: int, master_topics: TopicsOfMaster) -> None:
        """Delete queues and offsets of topics that the master has deleted, even if the master has created them again.

        Our master sends the offset of a deletion. With a Java master, a topic unknown there was deleted after the
        messages that were here before the request.
        """
        state = self._state
        if state.replication.has_diverged:  # offsets of the diverged logs do not correspond
            return
        if isinstance(master_topics.topics_dropped, dict):
            state.store.remove_deleted_before(master_topics.topics_dropped)
        else:
            unknown_topics = state.store.topics().keys() - master_topics.topic_config_table.keys()
            system_topics = {
                topic for topic in unknown_topics if state.topics.is_system(topic) or names.has_lmq_prefix(topic)
            }
            state.store.remove_deleted_before(dict.fromkeys(unknown_topics - system_topics, log_end), at_least=True)
        for topic, end in state.store.deleted_topics.items():
            if self._dropped.get(topic) != end:
                log.info("the master has deleted the topic %(topic)s", {"topic": topic})
                state.offsets.remove_topic(topic)
        self._dropped = dict(state.store.deleted_topics)


def slave_refusals() -> dict[int, Handler]:
    """Return handlers, by request code, that refuse requests for masters only."""
    return {int(code): _refusal(*refusal) for code, refusal in _REFUSED.items()}


def _refusal(code: ResponseCode, remark: str) -> Handler:
    def refuse(request: RemotingCommand, _: Connection) -> RemotingCommand:
        return request.response(int(code), remark)

    return refuse
