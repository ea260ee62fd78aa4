"""Message trace: collects a client's trace records and sends them in batches; a full buffer drops records.

Source: ``AsyncTraceDispatcher``, ``SendMessageTraceHookImpl``, ``ConsumeMessageTraceHookImpl``,
``EndTransactionTraceHookImpl``.
"""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from inspect import isawaitable
from typing import Any, Final

from rmq_core.client.listener import Later, Listener
from rmq_core.client.message import Message, ReceivedMessage, SendResult, SendStatus
from rmq_core.client.producer.packet import Packet
from rmq_core.remoting.requests import EndTransaction
from rmq_core.remoting.uniq_key import UniqKeys
from rmq_formats.codecs.layout import (
    FLAG_TRANSACTION_COMMIT,
    FLAG_TRANSACTION_ROLLBACK,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_MSG_REGION,
    PROPERTY_TAGS,
    PROPERTY_TRACE_SWITCH,
    PROPERTY_TRANSACTION_PREPARED,
)
from rmq_formats.codecs.properties import decode_properties
from rmq_formats.codecs.trace import DEFAULT_REGION, ContextCode, MessageType, TraceRecord, TraceType, encode_trace

log = logging.getLogger("rmq.client")
_MAX_WAITING: Final = 2048
_RECORDS_PER_FLUSH: Final = 10  # DefaultMQProducer#traceMsgBatchNum
_FLUSH_INTERVAL_S: Final = 5.0
_CLOSE_S: Final = 5.0
_MAX_BODY_CHARS: Final = 128_000
_MAX_RECORDS: Final = 100  # records of a trace message, whose keys must fit into its properties
SEND_TIMEOUT_S: Final = 5.0
GROUP_PREFIX: Final = "_INNER_TRACE_PRODUCER"
_STATES: Final = {FLAG_TRANSACTION_COMMIT: "COMMIT_MESSAGE", FLAG_TRANSACTION_ROLLBACK: "ROLLBACK_MESSAGE"}
_UNKNOWN: Final = "UNKNOW"


