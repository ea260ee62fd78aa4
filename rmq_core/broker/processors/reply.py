"""Request-reply: pushes a reply message to the client that has asked, and stores it (request codes 324, 325).

Source: ``ReplyMessageProcessor``.
"""

from typing import Final

from rmq_core.broker.access.policies import Action, topic_need
from rmq_core.broker.access.push_rights import publish_need
from rmq_core.broker.processors.put_message import Storing
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.clients import Client
from rmq_core.broker.tables.reply_requests import CORRELATION_ID, REPLY_TO_CLIENT
from rmq_core.broker.tables.table_file import log
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import ResponseError, TransportError
from rmq_core.remoting.fields import read_fields, write_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.header import request as new_request
from rmq_core.remoting.requests import PushReply, SendMessage, SendMessageV2
from rmq_formats.codecs.properties import decode_properties, encode_properties

_PUSHED_AT: Final = "PUSH_REPLY_TIME"
_TIMEOUT_S: Final = 10.0  # Broker2Client#callClient


class Replies:
    """Handles SEND_REPLY_MESSAGE: hands a reply to the producer that waits for it."""

    def __init__(self, state: BrokerState, storing: Storing) -> None:
        self._state = state
        self._storing = storing

    def handlers(self) -> dict[int, Handler]:
        """Handlers by request code."""
        return {
            RequestCode.SEND_REPLY_MESSAGE: self.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.reply_v2,
        }

    async def reply(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """SEND_REPLY_MESSAGE (324): pushes a reply to its asker, and stores it."""
        return await self._reply(request, connection, read_fields(request, SendMessage))

    async def reply_v2(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """SEND_REPLY_MESSAGE_V2 (325): the same with short field names."""
        return await self._reply(request, connection, read_fields(request, SendMessageV2))

    async def _reply(self, request: RemotingCommand, connection: Connection, asked: SendMessage) -> RemotingCommand:
        fault = await self._push(bytes(request.body), connection, asked)
        fields = {"msgId": "0", "queueId": str(max(asked.queue_id, 0)), "queueOffset": "0"} | self._storing.marks
        try:
            stored = self._storing.store(request, connection, asked)
            fields["queueId"], fields["queueOffset"] = str(stored.queue_id), str(stored.result.queue_offset)
            fields["msgId"] = stored.result.msg_id
        except ResponseError as error:  # it was pushed to its asker, which is what counts
            log.warning("a reply to %(topic)s was not stored: %(error)s", {"topic": asked.topic, "error": error})
        self._state.dispatch()
        if fault is not None:
            return request.response(int(ResponseCode.SYSTEM_ERROR), fault, fields)
        return request.response(ext_fields=fields)

    def _requester(self, client_id: str, correlation_id: str, reply_topic: str) -> Client | None:
        """The client that has sent the request of a reply; None if it is not connected, or has lost the right to.

        Where the request came to another broker, a client needs Sub on the topic of replies, and no client of another
        user may have the same id.
        """
        state, clients = self._state, self._state.producers.clients(client_id)
        request = state.reply_requests.get(client_id, correlation_id)
        if request is not None:
            name, connection = request.login and request.login.name, request.connection()
            clients = [client for client in clients if (client.login and client.login.name) == name]
            clients.sort(key=lambda client: client.connection is not connection)
            needs = (publish_need(request.topic),)
        else:
            if len({client.login and client.login.name for client in clients}) > 1:
                return None
            needs = (topic_need(reply_topic, Action.SUB),)
        allowed = (
            client
            for client in clients
            if state.rights.may_receive(client.login, client.connection.remote_address, needs)
        )
        return next(allowed, None)

    async def _push(self, body: bytes, connection: Connection, asked: SendMessage) -> str | None:
        """Push a reply to the client that has asked; returns what went wrong, in Java's words, or None."""
        properties = decode_properties((asked.properties or "").encode("utf-8", "replace"))
        client_id = properties.get(REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{REPLY_TO_CLIENT}] is null"
        client = self._requester(client_id, properties.get(CORRELATION_ID, ""), asked.topic)
        if client is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        now_ms = self._state.clock_ms()
        properties[_PUSHED_AT] = str(now_ms)
        fields = PushReply(
            producer_group=asked.producer_group,
            topic=asked.topic,
            default_topic=asked.default_topic,
            default_topic_queue_nums=asked.default_topic_queue_nums,
            queue_id=asked.queue_id,
            sys_flag=asked.sys_flag,
            born_timestamp=asked.born_timestamp,
            flag=asked.flag,
            properties=encode_properties(properties).decode(),
            reconsume_times=asked.reconsume_times,
            unit_mode=asked.unit_mode,
            born_host=connection.remote_address,
            store_host=self._state.address,
            store_timestamp=now_ms,
        )
        command = new_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, write_fields(fields), body)
        try:
            answer = await client.connection.invoke(command, _TIMEOUT_S)
        except TransportError as error:
            log.warning("a reply was not handed to %(client)s: %(error)s", {"client": client_id, "error": error})
            return f"push reply message to {client_id}fail."
        return None if answer.code == 0 else f"push reply message to {client_id}fail."
