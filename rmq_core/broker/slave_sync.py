"""What a slave takes over from its master beside the log: topics, groups, offsets of consumers and of delays.

Source: ``SlaveSynchronize``, ``BrokerController#initializeBrokerScheduledTasks``.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from rmq_core.broker.schedule import DelayOffsets, Schedule
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import load_table, log
from rmq_core.remoting.bodies import OffsetTable, SubscriptionGroups, TopicConfigs, decode_body, encode_body
from rmq_core.remoting.bodies.configs import MessageRequestModes
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.header import request as request_of
from rmq_core.store.values import Arrival
from rmq_formats.errors import FormatError

_RETRY_S: Final = 3.0  # how often a master that is not known or does not answer is tried
_REQUEST_MODES: Final = "messageRequestMode.json"
_T = TypeVar("_T", bound=msgspec.Struct)


class SlaveSync:
    """Asks the master: at once, when a topic is not known, and every now and then. A failure is logged once."""

    def __init__(self, state: BrokerState, schedule: Schedule) -> None:
        self._state = state
        self._schedule = schedule
        self._client = RemotingClient()
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False
        self._wanted = asyncio.Event()
        self._missed: set[str] = set()  # topics that were not known when messages of them came
        state.store.on_dispatched(self._arrived)

    def _arrived(self, arrivals: list[Arrival]) -> None:
        """Ask at once for a topic that the master must have made since; once, as it may be gone already."""
        missed = {one.topic for one in arrivals} - self._state.topics.table.keys() - self._missed
        if missed:
            self._missed |= missed
            self._wanted.set()

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._client.close()

    async def _run(self) -> None:
        every_s = self._state.config.slave_sync_interval_ms / 1000
        while True:
            self._wanted.clear()
            done = await self.sync()
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s if done else min(every_s, _RETRY_S)):
                    await self._wanted.wait()

    async def sync(self) -> bool:
        """Take over what the master has now; False if it is not known, or has not answered all."""
        state, address = self._state, self._state.replication.master_address
        if not address or address == state.address:
            return False
        try:
            await self._take(address, RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigs, state.topics.adopt)
            await self._take(address, RequestCode.GET_ALL_CONSUMER_OFFSET, OffsetTable, state.offsets.adopt)
            await self._take(address, RequestCode.GET_ALL_DELAY_OFFSET, DelayOffsets, self._schedule.adopt)
            await self._take(
                address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroups, state.groups.adopt
            )
        except (RemotingError, FormatError) as error:
            if not self._is_failing:
                log.warning("the master does not tell its topics, groups and offsets: %(error)s", {"error": error})
            self._is_failing = True
            return False
        self._is_failing = False
        return True

    async def _take(self, address: str, code: RequestCode, kind: type[_T], adopt: Callable[[_T], None]) -> None:
        answer = await self._client.invoke(address, request_of(code))
        if answer.code != ResponseCode.SUCCESS:
            raise RemotingError(f"{address}: code {answer.code}: {answer.remark}")
        adopt(decode_body(answer.body, kind))


def master_handlers(root: str) -> dict[int, Handler]:
    """What a slave of Java's asks for, and nobody else.

    Args:
        root: the store's directory.
    """

    def request_modes(request: RemotingCommand, _: Connection) -> RemotingCommand:
        """GET_ALL_MESSAGE_REQUEST_MODE (402): those of a Java broker that had the store before, for the next one."""
        return request.response(body=encode_body(load_table(root, _REQUEST_MODES, MessageRequestModes)))

    return {RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: request_modes}
