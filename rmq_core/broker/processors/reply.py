"""Request-reply (codes 324, 325): a reply message is pushed to the requesting client, and stored.

Source: ``ReplyMessageProcessor``.
"""

from functools import partial
from typing import Final

from rmq_core.broker.access.guard import publish_permission
from rmq_core.broker.access.policies import Action, topic_permission
from rmq_core.broker.processors.put_message import MessageWriter
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.clients import Client
from rmq_core.broker.tables.table_file import log
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import ResponseError, TransportError
from rmq_core.remoting.fields import read_fields, write_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.header import request as build_request
from rmq_core.remoting.requests import PushReply, SendMessage, SendMessageV2
from rmq_formats.codecs.layout import PROPERTY_CORRELATION_ID, PROPERTY_REPLY_TO_CLIENT
from rmq_formats.codecs.properties import decode_properties, encode_properties

_TIMEOUT_S: Final = 10.0  # Broker2Client#callClient


class ReplyMessageProcessor:
    """Handler of SEND_REPLY_MESSAGE."""

    def __init__(self, state: BrokerState, writer: MessageWriter) -> None:
        self._state = state
        self._writer = writer

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_REPLY_MESSAGE: partial(self._reply, SendMessage),
            RequestCode.SEND_REPLY_MESSAGE_V2: partial(self._reply, SendMessageV2),
        }

    async def _reply(
        self, kind: type[SendMessage], request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        """Push a reply to the requesting client, and store the reply; the fields of V2 have short names."""
        fields = read_fields(request, kind)
        push_error = await self._push(bytes(request.body), connection, fields)
        ext_fields = {"msgId": "0", "queueId": str(max(fields.queue_id, 0)), "queueOffset": "0"}
        ext_fields |= self._writer.added_properties
        try:
            stored = self._writer.store(request, connection, fields)
            ext_fields["queueId"], ext_fields["queueOffset"] = str(stored.queue_id), str(stored.result.queue_offset)
            ext_fields["msgId"] = stored.result.msg_id
        except ResponseError as error:  # the push to the requesting client matters more
            log.warning("a reply to %(topic)s was not stored: %(error)s", {"topic": fields.topic, "error": error})
        self._state.dispatch()
        if push_error is not None:
            return request.response(int(ResponseCode.SYSTEM_ERROR), push_error, ext_fields)
        return request.response(ext_fields=ext_fields)

    def _find_requester(self, client_id: str, correlation_id: str, reply_topic: str) -> Client | None:
        """Return the client that sent the request of a reply; None if it is disconnected or without permission.

        If another broker received the request, the client needs Sub on the topic of replies, and its id must be unique
        among users.
        """
        state, clients = self._state, self._state.producers.clients(client_id)
        request = state.reply_requests.get(client_id, correlation_id)
        if request is not None:
            name, connection = request.login and request.login.name, request.connection()
            clients = [client for client in clients if (client.login and client.login.name) == name]
            clients.sort(key=lambda client: client.connection is not connection)
            permissions = (publish_permission(request.topic),)
        else:
            if len({client.login and client.login.name for client in clients}) > 1:
                return None
            permissions = (topic_permission(reply_topic, Action.SUB),)
        return state.rights.first_permitted(clients, permissions)

    async def _push(self, body: bytes, connection: Connection, fields: SendMessage) -> str | None:
        """Push a reply to the requesting client; return an error in Java's words, or None."""
        properties = decode_properties(fields.properties_bytes)
        client_id = properties.get(PROPERTY_REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{PROPERTY_REPLY_TO_CLIENT}] is null"
        client = self._find_requester(client_id, properties.get(PROPERTY_CORRELATION_ID, ""), fields.topic)
        if client is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        now_ms = self._state.clock_ms()
        properties["PUSH_REPLY_TIME"] = str(now_ms)
        push_fields = PushReply(
            producer_group=fields.producer_group,
            topic=fields.topic,
            default_topic=fields.default_topic,
            default_topic_queue_nums=fields.default_topic_queue_nums,
            queue_id=fields.queue_id,
            sys_flag=fields.sys_flag,
            born_timestamp=fields.born_timestamp,
            flag=fields.flag,
            properties=encode_properties(properties).decode(),
            reconsume_times=fields.reconsume_times,
            unit_mode=fields.unit_mode,
            born_host=connection.remote_address,
            store_host=self._state.address,
            store_timestamp=now_ms,
        )
        command = build_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, write_fields(push_fields), body)
        try:
            response = await client.connection.invoke(command, _TIMEOUT_S)
        except TransportError as error:
            log.warning("a reply was not handed to %(client)s: %(error)s", {"client": client_id, "error": error})
        else:
            if response.code == 0:
                return None
        return f"push reply message to {client_id}fail."
