"""Compares the offsets that consumer groups and delay levels have committed with the ends of their queues."""

from collections.abc import Iterator

from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX, is_broker_topic
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.checkpoint_and_config import CommittedOffset
from rmq_offline.verify.findings import Finding, Kind


def check_committed_offset(
    committed: CommittedOffset, path: str, least_offset: int, end_offset: int
) -> Iterator[Finding]:
    """Compare a committed offset with its queue.

    Args:
        least_offset: of the queue's first message that is still stored; ``end_offset`` where none is.
        end_offset: one past the queue's last place in use.
    """
    if committed.queue_offset > end_offset:
        yield committed.finding(end_offset, path)
    elif committed.queue_offset < 0:
        yield make_negative_finding(committed, path)
    elif committed.queue_offset < least_offset:
        expired = least_offset - committed.queue_offset
        yield _finding(
            finding_kinds.OFFSET_BELOW, committed, path,
            f"{committed.owner} lacks {expired} messages that have expired", f"at least {least_offset}",
        )  # fmt: skip


def make_negative_finding(committed: CommittedOffset, path: str) -> Finding:
    """Make the finding of a committed offset that no queue can have."""
    return _finding(
        finding_kinds.OFFSET_NEGATIVE, committed, path, f"{committed.owner} has a negative offset", "0 or more"
    )


def check_offset_without_queue(
    committed: CommittedOffset, path: str, known_topics: frozenset[str] | None
) -> Finding | None:
    """Make the finding of a committed offset in a queue without files and messages; None where it is 0, as in new ones.

    Args:
        known_topics: those of the broker; None where they are not known.
    """
    if committed.queue_offset < 0:
        return make_negative_finding(committed, path)
    if committed.queue_offset == 0:
        return None
    is_deleted = (
        known_topics is not None and committed.topic not in known_topics and not is_broker_topic(committed.topic)
    )
    # No table of topics has light queues (LMQ); lite topics are deleted one by one.
    is_deleted |= committed.topic.startswith(LIGHT_QUEUE_PREFIX)
    kind = finding_kinds.OFFSET_OF_DELETED if is_deleted else finding_kinds.OFFSET_WITHOUT_QUEUE
    what = "the broker's own queue" if is_broker_topic(committed.topic) else "the queue"
    return _finding(
        kind,
        committed,
        path,
        f"{committed.owner} has read {committed.queue_offset} messages, and {what} has no files",
        "0",
    )


def _finding(kind: Kind, committed: CommittedOffset, path: str, detail: str, expected: str) -> Finding:
    return Finding(
        kind, detail, path, topic=committed.topic, queue_id=committed.queue_id, queue_offset=committed.queue_offset,
        expected=expected, actual=str(committed.queue_offset),
    )  # fmt: skip
