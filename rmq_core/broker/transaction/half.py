"""Half messages: redirection to the half topic, storage of new copies and of committed messages, and op messages.

Op messages record ended half messages in batches. ``decode_half_record`` has
``rmq_formats.codecs.record.decode_record`` for its oracle: the same values, several times as slow.

Source: ``TransactionalMessageBridge``, ``EndTransactionProcessor#endMessageTransaction``,
``TransactionalOpBatchService``, ``TransactionalMessageServiceImpl#deletePrepareMessage``.
"""

import logging
import re
from collections import deque
from struct import error as StructError  # a class by its lower-case name
from typing import Final, NamedTuple

from isal import isal_zlib

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names
from rmq_core.broker.tables.timer_admission import is_timer
from rmq_core.store.results import PutResult, PutStatus
from rmq_formats.codecs import layout
from rmq_formats.codecs.properties import decode_properties, encode_properties, parse_decimal
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.codecs.record_frame import CRC_MASK
from rmq_formats.codecs.record_layout import HEAD_BYTES, HEADS, PROPERTIES_LENGTH, SYS_FLAG, TOPIC_LENGTH, host_kind

HALF_QUEUE: Final = 0  # the only queue of the half topic, and of the op topic
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
_TOPIC: Final = TOPIC_LENGTH[layout.MAGIC_V1].pack(len(names.HALF_TOPIC)) + names.HALF_TOPIC.encode()
_SEPARATOR: Final = bytes([layout.PROPERTY_SEPARATOR])
# After a separator: faster than an alternative with the beginning.
_END_PROPERTIES: Final = re.compile(
    rb"\x02(PGROUP|REAL_TOPIC|REAL_QID|CHECK_IMMUNITY_TIME_IN_SECONDS|TIMER_\w+)\x01([^\x02]+)"
)
log = logging.getLogger("rmq.broker.transactions")
OP_TAG: Final = "d"
_OP_PROPERTIES: Final = encode_properties({layout.PROPERTY_TAGS: OP_TAG, layout.PROPERTY_WAIT: "true"})


class HalfRecord(NamedTuple):
    """The fields of a stored half message; ``born_host`` has 8 or 20 bytes, ``body`` is a slice of the mapped log."""

    physical_offset: int
    queue_offset: int
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: bytes
    reconsume_times: int
    body: memoryview
    properties_bytes: bytes

    def end_properties(self) -> dict[str, str]:
        """Return the properties used at the end of a transaction."""
        matches = _END_PROPERTIES.findall(_SEPARATOR + self.properties_bytes)
        return {name.decode(): value.decode("utf-8", "replace") for name, value in matches}

    @property
    def properties(self) -> dict[str, str]:
        return decode_properties(self.properties_bytes)


def decode_half_record(record: memoryview) -> HalfRecord | None:
    """Decode a record, as ``MessageStore.record`` returns it, as a half message; None for damage or another record."""
    kind = host_kind(SYS_FLAG.unpack_from(record)[0])
    try:
        (_, _, crc, _, flag, queue_offset, physical_offset, sys_flag, born_ms, born_host, _, _, reconsume_times, _,
         body_bytes) = HEADS[kind].unpack_from(record)  # fmt: skip
        body_at = HEAD_BYTES[kind]
        topic_at = body_at + body_bytes
        length_at = topic_at + len(_TOPIC)
        properties_at = length_at + PROPERTIES_LENGTH.size
        if body_bytes <= 0 or record[topic_at:length_at] != _TOPIC:
            return None
        if properties_at + PROPERTIES_LENGTH.unpack_from(record, length_at)[0] != len(record):
            return None
    except StructError:  # a length is wrong
        return None
    body = record[body_at:topic_at]
    if isal_zlib.crc32(body) & CRC_MASK != crc:
        return None
    return HalfRecord(
        physical_offset,
        queue_offset,
        flag,
        sys_flag,
        born_ms,
        born_host,
        reconsume_times,
        body,
        bytes(record[properties_at:]),
    )


def is_transaction(properties: dict[str, str]) -> bool:
    """Return whether a message's properties mark a half message."""
    return properties.get(layout.PROPERTY_TRANSACTION_PREPARED, "").lower() == "true"


