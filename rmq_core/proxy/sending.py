"""Handler of sends, ends of transactions, transaction checks, and recalls.

Source: ``SendMessageActivity``, ``EndTransactionActivity``, ``RecallMessageActivity``.
"""

import itertools
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rmq_core.broker.access.guard import publish_permission
from rmq_core.broker.tables.names import HALF_TOPIC
from rmq_core.proxy.brokers import Brokers
from rmq_core.proxy.checks import check_message, message_type_of, topic_name
from rmq_core.proxy.messages import born_ms, properties_of, sys_flag_of, to_wire
from rmq_core.proxy.sessions import Sessions
from rmq_core.proxy.wire import StatusError, combined_status, ok, rpc, status_of, v2
from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.recall_handle import RecallHandle
from rmq_core.remoting.requests import CheckTransaction, EndTransaction, RecallMessage, SendMessageV2, SendResponse
from rmq_formats.codecs.hashing import consistent_hash, java_string_hash
from rmq_formats.codecs.layout import FLAG_TRANSACTION_COMMIT, FLAG_TRANSACTION_ROLLBACK, PROPERTY_REAL_TOPIC
from rmq_formats.codecs.message_id import decode_message_id
from rmq_formats.codecs.properties import encode_properties, parse_decimal
from rmq_formats.codecs.record import decode_record
from rmq_formats.codecs.topics import TEMPLATE_TOPIC
from rmq_formats.errors import RmqError

_STATUSES: Final = {
    ResponseCode.FLUSH_DISK_TIMEOUT: v2.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: v2.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: v2.HA_NOT_AVAILABLE,
}
_TYPE_NAMES: Final = {
    v2.NORMAL: "NORMAL", v2.FIFO: "FIFO", v2.DELAY: "DELAY", v2.TRANSACTION: "TRANSACTION",
    v2.PRIORITY: "PRIORITY", v2.LITE: "LITE",
}  # fmt: skip


class TransactionId(NamedTuple):
    """Identifier of a transaction with the location of its half message, so that any proxy can end it.

    The original keeps the location in memory, for some seconds.
    """

    message_id: str
    physical_offset: int
    queue_offset: int
    broker: str

    def encode(self) -> str:
        """Return the text."""
        return f"{self.message_id}:{self.physical_offset}:{self.queue_offset}:{self.broker}"

    @classmethod
    def decode(cls, text: str) -> "TransactionId":
        """Parse a transaction id. Raises StatusError."""
        parts = text.rsplit(":", 3)
        offsets = [parse_decimal(part, None) for part in parts[1:3]]
        if len(parts) != 4 or offsets[0] is None or offsets[1] is None:
            raise StatusError(v2.INVALID_TRANSACTION_ID, "the transaction id was not issued by this service")
        return cls(parts[0], offsets[0], offsets[1], parts[3])


