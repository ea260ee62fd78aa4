"""Check points and acknowledgements of POP, as messages of the revive topic have them.

Bodies are JSON with the members in the order of their names. docs/pop.md

Source: ``PopCheckPoint``, ``AckMsg``, ``BatchAckMsg``, ``PopMessageProcessor#genCkUniqueId``.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from rmq_core.remoting.bodies.codec import BodyStruct, decode_body
from rmq_formats.errors import DecodeError

CHECKPOINT: Final = "ck"
ACK: Final = "ack"
BATCH_ACK: Final = "bAck"
_MOST_OFFSETS: Final = 32  # bits of ``bm``
_encode = msgspec.json.Encoder().encode

Key = tuple[str, str, int, int, int, str]
"""Topic, group, queue id, start offset, pop time and broker: what acknowledgements name a check point by."""


class CheckPoint(BodyStruct, frozen=True, kw_only=True):
    """Messages of one queue that were popped together.

    Attributes:
        bm: bits of the acknowledged ones.
        bn: name of the broker.
        c: consumer group.
        d: their queue offsets, less ``so``.
        it: for how long they are invisible, ms.
        n: how many.
        pt: when they were popped, ms since 1970.
        q: queue id.
        revive_time: ``pt`` + ``it``.
        ro: queue offset of this record in the revive topic; not yet known when it is written.
        rp: how often it was written again.
        so: queue offset that the pop began at.
        t: the topic that they were popped from.
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
        """What acknowledgements name it by."""
        return self.t, self.c, self.q, self.so, self.pt, self.bn

    @property
    def visible_ms(self) -> int:
        """When its messages come back, unless they are acknowledged."""
        return self.pt + self.it

    @property
    def unique_key(self) -> str:
        """UNIQ_KEY of its message."""
        return f"{self.t}@{self.q}@{self.so}@{self.c}@{self.pt}@{self.bn}@{CHECKPOINT}"

    @property
    def tries(self) -> int:
        """How often it was written again."""
        return int(self.rp) if isinstance(self.rp, str) and self.rp.isdecimal() and len(self.rp) < 10 else 0

    def bits_of(self, offsets: Iterable[int]) -> int:
        """The bits of some queue offsets; those that it does not have are left out."""
        places = {self.so + distance: number for number, distance in enumerate(self.d)}
        return sum(1 << places[offset] for offset in set(offsets) if offset in places)


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
        """Key of the check point."""
        return self.t, self.c, self.q, self.so, self.pt, self.bn

    @property
    def offsets(self) -> list[int]:
        """Queue offsets of the messages."""
        return [self.ao] if isinstance(self.aol, msgspec.UnsetType) else self.aol

    @property
    def tag(self) -> str:
        """TAGS of its message."""
        return ACK if isinstance(self.aol, msgspec.UnsetType) else BATCH_ACK

    @property
    def unique_key(self) -> str:
        """UNIQ_KEY of its message; that of several is overwritten by the one of a single one, as in the original."""
        return f"{self.t}@{self.q}@{self.ao}@{self.c}@{self.pt}@{self.bn}@{ACK}"


Record = CheckPoint | Acknowledgement


def encode_record(record: Record) -> bytes:
    """Encode the body of a record's message."""
    return _encode(record)


def decode_pop_record(tag: str | None, body: bytes) -> Record:
    """Decode the body of a message in the revive topic.

    Raises:
        DecodeError: it is none.
    """
    if tag in (ACK, BATCH_ACK):
        return decode_body(body, Acknowledgement)
    if tag != CHECKPOINT:
        raise DecodeError(f"tag {tag!r} is none of the revive topic")
    found = decode_body(body, CheckPoint)
    if not 0 <= found.n <= _MOST_OFFSETS or len(found.d) < found.n:
        raise DecodeError(f"a check point of {found.n} messages has {len(found.d)} offsets")
    return found
