"""Trace records of producers. Source: ``SendMessageTraceHookImpl``, ``EndTransactionTraceHookImpl``."""

from collections.abc import Mapping
from typing import Final

from rmq_core.client.message import SendResult, SendStatus
from rmq_core.client.producer.packet import Packet
from rmq_core.client.producer.tracer import Tracer
from rmq_core.remoting.requests import EndTransaction
from rmq_formats.codecs.layout import (
    FLAG_TRANSACTION_COMMIT,
    FLAG_TRANSACTION_ROLLBACK,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
)
from rmq_formats.codecs.properties import decode_properties
from rmq_formats.codecs.trace import DEFAULT_REGION, MessageType, TraceRecord, TraceType

_REGION: Final = "MSG_REGION"
_SWITCH: Final = "TRACE_ON"
_HALF: Final = "TRAN_MSG"
_STATES: Final = {FLAG_TRANSACTION_COMMIT: "COMMIT_MESSAGE", FLAG_TRANSACTION_ROLLBACK: "ROLLBACK_MESSAGE"}
_UNKNOWN: Final = "UNKNOW"


def trace_sent(
    tracer: Tracer,
    group: str,
    packet: Packet,
    result: SendResult,
    answer: Mapping[str, str],
    address: str,
    cost_ms: int,
) -> None:
    """Trace a send that was answered; the broker may have switched traces off.

    Args:
        tracer: takes the record.
        group: of the producer.
        packet: what was sent.
        result: its result.
        answer: the fields of the broker's answer.
        address: the broker's.
        cost_ms: how long it took.
    """
    if answer.get(_SWITCH) == "false":
        return
    properties = decode_properties(packet.properties)
    tracer.put(
        TraceRecord(
            trace_type=TraceType.PUB, timestamp_ms=tracer.clock_ms() - cost_ms,
            region_id=answer.get(_REGION) or DEFAULT_REGION, group=group, topic=packet.topic, msg_id=result.msg_id,
            tags=properties.get(PROPERTY_TAGS),
            keys=properties.get(PROPERTY_KEYS), store_host=address, body_bytes=len(packet.body), cost_ms=cost_ms,
            message_type=_type_of(properties), offset_msg_id=result.offset_msg_id,
            is_success=result.status is SendStatus.SEND_OK,
        )
    )  # fmt: skip


def _type_of(properties: Mapping[str, str]) -> MessageType:
    """Return the message type of a send for its trace. Source: ``DefaultMQProducerImpl#sendKernelImpl``."""
    if PROPERTY_DELAY in properties:
        return MessageType.DELAY
    return MessageType.HALF if properties.get(_HALF) == "true" else MessageType.NORMAL


def trace_ended(tracer: Tracer, fields: EndTransaction, properties: Mapping[str, str], address: str) -> None:
    """Trace the end of a transaction, before the request to the broker.

    Args:
        tracer: takes the record.
        fields: of END_TRANSACTION.
        properties: of the half message.
        address: the broker's.
    """
    tracer.put(
        TraceRecord(
            trace_type=TraceType.END_TRANSACTION, timestamp_ms=tracer.clock_ms(),
            region_id=properties.get(_REGION) or DEFAULT_REGION, group=fields.producer_group, topic=fields.topic or "",
            msg_id=fields.msg_id, tags=properties.get(PROPERTY_TAGS), keys=properties.get(PROPERTY_KEYS),
            store_host=address, message_type=MessageType.COMMIT, transaction_id=fields.transaction_id,
            transaction_state=_STATES.get(fields.commit_or_rollback, _UNKNOWN),
            is_from_check=fields.from_transaction_check,
        )
    )  # fmt: skip