def redirect_to_half(topic: str, queue_id: int, properties: dict[str, str]) -> tuple[str, int]:
    """Return the topic and queue of half messages; add the real topic and queue to the properties.

    A delay is removed, as by Java's producer: in the original it would replace the real topic.
    """
    properties.pop(layout.PROPERTY_DELAY, None)
    properties["__transactionId__"] = properties[layout.PROPERTY_UNIQ_KEY]
    properties[layout.PROPERTY_REAL_TOPIC] = topic
    properties[layout.PROPERTY_REAL_QUEUE_ID] = str(queue_id)
    return names.HALF_TOPIC, HALF_QUEUE


def real_queue(properties: dict[str, str]) -> tuple[str, int] | None:
    """Return the real topic and queue of a half message; None without one."""
    topic = properties.get(layout.PROPERTY_REAL_TOPIC, "")
    queue_id = parse_decimal(properties.get(layout.PROPERTY_REAL_QUEUE_ID), None, 10)
    return (topic, queue_id) if topic and queue_id is not None else None


def put_committed(
    state: BrokerState, half: HalfRecord, end_properties: dict[str, str], queue: tuple[str, int]
) -> PutResult:
    """Store a committed message in its real topic, or as a timer message if it has a delivery time.

    The properties are unchanged, as in the original, unless the message waits. Raises ResponseError.
    """
    encoded = half.properties_bytes
    if is_timer(queue[0], end_properties):
        properties = half.properties
        queue = state.timers.redirect(*queue, properties)
        encoded = encode_properties(properties)
    return state.store.appender.put(
        *queue,
        half.body,
        encoded,
        half.born_timestamp_ms,
        half.born_host,
        state.clock_ms(),
        flag=half.flag,
        sys_flag=half.sys_flag & ~layout.FLAG_TRANSACTION_MASK | layout.FLAG_TRANSACTION_COMMIT,
        reconsume_times=half.reconsume_times,
        prepared_transaction_offset=half.physical_offset,
    )


def put_half_again(
    state: BrokerState, half: StoredMessage, properties: dict[str, str], topic: str = names.HALF_TOPIC
) -> PutResult:
    """Store a half message again, at the end of the queue, in place of the old one, or in a topic of discarded ones.

    The flag remains, unlike in the original. If the properties are too long, the old ones remain.
    """
    queue = topic, HALF_QUEUE
    result = state.put_copy(half, queue, encode_properties(properties), state.clock_ms())
    if result.status.is_permanent:
        return state.put_copy(half, queue, half.properties_bytes, state.clock_ms())
    return result


class OpMessageWriter:
    """Pending op messages of ended half messages; after a crash, lost ones are checked again with their producers."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._host = state.store_host.to_bytes()
        self._pending: dict[int, None] = {}  # half messages, in the order in which they were ended
        self._bytes = 0
        self._unread: deque[tuple[int, set[int]]] = deque()  # op messages not readable yet: offset, half messages

    def add(self, half_offset: int) -> None:
        """Record an ended half message, by its queue offset."""
        if half_offset in self._pending:
            return
        self._pending[half_offset] = None
        self._bytes += len(str(half_offset)) + 1
        if self._bytes >= self._state.config.transaction_op_max_bytes:
            self.write()

    def has(self, half_offset: int) -> bool:
        """Return whether a half message is ended by an op message that is not readable yet."""
        return half_offset in self._pending or any(half_offset in offsets for _, offsets in self._unread)

    def write(self) -> None:
        """Write op messages of all pending half messages; refused ones remain pending."""
        store = self._state.store
        readable = store.max_offset(names.OP_HALF_TOPIC, HALF_QUEUE)
        while self._unread and self._unread[0][0] < readable:
            self._unread.popleft()
        while self._pending:
            offsets, body = self._next_op_message()
            now_ms = self._state.clock_ms()
            result = store.appender.put(
                names.OP_HALF_TOPIC, HALF_QUEUE, body, _OP_PROPERTIES, now_ms, self._host, now_ms
            )
            if result.status is not PutStatus.PUT_OK:
                log.error("op messages of transactions cannot be stored now: %(why)s", {"why": result.status.value})
                return
            for offset in offsets:
                del self._pending[offset]
            self._bytes -= len(body)
            self._unread.append((result.queue_offset, offsets))

    def _next_op_message(self) -> tuple[set[int], bytes]:
        """Return the half messages of the next op message, and its body."""
        offsets, body, max_bytes = set(), bytearray(), self._state.config.transaction_op_max_bytes
        for offset in self._pending:
            if len(body) >= max_bytes:
                break
            offsets.add(offset)
            body += b"%d," % offset
        return offsets, bytes(body)
