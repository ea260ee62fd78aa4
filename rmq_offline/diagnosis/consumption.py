"""Why a consumer group gets no messages of a store, and why its lag is negative."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Final

from rmq_formats.codecs import paths
from rmq_formats.codecs.topics import DLQ_PREFIX, RETRY_PREFIX, is_broker_topic
from rmq_formats.errors import FormatError, StoreError
from rmq_formats.read.broker_config import stored_groups, stored_topics
from rmq_formats.read.log_end import readable_segments
from rmq_formats.read.queue_choice import dispatched_end_of_files
from rmq_formats.read.ranges import log_bounds
from rmq_formats.storage.store_files import StoreFiles, open_store
from rmq_offline.diagnosis.answers import Answer, Question
from rmq_offline.offsets.changes import Selection, plan_changes
from rmq_offline.offsets.positions import Position, State
from rmq_offline.offsets.unsound_queues import unsound_queues
from rmq_offline.verify.report import VerifyReport

_READ: Final = 4
_WARNING_RATIO: Final = 0.90
_FORCE_RATIO: Final = 0.85


def consumption_answers(root: str, report: VerifyReport | None) -> Iterator[Answer]:
    """Find the causes for which consumers get no messages. Raises StoreError.

    Args:
        report: of a verification, whose damaged queue ends are no measure of offsets; None without one.
    """
    store = open_store(root)
    unsound = {} if report is None else unsound_queues(report)
    with suppress(StoreError, FormatError):
        all_positions = plan_changes(root, Selection(), None).positions
        positions = tuple(position for position in all_positions if position.queue not in unsound)
        yield from _unknown_end_answers(root, [position for position in all_positions if position.queue in unsound])
        yield from _position_answers(root, positions)
        yield from _idle_answers(root, positions)
        yield from _dead_letter_answers(root, positions)
    with suppress(StoreError, FormatError):
        yield from _switch_answers(store)
    with suppress(StoreError, FormatError):
        yield from _dispatch_answers(store)
    yield from _disk_answers(root)


def _answer(observation: str, reason: str, command: str, is_fault: bool = True) -> Answer:
    return Answer(Question.MESSAGES, observation, reason, command, is_fault)


def _unknown_end_answers(root: str, positions: Sequence[Position]) -> Iterator[Answer]:
    """Report offsets outside of queues with unknown ends, in one answer for each question."""
    outside = [position for position in positions if position.state is not State.INSIDE]
    if not outside:
        return
    first = outside[0]
    more = f", and {len(outside) - 1} more offsets are so" if len(outside) > 1 else ""
    for question in (Question.MESSAGES, Question.LAG):
        yield Answer(
            question,
            f"{first.committed.owner} is at {first.committed.queue_offset} of {first.committed.topic}/"
            f"{first.committed.queue_id}, which goes from {first.min_offset} to {first.max_offset}{more}",
            "log and queue differ: a repair may bring messages back and give the queue other ends; leave the offset "
            "until then",
            f"rmq repair {quote(root)} --plan",
        )


def _position_answers(root: str, positions: tuple[Position, ...]) -> Iterator[Answer]:
    """Report offsets outside of their queues, those of one group together."""
    groups: dict[tuple[str, State], list[Position]] = {}
    for position in positions:
        if position.state is not State.INSIDE:
            groups.setdefault((position.committed.owner, position.state), []).append(position)
    for (owner, state), group_positions in groups.items():
        first = group_positions[0]
        place, offset = f"{first.committed.topic}/{first.committed.queue_id}", first.committed.queue_offset
        more = f", and so in {len(group_positions) - 1} more queues" if len(group_positions) > 1 else ""
        option = f"--group {quote(first.committed.group or '')}"
        if first.committed.group is None:
            option = f"--delay-level {first.committed.queue_id + 1}"
        command = f"rmq offsets {quote(root)} clamp {option}"
        if state is State.BELOW:
            expired = sum(position.min_offset - position.committed.queue_offset for position in group_positions)
            yield _answer(
                f"{owner} is at {offset} of {place}, which begins at {first.min_offset}{more}",
                f"{expired} messages have expired before the group read them; it goes on at the queue's begin",
                command,
                False,
            )
            continue
        if state is State.NEGATIVE:
            observation = f"{owner} has the offset {offset} in {place}{more}"
            reason = (
                "no queue has such an offset; a broker takes it for none, and the group begins where it is set to begin"
            )
        elif first.max_offset == 0:
            observation = f"{owner} is at {offset} of {place}, which has no files and no messages{more}"
            reason = "the queue was deleted or lost, and begins anew at 0: the group gets none of its next messages"
            if is_broker_topic(first.committed.topic):
                reason = "the broker's own queue is gone; it begins anew at 0"
        else:
            observation = f"{owner} is at {offset} of {place}, which ends at {first.max_offset}{more}"
            reason = (
                "the queue was cut, lost or made again, and the offset is of the former one: the lag is "
                f"{first.lag}, and the next {-first.lag} messages are passed over"
            )
        for question in (Question.MESSAGES, Question.LAG):
            yield Answer(question, observation, reason, command)


def _idle_answers(root: str, positions: tuple[Position, ...]) -> Iterator[Answer]:
    """Report queues all of whose messages have expired, in one answer."""
    idle = [position for position in positions if position.min_offset == position.max_offset > 0]
    if not idle:
        return
    first = idle[0]
    more = f", and so of {len(idle) - 1} more queues" if len(idle) > 1 else ""
    yield _answer(
        f"all messages of {first.committed.topic}/{first.committed.queue_id} have expired{more}; the queue ends at "
        f"{first.max_offset}",
        "the topic is idle: its next message gets the queue's end as its offset, and a group that is there gets it; "
        "never delete the queue's directory",
        f"rmq offsets {quote(root)} --topic {quote(first.committed.topic)}",
        False,
    )


def _dead_letter_answers(root: str, positions: tuple[Position, ...]) -> Iterator[Answer]:
    directory = paths.consumequeue_dir(root)
    for group in sorted({position.committed.group for position in positions if position.committed.group is not None}):
        topic = f"{DLQ_PREFIX}{group}"
        if paths.is_safe_topic(topic) and Path(directory, topic).is_dir():
            yield _answer(
                f"group {group} has dead letters, in the topic {topic}",
                "messages that failed too often are not delivered again",
                f"rmq dump {quote(f'{directory}/{topic}')}",
                False,
            )


def _switch_answers(store: StoreFiles) -> Iterator[Answer]:
    for name, group in sorted(stored_groups(store).items()):
        if not group.consume_enable:
            yield _answer(
                f"group {name} has consumeEnable=false",
                "the broker refuses its pulls: subscription group no permission",
                f"mqadmin updateSubGroup -g {quote(name)} -s true -n NAMESRV -b BROKER",
            )
    for name, topic in sorted((stored_topics(store) or {}).items()):
        if not topic.perm & _READ and not name.startswith((RETRY_PREFIX, DLQ_PREFIX)) and not is_broker_topic(name):
            yield _answer(
                f"topic {name} has perm={topic.perm}, without the right to read",
                "consumers are refused, and name servers tell them no queue",
                f"mqadmin updateTopicPerm -t {quote(name)} -p 6 -n NAMESRV -c CLUSTER",
            )
        elif topic.read_queue_nums < topic.write_queue_nums:
            written, read = topic.write_queue_nums, topic.read_queue_nums
            yield _answer(
                f"topic {name} has {written} queues to write and {read} to read",
                "nobody reads the messages of the other queues",
                f"mqadmin updateTopic -t {quote(name)} -r {written} -w {written} -n NAMESRV -c CLUSTER",
            )


def _dispatch_answers(store: StoreFiles) -> Iterator[Answer]:
    if store.layouts.queue_database is not None:
        return
    segments = readable_segments(store)
    if any(segment.head_bytes for segment in segments):
        return
    _, log_end = log_bounds(store.storage, segments)
    queue_end = dispatched_end_of_files(store, log_end)
    if queue_end < log_end and not store.storage.exists(paths.abort_file(store.root)):
        yield _answer(
            f"the log ends at {log_end}, and no queue names a message behind {queue_end}",
            "messages at the log's end may be in no queue: consumers do not see them until they are dispatched",
            f"rmq verify {quote(store.root)}",
            False,
        )


def _disk_answers(root: str) -> Iterator[Answer]:
    """Report a disk that is too full for the original's writes. Source: ``DefaultMessageStore#isSpaceToDelete``."""
    status = os.statvfs(root)
    used = 1 - status.f_bavail / status.f_blocks if status.f_blocks else 0.0
    if used > _FORCE_RATIO:
        what = "takes no messages" if used > _WARNING_RATIO else "deletes files before their time"
        yield _answer(
            f"the disk of {root} is {used:.0%} full",
            f"a broker deletes old files at any hour above {_FORCE_RATIO:.0%}, and takes no messages above "
            f"{_WARNING_RATIO:.0%}: now it {what}",
            f"df -h {quote(root)}",
            used > _WARNING_RATIO,
        )
