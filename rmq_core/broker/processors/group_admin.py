"""Administration of consumer groups and their connected clients.

Request codes 200, 201, 203, 204, 207, 225, 328, 343, 345, 352, 5003; 307 and 309 are relayed to a consumer.
Source: ``AdminBrokerProcessor``.
"""

import logging
from collections.abc import Iterable
from typing import Final

from rmq_core.broker.access.policies import Action, Permission, group_permission, topic_permission
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names
from rmq_core.broker.tables.attributes import GROUP_ATTRIBUTES, change_attributes
from rmq_core.broker.tables.clients import Client
from rmq_core.remoting import requests
from rmq_core.remoting.bodies.clients import (
    ConnectionBody,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    QuerySubscription,
)
from rmq_core.remoting.bodies.codec import decode_body, encode_body
from rmq_core.remoting.bodies.configs import GroupConfigList, GroupsToDelete, SubscriptionGroupConfig
from rmq_core.remoting.bodies.pop import LITE_PARENT
from rmq_core.remoting.bodies.routes import TopicList
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import RequestTimeoutError, ResponseError, TransportError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.header import request as build_request
from rmq_core.remoting.pop import normal_topic
from rmq_formats.codecs.message_id import decode_message_id
from rmq_formats.codecs.record import decode_record

log = logging.getLogger("rmq.broker.admin")
_RELAY_TIMEOUT_S: Final = 10.0  # Broker2Client#callClient


