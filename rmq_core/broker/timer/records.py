"""Decodes records of the timer topic, as far as their delivery needs it.

Source: ``TimerMessageStore#convert``, ``#convertMessage``.
"""

import re
from typing import Final, NamedTuple

from rmq_formats.codecs.damage import DamageCode
from rmq_formats.codecs.layout import PROPERTY_SEPARATOR
from rmq_formats.codecs.properties import decode_properties, encode_properties
from rmq_formats.codecs.record_frame import crc_fault, frame_shape
from rmq_formats.codecs.record_layout import HEADS, SYS_FLAG, host_kind
from rmq_formats.codecs.topics import TIMER_TOPIC

ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
NEVER_TAKEN_IN: Final = (1 << 63) - 1  # TIMER_ENQUEUE_MS of a message that was due when it came
_TOPIC: Final = TIMER_TOPIC.encode()
_END: Final = bytes([PROPERTY_SEPARATOR])
_MAX_DIGITS: Final = 18
# What delivering a message needs of its properties; of a repeated one the last counts.
_WANTED: Final = re.compile(rb"(?:^|\x02)(TIMER_OUT_MS|REAL_TOPIC|REAL_QID|UNIQ_KEY|TIMER_DEL_UNIQKEY)\x01([^\x02]+)")
_REWRITTEN: Final = (b"TIMER_ENQUEUE_MS\x01", b"TIMER_DEQUEUE_MS\x01", b"TIMER_ROLL_TIMES\x01")


class Waiting(NamedTuple):
    """A message that waits in the timer topic.

    Attributes:
        topic: its real topic.
        queue_id: its real queue.
        due_ms: when it is due: the interval's start.
        uniq_key: the producer's id of it; None if it has none.
        recalls: topic and id of the message that it recalls; None if it is a message itself.
        body: a view of the log.
        properties_bytes: encoded, as stored.
        flag: the user's own.
        sys_flag: bits of ``rmq_formats.codecs.layout``.
        born_timestamp_ms: when the producer made it.
        born_host: the producer.
        reconsume_times: how often consuming it failed.
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
        """The properties, decoded anew at each call."""
        return decode_properties(self.properties_bytes)

    @property
    def delete_key(self) -> str:
        """The key under which it is recalled. Source: ``TimerMessageStore#buildDeleteKey``."""
        return delete_key(self.topic, self.uniq_key or "")

    def delivered_properties(self, write_time_ms: int, now_ms: int, *, rolls: bool) -> bytes:
        """The properties with which it is stored again, when it is delivered or rolls.

        Args:
            write_time_ms: when it was enqueued; ``NEVER_TAKEN_IN`` if it was due at once.
            now_ms: the time.
            rolls: whether it rolls.
        """
        found = self.properties_bytes
        if rolls or any(name in found for name in _REWRITTEN):
            properties = self.properties
            if rolls:
                properties[ROLL_TIMES] = str(number(properties.get(ROLL_TIMES)) + 1)
            return encode_properties(properties | {ENQUEUE_MS: str(write_time_ms), DEQUEUE_MS: str(now_ms)})
        if not found.endswith(_END):
            found += _END
        return b"%bTIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02" % (found, write_time_ms, now_ms)


def delete_key(topic: str, uniq_key: str) -> str:
    """The key under which a message is recalled."""
    return f"{topic}+{uniq_key}"


def _recalled(topic: str, text: str | None) -> str | None:
    """The key that a recall names; brokers from 5.4 on leave its topic out."""
    return text if text is None or text.startswith(f"{topic}+") else delete_key(topic, text)


def read_waiting(record: memoryview) -> Waiting | str:
    """Decode a record of the timer topic; or a text that says what is wrong with it."""
    shape = frame_shape(record, 0, None)
    if isinstance(shape, DamageCode):
        return shape.text
    fault = crc_fault(record, shape)
    if fault is not None:
        return fault.text
    if record[shape.topic_at : shape.topic_at + shape.topic_bytes] != _TOPIC:
        return "it is not in the timer topic"
    properties_bytes = bytes(record[shape.properties_at : shape.end])
    found = dict(_WANTED.findall(properties_bytes))
    due, queue_id, topic = found.get(b"TIMER_OUT_MS", b""), found.get(b"REAL_QID", b""), found.get(b"REAL_TOPIC")
    if not (
        due.isdigit() and len(due) <= _MAX_DIGITS and queue_id.isdigit() and len(queue_id) <= _MAX_DIGITS and topic
    ):
        return "it has no valid TIMER_OUT_MS, REAL_TOPIC or REAL_QID"
    uniq_key, recalls = found.get(b"UNIQ_KEY"), found.get(b"TIMER_DEL_UNIQKEY")
    (_, _, _, _, flag, _, _, sys_flag, born_timestamp_ms, born_host, _, _, reconsume_times, _,
     _) = HEADS[host_kind(SYS_FLAG.unpack_from(record)[0])].unpack_from(record)  # fmt: skip
    name = topic.decode("utf-8", "replace")
    return Waiting(
        name, int(queue_id), int(due),
        None if uniq_key is None else uniq_key.decode("utf-8", "replace"),
        _recalled(name, None if recalls is None else recalls.decode("utf-8", "replace")),
        record[shape.body_at : shape.body_at + shape.body_bytes], properties_bytes, flag, sys_flag,
        born_timestamp_ms, born_host, reconsume_times,
    )  # fmt: skip


def number(text: str | None) -> int:
    """Parse a client's number; 0 if it is none, or has more than 18 digits."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else 0
