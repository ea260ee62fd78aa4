"""Deletion of lite topics: those idle for long, and children of deleted parents.

Source: ``AbstractLiteLifecycleManager``, ``LiteLifecycleManager``.
"""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from rmq_core.broker.lite.metadata import LiteGroups
from rmq_core.broker.lite.subscriptions import Subscriptions
from rmq_core.broker.pop.order import ConsumerOrderInfo
from rmq_core.broker.processors.durable_responder import await_write, respond_after_persist
from rmq_core.broker.processors.topic_admin import check_deletable
from rmq_core.broker.slices import SLICE_S
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.topics import is_lite
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.routes import TopicList
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler, HandlerResponse, await_response
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import Topic
from rmq_core.store.commitlog.lmq_offsets import LMQ_QUEUE_ID
from rmq_core.store.consumequeue.queue import ConsumeQueue
from rmq_formats.codecs.topics import LITE_PREFIX, lite_parts, lite_queue

log = logging.getLogger("rmq.broker.lite")
_MINUTE_MS: Final = 60_000
_FOREVER: Final = -1  # minutes: children are deleted when all their messages have left the log
_MAX_AT_ONCE: Final = 1000  # deletions: each batch syncs the log, and writes the list of all deletions
_MAX_UNREADABLE: Final = 5  # checks of a child whose last message has left the log, before its deletion


class LiteLifecycleManager:
    """Deletion of expired children."""

    def __init__(
        self, state: BrokerState, groups: LiteGroups, orders: ConsumerOrderInfo, subscriptions: Subscriptions
    ) -> None:
        self._state = state
        self._groups = groups
        self._orders = orders
        self._subscriptions = subscriptions
        self._begin_ms = state.steady_ms()
        self._unreadable: dict[str, int] = {}

    def children(self, parent: str) -> AsyncIterator[str]:
        """Yield the light queues of a topic's children, in time slices."""
        return self._lite_queues(lite_queue(parent, ""))

    async def _lite_queues(self, prefix: str) -> AsyncIterator[str]:
        async for queue in self._state.slices.each(list(self._state.store.appender.lmq_names)):
            if queue.startswith(prefix):
                yield queue

    async def expire(self) -> None:
        """Delete expired children; not in the first minutes, before consumers have returned."""
        if self._state.steady_ms() - self._begin_ms < self._state.config.min_lite_ttl_ms:
            return
        minutes, expired, unreadable = self._groups.ttl_minutes(), dict[str, list[str]](), self._unreadable
        self._unreadable = {}
        async for queue in self._lite_queues(LITE_PREFIX):
            parts = lite_parts(queue)
            if parts and self._is_expired(queue, minutes.get(parts[0], _FOREVER), unreadable.get(queue, 0)):
                expired.setdefault(parts[0], []).append(queue)
        for parent, queues in expired.items():
            for start in range(0, len(queues), _MAX_AT_ONCE):
                await self._delete(parent, queues[start : start + _MAX_AT_ONCE], minutes.get(parent, _FOREVER))

    def _is_expired(self, queue: str, minutes: int, unreadable: int) -> bool:
        store, config = self._state.store, self._state.config
        high = store.max_offset(queue, LMQ_QUEUE_ID)
        if not high or store.next_offset(queue, LMQ_QUEUE_ID) > high:
            return False  # without a first message, or with an undispatched one
        last_ms = store.store_timestamp_ms(queue, LMQ_QUEUE_ID, high - 1)
        if last_ms is None:
            self._unreadable[queue] = unreadable + 1
            return unreadable >= _MAX_UNREADABLE
        queue_of_child = store.queue(queue, LMQ_QUEUE_ID)
        unit = queue_of_child.unit(high - 1) if isinstance(queue_of_child, ConsumeQueue) else None
        if unit is None:  # deleted meanwhile
            return False
        idle_ms = self._state.clock_ms.age_ms(last_ms, unit.physical_offset)
        return minutes > 0 and idle_ms >= config.min_lite_ttl_ms and idle_ms > minutes * _MINUTE_MS

    async def _delete(self, parent: str, queues: Sequence[str], minutes: int | None = None) -> None:
        """Delete light queues; with a time limit, only those still expired."""
        state, groups = self._state, self._groups.by_parent().get(parent, [])
        if minutes is not None:
            queues = [queue for queue in queues if self._is_expired(queue, minutes, _MAX_UNREADABLE)]
        if not queues:
            return
        state.store.delete_topics(queues)  # first: it may fail
        async for queue in state.slices.each(queues):
            for group in groups:
                state.offsets.remove(queue, group)
                self._orders.remove(queue, group, LMQ_QUEUE_ID)
            self._subscriptions.remove_queue(queue)
        log.info("%(count)d lite topics of %(topic)s are deleted", {"count": len(queues), "topic": parent})
        async for _ in state.slices.each(iter(lambda: state.store.remove_deleted(SLICE_S), False)):
            pass

    def handlers(self, base_handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return handlers that delete children with their topics; ``base_handlers`` delete the topics."""
        delete_topic = base_handlers[RequestCode.DELETE_TOPIC_IN_BROKER]
        delete_topics = base_handlers[RequestCode.DELETE_TOPIC_IN_BROKER_LIST]

        def delete_one(request: RemotingCommand, connection: Connection) -> HandlerResponse:
            topic = read_fields(request, Topic).topic
            parents = self._parents([topic])
            if not parents:
                return delete_topic(request, connection)
            check_deletable(self._state, topic)  # before a child is deleted
            return self._delete_with_children(parents, delete_topic, request, connection)

        def delete_several(request: RemotingCommand, connection: Connection) -> HandlerResponse:
            topics = decode_body(request.body or b"{}", TopicList, is_request=True).topic_list
            parents = self._parents(topics)
            if not parents:
                return delete_topics(request, connection)
            for topic in topics:  # before a child is deleted
                check_deletable(self._state, topic)
            return self._delete_with_children(parents, delete_topics, request, connection)

        return {
            RequestCode.DELETE_TOPIC_IN_BROKER: delete_one,
            RequestCode.DELETE_TOPIC_IN_BROKER_LIST: delete_several,
        }

    def _parents(self, topics: Sequence[str]) -> list[str]:
        table = self._state.topics.table
        return [topic for topic in topics if topic in table and is_lite(table[topic])]

    async def _delete_with_children(
        self, parents: list[str], delete: Handler, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand | None:
        """Delete topics after their children: after a kill, the remaining topic can be deleted again."""
        topics = self._state.topics
        topics.touch()  # where its file cannot be written, the topics would stay, without their children
        fault = await await_write(topics.file)
        if fault:
            return request.response(int(ResponseCode.SYSTEM_ERROR), fault)
        await self._delete_children(parents)
        response = await await_response(respond_after_persist(delete, topics)(request, connection))
        await self._delete_children(parents)  # children of messages stored meanwhile
        return response

    async def _delete_children(self, parents: list[str]) -> None:
        for parent in parents:
            queues = [queue async for queue in self.children(parent)]
            for start in range(0, len(queues), _MAX_AT_ONCE):
                await self._delete(parent, queues[start : start + _MAX_AT_ONCE])
