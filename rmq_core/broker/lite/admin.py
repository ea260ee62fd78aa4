"""Administration of lite topics (codes 200074 to 200079). Source: ``LiteManagerProcessor``."""

from dataclasses import dataclass
from heapq import nlargest, nsmallest
from itertools import islice
from typing import Final

from msgspec.structs import replace

from rmq_core.broker.lite.dispatcher import LiteEventDispatcher
from rmq_core.broker.lite.lifecycle import LiteLifecycleManager
from rmq_core.broker.lite.metadata import LiteGroups, LiteSharding
from rmq_core.broker.lite.registry import LiteSubscriptionRegistry
from rmq_core.broker.pop.order import ConsumerOrderInfo
from rmq_core.broker.processors.lite_names import parse_lite_queue
from rmq_core.broker.processors.topic_admin import topic_offset
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.topics import is_lite
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.bodies.pop import (
    BrokerLiteInfo,
    ClientGroup,
    LiteClientInfo,
    LiteGroupInfo,
    LiteLag,
    LiteTopicInfo,
    ParentTopicInfo,
)
from rmq_core.remoting.bodies.stats import ConsumeOffset
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop import LiteClientName, LiteDispatch, LiteGroupName, LiteTopicName
from rmq_core.remoting.requests import Topic
from rmq_core.store.commitlog.lmq_offsets import LMQ_QUEUE_ID
from rmq_formats.codecs.topics import lite_parts

_MAX_RETURN_COUNT: Final = 10_000  # ``MAX_RETURN_COUNT``
_UNKNOWN: Final = -1


