r"""Codec of message trace records, which clients send to ``RMQ_SYS_TRACE_TOPIC`` for each send and each listener call.

A trace message's body is text: records that each end with ``\x02``, of fields with ``\x01`` between them. Its keys are
the ids and the keys of the messages that it traces.

Source: ``TraceDataEncoder``, ``TraceContext``, ``TraceBean``, ``TraceConstants``.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from rmq_formats.codecs.properties import split_keys
from rmq_formats.errors import DecodeError

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
DEFAULT_REGION: Final = "DefaultRegion"
FIELD_END: Final = "\x01"
RECORD_END: Final = "\x02"
NULL: Final = "null"  # text of null by Java's StringBuilder


class TraceType(Enum):
    """Type of a trace record."""

    PUB = "Pub"  # a message was sent
    SUB_BEFORE = "SubBefore"  # a listener is called
    SUB_AFTER = "SubAfter"  # it has returned
    END_TRANSACTION = "EndTransaction"
    RECALL = "Recall"


class MessageType(IntEnum):
    """Type of the message that was sent."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


class ContextCode(IntEnum):
    """Result of a listener call. Source: ``ConsumeReturnType``."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRecord:
    """One trace record. Fields that its type does not have keep their defaults.

    Attributes:
        msg_id: of the message: its unique key.
        timestamp_ms: when the send or call began; of SUB_AFTER when the listener returned.
        group: of producers or consumers.
        keys: its keys, with spaces between them.
        store_host: ``host:port`` of the broker.
        body_bytes: as sent, compressed perhaps.
        request_id: what SUB_BEFORE and SUB_AFTER of one call share.
        retry_times: how often consuming the message had failed.
        context_code: result of a listener call.
        transaction_state: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW.
        is_from_check: whether it answers a broker's transaction check.
    """

    trace_type: TraceType
    msg_id: str
    timestamp_ms: int = 0
    region_id: str = ""
    group: str = ""
    topic: str = ""
    tags: str | None = None
    keys: str | None = None
    store_host: str = ""
    body_bytes: int = 0
    cost_ms: int = 0
    message_type: MessageType = MessageType.NORMAL
    offset_msg_id: str | None = None
    is_success: bool = True
    request_id: str = ""
    retry_times: int = 0
    context_code: int = 0
    transaction_id: str | None = None
    transaction_state: str = ""
    is_from_check: bool = False

    def fields(self) -> list[str]:
        """Return the fields as they stand in an encoded record, without the type."""
        head = [str(self.timestamp_ms), self.region_id, self.group]
        message = [self.topic, self.msg_id, _text(self.tags), _text(self.keys), self.store_host]
        kind = str(int(self.message_type))
        match self.trace_type:
            case TraceType.PUB:
                sent = [
                    str(self.body_bytes),
                    str(self.cost_ms),
                    kind,
                    _text(self.offset_msg_id),
                    _bool(self.is_success),
                ]
                return head + message + sent
            case TraceType.SUB_BEFORE:
                return [*head, self.request_id, self.msg_id, str(self.retry_times), _text(self.keys)]
            case TraceType.SUB_AFTER:
                return [
                    self.request_id, self.msg_id, str(self.cost_ms), _bool(self.is_success), _text(self.keys),
                    str(self.context_code), str(self.timestamp_ms), self.group,
                ]  # fmt: skip
            case TraceType.END_TRANSACTION:
                ended = [kind, _text(self.transaction_id), self.transaction_state, _bool(self.is_from_check)]
                return head + message + ended
            case TraceType.RECALL:
                return [*head, self.topic, self.msg_id, _bool(self.is_success)]

    def index_keys(self) -> list[str]:
        """Return the keys under which the trace message is indexed."""
        return [self.msg_id, *split_keys(self.keys or "")]


def _text(value: str | None) -> str:
    return NULL if value is None else value


def _bool(value: bool) -> str:
    return "true" if value else "false"


def encode_trace(record: TraceRecord) -> str:
    """Encode a record as it stands in the body of a trace message."""
    return FIELD_END.join([record.trace_type.value, *record.fields()]) + RECORD_END


def decode_trace(body: bytes) -> list[TraceRecord]:
    """Decode the records of a trace message's body, inflated if it was compressed; unknown types are passed over.

    Raises:
        DecodeError: a record lacks fields, or has bad ones.
    """
    contexts = []
    for text in body.decode("utf-8", "replace").split(RECORD_END):
        kind, *fields = text.split(FIELD_END)
        if kind in _READERS:
            try:
                contexts.append(_READERS[kind](fields))
            except (IndexError, ValueError) as error:
                raise DecodeError(f"a trace record {kind} of {len(fields)} fields: {error}") from error
    return contexts


def _pub(fields: list[str]) -> TraceRecord:
    is_old = len(fields) == 12  # older clients send no offset message id
    return TraceRecord(
        trace_type=TraceType.PUB,
        timestamp_ms=int(fields[0]),
        region_id=fields[1],
        group=fields[2],
        topic=fields[3],
        msg_id=fields[4],
        tags=_value(fields[5]),
        keys=_value(fields[6]),
        store_host=fields[7],
        body_bytes=int(fields[8]),
        cost_ms=int(fields[9]),
        message_type=MessageType(int(fields[10])),
        offset_msg_id=None if is_old else _value(fields[11]),
        is_success=fields[11 if is_old else 12] == "true",
    )


def _sub_before(fields: list[str]) -> TraceRecord:
    return TraceRecord(
        trace_type=TraceType.SUB_BEFORE,
        timestamp_ms=int(fields[0]),
        region_id=fields[1],
        group=fields[2],
        request_id=fields[3],
        msg_id=fields[4],
        retry_times=int(fields[5]),
        keys=_value(fields[6]),
    )


def _sub_after(fields: list[str]) -> TraceRecord:
    has_end = len(fields) >= 8  # newer clients add time and host
    return TraceRecord(
        trace_type=TraceType.SUB_AFTER,
        request_id=fields[0],
        msg_id=fields[1],
        cost_ms=int(fields[2]),
        is_success=fields[3] == "true",
        keys=_value(fields[4]),
        context_code=int(fields[5]) if fields[5:6] else 0,
        timestamp_ms=int(fields[6]) if has_end else 0,
        group=fields[7] if has_end else "",
    )


def _end_transaction(fields: list[str]) -> TraceRecord:
    return TraceRecord(
        trace_type=TraceType.END_TRANSACTION,
        timestamp_ms=int(fields[0]),
        region_id=fields[1],
        group=fields[2],
        topic=fields[3],
        msg_id=fields[4],
        tags=_value(fields[5]),
        keys=_value(fields[6]),
        store_host=fields[7],
        message_type=MessageType(int(fields[8])),
        transaction_id=_value(fields[9]),
        transaction_state=fields[10],
        is_from_check=fields[11] == "true",
    )


def _recall(fields: list[str]) -> TraceRecord:
    return TraceRecord(
        trace_type=TraceType.RECALL,
        timestamp_ms=int(fields[0]),
        region_id=fields[1],
        group=fields[2],
        topic=fields[3],
        msg_id=fields[4],
        is_success=fields[5] == "true",
    )


_READERS: Final = {
    TraceType.PUB.value: _pub,
    TraceType.SUB_BEFORE.value: _sub_before,
    TraceType.SUB_AFTER.value: _sub_after,
    TraceType.END_TRANSACTION.value: _end_transaction,
    TraceType.RECALL.value: _recall,
}


def _value(text: str) -> str | None:
    return None if text == NULL else text