class GroupAdmin:
    """Handlers of requests that administer consumer groups, or are relayed to a consumer as by ``Broker2Client``."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.put,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.put_all,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.get_all,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.get,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST: self.delete_all,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.get_consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.get_producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self.get_all_producers,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.get_topics,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.get_subscription,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.get_running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    def put(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        self._put([decode_body(request.body, SubscriptionGroupConfig, is_request=True)], connection)
        return request.response()

    def put_all(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        self._put(decode_body(request.body, GroupConfigList, is_request=True).group_config_list, connection)
        return request.response()

    def _put(self, groups: list[SubscriptionGroupConfig], connection: Connection) -> None:
        for group in groups:
            if not names.is_group(group.group_name):
                problem = "The specified group is blank, too long, or contains illegal characters"
                raise ResponseError(ResponseCode.INVALID_PARAMETER, f"{problem}, allowing only ^[%|a-zA-Z0-9_-]+$")
        table = self._state.groups
        table.put_all(
            [change_attributes(GROUP_ATTRIBUTES, table.table.get(group.group_name), group) for group in groups]
        )
        changed = ", ".join(group.group_name for group in groups)
        log.info(
            "%(client)s made or changed the groups %(groups)s", {"client": connection.remote_address, "groups": changed}
        )

    def get_all(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        return request.response(body=encode_body(self._state.groups.body()))

    def get(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        name = read_fields(request, requests.Group).group
        group = self._state.groups.get(name)
        if group is None:
            raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {name}")
        return request.response(body=encode_body(group))

    def delete(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Delete a group, and with ``cleanOffset`` its consumer offsets (DELETE_SUBSCRIPTIONGROUP, 207)."""
        fields = read_fields(request, requests.DeleteGroup)
        self._delete(fields.group_name, connection, cleans=bool(fields.clean_offset))
        return request.response()

    def delete_all(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        body = decode_body(request.body or b"{}", GroupsToDelete, is_request=True)
        if not body.group_name_list:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, "The specified group name list is blank.")
        if not all(name.strip() for name in body.group_name_list):
            raise ResponseError(ResponseCode.INVALID_PARAMETER, "The specified group name is blank.")
        for name in dict.fromkeys(body.group_name_list):
            self._delete(name, connection, cleans=body.clean_offset)
        return request.response()

    def _delete(self, name: str, connection: Connection, *, cleans: bool) -> None:
        groups = self._state.groups
        group = groups.table.get(name)
        groups.remove(name)

        def remove_offsets(is_written: bool) -> None:
            if is_written and name not in groups.table:  # else the group was created again meanwhile
                self._state.offsets.remove_group(name)

        if cleans or (group is not None and LITE_PARENT in group.attributes):  # lite groups have many offsets
            groups.file.call_when_written(remove_offsets)
        log.info("%(client)s deleted the group %(group)s", {"client": connection.remote_address, "group": name})

    def get_consumers(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        name = read_fields(request, requests.ConsumerGroupName).consumer_group
        group = self._state.consumers.groups.get(name)
        if group is None:
            return request.response(int(ResponseCode.CONSUMER_NOT_ONLINE), f"the consumer group[{name}] not online")
        body = ConsumerConnection(
            connection_set=_connection_bodies(group.clients.values()),
            consume_from_where=group.data.consume_from_where,
            consume_type=group.data.consume_type,
            message_model=group.data.message_model,
            subscription_table=group.subscriptions,
        )
        return request.response(body=encode_body(body))

    def get_producers(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        name = read_fields(request, requests.ProducerGroup).producer_group
        members = self._state.producers.groups.get(name)
        if members is None:
            return request.response(int(ResponseCode.SYSTEM_ERROR), f"the producer group[{name}] not exist")
        body = ProducerConnection(connection_set=_connection_bodies(members.values()))
        return request.response(body=encode_body(body))

    def get_all_producers(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        table: dict[str, list[ProducerInfo]] = {}
        for group, members in self._state.producers.groups.items():
            table[group] = [
                ProducerInfo(
                    client_id=client.client_id,
                    language=client.language,
                    last_update_timestamp=self._state.time_of_day(client.heartbeat_ms),
                    remote_ip=client.connection.remote_address,
                    version=client.version,
                )
                for client in members.values()
            ]
        return request.response(body=encode_body(ProducerTable(data=table)))

    def get_topics(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        topics = self._state.offsets.topics_of(read_fields(request, requests.Group).group)
        return request.response(body=encode_body(TopicList(topic_list=sorted(topics), broker_addr=self._state.address)))

    def get_subscription(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        fields = read_fields(request, requests.Group)
        subscription = self._state.consumers.subscription(fields.group, fields.topic or "")
        body = QuerySubscription(group=fields.group, topic=fields.topic or "", subscription_data=subscription)
        return request.response(body=encode_body(body))

    async def get_running_info(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        fields = read_fields(request, requests.RunningInfo)
        permissions = [group_permission(fields.consumer_group, Action.SUB)]
        return await self._call_consumer(
            request, fields.consumer_group, fields.client_id, bytes(request.body), permissions
        )

    async def consume_directly(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Make a consumer consume one stored message now (CONSUME_MESSAGE_DIRECTLY, 309)."""
        fields = read_fields(request, requests.ConsumeDirectly)
        state = self._state
        record = state.store.record(decode_message_id(fields.msg_id or "")[1])
        if record is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"can not find message by the id, {fields.msg_id}")
        ext_fields = request.ext_fields
        ext_fields["brokerName"] = state.config.broker_name
        if topic := state.topics.get(fields.topic or ""):
            ext_fields["topicSysFlag"] = str(topic.topic_sys_flag)
        if group := state.groups.table.get(fields.consumer_group):
            ext_fields["groupSysFlag"] = str(group.group_sys_flag)
        topic_name = normal_topic(decode_record(record, verify_crc=False).topic, fields.consumer_group)
        permissions = [group_permission(fields.consumer_group, Action.SUB), topic_permission(topic_name, Action.SUB)]
        return await self._call_consumer(
            request, fields.consumer_group, fields.client_id or "", bytes(record), permissions
        )

    async def _call_consumer(
        self, request: RemotingCommand, group: str, client_id: str, body: bytes, permissions: list[Permission]
    ) -> RemotingCommand:
        """Send the request to a permitted member of a group, and return the member's response."""
        members = self._state.consumers.clients(group, client_id)
        client = self._state.rights.first_permitted(members, permissions)
        if client is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        command = build_request(request.code, dict(request.ext_fields), body)
        try:
            response = await client.connection.invoke(command, _RELAY_TIMEOUT_S)
        except RequestTimeoutError as error:
            remark = f"consumer <{group}> <{client_id}> Timeout: {error}"
            raise ResponseError(ResponseCode.CONSUME_MSG_TIMEOUT, remark) from error
        except TransportError as error:
            remark = f"invoke consumer <{group}> <{client_id}> Exception: {error}"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, remark) from error
        return request.response(response.code, response.remark, dict(response.ext_fields), bytes(response.body))


def _connection_bodies(clients: Iterable[Client]) -> list[ConnectionBody]:
    return [
        ConnectionBody(
            client_addr=client.connection.remote_address,
            client_id=client.client_id,
            language=client.language,
            version=client.version,
        )
        for client in clients
    ]
