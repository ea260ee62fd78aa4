"""Ends of transactions: commits and rollbacks of half messages (request codes 37, 323).

``put_message`` stores half messages; ``transaction.check`` checks transactions that have not ended.

Source: ``EndTransactionProcessor``, ``AdminBrokerProcessor#resumeCheckHalfMessage``.
"""

import logging
from typing import Final

from rmq_core.broker.processors.durable_responder import DurableResponder
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import stats
from rmq_core.broker.transaction.half import (
    CHECK_TIMES,
    HalfRecord,
    OpMessageWriter,
    decode_half_record,
    is_transaction,
    put_committed,
    put_half_again,
    real_queue,
)
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler, HandlerResponse
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import EndTransaction, ResumeCheckHalf
from rmq_core.store.results import PutResult, PutStatus
from rmq_formats.codecs import layout
from rmq_formats.codecs.message_id import decode_message_id
from rmq_formats.codecs.properties import parse_decimal
from rmq_formats.errors import DecodeError

log = logging.getLogger("rmq.broker.transactions")
_ILLEGAL: Final = (
    "The message is illegal, maybe msg body or properties length not matched. msg body length limit {}B, "
    "msg properties length limit 32KB."
)
_NOT_RESUMED: Final = "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed."


class EndTransactionProcessor:
    """Handler of END_TRANSACTION."""

    def __init__(self, state: BrokerState, op_messages: OpMessageWriter, responder: DurableResponder) -> None:
        self._state = state
        self._op_messages = op_messages
        self._responder = responder

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.END_TRANSACTION: self.end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume_check,
        }

    def end(self, request: RemotingCommand, connection: Connection) -> HandlerResponse:
        """Commit or roll back a half message (END_TRANSACTION, 37); like the original, ignore an unknown outcome."""
        state, fields = self._state, read_fields(request, EndTransaction)
        if fields.commit_or_rollback not in (layout.FLAG_TRANSACTION_COMMIT, layout.FLAG_TRANSACTION_ROLLBACK):
            log.debug(
                "%(client)s does not know yet what becomes of %(msg_id)s: %(why)s",
                {"client": connection.remote_address, "msg_id": fields.msg_id, "why": request.remark},
            )
            return None
        record = state.store.record(fields.commit_log_offset)
        half = None if record is None else decode_half_record(record)
        if half is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        properties = half.end_properties()
        if not fields.from_transaction_check and self._is_too_late(half, properties):
            return request.response(int(ResponseCode.ILLEGAL_OPERATION))
        if properties.get(layout.PROPERTY_PRODUCER_GROUP) != fields.producer_group:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != fields.tran_state_table_offset:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        if fields.commit_or_rollback == layout.FLAG_TRANSACTION_ROLLBACK:
            self._op_messages.add(half.queue_offset)
            return request.response()
        result = self._commit(half, properties)
        self._op_messages.add(half.queue_offset)
        if self._responder.must_wait:
            return self._responder.respond_when_durable(request, request.response(), result)
        return request.response()

    def _is_too_late(self, half: HalfRecord, properties: dict[str, str]) -> bool:
        """Return whether only a check may end a message with a check time of its own: ``rejectCommitOrRollback``."""
        seconds = properties.get(layout.PROPERTY_CHECK_IMMUNITY_SECONDS)
        if not seconds:
            return False
        immunity_ms = max(parse_decimal(seconds, 0, 15) * 1000, self._state.config.transaction_timeout_ms)
        return self._state.clock_ms.age_ms(half.born_timestamp_ms, half.physical_offset) > immunity_ms

    def _commit(self, half: HalfRecord, properties: dict[str, str]) -> PutResult:
        """Store a committed message in its real topic. Raises ResponseError if it remains a half message."""
        state, queue = self._state, real_queue(properties)
        if queue is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "the half message names no real topic and queue")
        result = put_committed(state, half, properties, queue)
        if result.status is not PutStatus.PUT_OK:
            raise self._error_response(result.status)
        state.stats.count_messages(stats.PUT, queue[0], 1, result.size)
        return result

    def _error_response(self, status: PutStatus) -> ResponseError:
        """Return the error response of a commit. Source: ``EndTransactionProcessor#sendFinalMessage``."""
        if status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
            remark = _ILLEGAL.format(self._state.store.config.max_message_bytes)
            return ResponseError(ResponseCode.MESSAGE_ILLEGAL, remark)
        if status is PutStatus.CREATE_MAPPED_FILE_FAILED:
            return ResponseError(ResponseCode.SYSTEM_ERROR, "Create mapped file failed.")
        if status is PutStatus.SERVICE_NOT_AVAILABLE:
            return ResponseError(ResponseCode.SERVICE_NOT_AVAILABLE, "Service not available now.")
        return ResponseError(ResponseCode.SYSTEM_ERROR, status.value)

    def resume_check(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        fields = read_fields(request, ResumeCheckHalf)
        try:
            half = self._state.store.message(decode_message_id(fields.msg_id or "")[1])
        except DecodeError as error:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{_NOT_RESUMED} {error}") from error
        if half is None or not is_transaction(half.properties):
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{_NOT_RESUMED} No half message has the id {fields.msg_id}")
        result = put_half_again(self._state, half, half.properties | {CHECK_TIMES: "0"})
        if result.status is not PutStatus.PUT_OK:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, _NOT_RESUMED)
        return request.response()
