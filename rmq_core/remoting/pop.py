"""POP on the wire: receipt handles, offsets of popped messages, names of retry topics; fields of its requests.

Source: ``ExtraInfoUtil``, ``KeyBuilder``; of POP and of lite topics (5.5) ``PopMessageRequestHeader``,
``AckMessageRequestHeader``, ``ChangeInvisibleTimeRequestHeader``, ``NotificationRequestHeader``,
``PollingInfoRequestHeader``, ``PopLiteMessageRequestHeader`` and its neighbours.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from rmq_core.remoting.fields import Fields, GroupQueue, Int32, Int64
from rmq_formats.codecs.topics import RETRY_PREFIX

FIRST_POP_TIME: Final = "1ST_POP_TIME"
IN_ORDER: Final = 999  # revive queue id of messages that are popped in order
MAX_MESSAGES: Final = 32  # in one response to a pop: a check point has a bit for each
MAX_INVISIBLE_MS: Final = 3 * 86_400_000  # maximum delay of a timer message, which a check point is
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
        """Parse a handle; the parts that proxies append are ignored. Raises ValueError."""
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


class PopMessage(GroupQueue, frozen=True, kw_only=True):
    """Fields of POP_MESSAGE (200050). ``queue_id`` -1: any; ``init_mode`` 0: a new group starts at the min offset."""

    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64 = 0
    init_mode: Int32 = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopResponse(Fields, frozen=True, kw_only=True):
    """Fields of the response to POP_MESSAGE."""

    pop_time: Int64 = 0
    invisible_time: Int64 = 0
    revive_qid: Int32 = 0
    rest_num: Int64 = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class PeekMessage(GroupQueue, frozen=True, kw_only=True):
    """Fields of PEEK_MESSAGE (200052)."""

    max_msg_nums: Int32


class AckMessage(GroupQueue, frozen=True, kw_only=True):
    """Fields of ACK_MESSAGE (200051)."""

    extra_info: str
    offset: Int64
    lite_topic: str | None = None


class ChangeInvisibleTime(GroupQueue, frozen=True, kw_only=True):
    """Fields of CHANGE_MESSAGE_INVISIBLETIME (200053). ``suspend`` with a lite topic: of all its popped messages."""

    extra_info: str
    offset: Int64
    invisible_time: Int64
    lite_topic: str | None = None
    suspend: bool = False


class ChangeInvisibleTimeResponse(Fields, frozen=True, kw_only=True):
    """Fields of the response to CHANGE_MESSAGE_INVISIBLETIME."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class Notification(GroupQueue, frozen=True, kw_only=True):
    """Fields of NOTIFICATION (200054)."""

    poll_time: Int64
    born_time: Int64 = 0
    order: bool = False
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None
    is_lite_consumer: bool = False
    client_id: str | None = None


class NotificationResponse(Fields, frozen=True, kw_only=True):
    """Fields of the response to NOTIFICATION."""

    has_msg: bool
    polling_full: bool = False


class PollingInfo(GroupQueue, frozen=True, kw_only=True):
    """Fields of POLLING_INFO (200055)."""


class PollingInfoResponse(Fields, frozen=True, kw_only=True):
    """Fields of the response to POLLING_INFO."""

    polling_num: Int32


# Lite topics.


class PopLiteMessage(Fields, frozen=True, kw_only=True):
    """Fields of POP_LITE_MESSAGE (200070); times in ms. ``topic`` is the parent."""

    client_id: str
    consumer_group: str
    topic: str
    max_msg_num: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64
    attempt_id: str | None = None


class PopLiteResponse(ChangeInvisibleTimeResponse, frozen=True, kw_only=True):
    """Fields of the response to POP_LITE_MESSAGE; ``order_count_info`` has earlier deliveries by message, ``0;0;1``."""

    order_count_info: str = ""


class NotifyUnsubscribeLite(Fields, frozen=True, kw_only=True):
    """Fields of NOTIFY_UNSUBSCRIBE_LITE (200073): the broker has assigned a client's lite topic to another client."""

    lite_topic: str
    consumer_group: str
    client_id: str


class LiteTopicName(Fields, frozen=True, kw_only=True):
    """Fields of GET_LITE_TOPIC_INFO (200076)."""

    parent_topic: str
    lite_topic: str = ""


class LiteClientName(Fields, frozen=True, kw_only=True):
    """Fields of GET_LITE_CLIENT_INFO (200077)."""

    parent_topic: str
    group: str
    client_id: str = ""
    max_count: Int32 = 1000


class LiteGroupName(Fields, frozen=True, kw_only=True):
    """Fields of GET_LITE_GROUP_INFO (200078). ``top_k``: number of lite topics in the response, if none is named."""

    group: str
    lite_topic: str = ""
    top_k: Int32 = 0


class LiteDispatch(Fields, frozen=True, kw_only=True):
    """Fields of TRIGGER_LITE_DISPATCH (200079). Without ``client_id`` for all clients of the group."""

    group: str
    client_id: str = ""
