r"""Codec of message trace records, which clients send to ``RMQ_SYS_TRACE_TOPIC`` for each send and each listener call.

A trace message's body is text: records that each end with ``\x02``, of fields with ``\x01`` between them. Its keys are
the ids and the keys of the messages that it traces.

Source: ``TraceDataEncoder``, ``TraceContext``, ``TraceBean``, ``TraceConstants``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Final

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
        msg_id: unique key of the message.
        timestamp_ms: when the send or call began; of SUB_AFTER when the listener returned.
        keys: keys of the message, with spaces between them.
        store_host: ``host:port`` of the broker.
        body_bytes: size of the body as sent, compressed perhaps.
        retry_times: number of earlier consumptions that failed.
        request_id: shared by SUB_BEFORE and SUB_AFTER of one call.
        transaction_state: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW.
        is_from_check: whether the record is of a broker's transaction check.
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

    def index_keys(self) -> list[str]:
        """Return the keys under which the trace message is indexed."""
        return [self.msg_id, *split_keys(self.keys or "")]


# The fields of each type as they stand in an encoded record, behind the type.
_SENT: Final = ("timestamp_ms", "region_id", "group", "topic", "msg_id", "tags", "keys", "store_host")
_FIELDS: Final[dict[TraceType, tuple[str, ...]]] = {
    TraceType.PUB: (*_SENT, "body_bytes", "cost_ms", "message_type", "offset_msg_id", "is_success"),
    TraceType.SUB_BEFORE: ("timestamp_ms", "region_id", "group", "request_id", "msg_id", "retry_times", "keys"),
    TraceType.SUB_AFTER: (
        "request_id", "msg_id", "cost_ms", "is_success", "keys", "context_code", "timestamp_ms", "group",
    ),
    TraceType.END_TRANSACTION: (*_SENT, "message_type", "transaction_id", "transaction_state", "is_from_check"),
    TraceType.RECALL: ("timestamp_ms", "region_id", "group", "topic", "msg_id", "is_success"),
}  # fmt: skip
_TYPES: Final = {kind.value: kind for kind in TraceType}


def encode_trace(record: TraceRecord) -> str:
    """Encode a record as it stands in the body of a trace message."""
    fields = [_field_text(getattr(record, name)) for name in _FIELDS[record.trace_type]]
    return FIELD_END.join([record.trace_type.value, *fields]) + RECORD_END


def _field_text(value: str | int | None) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return NULL
    return str(value).lower() if isinstance(value, bool) else str(int(value))


def decode_trace(body: bytes) -> list[TraceRecord]:
    """Decode the records of a trace message's body, inflated if it was compressed; unknown types are passed over.

    Raises DecodeError if a record lacks fields, or has bad ones.
    """
    records = []
    for text in body.decode("utf-8", "replace").split(RECORD_END):
        kind, *fields = text.split(FIELD_END)
        if kind in _TYPES:
            try:
                records.append(_decode_record(_TYPES[kind], fields))
            except (IndexError, ValueError) as error:
                raise DecodeError(f"a trace record {kind} of {len(fields)} fields: {error}") from error
    return records


def _decode_record(kind: TraceType, fields: list[str]) -> TraceRecord:
    names = _FIELDS[kind]
    if kind is TraceType.PUB and len(fields) == len(names) - 1:  # older clients send no offset message id
        names = tuple(name for name in names if name != "offset_msg_id")
    if kind is TraceType.SUB_AFTER and len(fields) < len(names):  # nor time and group, nor a context code
        names = names[:6] if len(fields) > 5 else names[:5]
    values: dict[str, Any] = {}
    for number, name in enumerate(names):
        values[name] = _PARSERS.get(name, str)(fields[number])
    return TraceRecord(trace_type=kind, **values)


def _parse_optional(text: str) -> str | None:
    return None if text == NULL else text


def _parse_bool(text: str) -> bool:
    return text == "true"


_PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("timestamp_ms", "body_bytes", "cost_ms", "retry_times", "context_code"), int),
    **dict.fromkeys(("tags", "keys", "offset_msg_id", "transaction_id"), _parse_optional),
    **dict.fromkeys(("is_success", "is_from_check"), _parse_bool),
    "message_type": lambda text: MessageType(int(text)),
}
