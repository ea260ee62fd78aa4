"""Requests of administrators that the broker relays to a connected consumer (codes 307, 309).

Source: ``AdminBrokerProcessor#callConsumer``.
"""

from typing import Final

from rmq_core.broker.access.policies import Action, Permission, group_permission, topic_permission
from rmq_core.broker.state import BrokerState
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import RequestTimeoutError, ResponseError, TransportError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.header import request as new_request
from rmq_core.remoting.pop import normal_topic
from rmq_core.remoting.requests import ConsumeDirectly, RunningInfo
from rmq_formats.codecs.message_id import decode_message_id
from rmq_formats.codecs.record import decode_record
from rmq_formats.errors import DecodeError

_TIMEOUT_S: Final = 10.0  # Broker2Client#callClient


class Broker2Client:
    """Relay of administrators' requests to consumers."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.get_running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    async def get_running_info(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Fetch the runtime state of a consumer (GET_CONSUMER_RUNNING_INFO, 307)."""
        fields = read_fields(request, RunningInfo)
        permissions = [group_permission(fields.consumer_group, Action.SUB)]
        return await self._call_consumer(
            request, fields.consumer_group, fields.client_id, bytes(request.body), permissions
        )

    async def consume_directly(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Make a consumer consume one stored message now (CONSUME_MESSAGE_DIRECTLY, 309)."""
        fields = read_fields(request, ConsumeDirectly)
        state = self._state
        try:
            record = state.store.record(decode_message_id(fields.msg_id or "")[1])
        except DecodeError as error:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, str(error)) from error
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
        rights = self._state.rights
        clients = (
            client
            for client in self._state.consumers.clients(group, client_id)
            if rights.may_receive(client.login, client.connection.remote_address, permissions)
        )
        client = next(clients, None)
        if client is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        command = new_request(request.code, dict(request.ext_fields), body)
        try:
            response = await client.connection.invoke(command, _TIMEOUT_S)
        except RequestTimeoutError as error:
            remark = f"consumer <{group}> <{client_id}> Timeout: {error}"
            raise ResponseError(ResponseCode.CONSUME_MSG_TIMEOUT, remark) from error
        except TransportError as error:
            remark = f"invoke consumer <{group}> <{client_id}> Exception: {error}"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, remark) from error
        return request.response(response.code, response.remark, dict(response.ext_fields), bytes(response.body))
