"""What a store must hold and give, told from what it has taken."""

import random
from dataclasses import dataclass, field

from rmq_core.store.results import PutResult, PutStatus
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.record import StoredMessage, decode_record
from tests.lab.judged_store import Records
from tests.lab.rounds import Round
from tests.support.oracles.consumequeue import goes_to_consumequeue
from tests.support.oracles.index import index_keys

Place = tuple[str, int]


@dataclass(slots=True)
class Model:
    """The records that a store has taken, in order.

    Attributes:
        sent: physical offset and bytes of each.
        cleaned_to: physical offset below which messages may be gone: a file of the log and those of its queues go one
            after the other, and a crash in between leaves some.
        messages: those that stand in queues, by queue and queue offset.
    """

    sent: Records = field(default_factory=list)
    messages: dict[Place, dict[int, StoredMessage]] = field(default_factory=dict)
    cleaned_to: int = 0

    @classmethod
    def of(cls, records: Records, cleaned_to: int) -> "Model":
        """A model of a log that was read."""
        model = cls(cleaned_to=cleaned_to)
        for physical_offset, record in records:
            model.take(physical_offset, record)
        return model

    def take(self, physical_offset: int, record: bytes) -> None:
        """Know a record."""
        self.sent.append((physical_offset, record))
        message = decode_record(record, physical_offset=physical_offset)
        if goes_to_consumequeue(message.sys_flag):
            place = (message.topic, message.queue_id)
            self.messages.setdefault(place, {})[message.queue_offset] = message

    def note(self, one: Round, store: MessageStore, result: PutResult, end_before: int) -> None:
        """Know the records of an append; one that was refused must have left none."""
        if result.status is not PutStatus.PUT_OK:
            one.demand(store.record(end_before) is None, f"{result.status.name}, and a record at {end_before}")
            return
        for offset in result.physical_offsets or (result.physical_offset,):
            record = store.record(offset)
            one.demand(record is not None, f"PUT_OK, and no record at {offset}")
            assert record is not None
            self.take(offset, bytes(record))

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted: its messages stay in the log, and are in no queue."""
        for place in [place for place in self.messages if place[0] == topic]:
            del self.messages[place]

    def judge_reads(self, one: Round, store: MessageStore, dice: random.Random) -> None:
        """A queue gives all messages that are dispatched and not cleaned, each at its place, and nothing else."""
        if not self.messages:
            return
        place = dice.choice(sorted(self.messages))
        low, high = store.min_physical_offset, store.dispatched_offset
        own = self.messages[place]
        there = {offset for offset, message in own.items() if low <= message.physical_offset < high}
        wanted = {offset for offset in there if own[offset].physical_offset >= self.cleaned_to}
        found: dict[int, StoredMessage] = {}
        at, end = store.min_offset(*place), store.max_offset(*place)
        while at < end:
            result = store.get(*place, at, 32)
            one.demand(result.next_offset > at, f"a read of {place} at {at} of {end} stands still: {result}")
            at = result.next_offset
            for stretch in result.slices:
                for message in _decoded(stretch):
                    found[message.queue_offset] = message
        few, many = sorted(wanted - found.keys()), sorted(found.keys() - there)
        one.demand(not few and not many, f"{place} gives {many} too many, {few} too few; dispatched to {high}")
        for offset, message in found.items():
            one.demand(own[offset] == message, f"{place} gives another message at {offset}")

    def judge_query(self, one: Round, store: MessageStore, dice: random.Random, *, complete: bool) -> None:
        """A query gives messages with the key alone; and all of them, while the Index has not been cleaned."""
        keyed = [message for own in self.messages.values() for message in own.values() if message.keys]
        if not keyed:
            return
        asked = dice.choice(keyed)
        key, topic = dice.choice(asked.keys), asked.topic
        found = {decode_record(record).physical_offset for record in store.query(topic, key, 64).records}
        low, high = store.min_physical_offset, store.dispatched_offset
        keyed_alike = {
            offset
            for offset, record in self.sent
            if low <= offset and (one_of := decode_record(record)).topic == topic and key in index_keys(one_of)
        }
        # An Index that met a full disk in mid-batch is ahead of what counts as dispatched.
        one.demand(found <= keyed_alike, f"the key {key!r} of {topic} gives {sorted(found - keyed_alike)} too many")
        wanted = {offset for offset in keyed_alike if offset < high}
        if complete and len(wanted) <= 64:
            one.demand(wanted <= found, f"the key {key!r} of {topic} gives {sorted(wanted - found)} too few")


def _decoded(stretch: memoryview) -> list[StoredMessage]:
    found, at = [], 0
    while at < len(stretch):
        found.append(decode_record(stretch, at))
        at += found[-1].size
    return found
