"""Check points and acknowledgements of POP, as bodies of messages in the revive topic.

Bodies are JSON with the members in the order of their names. docs/pop.md

Source: ``PopCheckPoint``, ``AckMsg``, ``BatchAckMsg``, ``PopMessageProcessor#genCkUniqueId``,
``MQClientAPIImpl#processPopResponse``.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from rmq_core.remoting.bodies.codec import BodyStruct, decode_body
from rmq_core.store.commitlog.lmq_offsets import is_lmq, split_lmq_names
from rmq_formats.codecs.layout import PROPERTY_INNER_MULTI_DISPATCH, PROPERTY_INNER_MULTI_QUEUE_OFFSET
from rmq_formats.codecs.properties import parse_decimal
from rmq_formats.codecs.record import decode_record
from rmq_formats.codecs.record_layout import head_struct
from rmq_formats.errors import DecodeError, FormatError

CHECKPOINT: Final = "ck"
ACK: Final = "ack"
BATCH_ACK: Final = "bAck"
_MAX_OFFSETS: Final = 32  # bits of ``bm``
_encode = msgspec.json.Encoder().encode

Key = tuple[str, str, int, int, int, str]
"""Topic, group, queue id, start offset, pop time and broker: what acknowledgements name a check point by."""


_QUEUE_OFFSET: Final = head_struct("queue_offset")


class CheckPoint(BodyStruct, frozen=True, kw_only=True):
    """Messages of one queue that one pop returned.

    Attributes:
        bm: bits of the acknowledged messages.
        bn: name of the broker.
        c: consumer group.
        d: queue offsets of the messages, less ``so``.
        it: invisible time, ms.
        n: number of messages.
        pt: time of the pop, ms since 1970.
        q: queue id.
        revive_time: ``pt`` + ``it``.
        ro: queue offset of this record in the revive topic; unknown to the writer.
        rp: number of rewrites.
        so: queue offset that the pop began at.
        t: topic of the queue.
    """

    bm: int = 0
    bn: str = ""
    c: str = ""
    d: list[int] = msgspec.field(default_factory=list)
    it: int = 0
    n: int = 0
    pt: int = 0
    q: int = 0
    revive_time: int = 0
    ro: int = 0
    rp: str | msgspec.UnsetType = msgspec.UNSET
    so: int = 0
    t: str = ""

    @property
    def key(self) -> Key:
        return self.t, self.c, self.q, self.so, self.pt, self.bn

    @property
    def visible_ms(self) -> int:
        return self.pt + self.it

    @property
    def unique_key(self) -> str:
        return f"{self.t}@{self.q}@{self.so}@{self.c}@{self.pt}@{self.bn}@{CHECKPOINT}"

    @property
    def tries(self) -> int:
        return parse_decimal(self.rp, 0, 9) if isinstance(self.rp, str) else 0

    def bits_of(self, offsets: Iterable[int]) -> int:
        """Return the bits of queue offsets; offsets outside of the check point are ignored."""
        numbers = {self.so + distance: number for number, distance in enumerate(self.d)}
        return sum(1 << numbers[offset] for offset in set(offsets) if offset in numbers)


class Acknowledgement(BodyStruct, frozen=True, kw_only=True):
    """Acknowledged messages of a check point; its members are named as those of ``CheckPoint``.

    Attributes:
        ao: queue offset of the message; -1 where there are several.
        aol: their offsets; left out where there is one.
    """

    ao: int = -1
    aol: list[int] | msgspec.UnsetType = msgspec.UNSET
    bn: str = ""
    c: str = ""
    pt: int = 0
    q: int = 0
    so: int = 0
    t: str = ""

    @property
    def key(self) -> Key:
        return self.t, self.c, self.q, self.so, self.pt, self.bn

    @property
    def offsets(self) -> list[int]:
        """Queue offsets of the messages."""
        return [self.ao] if isinstance(self.aol, msgspec.UnsetType) else self.aol

    @property
    def tag(self) -> str:
        return ACK if isinstance(self.aol, msgspec.UnsetType) else BATCH_ACK

    @property
    def unique_key(self) -> str:
        """UNIQ_KEY of the message; without the other offsets, as in the original."""
        return f"{self.t}@{self.q}@{self.ao}@{self.c}@{self.pt}@{self.bn}@{ACK}"


PopRecord = CheckPoint | Acknowledgement


def encode_pop_record(record: PopRecord) -> bytes:
    """Encode the body of a record's message."""
    return _encode(record)


def decode_pop_record(tag: str | None, body: bytes) -> PopRecord:
    """Decode the body of a message in the revive topic. Raises DecodeError for an invalid body or tag."""
    if tag in (ACK, BATCH_ACK):
        return decode_body(body, Acknowledgement)
    if tag != CHECKPOINT:
        raise DecodeError(f"tag {tag!r} is none of the revive topic")
    point = decode_body(body, CheckPoint)
    if not 0 <= point.n <= _MAX_OFFSETS or len(point.d) < point.n:
        raise DecodeError(f"a check point of {point.n} messages has {len(point.d)} offsets")
    return point


def read_queue_offset(record: memoryview, topic: str) -> int:
    """Read the offset of a record in the queue or light queue of a topic."""
    queue_offset = int(_QUEUE_OFFSET.unpack_from(record)[0])
    if not is_lmq(topic):
        return queue_offset
    try:
        return get_queue_offset(decode_record(record, verify_crc=False).properties, topic, queue_offset)
    except FormatError:  # its consumer cannot read it either
        return queue_offset


def get_queue_offset(properties: Mapping[str, str], topic: str, queue_offset: int) -> int:
    """Return the offset of a message in the queue of a topic; for a light queue, from the message's properties."""
    if not is_lmq(topic):
        return queue_offset
    lmq_names = split_lmq_names(properties.get(PROPERTY_INNER_MULTI_DISPATCH, ""))
    lmq_offsets = split_lmq_names(properties.get(PROPERTY_INNER_MULTI_QUEUE_OFFSET, ""))
    if len(lmq_names) != len(lmq_offsets) or topic not in lmq_names:
        return queue_offset
    return parse_decimal(lmq_offsets[lmq_names.index(topic)], queue_offset, 19)
