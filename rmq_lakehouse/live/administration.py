"""Blocking adapter of the administration client for Spark sources: the tables of a cluster's brokers."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rmq_core.client import Admin
from rmq_core.client.errors import BrokerError, NoRouteError
from rmq_core.remoting.bodies.codec import MessageQueue, parse_queue_key
from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_core.remoting.bodies.stats import TopicOffset
from rmq_core.remoting.codes import MASTER_ID
from rmq_core.remoting.loop import LoopRunner
from rmq_formats.read.lag import Ends, GroupQueue
from rmq_lakehouse.live.client import access_arguments, translate_errors

_T = TypeVar("_T")
_Key = TypeVar("_Key")
_REQUESTS_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class Master:
    """Master of a cluster."""

    cluster: str
    broker: str
    address: str


class ClusterTables:
    """Administration connection: the tables of the brokers; a context manager. Each method raises ClusterError."""

    def __init__(self, namesrv: str, access: Mapping[str, str]) -> None:
        self._namesrv = namesrv
        self._runner = LoopRunner()
        with translate_errors(namesrv):
            self._admin = Admin(namesrv, **access_arguments(access))
        self._turns = asyncio.Semaphore(_REQUESTS_AT_ONCE)

    def __enter__(self) -> "ClusterTables":
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._admin.close())
        self._runner.close()

    def masters(self) -> list[Master]:
        """List the masters, by cluster and name."""
        table = self._run(self._admin.cluster()).broker_addr_table
        masters = [
            Master(broker.cluster, name, broker.broker_addrs[MASTER_ID])
            for name, broker in table.items()
            if MASTER_ID in broker.broker_addrs
        ]
        return sorted(masters, key=lambda master: (master.cluster, master.broker))

    def topics(self, master: Master) -> dict[str, TopicConfig]:
        return self._run(self._admin.brokers.topics(master.address)).topic_config_table

    def groups(self, master: Master) -> dict[str, SubscriptionGroupConfig]:
        return self._run(self._admin.brokers.groups(master.address)).subscription_group_table

    def progress(
        self, master: Master, wants_group: Callable[[str], bool], wants_topic: Callable[[str], bool]
    ) -> list[tuple[GroupQueue, Ends]]:
        """Query the progress of consumer groups in a broker's queues, as ``mqadmin consumerProgress`` does.

        The next messages of lagging groups are pulled for their store times.
        """
        return self._run(self._progress(master, wants_group, wants_topic))

    async def _progress(
        self, master: Master, wants_group: Callable[[str], bool], wants_topic: Callable[[str], bool]
    ) -> list[tuple[GroupQueue, Ends]]:
        brokers, address = self._admin.brokers, master.address
        committed = (await brokers.consumer_offsets(address)).offset_table
        names = [parts for parts in (key.split("@") for key in committed) if len(parts) == 2]
        groups = sorted({group for topic, group in names if wants_group(group) and wants_topic(topic)})
        stats = await self._request_each(groups, lambda group: brokers.consume_stats(address, group))
        group_offsets = [
            (group, parse_queue_key(key), offset)
            for group, answer in zip(groups, stats, strict=True)
            for key, offset in answer.offset_table.items()
        ]
        group_offsets = [(group, queue, offset) for group, queue, offset in group_offsets if wants_topic(queue.topic)]
        topics = sorted({queue.topic for _, queue, _ in group_offsets})
        tables = await self._request_each(topics, lambda topic: brokers.topic_stats(address, topic))
        bounds = {parse_queue_key(key): offset for table in tables for key, offset in table.offset_table.items()}
        lags = (offsets for offsets in group_offsets if offsets[2].consumer_offset < offsets[2].broker_offset)
        lagging = sorted({(queue, offset.consumer_offset) for _, queue, offset in lags})
        times = await self._request_each(lagging, lambda message: self._store_ms(*message))
        next_ms = dict(zip(lagging, times, strict=True))
        rows = []
        for group, queue, offset in group_offsets:
            next_offset = offset.consumer_offset
            stored_offset = committed.get(f"{queue.topic}@{group}", {}).get(queue.queue_id, next_offset or None)
            reported, waiting_ms = bounds.get(queue, TopicOffset()), next_ms.get((queue, next_offset))
            newest_ms = reported.last_update_timestamp or None
            committed_offset = None if stored_offset is None else next_offset
            group_queue = GroupQueue(queue.topic, queue.queue_id, group, committed_offset)
            rows.append((group_queue, Ends(reported.min_offset, offset.broker_offset, waiting_ms, newest_ms)))
        return rows

    async def _store_ms(self, queue: MessageQueue, queue_offset: int) -> int | None:
        """Return the store time of a message; None if it does not exist, or may not be read."""
        try:
            message = await self._admin.message_at(queue, queue_offset)
        except (BrokerError, NoRouteError):
            return None
        return None if message is None else message.store_timestamp_ms

    async def _request_each(self, keys: Sequence[_Key], request: Callable[[_Key], Coroutine[Any, Any, _T]]) -> list[_T]:
        """Send one request per key, at most ``_REQUESTS_AT_ONCE`` concurrently."""

        async def request_one(key: _Key) -> _T:
            async with self._turns:
                return await request(key)

        return await asyncio.gather(*map(request_one, keys))

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        with translate_errors(self._namesrv):
            return self._runner.run(work)