class Tracer:
    """Buffer and sender of a client's trace records; ``dropped_count`` counts dropped records."""

    def __init__(self, topic: str, send: Callable[[Message], Awaitable[object]], clock_ms: Callable[[], int]) -> None:
        self.topic = topic
        self.clock_ms = clock_ms
        self.dropped_count = 0
        self._send = send
        self._waiting: deque[TraceRecord] = deque()
        self._wake = asyncio.Event()
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start sending, on the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Send the remaining records within some seconds, and stop."""
        self._is_closing = True
        self._wake.set()
        if self._task is not None:
            try:
                await asyncio.wait_for(self._task, _CLOSE_S)
            except TimeoutError:
                log.warning("traces are not all sent to %s: no answer in %g s", self.topic, _CLOSE_S)

    def put(self, record: TraceRecord) -> None:
        """Add a trace record."""
        if len(self._waiting) >= _MAX_WAITING:
            self.dropped_count += 1
            return
        self._waiting.append(record)
        if len(self._waiting) >= _RECORDS_PER_FLUSH:
            self._wake.set()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _FLUSH_INTERVAL_S)
            self._wake.clear()
            await self._flush()
            if self._is_closing and not self._waiting:
                return

    async def _flush(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        by_topic: dict[str, list[TraceRecord]] = defaultdict(list)
        for record in waiting:
            by_topic[record.topic].append(record)
        for records in by_topic.values():
            for message in trace_messages(self.topic, records):
                try:
                    await self._send(message)
                except Exception as error:  # any error: messages matter more than their traces
                    log.warning("traces cannot be sent to %s: %s", self.topic, error)


def trace_messages(topic: str, records: list[TraceRecord]) -> list[Message]:
    """Encode trace records as messages to the trace topic, bounded in size and in number of keys."""
    messages, texts, keys = [], list[str](), dict[str, None]()

    def end() -> None:
        if texts:
            messages.append(Message(topic, "".join(texts).encode("utf-8", "replace"), keys=list(keys)))
            texts.clear()
            keys.clear()

    for record in records:
        text = encode_trace(record)
        if len(texts) >= _MAX_RECORDS or sum(map(len, texts)) + len(text) > _MAX_BODY_CHARS:
            end()
        texts.append(text)
        keys.update(dict.fromkeys(record.index_keys()))
    end()
    return messages


def traced(listener: Listener, group: str, tracer: Tracer, timeout_s: float) -> Listener:
    """Wrap a listener so that its calls are traced; a call longer than ``timeout_s`` counts as timed out."""
    ids = UniqKeys()

    async def call(messages: list[ReceivedMessage]) -> Later | None:
        traced_messages = [
            message
            for message in messages
            if message.properties.get(PROPERTY_TRACE_SWITCH) != "false" and PROPERTY_MSG_REGION in message.properties
        ]
        message_count = len(messages)
        request_id, begin_ms = ids.next(tracer.clock_ms()), tracer.clock_ms()
        for message in traced_messages:
            tracer.put(
                _record(message, group, request_id, TraceType.SUB_BEFORE, begin_ms, retry_times=message.reconsume_times)
            )
        code = ContextCode.EXCEPTION
        try:
            response: Any = listener(messages)
            if response is not None and isawaitable(response):
                response = await response
            code = ContextCode.SUCCESS if response is None else ContextCode.FAILED
            return response  # type: ignore[no-any-return] # whoever called looks at what it is
        finally:
            end_ms = tracer.clock_ms()
            if code is not ContextCode.EXCEPTION and end_ms - begin_ms >= timeout_s * 1000:
                code = ContextCode.TIME_OUT
            result = {
                "cost_ms": (end_ms - begin_ms) // message_count,
                "context_code": code,
                "is_success": code is ContextCode.SUCCESS,
            }
            for message in traced_messages:
                tracer.put(_record(message, group, request_id, TraceType.SUB_AFTER, end_ms, **result))

    return call


def _record(
    message: ReceivedMessage, group: str, request_id: str, trace_type: TraceType, timestamp_ms: int, **fields: Any
) -> TraceRecord:
    return TraceRecord(
        trace_type=trace_type,
        timestamp_ms=timestamp_ms,
        region_id=message.properties[PROPERTY_MSG_REGION],
        group=group,
        topic=message.topic,
        request_id=request_id,
        msg_id=message.msg_id,
        keys=message.properties.get(PROPERTY_KEYS),
        **fields,
    )


def trace_sent(
    tracer: Tracer,
    group: str,
    packet: Packet,
    result: SendResult,
    response: Mapping[str, str],
    address: str,
    cost_ms: int,
) -> None:
    """Trace a send by the fields of the broker's response, unless the broker has switched traces off."""
    if response.get(PROPERTY_TRACE_SWITCH) == "false":
        return
    properties = decode_properties(packet.properties)
    tracer.put(
        TraceRecord(
            trace_type=TraceType.PUB,
            timestamp_ms=tracer.clock_ms() - cost_ms,
            region_id=response.get(PROPERTY_MSG_REGION) or DEFAULT_REGION,
            group=group,
            topic=packet.topic,
            msg_id=result.msg_id,
            tags=properties.get(PROPERTY_TAGS),
            keys=properties.get(PROPERTY_KEYS),
            store_host=address,
            body_bytes=len(packet.body),
            cost_ms=cost_ms,
            message_type=_type_of(properties),
            offset_msg_id=result.offset_msg_id,
            is_success=result.status is SendStatus.SEND_OK,
        )
    )


def _type_of(properties: Mapping[str, str]) -> MessageType:
    """Return the message type of a send for its trace. Source: ``DefaultMQProducerImpl#sendKernelImpl``."""
    if PROPERTY_DELAY in properties:
        return MessageType.DELAY
    return MessageType.HALF if properties.get(PROPERTY_TRANSACTION_PREPARED) == "true" else MessageType.NORMAL


def trace_ended(tracer: Tracer, fields: EndTransaction, properties: Mapping[str, str], address: str) -> None:
    """Trace the end of a transaction, before the request to the broker; the properties are the half message's."""
    tracer.put(
        TraceRecord(
            trace_type=TraceType.END_TRANSACTION,
            timestamp_ms=tracer.clock_ms(),
            region_id=properties.get(PROPERTY_MSG_REGION) or DEFAULT_REGION,
            group=fields.producer_group,
            topic=fields.topic or "",
            msg_id=fields.msg_id,
            tags=properties.get(PROPERTY_TAGS),
            keys=properties.get(PROPERTY_KEYS),
            store_host=address,
            message_type=MessageType.COMMIT,
            transaction_id=fields.transaction_id,
            transaction_state=_STATES.get(fields.commit_or_rollback, _UNKNOWN),
            is_from_check=fields.from_transaction_check,
        )
    )
