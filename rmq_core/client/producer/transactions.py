"""The transaction producer: a half message becomes visible to consumers only if a local transaction commits.

::

    async def pay(message: Message, transaction_id: str) -> TransactionState:
        await database.pay(order, transaction_id)
        return TransactionState.COMMIT

    async def was_paid(message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT if await database.has(message.msg_id) else TransactionState.ROLLBACK

    async with TransactionProducer("127.0.0.1:9876", "orders", was_paid) as producer:
        result = await producer.send_in_transaction(Message("Orders", b"paid"), pay)

Source: ``TransactionMQProducer``, ``DefaultMQProducerImpl#sendMessageInTransaction``.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from inspect import isawaitable
from typing import Any, Final

import msgspec

from rmq_core.client.errors import BrokerError
from rmq_core.client.message import Message, ReceivedMessage, SendResult, SendStatus
from rmq_core.client.options import ProducerOptions
from rmq_core.client.producer.producer import Producer
from rmq_core.client.producer.tracer import trace_ended
from rmq_core.client.pull.record_decoder import decode_records
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.fields import read_fields, write_fields
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.remoting.requests import CheckTransaction, EndTransaction
from rmq_formats.codecs.layout import (
    FLAG_TRANSACTION_COMMIT,
    FLAG_TRANSACTION_ROLLBACK,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_PREPARED,
)
from rmq_formats.codecs.message_id import decode_message_id
from rmq_formats.errors import RmqError

log = logging.getLogger("rmq.client")
_BROKER_NAME: Final = "bname"  # a field that all clients of 5.x send
_MAX_CHECKS: Final = 2000  # checks that may wait, as in Java; a broker repeats a check that is dropped
_DEFAULTS: Final = ProducerOptions()


class TransactionState(Enum):
    """The outcome of a local transaction."""

    COMMIT = FLAG_TRANSACTION_COMMIT
    ROLLBACK = FLAG_TRANSACTION_ROLLBACK
    UNKNOWN = 0  # the broker will check the transaction


Execute = Callable[[Message, str], Awaitable[TransactionState] | TransactionState]
"""Function of a message and its transaction id that runs the local transaction; an exception counts as UNKNOWN."""
Check = Callable[[ReceivedMessage], Awaitable[TransactionState] | TransactionState]
"""Function that returns the outcome of the transaction whose id is the message's ``msg_id``; likewise."""


class TransactionResult(msgspec.Struct, frozen=True):
    """The result of a send in a transaction.

    Attributes:
        sent: the result of sending the half message; its ``transaction_id`` is the transaction's.
        state: outcome of the local transaction.
        is_ended: the broker has acknowledged the end; if false, the broker will check the transaction.
    """

    sent: SendResult
    state: TransactionState
    is_ended: bool