class SendMessageActivity:
    """gRPC calls of producers: sends, ends of transactions, recalls."""

    def __init__(self, brokers: Brokers, sessions: Sessions) -> None:
        self._brokers = brokers
        self._sessions = sessions
        self._queue_counter = itertools.count()
        brokers.handlers[RequestCode.CHECK_TRANSACTION_STATE] = self._on_transaction_check

    async def send(self, request: Any, _: str, peer: str) -> Any:
        """SendMessage. Each message of a request is sent by itself: the original makes one of them."""
        if not request.messages:
            raise StatusError(v2.MESSAGE_CORRUPTED, "no message to send")
        topics = {topic_name(message.topic) for message in request.messages}
        if len(topics) > 1:
            raise StatusError(v2.MESSAGE_CORRUPTED, "not all messages are of one topic")
        (topic,) = topics
        now_ms = time.time_ns() // 1_000_000
        for message in request.messages:
            check_message(message, now_ms)
        accepted = await self._brokers.message_types(topic)
        for kind in map(message_type_of, request.messages):
            if kind not in accepted:
                expected, actual = "MIXED" if len(accepted) > 1 else _TYPE_NAMES[accepted[0]], _TYPE_NAMES[kind]
                types = f"the expected type is {expected}, but actual type is {actual}"
                raise StatusError(v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, f"TopicMessageType validate failed, {types}")
        entries = [await self._attempt(topic, message, peer) for message in request.messages]
        status = combined_status([entry.status for entry in entries])
        return rpc.SendMessageResponse(status=status, entries=entries)

    async def _attempt(self, topic: str, message: Any, peer: str) -> Any:
        try:
            return await self._send(topic, message, peer)
        except RmqError as error:
            message_id = message.system_properties.message_id
            return rpc.SendResultEntry(status=status_of(error), message_id=message_id)

    async def _send(self, topic: str, message: Any, peer: str) -> Any:
        kind = message_type_of(message)
        queue = self._select_queue((await self._brokers.route(topic)).write_queues, topic, message)
        address = await self._brokers.address(topic, queue.broker_name)
        system = message.system_properties
        if kind == v2.TRANSACTION:
            await self._brokers.register_producer([topic])
        fields = SendMessageV2(
            producer_group=topic,
            topic=topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=4,
            queue_id=queue.queue_id,
            sys_flag=sys_flag_of(message, kind),
            born_timestamp=born_ms(message),
            flag=0,
            properties=encode_properties(properties_of(message, topic, kind, peer)).decode(),
            reconsume_times=0,
        )
        code = RequestCode.SEND_MESSAGE_V2
        response = await self._brokers.request(address, code, fields, message.body, also=_STATUSES)
        status = ok()
        if response.code:
            status = v2.Status(code=_STATUSES[ResponseCode(response.code)], message=response.remark)
        stored = read_fields(response, SendResponse)
        transaction_id = system.message_id
        if kind == v2.TRANSACTION:
            physical_offset = decode_message_id(stored.msg_id.partition(",")[0])[1]
            half = TransactionId(system.message_id, physical_offset, stored.queue_offset, queue.broker_name)
            transaction_id = half.encode()
        return rpc.SendResultEntry(
            status=status,
            message_id=system.message_id,
            transaction_id=transaction_id,
            offset=stored.queue_offset,
            recall_handle=stored.recall_handle or "",
        )

    def _select_queue(self, queues: Sequence[MessageQueue], topic: str, message: Any) -> MessageQueue:
        if not queues:
            raise StatusError(v2.FORBIDDEN, f"no writable queue of topic {topic}")
        system = message.system_properties
        # Brokers find the broker of a lite topic in the same way (``LiteShardingImpl``).
        if key := system.message_group or system.lite_topic:
            return queues[consistent_hash(java_string_hash(key), len(queues))]
        return queues[next(self._queue_counter) % len(queues)]

    async def end(self, request: Any, _: str, __: str) -> Any:
        """EndTransaction."""
        topic = topic_name(request.topic)
        if not request.transaction_id.strip():
            raise StatusError(v2.INVALID_TRANSACTION_ID, "transaction id cannot be blank")
        transaction = TransactionId.decode(request.transaction_id)
        flags = {v2.COMMIT: FLAG_TRANSACTION_COMMIT, v2.ROLLBACK: FLAG_TRANSACTION_ROLLBACK}
        fields = EndTransaction(
            topic=topic,
            producer_group=topic,
            tran_state_table_offset=transaction.queue_offset,
            commit_log_offset=transaction.physical_offset,
            commit_or_rollback=flags.get(request.resolution, 0),
            from_transaction_check=request.source == v2.SOURCE_SERVER_CHECK,
            msg_id=request.message_id,
            transaction_id=transaction.message_id,
        )
        address = await self._brokers.address(topic, transaction.broker)
        await self._check_half(address, topic, transaction)
        await self._brokers.request(address, RequestCode.END_TRANSACTION, fields)
        return rpc.EndTransactionResponse(status=ok())

    async def _check_half(self, address: str, topic: str, transaction: TransactionId) -> None:
        """Refuse the location of another topic's half message: the id's text is the client's. Raises StatusError.

        A broker allows everything to the proxy, and a producer group may have the name of a topic.
        """
        half = await self._brokers.view_record(address, topic, transaction.physical_offset)
        if half is None or half.topic != HALF_TOPIC or half.properties.get(PROPERTY_REAL_TOPIC) != topic:
            raise StatusError(v2.INVALID_TRANSACTION_ID, f"the transaction id refers to no half message of {topic}")

    async def _on_transaction_check(self, command: RemotingCommand, _: Connection) -> None:
        """CHECK_TRANSACTION_STATE (39): forwards the check to a client of the producer."""
        fields = read_fields(command, CheckTransaction)
        message = decode_record(bytes(command.body), verify_crc=False)
        properties = message.properties
        topic = properties.get(PROPERTY_REAL_TOPIC, message.topic)
        permissions = (publish_permission(topic),)
        broker = command.ext_fields.get("bname", "")
        offsets = fields.commit_log_offset, fields.tran_state_table_offset
        transaction_id = TransactionId(message.uniq_key or "", *offsets, broker).encode()
        half = to_wire(message, topic, None)
        check = rpc.RecoverOrphanedTransactionCommand(message=half, transaction_id=transaction_id)
        command = rpc.TelemetryCommand(status=ok(), recover_orphaned_transaction_command=check)
        for session in self._sessions.producers_of(topic):
            if await session.caller.may_receive(permissions) and session.send_command(command):
                return  # without any the broker asks again

    async def recall(self, request: Any, _: str, __: str) -> Any:
        """RecallMessage."""
        topic = topic_name(request.topic)
        if v2.DELAY not in await self._brokers.message_types(topic):
            raise StatusError(v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, f"topic {topic} takes no delayed messages")
        if not request.recall_handle:
            raise StatusError(v2.BAD_REQUEST, "recall handle cannot be blank")
        try:
            handle = RecallHandle.decode(request.recall_handle)
        except ResponseError as error:
            raise StatusError(v2.BAD_REQUEST, error.remark) from error
        address = await self._brokers.address(topic, handle.broker_name)
        fields = RecallMessage(topic=topic, recall_handle=request.recall_handle, producer_group=topic)
        response = await self._brokers.request(address, RequestCode.RECALL_MESSAGE, fields)
        return rpc.RecallMessageResponse(status=ok(), message_id=response.ext_fields.get("msgId", ""))
