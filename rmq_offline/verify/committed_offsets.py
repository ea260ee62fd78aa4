"""Offsets that consumer groups and delay levels have committed, compared with the ends of their queues."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeGuard

from rmq_formats.codecs.consumer_offsets_json import offsets_document
from rmq_formats.codecs.layout import SCHEDULE_TOPIC
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX, is_broker_topic
from rmq_formats.errors import DecodeError
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding, Kind

CONSUMER_OFFSETS: Final = "consumerOffset.json"
LIGHT_CONSUMER_OFFSETS: Final = "lmqConsumerOffset.json"  # instead of it, where the broker has light queues (LMQ)


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """Next queue offset of a consumer group, or of a delay level (``group`` is None), by a config file."""

    topic: str
    queue_id: int
    queue_offset: int
    group: str | None

    @property
    def owner(self) -> str:
        """The consumer group or the delay level, in words."""
        return f"delay level {self.queue_id + 1}" if self.group is None else f"group {self.group}"

    def finding(self, kind: Kind, detail: str, path: str, expected: str) -> Finding:
        """Make a finding about this offset; ``detail`` follows the name of the owner."""
        return Finding(
            kind,
            f"{self.owner} {detail}",
            path,
            topic=self.topic,
            queue_id=self.queue_id,
            queue_offset=self.queue_offset,
            expected=expected,
            actual=str(self.queue_offset),
        )


_QUEUE_ID: Final = re.compile(r"[0-9]{1,10}")
_MAX_LONG: Final = (1 << 63) - 1


def parse_consumer_offsets(text: str) -> Iterator[CommittedOffset]:
    """Parse the offsets in a ``consumerOffset.json`` or ``lmqConsumerOffset.json``; skip entries of other forms."""
    for name, offset in _table(text, "lmqOffsetTable").items():
        topic, separator, group = name.partition("@")
        if separator and _is_long(offset):
            yield CommittedOffset(topic, 0, offset, group)
    for name, queues in _table(text).items():
        topic, separator, group = name.partition("@")
        if separator and isinstance(queues, Mapping):
            for queue_id, offset in queues.items():
                if _QUEUE_ID.fullmatch(queue_id) and _is_long(offset):
                    yield CommittedOffset(topic, int(queue_id), offset, group)


def parse_delay_offsets(text: str) -> Iterator[CommittedOffset]:
    """Parse the offsets in a ``delayOffset.json``: level 1 is queue 0."""
    for level, offset in _table(text).items():
        if _QUEUE_ID.fullmatch(level) and int(level) > 0 and _is_long(offset):
            yield CommittedOffset(SCHEDULE_TOPIC, int(level) - 1, offset, None)


def list_offsets(table: Mapping[tuple[str, str], Mapping[int, int]]) -> list[CommittedOffset]:
    """List the offsets of a table by topic and group, then queue id."""
    return [
        CommittedOffset(topic, queue_id, offset, group)
        for (topic, group), queues in table.items()
        for queue_id, offset in queues.items()
    ]


def _is_long(value: object) -> TypeGuard[int]:
    return type(value) is int and -_MAX_LONG <= value <= _MAX_LONG


def _table(text: str, member: str = "offsetTable") -> Mapping[str, object]:
    try:
        table = offsets_document(text).get(member)
    except DecodeError:
        return {}
    return table if isinstance(table, dict) else {}


def check_committed_offset(
    committed: CommittedOffset, path: str, least_offset: int, end_offset: int
) -> Iterator[Finding]:
    """Compare a committed offset with its queue.

    Args:
        least_offset: of the queue's first message that is still stored; ``end_offset`` where none is.
        end_offset: one past the queue's last place in use.
    """
    if committed.queue_offset > end_offset:
        kind = finding_kinds.DELAY_OFFSET if committed.group is None else finding_kinds.CONSUMER_OFFSET
        detail = f"is {committed.queue_offset - end_offset} messages beyond the queue's end"
        yield committed.finding(kind, detail, path, f"at most {end_offset}")
    elif committed.queue_offset < 0:
        yield _negative_finding(committed, path)
    elif committed.queue_offset < least_offset:
        detail = f"lacks {least_offset - committed.queue_offset} messages that have expired"
        yield committed.finding(finding_kinds.OFFSET_BELOW, detail, path, f"at least {least_offset}")


def _negative_finding(committed: CommittedOffset, path: str) -> Finding:
    return committed.finding(finding_kinds.OFFSET_NEGATIVE, "has a negative offset", path, "0 or more")


def check_offset_without_queue(
    committed: CommittedOffset, path: str, known_topics: frozenset[str] | None
) -> Finding | None:
    """Check a committed offset in a queue without files and messages; None where it is 0, as in a new queue."""
    if committed.queue_offset < 0:
        return _negative_finding(committed, path)
    if committed.queue_offset == 0:
        return None
    is_of_broker = is_broker_topic(committed.topic)
    is_deleted = known_topics is not None and committed.topic not in known_topics and not is_of_broker
    # No table of topics has light queues (LMQ); lite topics are deleted one by one.
    is_deleted |= committed.topic.startswith(LIGHT_QUEUE_PREFIX)
    kind = finding_kinds.OFFSET_OF_DELETED if is_deleted else finding_kinds.OFFSET_WITHOUT_QUEUE
    queue = "the broker's own queue" if is_of_broker else "the queue"
    detail = f"has read {committed.queue_offset} messages, and {queue} has no files"
    return committed.finding(kind, detail, path, "0")
