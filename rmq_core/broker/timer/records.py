"""Decoders of records that the broker has read from its own store: those of the timer topic, and whole ones.

Source: ``TimerMessageStore#convert``, ``#convertMessage``.
"""

import logging
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from rmq_core.store.results import split_records
from rmq_formats.codecs.layout import PROPERTY_SEPARATOR
from rmq_formats.codecs.properties import decode_properties, encode_properties, parse_decimal
from rmq_formats.codecs.record import StoredMessage, decode_record
from rmq_formats.codecs.record_frame import DamageCode, crc_fault, frame_shape
from rmq_formats.codecs.record_layout import HEADS, SYS_FLAG, host_kind
from rmq_formats.codecs.topics import TIMER_TOPIC
from rmq_formats.errors import FormatError

ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
NEVER_ENQUEUED: Final = (1 << 63) - 1  # TIMER_ENQUEUE_MS of a message that was due on arrival
_TOPIC: Final = TIMER_TOPIC.encode()
_END: Final = bytes([PROPERTY_SEPARATOR])
_MAX_DIGITS: Final = 18
# The properties used by the delivery; the last of equal names counts.
_DELIVERY_PROPERTIES: Final = re.compile(
    rb"(?:^|\x02)(TIMER_OUT_MS|REAL_TOPIC|REAL_QID|UNIQ_KEY|TIMER_DEL_UNIQKEY)\x01([^\x02]+)"
)
_REWRITTEN: Final = (b"TIMER_ENQUEUE_MS\x01", b"TIMER_DEQUEUE_MS\x01", b"TIMER_ROLL_TIMES\x01")
log = logging.getLogger("rmq.broker")


class TimerRecord(NamedTuple):
    """Message in the timer topic.

    Attributes:
        topic: real topic, as the queue is.
        due_ms: start of the interval in which the message is due.
        recalls: topic and id of the recalled message; None unless this is a recall.
        body: a view of the log.
        properties_bytes: encoded, as stored.
        sys_flag: bits of ``rmq_formats.codecs.layout``.
    """

    topic: str
    queue_id: int
    due_ms: int
    uniq_key: str | None
    recalls: str | None
    body: memoryview
    properties_bytes: bytes
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: bytes
    reconsume_times: int

    @property
    def properties(self) -> dict[str, str]:
        return decode_properties(self.properties_bytes)

    @property
    def delete_key(self) -> str:
        """Key of a recall of the message. Source: ``TimerMessageStore#buildDeleteKey``."""
        return delete_key(self.topic, self.uniq_key or "")

    def delivered_properties(self, write_time_ms: int, now_ms: int, *, rolls: bool) -> bytes:
        """Return the properties of the copy stored on delivery or roll; ``NEVER_ENQUEUED`` if due on arrival."""
        encoded = self.properties_bytes
        if rolls or any(name in encoded for name in _REWRITTEN):
            properties = self.properties
            if rolls:
                properties[ROLL_TIMES] = str(parse_decimal(properties.get(ROLL_TIMES), 0) + 1)
            return encode_properties(properties | {ENQUEUE_MS: str(write_time_ms), DEQUEUE_MS: str(now_ms)})
        if not encoded.endswith(_END):
            encoded += _END
        return b"%bTIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02" % (encoded, write_time_ms, now_ms)


def delete_key(topic: str, uniq_key: str) -> str:
    """Return the key of a recall of a message."""
    return f"{topic}+{uniq_key}"


def _recalled_key(topic: str, text: str | None) -> str | None:
    """Return the key that a recall names; brokers from 5.4 on omit its topic."""
    return text if text is None or text.startswith(f"{topic}+") else delete_key(topic, text)


def decode_timer_record(record: memoryview) -> TimerRecord | str:
    """Decode a record of the timer topic, or return a description of the error."""
    shape = frame_shape(record, 0, None)
    if isinstance(shape, DamageCode):
        return shape.text
    fault = crc_fault(record, shape)
    if fault is not None:
        return fault.text
    if record[shape.topic_at : shape.topic_at + shape.topic_bytes] != _TOPIC:
        return "it is not in the timer topic"
    properties_bytes = bytes(record[shape.properties_at : shape.end])
    properties = dict(_DELIVERY_PROPERTIES.findall(properties_bytes))
    due, queue_id = properties.get(b"TIMER_OUT_MS", b""), properties.get(b"REAL_QID", b"")
    topic = properties.get(b"REAL_TOPIC")
    if not topic or not all(number.isdigit() and len(number) <= _MAX_DIGITS for number in (due, queue_id)):
        return "it has no valid TIMER_OUT_MS, REAL_TOPIC or REAL_QID"
    uniq_key, recalls = properties.get(b"UNIQ_KEY"), properties.get(b"TIMER_DEL_UNIQKEY")
    (_, _, _, _, flag, _, _, sys_flag, born_timestamp_ms, born_host, _, _, reconsume_times, _,
     _) = HEADS[host_kind(SYS_FLAG.unpack_from(record)[0])].unpack_from(record)  # fmt: skip
    name = topic.decode("utf-8", "replace")
    return TimerRecord(
        name,
        int(queue_id),
        int(due),
        None if uniq_key is None else uniq_key.decode("utf-8", "replace"),
        _recalled_key(name, None if recalls is None else recalls.decode("utf-8", "replace")),
        record[shape.body_at : shape.body_at + shape.body_bytes],
        properties_bytes,
        flag,
        sys_flag,
        born_timestamp_ms,
        born_host,
        reconsume_times,
    )


def stored_messages(slices: list[memoryview]) -> Iterator[StoredMessage]:
    """Decode consecutive records, as ``MessageStore.get`` returns them; damaged records are logged and skipped."""
    for record in split_records(slices):
        try:
            yield decode_record(record)
        except FormatError as error:
            log.error("a message is damaged: %(error)s", {"error": error})