@dataclass(eq=False)
class LiteManagerProcessor:
    """Handlers of requests about lite topics, their groups and clients."""

    _state: BrokerState
    _registry: LiteSubscriptionRegistry
    _groups: LiteGroups
    _orders: ConsumerOrderInfo
    _dispatcher: LiteEventDispatcher
    _lifecycle: LiteLifecycleManager
    _sharding: LiteSharding

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_BROKER_LITE_INFO: self.get_broker_lite_info,
            RequestCode.GET_PARENT_TOPIC_INFO: self.get_parent_topic_info,
            RequestCode.GET_LITE_TOPIC_INFO: self.get_lite_topic_info,
            RequestCode.GET_LITE_CLIENT_INFO: self.get_lite_client_info,
            RequestCode.GET_LITE_GROUP_INFO: self.get_lite_group_info,
            RequestCode.TRIGGER_LITE_DISPATCH: self.trigger_lite_dispatch,
        }

    def get_broker_lite_info(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Return the counts of lite topics, subscriptions and offsets (GET_BROKER_LITE_INFO, 200074)."""
        store = self._state.store
        body = BrokerLiteInfo(
            cq_table_size=len(store.appender.lmq_names) + len(self._state.topics.table),
            current_lmq_num=len(store.appender.lmq_names),
            event_map_size=len(self._registry.clients),
            group_meta=self._groups.by_parent(),
            lite_subscription_count=self._registry.count,
            max_lmq_num=store.config.max_lmq_queues,
            offset_table_size=len(self._state.offsets.table),
            order_info_count=self._orders.count,
            topic_meta=self._groups.ttl_minutes(),
        )
        return request.response(body=encode_body(body))

    async def get_parent_topic_info(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Return the number of children and the groups of a parent (GET_PARENT_TOPIC_INFO, 200075)."""
        parent = read_fields(request, Topic).topic
        self._check_parent(parent)
        body = ParentTopicInfo(
            groups=self._groups.by_parent().get(parent),
            lite_topic_count=len([None async for _ in self._lifecycle.children(parent)]),
            lmq_num=len(self._state.store.appender.lmq_names),
            topic=parent,
            ttl=self._groups.ttl_minutes_of(parent),
        )
        return request.response(body=encode_body(body))

    async def get_lite_topic_info(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Return the offsets and subscribers of a child (GET_LITE_TOPIC_INFO, 200076)."""
        fields = read_fields(request, LiteTopicName)
        self._check_parent(fields.parent_topic)
        queue = parse_lite_queue(fields.parent_topic, fields.lite_topic)
        brokers = await self._sharding.brokers_of(fields.parent_topic)
        body = LiteTopicInfo(
            lite_topic=fields.lite_topic,
            parent_topic=fields.parent_topic,
            sharding_to_broker=self._sharding.is_here(fields.lite_topic, brokers),
            subscriber=self._subscribers(queue),
            topic_offset=topic_offset(self._state.store, queue, LMQ_QUEUE_ID),
        )
        return request.response(body=encode_body(body))

    def _subscribers(self, queue: str) -> list[ClientGroup]:
        subscribers: list[ClientGroup] = []
        for clients in self._registry.groups_of(queue):
            if clients and self._groups.is_wildcard(clients[0].group):
                subscribers.append(ClientGroup(client_id="*", group=clients[0].group))
            else:
                listed = islice(clients, _MAX_RETURN_COUNT - len(subscribers))
                subscribers += [ClientGroup(client_id=client.client_id, group=client.group) for client in listed]
        return subscribers

    def get_lite_client_info(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Return the subscriptions of a client (GET_LITE_CLIENT_INFO, 200077)."""
        fields = read_fields(request, LiteClientName)
        self._check_parent(fields.parent_topic)
        if self._check_group(fields.group, "") != fields.parent_topic:
            problem = f"Subscription [{fields.group}]-[{fields.parent_topic}] not match."
            raise ResponseError(ResponseCode.INVALID_PARAMETER, problem)
        if fields.max_count <= 0:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "[maxCount] field invalid")
        body = LiteClientInfo(
            client_id=fields.client_id,
            group=fields.group,
            last_access_time=_UNKNOWN,
            lite_topic_count=_UNKNOWN,
            lite_topic_set=None,
            parent_topic=fields.parent_topic,
        )
        if client := self._registry.clients.get(fields.client_id):
            polled_ms, queue_count = self._state.time_of_day(client.polled_ms), len(client.queues)
            queues = list(islice(client.queues, min(fields.max_count, _MAX_RETURN_COUNT)))
            body = replace(body, last_access_time=polled_ms, lite_topic_count=queue_count, lite_topic_set=queues)
        return request.response(body=encode_body(body))

    async def get_lite_group_info(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Return the lag of a group in one child or in all (GET_LITE_GROUP_INFO, 200078)."""
        fields = read_fields(request, LiteGroupName)
        parent = self._check_group(fields.group, f"Group [{fields.group}] is not a LITE group.")
        if fields.lite_topic:
            return request.response(body=encode_body(self._describe_child_lag(fields, parent)))
        return request.response(body=encode_body(await self._describe_group_lag(fields, parent)))

    def _describe_child_lag(self, fields: LiteGroupName, parent: str) -> LiteGroupInfo:
        store, group = self._state.store, fields.group
        queue = parse_lite_queue(parent, fields.lite_topic)
        high, offset = store.max_offset(queue, LMQ_QUEUE_ID), self._state.offsets.get(queue, group, LMQ_QUEUE_ID)
        info = LiteGroupInfo(group=group, lite_topic=fields.lite_topic, parent_topic=parent)
        if not high:
            return replace(info, total_lag_count=_UNKNOWN)
        if offset < 0:
            return info
        last_ms = store.store_timestamp_ms(queue, LMQ_QUEUE_ID, offset - 1) if offset else None
        progress = ConsumeOffset(broker_offset=high, consumer_offset=offset, last_timestamp=last_ms or 0)
        return replace(
            info,
            earliest_unconsumed_timestamp=_time_or_unknown(store.store_timestamp_ms(queue, LMQ_QUEUE_ID, offset)),
            lite_topic_offset_wrapper=progress,
            total_lag_count=high - offset,
        )

    async def _describe_group_lag(self, fields: LiteGroupName, parent: str) -> LiteGroupInfo:
        store, group, lags = self._state.store, fields.group, list[LiteLag]()
        async for queue in self._lifecycle.children(parent):
            offset = self._state.offsets.get(queue, group, LMQ_QUEUE_ID)
            lag = store.max_offset(queue, LMQ_QUEUE_ID) - offset
            parts = lite_parts(queue)
            if offset >= 0 and lag > 0 and parts:
                since_ms = _time_or_unknown(store.store_timestamp_ms(queue, LMQ_QUEUE_ID, offset))
                lags.append(LiteLag(earliest_unconsumed_timestamp=since_ms, lag_count=lag, lite_topic=parts[1]))
        limit = max(0, min(fields.top_k, _MAX_RETURN_COUNT))
        dated = [lag for lag in lags if lag.earliest_unconsumed_timestamp > 0]
        return LiteGroupInfo(
            earliest_unconsumed_timestamp=min((lag.earliest_unconsumed_timestamp for lag in dated), default=_UNKNOWN),
            group=group,
            lag_count_top_k=nlargest(limit, lags, key=lambda lag: lag.lag_count),
            lag_timestamp_top_k=nsmallest(limit, dated, key=lambda lag: lag.earliest_unconsumed_timestamp),
            parent_topic=parent,
            total_lag_count=sum(lag.lag_count for lag in lags),
        )

    def trigger_lite_dispatch(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Search for messages of a client, or of all clients of a group (TRIGGER_LITE_DISPATCH, 200079)."""
        fields = read_fields(request, LiteDispatch)
        self._check_group(fields.group, f"Group [{fields.group}] is not a LITE group.")
        if not fields.client_id:
            self._dispatcher.rescan_group(fields.group)
        elif (client := self._registry.clients.get(fields.client_id)) is not None and client.group == fields.group:
            self._dispatcher.rescan(client)
        return request.response()

    def _check_parent(self, parent: str) -> None:
        topic = self._state.topics.get(parent)
        if topic is None:
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"Topic [{parent}] not exist.")
        if not is_lite(topic):
            raise ResponseError(ResponseCode.INVALID_PARAMETER, f"Topic [{parent}] type not match.")

    def _check_group(self, group: str, not_lite: str) -> str:
        """Return the topic that a group is bound to; empty, or an error ``not_lite``, without one."""
        if self._state.groups.get(group) is None:
            raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group [{group}] not exist.")
        parent = self._groups.parent_of(group)
        if not parent and not_lite:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, not_lite)
        return parent or ""


def _time_or_unknown(time_ms: int | None) -> int:
    return _UNKNOWN if time_ms is None else time_ms
