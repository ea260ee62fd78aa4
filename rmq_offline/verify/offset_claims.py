"""Compares the offsets that consumer groups and delay levels have committed with the ends of their queues."""

from collections.abc import Iterator

from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX, is_broker_topic
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.checkpoint_and_config import Claim
from rmq_offline.verify.findings import Finding, Kind


def check_claim(claim: Claim, path: str, least_offset: int, end_offset: int) -> Iterator[Finding]:
    """Compare a committed offset with its queue.

    Args:
        least_offset: of the queue's first message that is still stored; ``end_offset`` where none is.
        end_offset: one past the queue's last place in use.
    """
    if claim.queue_offset > end_offset:
        yield claim.finding(end_offset, path)
    elif claim.queue_offset < 0:
        yield make_negative_finding(claim, path)
    elif claim.queue_offset < least_offset:
        expired = least_offset - claim.queue_offset
        yield _finding(
            finding_kinds.OFFSET_BELOW, claim, path, f"{claim.owner} lacks {expired} messages that have expired",
            f"at least {least_offset}",
        )  # fmt: skip


def make_negative_finding(claim: Claim, path: str) -> Finding:
    """Make the finding of a committed offset that no queue can have."""
    return _finding(finding_kinds.OFFSET_NEGATIVE, claim, path, f"{claim.owner} has a negative offset", "0 or more")


def check_queueless_claim(claim: Claim, path: str, known_topics: frozenset[str] | None) -> Finding | None:
    """Make the finding of a committed offset in a queue without files and messages; None where it is 0, as in new ones.

    Args:
        known_topics: those of the broker; None where they are not known.
    """
    if claim.queue_offset < 0:
        return make_negative_finding(claim, path)
    if claim.queue_offset == 0:
        return None
    is_deleted = known_topics is not None and claim.topic not in known_topics and not is_broker_topic(claim.topic)
    # No table of topics has light queues (LMQ); lite topics are deleted one by one.
    is_deleted |= claim.topic.startswith(LIGHT_QUEUE_PREFIX)
    kind = finding_kinds.OFFSET_OF_DELETED if is_deleted else finding_kinds.OFFSET_WITHOUT_QUEUE
    what = "the broker's own queue" if is_broker_topic(claim.topic) else "the queue"
    return _finding(
        kind, claim, path, f"{claim.owner} has read {claim.queue_offset} messages, and {what} has no files", "0"
    )


def _finding(kind: Kind, claim: Claim, path: str, detail: str, expected: str) -> Finding:
    return Finding(
        kind, detail, path, topic=claim.topic, queue_id=claim.queue_id, queue_offset=claim.queue_offset,
        expected=expected, actual=str(claim.queue_offset),
    )  # fmt: skip
