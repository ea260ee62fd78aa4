"""Answers from the findings of a verification."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from shlex import quote
from typing import Final

from rmq_formats.errors import RmqError
from rmq_formats.html_text import bytes_text
from rmq_formats.read.log_end import readable_segments
from rmq_formats.read.ranges import log_bounds
from rmq_formats.storage.store_files import open_store
from rmq_offline.diagnosis.answers import Answer, Question
from rmq_offline.tasks.runner import Runner
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding, Kind, Severity
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from rmq_offline.verify.report import VerifyReport

MAX_LOG_BYTES: Final = 1 << 30  # a larger log takes longer than somebody waits who asks a question
_DAMAGED_AREAS: Final = frozenset({"commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue"})
# Kinds with answers of their own, as reasons why a broker does not start.
_ANSWERED: Final = frozenset(
    {
        finding_kinds.SEGMENT_SIZE, finding_kinds.SEGMENT_FOREIGN, finding_kinds.SEGMENT_COMPRESSED,
        finding_kinds.LOG_MISSING, finding_kinds.QUEUE_FILE_SIZE, finding_kinds.QUEUE_FOREIGN,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Explanation:
    """Meaning of a kind of findings for an operator.

    Attributes:
        observation: template; {place} names the queues, {count} is the number of findings, {detail} that of the first.
        command: template of the next command; {store} is the store's path, {topic} the first finding's topic.
    """

    observation: str
    reason: str
    command: str
    is_fault: bool = False


_EXPLANATIONS: Final[dict[Kind, _Explanation]] = {
    finding_kinds.QUEUE_FORMER: _Explanation(
        "{place}: the topic was deleted and made again, and {count:,} messages of its former life are in the log",
        "consumers get the messages since then alone, and that is right: no repair and no rebuild changes it",
        "rmq inspect {store} --unqueued",
    ),
    finding_kinds.TOPIC_DELETED: _Explanation(
        "{place}: the topic was deleted, and {count:,} of its messages are in the log",
        "no queue has them, and no consumer gets them; the log keeps them until its files expire",
        "rmq inspect {store} --unqueued",
    ),
    finding_kinds.QUEUE_ABSENT: _Explanation(
        "{place}: {count:,} messages are in the log, and the queue has no files",
        "the topic was deleted and made again, or the queue's directory is lost; in the second case a rebuild brings "
        "the messages back",
        "rmq rebuild {store} --from-log-alone --plan",
        is_fault=True,
    ),
    finding_kinds.OWN_TOPIC_MISSING: _Explanation(
        "{place}: the broker's own topic has {count:,} messages in the log and no queue",
        "the broker never deletes it, so its directory is lost: transactions or delayed messages hang",
        "rmq rebuild {store} --plan",
        is_fault=True,
    ),
    finding_kinds.QUEUE_PASSED_OVER: _Explanation(
        "{place}: {count:,} messages are in the log, and the queue passes them over",
        "a crash lost the queue's last units, and no broker and no rebuild puts the messages into the queue",
        "rmq dump {store} --unqueued --topic {topic}",
        is_fault=True,
    ),
    finding_kinds.UNIT_NOT_ADDED: _Explanation(
        "{place}: {count:,} messages are in the log after the queue's last unit",
        "no broker adds them, since another queue names a later one; the next messages get their queue offsets",
        "rmq rebuild {store} --plan",
        is_fault=True,
    ),
    finding_kinds.QUEUE_OFFSET_REPEATED: _Explanation(
        "{place}: {count:,} messages have a queue offset that was given before",
        "a crash made the broker count anew; it skips such messages, and no consumer gets them",
        "rmq dump {store} --unqueued --topic {topic}",
        is_fault=True,
    ),
    finding_kinds.QUEUE_OFFSET_GAP: _Explanation(
        "{place}: {detail}",
        'the broker closed the gap and logged "[BUG]logic queue order maybe wrong", or the log was damaged there; the '
        "queue is right as it stands, and a rebuild leaves it so",
        "rmq verify {store}",
    ),
    finding_kinds.FORMER_DELAY: _Explanation(
        "{place}: {detail}, in all {count:,} messages, other than messageDelayLevel has now",
        "messageDelayLevel was changed: messages stored before are delivered by their former delay, and that is right",
        "rmq offsets {store}",
    ),
    finding_kinds.FORMER_TAGS: _Explanation(
        "{place}: {detail}, in all {count:,} messages",
        "a broker with another hash of tags dispatched them; consumers that filter by the hash of now miss them, and a "
        "rebuild from the log alone gives them the codes of now",
        "rmq rebuild {store} --from-log-alone --plan",
    ),
    finding_kinds.LOG_LEFTOVER: _Explanation(
        "{detail}",
        "a recovery cut the log there; a broker overwrites these records, no consumer gets them, and that is right",
        "rmq dump {store} --unqueued",
    ),
    finding_kinds.LOG_CLOCK: _Explanation(
        "the broker's clock went back {clock_steps}",
        "a broker's search by time may find a wrong message (resetOffsetByTime, a group that begins at a time); log "
        "and queues are sound, and rmq query --time and rmq offsets reset --time find the right one",
        "rmq verify {store}",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of a store's log with its queues.

    Attributes:
        report: None if the log is too large or the store cannot be verified.
        large_bytes: size of a log that is too large to be verified without a request; else 0.
    """

    report: VerifyReport | None = None
    large_bytes: int = 0


