"""Client heartbeats, group membership and queue locks (request codes 34, 35, 38, 41, 42, 46, and ours 900034).

Administrators see a proxy's clients with their own addresses, languages and versions. The original's proxy in local
mode adds clients to the broker's tables; in cluster mode its brokers have no such clients. Here the proxy reports new,
changed and closed clients on its connection; the end of the connection removes all of them.

Source: ``ClientManageProcessor``, ``ConsumerManageProcessor#getConsumerListByGroup``, ``AdminBrokerProcessor``; of a
proxy ``ClientActivity#registerConsumer``, ``#registerProducer``.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from rmq_core.broker.access.policies import Action, group_permission
from rmq_core.broker.processors.pull import check_expression_size
from rmq_core.broker.slices import SLICE_S
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names
from rmq_core.broker.tables.clients import (
    Client,
    ConsumerGroup,
    Login,
    Peer,
    ProxiedConnection,
    find_silent_connections,
)
from rmq_core.broker.tables.subscription_filter import compile_subscription, is_tag_type
from rmq_core.remoting import fastjson
from rmq_core.remoting.bodies import clients
from rmq_core.remoting.bodies.codec import decode_body, encode_body
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler, HandlerResponse
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields, write_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.header import request as build_request
from rmq_core.remoting.loop import work_clock
from rmq_core.remoting.requests import ConsumerGroupName, UnregisterClient
from rmq_formats.sql92 import SqlError

_AT_ONCE_BYTES: Final = 2048  # of a heartbeat's body; longer ones are handled in time slices
log = logging.getLogger("rmq.broker.clients")
_MAX_PROXIED: Final = 100_000  # clients of one proxy, whose own limit is no higher


class ClientManageProcessor:
    """Handlers of heartbeats and other requests of clients as members of groups."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        state.consumers.on_members_change = self.notify_members

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.list_consumers,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_client,
        }

    def heartbeat(self, request: RemotingCommand, connection: Connection) -> HandlerResponse:
        response = request.response(ext_fields={"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"})
        if len(request.body) > _AT_ONCE_BYTES:
            return self._long_heartbeat(request, connection, response)
        beat = decode_body(request.body, clients.HeartbeatData, is_request=True)
        for _ in self._register_members(request, connection, beat, beat.consumer_data_set):
            pass
        return response

    async def _long_heartbeat(
        self, request: RemotingCommand, connection: Connection, response: RemotingCommand
    ) -> RemotingCommand:
        slices = self._state.slices
        try:
            beat: clients.HeartbeatData | clients.LongHeartbeat = msgspec.json.decode(
                request.body, type=clients.LongHeartbeat
            )
        except fastjson.NOT_JSON:  # the groups cannot be separated without reading the whole body
            beat = decode_body(request.body, clients.HeartbeatData, is_request=True)
        decoded = await slices.collect(
            decode_body(data, clients.ConsumerData, is_request=True) if isinstance(data, msgspec.Raw) else data
            for data in beat.consumer_data_set
        )
        await slices.collect(self._register_members(request, connection, beat, decoded.items))
        return response

    def _register_members(
        self,
        request: RemotingCommand,
        connection: Connection,
        beat: clients.HeartbeatData | clients.LongHeartbeat,
        groups: list[clients.ConsumerData],
    ) -> Iterator[None]:
        """Register a client in its groups, one by one."""
        state = self._state
        self.check_expressions(groups)
        login = state.rights.login(request)
        client = Client(connection, beat.client_id, request.language, request.version, state.steady_ms(), login)
        return self.join(client, beat.producer_data_set, groups, without_subscriptions=beat.without_sub)

    def join(
        self,
        client: Client,
        producers: Iterable[clients.ProducerData],
        groups: Iterable[clients.ConsumerData],
        *,
        without_subscriptions: bool = False,
    ) -> Iterator[None]:
        """Make a client a member of its groups, one by one."""
        for producer in producers:
            if client.connection.is_closing:  # the client is removed, and must not be a member again
                return
            self._state.producers.register(producer.group_name, client)
            yield
        for data in groups:
            if client.connection.is_closing:
                return
            self._register_consumer(client, data, without_subscriptions=without_subscriptions)
            yield

    def check_expressions(self, groups: list[clients.ConsumerData]) -> None:
        """Refuse a heartbeat whose SQL92 expressions together would compile for too long."""
        subscriptions = (data for group in groups for data in group.subscription_data_set)
        size = sum(len(data.sub_string) for data in subscriptions if not is_tag_type(data.expression_type))
        check_expression_size(size, self._state.config)

    def _register_consumer(self, client: Client, data: clients.ConsumerData, *, without_subscriptions: bool) -> None:
        state = self._state
        group = state.groups.find(data.group_name, state.config.auto_create_subscription_group)
        if group is None:
            return
        topics = state.topics.table
        ordered = any(sub.topic in topics and topics[sub.topic].order for sub in data.subscription_data_set)
        if not state.groups.is_lmq_group(data.group_name):  # each light queue may have a group
            retry_topic = names.retry_topic(data.group_name)
            state.topics.get_or_create(retry_topic, group.retry_queue_nums, 2 * data.unit_mode, order=ordered)
        if without_subscriptions:  # the subscriptions are those of the heartbeat before
            consumer_group = state.consumers.groups.get(data.group_name)
            if consumer_group is None:
                return
            state.consumers.join(consumer_group, client)
        else:
            state.filters.register(data.group_name, data.subscription_data_set)
            state.consumers.register(client, data)

    def unregister(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        fields = read_fields(request, UnregisterClient)
        if fields.producer_group is not None:
            self._state.producers.unregister(fields.producer_group, connection)
        if fields.consumer_group is not None:
            self._state.consumers.unregister(fields.consumer_group, connection)
        return request.response()

    def list_consumers(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        fields = read_fields(request, ConsumerGroupName)
        members = self._state.consumers.groups.get(fields.consumer_group)
        if members is None:
            remark = f"no consumer for this group, {fields.consumer_group}"
            return request.response(int(ResponseCode.SYSTEM_ERROR), remark)
        ids = list(dict.fromkeys(client.client_id for client in members.clients.values()))
        return request.response(body=encode_body(clients.ConsumerIdList(consumer_id_list=ids)))

    def lock(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Lock queues for an orderly consumer (LOCK_BATCH_MQ, 41).

        The original locks any queue. Here a queue of an unknown topic, or for a group that may not pull, is not locked:
        nobody could consume the queue, and strangers could make up names without end.
        """
        body = decode_body(request.body, clients.LockBatchRequest, is_request=True)
        state = self._state
        config, topics = state.config, state.topics.table
        queues = [queue for queue in body.mq_set if queue.topic in topics and queue.broker_name == config.broker_name]
        if queues and state.groups.find(body.consumer_group, config.auto_create_subscription_group) is None:
            queues = []
        locked_queues = state.locks.lock(body.consumer_group, queues, body.client_id)
        return request.response(body=encode_body(clients.LockBatchResponse(lock_ok_mq_set=locked_queues)))

    def unlock(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        body = decode_body(request.body, clients.LockBatchRequest, is_request=True)
        self._state.locks.unlock(body.consumer_group, body.mq_set, body.client_id)
        return request.response()

    def check_client(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        subscription = decode_body(request.body, clients.CheckClientBody, is_request=True).subscription_data
        if is_tag_type(subscription.expression_type):
            return request.response()
        check_expression_size(len(subscription.sub_string), self._state.config)
        if not self._state.config.enable_property_filter:
            remark = f"The broker does not support consumer to filter message by {subscription.expression_type}"
            return request.response(int(ResponseCode.SYSTEM_ERROR), remark)
        try:
            compile_subscription(subscription)
        except SqlError as error:
            return request.response(int(ResponseCode.SUBSCRIPTION_PARSE_FAILED), error.remark)
        return request.response()

    def notify_members(self, group: ConsumerGroup) -> None:
        """Notify a group's members of a change, so that they rebalance."""
        state = self._state
        if not group.clients:
            state.filters.unregister(group.name)
        config = state.groups.table.get(group.name)
        is_enabled = state.config.notify_consumer_ids_changed_enable
        if group.is_broadcasting or not is_enabled or (config and not config.notify_consumer_ids_changed_enable):
            return
        fields = write_fields(ConsumerGroupName(consumer_group=group.name))
        permissions = (group_permission(group.name, Action.SUB),)
        for connection, client in group.clients.items():
            # The clients of a proxy have no queues.
            if isinstance(connection, ProxiedConnection):
                continue
            if state.rights.may_receive(client.login, connection.remote_address, permissions):
                connection.send_oneway(build_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, dict(fields)))

    def remove_connection(self, connection: Peer) -> None:
        """Remove a closed connection from all groups; from many groups, in time slices."""
        loop, consumers, producers = asyncio.get_running_loop(), self._state.consumers, self._state.producers
        now = work_clock(loop)
        end = now() + SLICE_S
        removals = [
            *((producers.unregister, name) for name in producers.names_of(connection)),
            *((consumers.unregister, name) for name in consumers.names_of(connection)),
        ]
        for unregister, name in removals:
            unregister(name, connection)
            if now() > end:
                loop.call_soon(self.remove_connection, connection)
                return

    def scan_inactive_clients(self) -> None:
        """Close the connections of clients without a recent heartbeat; to be called periodically."""
        state = self._state
        before_ms = state.steady_ms() - state.config.channel_expired_timeout_ms
        groups = [*(group.clients for group in state.consumers.groups.values()), *state.producers.groups.values()]
        for connection in find_silent_connections(groups, before_ms):
            connection.abort()


class ProxiedClientProcessor:
    """Handler of the clients that proxies report."""

    def __init__(self, state: BrokerState, client_manager: ClientManageProcessor) -> None:
        self._state = state
        self._client_manager = client_manager
        # By the proxy's connection and the client's number in the proxy.
        self._clients_by_proxy: dict[Connection, dict[int, Client]] = {}

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.PROXIED_CLIENTS: self.update_clients}

    async def update_clients(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        report = decode_body(request.body, clients.ProxiedClients, is_request=True)
        members = self._clients_by_proxy.setdefault(connection, {})
        login = self._state.rights.login(request)
        await self._state.slices.collect(self._apply_report(report, connection, members, login))
        if connection.is_closing:  # closed meanwhile
            self.remove_connection(connection)
        return request.response()

    def _apply_report(
        self, report: clients.ProxiedClients, connection: Connection, members: dict[int, Client], login: Login | None
    ) -> Iterator[None]:
        for number in report.gone:
            self._remove(members, number)
            yield
        for data in report.clients:
            if data.number not in members and len(members) >= _MAX_PROXIED:
                raise ResponseError(ResponseCode.SYSTEM_BUSY, f"a proxy may report at most {_MAX_PROXIED} clients")
            yield from self._register(data, connection, members, login)
        now_ms = self._state.steady_ms()
        for client in list(members.values()):
            client.heartbeat_ms = now_ms
            yield

    def _register(
        self, data: clients.ProxiedClient, connection: Connection, members: dict[int, Client], login: Login | None
    ) -> Iterator[None]:
        """Register a client in its current groups; an invalid client does not affect the other clients."""
        self._remove(members, data.number)
        proxied = ProxiedConnection(connection, data.client_addr, lambda: self._remove(members, data.number))
        client = Client(proxied, data.client_id, data.language, data.version, self._state.steady_ms(), login)
        members[data.number] = client
        try:
            self._client_manager.check_expressions(data.consumer_data_set)
            yield from self._client_manager.join(client, data.producer_data_set, data.consumer_data_set)
        except ResponseError as error:
            log.info("a client behind a proxy, %(id)s: %(error)s", {"id": data.client_id, "error": error.remark})

    def _remove(self, members: dict[int, Client], number: int) -> None:
        client = members.pop(number, None)
        if client is not None:
            self._client_manager.remove_connection(client.connection)

    def remove_connection(self, connection: Connection) -> None:
        """Remove all clients of a proxy after the end of its connection."""
        members = self._clients_by_proxy.pop(connection, None)
        if members:
            self._state.slices.collect(self._remove_all(members))

    def _remove_all(self, members: dict[int, Client]) -> Iterator[None]:
        for number in list(members):
            self._remove(members, number)
            yield