class TransactionProducer(Producer):
    """Producer that also sends messages in transactions."""

    def __init__(
        self,
        namesrv: str,
        group: str,
        check: Check,
        options: ProducerOptions = _DEFAULTS,
        *,
        topics: Sequence[str] = (),
        checks_at_a_time: int = 20,
        credentials: Credentials | None = None,
    ) -> None:
        """Create a producer without connections.

        Args:
            namesrv: ``host:port`` of the name servers, separated by semicolons.
            group: name of the group; brokers send checks to any of its members.
            check: returns the outcome of a transaction, which may be of another member or from before a restart.
            options: settings of the client.
            topics: topics at whose brokers the producer registers when it starts, in addition to those of the template
                topic. At brokers of other topics it registers with the first send.
            checks_at_a_time: maximal concurrent calls of ``check``.
            credentials: to sign requests with.

        Raises:
            OptionError: ``namesrv`` has no valid address.
            MessageError: the group's name is invalid.
        """
        handlers = {int(RequestCode.CHECK_TRANSACTION_STATE): self._on_check}
        super().__init__(namesrv, group, options, credentials=credentials, handlers=handlers)
        self._check = check
        self._topics = (*topics, options.create_topic_key)
        self._turns = asyncio.Semaphore(checks_at_a_time)
        self._checks = 0

    async def start(self) -> None:
        """Start the client, and register with the brokers, which check transactions at registered producers."""
        await super().start()
        try:
            for topic in self._topics:
                try:
                    await self._cluster.route(topic)
                except RmqError as error:
                    log.info("brokers of %s cannot check transactions of %s yet: %s", topic, self.group, error)
        except BaseException:
            await self.close()
            raise

    async def send_in_transaction(
        self, message: Message, execute: Execute, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> TransactionResult:
        """Send a half message, run its local transaction, then commit or roll back.

        Args:
            message: the message to send; its delay is ignored.
            execute: local transaction, called if the status is SEND_OK; with another status the message is rolled back.
            queue: the queue to send to; by default the topic's queues in turn.
            timeout_s: timeout of the send with all attempts.

        Raises:
            MessageError, NoRouteError, BrokerError, SendFailedError, TransportError: the message could not be sent, as
                in ``send``; ``execute`` was not called.
        """
        properties = {PROPERTY_TRANSACTION_PREPARED: "true", PROPERTY_PRODUCER_GROUP: self.group}
        half = msgspec.structs.replace(message, delay_level=0, properties={**message.properties, **properties})
        sent = await self.send(half, queue=queue, timeout_s=timeout_s)
        state = TransactionState.ROLLBACK
        if sent.status is SendStatus.SEND_OK:
            state = await _state(execute, message, sent.msg_id)
        return TransactionResult(sent, state, await self._end(half, sent, state))

    async def _end(self, half: Message, sent: SendResult, state: TransactionState) -> bool:
        """Send END_TRANSACTION to the broker; return True if the broker acknowledged."""
        fields = EndTransaction(
            topic=half.topic,
            producer_group=self.group,
            tran_state_table_offset=sent.queue_offset,
            commit_log_offset=decode_message_id(sent.offset_msg_id)[1],
            commit_or_rollback=state.value,
            msg_id=sent.msg_id,
            transaction_id=sent.transaction_id,
        )
        try:
            address = self._cluster.address(sent.queue.broker_name)
            command = _command(fields, sent.queue.broker_name)
            if self._tracer is not None:
                trace_ended(self._tracer, fields, half.all_properties(), address)
            if state is TransactionState.UNKNOWN:  # brokers do not respond to UNKNOWN
                await self._cluster.remoting.invoke_oneway(address, command)
                return True
            response = await self._cluster.remoting.invoke(address, command, self.options.send_timeout_s)
            if response.code:
                raise BrokerError(address, response.code, response.remark)
        except RemotingError as error:
            log.warning("%s: cannot send %s, the broker will check: %s", sent.msg_id, state.name, error)
            return False
        return True

    def _on_check(self, command: RemotingCommand, connection: Connection) -> None:
        """Handle a broker's check of a transaction: CHECK_TRANSACTION_STATE (39)."""
        if self._checks >= _MAX_CHECKS:
            return
        try:
            check = read_fields(command, CheckTransaction)
            (message,) = decode_records(bytes(command.body), broker_name=command.ext_fields.get(_BROKER_NAME, ""))
        except (RmqError, ValueError) as error:
            log.warning("bad transaction check from %s: %s", connection.remote_address, error)
            return
        self._checks += 1
        self._cluster.run(self._answer(check, message, connection.remote_address))

    async def _answer(self, check: CheckTransaction, message: ReceivedMessage, address: str) -> None:
        try:
            async with self._turns:
                state = await _state(self._check, message)
            fields = EndTransaction(
                topic=check.topic,
                producer_group=self.group,
                tran_state_table_offset=check.tran_state_table_offset,
                commit_log_offset=check.commit_log_offset,
                commit_or_rollback=state.value,
                from_transaction_check=True,
                msg_id=message.msg_id,
                transaction_id=check.transaction_id,
            )
            if self._tracer is not None:
                trace_ended(self._tracer, fields, message.properties, address)
            await self._cluster.remoting.invoke_oneway(address, _command(fields, message.queue.broker_name))
        except RemotingError as error:
            log.warning(
                "cannot send %s the outcome of %s, the broker will check again: %s", address, message.msg_id, error
            )
        finally:
            self._checks -= 1


def _command(fields: EndTransaction, broker_name: str) -> RemotingCommand:
    return request(RequestCode.END_TRANSACTION, {**write_fields(fields), _BROKER_NAME: broker_name})


async def _state(function: Callable[..., Any], *arguments: Any) -> TransactionState:
    """Call a user's function for the transaction's state, and log its exception."""
    try:
        state: Any = function(*arguments)
        if isawaitable(state):
            state = await state
    except Exception:
        log.exception("a local transaction, or its check, failed")
        return TransactionState.UNKNOWN
    if isinstance(state, TransactionState):
        return state
    log.error("a local transaction, or its check, must return a TransactionState, not %r", state)
    return TransactionState.UNKNOWN