def compare_queues(
    root: str, options: VerifyOptions, runner: Runner, *, largest_bytes: int = MAX_LOG_BYTES
) -> Comparison:
    """Verify a store whose log is not large."""
    with suppress(RmqError):  # a store that cannot be verified has other answers
        log_bytes = _log_bytes(root)
        if log_bytes > largest_bytes:
            return Comparison(large_bytes=log_bytes)
        return Comparison(verify_store(root, options, runner))
    return Comparison()


def verified_answers(root: str, comparison: Comparison) -> Iterator[Answer]:
    """Explain the findings of a comparison, or report that a large log was not compared."""
    if comparison.large_bytes:
        yield Answer(
            Question.MESSAGES,
            f"the log has {bytes_text(comparison.large_bytes)}: log and queues were not compared",
            "above 1 GiB that takes minutes; damage, lost units and former topics are not among these answers",
            f"rmq doctor {quote(root)} --verify",
            is_fault=False,
        )
    report = comparison.report
    if report is None:
        return
    yield from _damage_answers(root, report)
    for kind, explanation in _EXPLANATIONS.items():
        findings = [finding for finding in report.findings if finding.kind == kind]
        if findings:
            yield _explained(root, findings, report.counts[kind], explanation)


def is_readable(root: str) -> bool:
    """Return whether a store's log can be read: it is then compared with the queues, or is too large."""
    with suppress(RmqError):
        return _log_bytes(root) >= 0
    return False


def _log_bytes(root: str) -> int:
    store = open_store(root)
    begin, end = log_bounds(store.storage, readable_segments(store))
    return end - begin


def _explained(root: str, findings: Sequence[Finding], count: int, explanation: _Explanation) -> Answer:
    first = findings[0]
    observation = explanation.observation.format(
        place=_places(findings), count=count, detail=first.detail, clock_steps=_clock_steps(first, count)
    )
    command = explanation.command.format(store=quote(root), topic=quote(first.topic or ""))
    return Answer(Question.MESSAGES, observation, explanation.reason, command, explanation.is_fault)


def _clock_steps(first: Finding, count: int) -> str:
    before, after = (_time_text(text) for text in (first.expected, first.actual))
    times = "once, " if count == 1 else f"{count:,} times, the first time "
    return f"{times}from {before} to {after}, at {first.physical_offset} of the log"


def _time_text(text: str | None) -> str:
    """Format the milliseconds at the end of a finding's text."""
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(int((text or "").rpartition(" ")[2]) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return text or "an unknown time"


def _places(findings: Sequence[Finding]) -> str:
    """Name the first queue of findings, and count the others."""
    names = dict.fromkeys(
        f"{finding.topic}" if finding.queue_id is None else f"{finding.topic}/{finding.queue_id}"
        for finding in findings
        if finding.topic is not None
    )
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return next(iter(names), "") + more


def _damage_answers(root: str, report: VerifyReport) -> Iterator[Answer]:
    """Sum up errors of log and queues without another answer."""
    counts = {
        kind: count
        for kind, count in report.counts.items()
        if kind.severity is Severity.ERROR and kind.code.partition(".")[0] in _DAMAGED_AREAS and kind not in _ANSWERED
    }
    if not counts:
        return
    first = next(finding for finding in report.findings if finding.kind in counts)
    place = _places([first])
    detail = f"{place}: {first.detail}" if place else first.detail
    is_repaired = any(kind.is_repaired for kind in counts)
    yield Answer(
        Question.MESSAGES,
        "errors of log or queues: " + ", ".join(f"{count:,} {kind.code}" for kind, count in counts.items()),
        f"{detail}: {first.kind.remedy}",
        f"rmq repair {quote(root)} --plan" if is_repaired else f"rmq verify {quote(root)}",
    )
