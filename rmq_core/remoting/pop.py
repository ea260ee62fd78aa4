"""Texts of POP on the wire: receipt handles, offsets of popped messages, names of retry topics.

Source: ``ExtraInfoUtil``, ``KeyBuilder``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from rmq_formats.codecs.topics import RETRY_PREFIX

FIRST_POP_TIME: Final = "1ST_POP_TIME"
IN_ORDER: Final = 999  # revive queue id of messages that are popped in order
MOST_MESSAGES: Final = 32  # in one response to a pop: a check point has a bit for each
MOST_INVISIBLE_MS: Final = 3 * 86_400_000  # maximum delay of a timer message, which a check point is
_V2_SEPARATOR: Final = "+"
_MAX_CHARS: Final = 1024
# One expression, as each acknowledgement has a handle: parsing part by part takes three times as long.
_HANDLE: Final = re.compile(r"([0-9]{1,19}) " * 5 + r"([^ ]*) ([0-9]{1,19}) ([0-9]{1,19})(?= |\Z)")
_MAX_LONG: Final = (1 << 63) - 1


class TopicKind(IntEnum):
    """Kind of a popped topic: the topic itself, or a retry topic of the topic and the group."""

    NORMAL = 0
    RETRY_V1 = 1
    RETRY_V2 = 2


def retry_topic(group: str, topic: str, kind: TopicKind) -> str:
    """Return the name of the topic that messages of a kind are popped from."""
    if kind is TopicKind.NORMAL:
        return topic
    return f"{RETRY_PREFIX}{group}{'_' if kind is TopicKind.RETRY_V1 else _V2_SEPARATOR}{topic}"


def kind_of(topic: str) -> TopicKind:
    """Return the kind of a topic that messages are popped from."""
    if not topic.startswith(RETRY_PREFIX):
        return TopicKind.NORMAL
    return TopicKind.RETRY_V2 if _V2_SEPARATOR in topic else TopicKind.RETRY_V1


def normal_topic(topic: str, group: str) -> str:
    """Return the topic of a group's retry topic; other topics are returned unchanged."""
    for kind in (TopicKind.RETRY_V1, TopicKind.RETRY_V2):
        prefix = retry_topic(group, "", kind)
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return topic


class PopHandle(NamedTuple):
    """Receipt handle of a popped message, for its acknowledgement.

    Attributes:
        start_offset: queue offset of the first message of the check point.
        pop_time_ms: time of the pop, ms since 1970.
        invisible_ms: time from the pop for which other consumers do not get the message.
        revive_queue_id: queue of the check point and acknowledgements; IN_ORDER if the message was popped in order.
        kind: kind of the popped topic.
        broker_name: name of the broker of the message.
        queue_id: queue of the message.
        offset: queue offset of the message.
    """

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue_id: int
    kind: TopicKind
    broker_name: str
    queue_id: int
    offset: int

    @property
    def visible_ms(self) -> int:
        """Time when other consumers may get the message, unless the message is acknowledged before."""
        return self.pop_time_ms + self.invisible_ms

    def encode(self) -> str:
        """Encode the handle as ``ExtraInfoUtil#buildExtraInfo`` does."""
        start, pop_time_ms, invisible_ms, revive, kind, broker, queue_id, offset = self
        return f"{start} {pop_time_ms} {invisible_ms} {revive} {kind:d} {broker} {queue_id} {offset}"

    @classmethod
    def decode(cls, text: str) -> "PopHandle":
        """Parse a handle; the parts that proxies append are ignored.

        Raises:
            ValueError: the text is no receipt handle.
        """
        match = _HANDLE.match(text) if len(text) <= _MAX_CHARS else None
        if match is None:
            raise ValueError(f"Parse failed, {text[:100]!r} is no receipt handle")
        start, pop_time, invisible, revive, kind, broker, queue_id, offset = match.groups()
        numbers = int(start), int(pop_time), int(invisible), int(revive), int(queue_id), int(offset)
        if max(numbers) > _MAX_LONG:
            raise ValueError(f"Parse failed, {max(numbers)} is too large a number")
        return cls(*numbers[:4], TopicKind(int(kind)), broker, *numbers[4:])


QueueOffsets = Mapping[tuple[TopicKind, int], Sequence[int]]
"""Queue offsets by kind of topic and queue id."""


def encode_starts(starts: Iterable[tuple[TopicKind, int, int]]) -> str:
    """Encode ``startOffsetInfo``: kind, queue id and start offset of each queue of the messages."""
    return ";".join(f"{int(kind)} {queue_id} {offset}" for kind, queue_id, offset in starts)


def encode_offsets(offsets_of: QueueOffsets) -> str:
    """Encode ``msgOffsetInfo``: the queue offsets of messages, by kind and queue."""
    return ";".join(
        f"{int(kind)} {queue_id} {','.join(map(str, offsets))}" for (kind, queue_id), offsets in offsets_of.items()
    )


def decode_starts(text: str) -> dict[tuple[TopicKind, int], int]:
    """Parse ``startOffsetInfo``. Raises ValueError."""
    return {key: offsets[0] for key, offsets in decode_offsets(text).items()}


def decode_offsets(text: str) -> dict[tuple[TopicKind, int], list[int]]:
    """Parse ``msgOffsetInfo``. Raises ValueError."""
    offsets_of: dict[tuple[TopicKind, int], list[int]] = {}
    for part in filter(None, text.split(";")):
        kind, queue_id, offsets = part.split(" ")
        offsets_of[TopicKind(int(kind)), int(queue_id)] = [int(offset) for offset in offsets.split(",")]
    return offsets_of
