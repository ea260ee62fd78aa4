"""Lines of a Java broker's logs (store.log, broker.log) that operators search for, with their meanings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmq_formats.errors import OptionError
from rmq_offline.diagnosis.answers import Answer, Question

_SHOWN_CHARACTERS: Final = 160


@dataclass(frozen=True, slots=True)
class JavaLogLine:
    """A log line of the original: a pattern without regard to case, its meaning, and the next command.

    ``{store}`` in the command becomes the store's path.
    """

    pattern: str
    question: Question
    reason: str
    command: str
    is_fault: bool = True


KNOWN_LINES: Final = (
    JavaLogLine(
        "logic queue order maybe wrong", Question.MESSAGES,
        "a message's queue offset was not the queue's next place; the broker put its unit at the next place all the "
        "same. The queue is right as it stands, and a rebuild by queue offsets would break it",
        "rmq verify {store}",
    ),
    JavaLogLine(
        "dispatch behind", Question.MESSAGES,
        "the log has messages that are in no queue yet; where their files have expired, no queue ever gets them",
        "rmq inspect {store} --unqueued",
    ),
    JavaLogLine(
        "mq already started", Question.START,
        "another process holds the store's lock: two brokers have one storePathRootDir (a master and its slave on one "
        "machine), or the last one still runs",
        "fuser -v {store}/lock",
    ),
    JavaLogLine(
        "length not matched message store config value", Question.START,
        "a file has another size than mappedFileSizeCommitLog or mappedFileSizeConsumeQueue, or does not belong there; "
        "the broker stops at the first one",
        "rmq verify {store} -c broker.conf",
    ),
    JavaLogLine(
        "over flow badly|OFFSET_OVERFLOW_BADLY", Question.LAG,
        "a group asked for an offset beyond its queue's end: the queue was lost, cut or made again, and the group's "
        "offset is of the former one; messages below it are never delivered",
        "rmq offsets {store}",
    ),
    JavaLogLine(
        "PULL_OFFSET_MOVED|too small, broker min offset", Question.MESSAGES,
        "a group asked for an offset outside of its queue, and was moved: what lay between has expired, or was "
        "delivered again",
        "rmq offsets {store}",
    ),
    JavaLogLine(
        "CODE: 208|query message by (?:key|id) finished, but no message", Question.MESSAGES,
        "a look-up by key or id found nothing: the message has expired, or the Index lacks it",
        "rmq query {store} --topic T --key K",
    ),
    JavaLogLine(
        "Map failed|Cannot allocate memory", Question.START,
        "the system does not map more files: vm.max_map_count is too low for the number of queues, or memory is short",
        "sysctl vm.max_map_count; find {store} -type f | wc -l",
    ),
    JavaLogLine(
        "No space left on device|disk maybe full soon|disk full", Question.MESSAGES,
        "the disk is nearly full: above 85 % files are deleted before their time, above 90 % no message is taken",
        "df -h {store}",
    ),
    JavaLogLine(
        "Permission denied|AccessDenied", Question.START,
        "the broker's user may not read or write a file, as after a start as root or a restored backup",
        "find {store} ! -user rocketmq | head",
    ),
    JavaLogLine(
        r"and try to load backup file|load json .* failed|JSONException|load \S+ failed", Question.START,
        "a file of config/ is no JSON, as after a power cut; the broker takes its .bak, or does not start",
        "rmq verify {store}",
    ),
    JavaLogLine(
        "illegal magic code|CRC check failed|BODYCRC|found a half message", Question.MESSAGES,
        "the log has bytes that are no record: a torn end after a crash, or damage in the middle, behind which the "
        "broker reads nothing at an abnormal start",
        "rmq verify {store}",
    ),
    JavaLogLine(
        "commitlog files are deleted, and delete the consume queue", Question.MESSAGES,
        "the broker found no CommitLog file and deleted all queues: storePathCommitLog leads to an empty directory, or "
        "a disk is not mounted",
        "rmq inspect {store} -c broker.conf",
    ),
    JavaLogLine(
        "create mapped file1? error|create mapped file2 error", Question.MESSAGES,
        "the broker could not make the next file of the log: the disk is full or cannot be written",
        "df -h {store}; ls -ld {store}/commitlog",
    ),
    JavaLogLine(
        "TIMEOUT_CLEAN_QUEUE|PCBUSY_CLEAN_QUEUE|REJECTREQUEST", Question.MESSAGES,
        "the broker refused sends because it was busy: the disk is slow, or memory is short",
        "iostat -x 1",
    ),
    JavaLogLine(
        "correctMinOffset|load consume queue failed", Question.START,
        "a queue's newest file has no unit, as after a kill that lost the log's last pages; the broker does not start",
        "rmq verify {store}",
    ),
    JavaLogLine(
        "DupInfo in properties check failed", Question.MESSAGES,
        "the broker takes records of the log for damaged (duplicationEnable with DLedger), ends the log before them "
        "and cuts the queues there",
        "rmq verify {store}",
    ),
    JavaLogLine(
        "subscription group no permission|consumer's group info not exist", Question.MESSAGES,
        "the group may not consume (consumeEnable=false), or subscriptionGroup.json does not know it",
        "rmq dump {store}/config/subscriptionGroup.json",
    ),
)  # fmt: skip


def answers_of_logs(files: list[str], store: str) -> Iterator[Answer]:
    """Count the lines of ``KNOWN_LINES`` in logs, and show the last occurrence of each. Raises OptionError."""
    counts = [0] * len(KNOWN_LINES)
    last = [""] * len(KNOWN_LINES)
    patterns = [re.compile(entry.pattern, re.IGNORECASE) for entry in KNOWN_LINES]
    for file in files:
        try:
            with Path(file).open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    for number, pattern in enumerate(patterns):
                        if pattern.search(line):
                            counts[number] += 1
                            last[number] = line.strip()
        except OSError as error:
            raise OptionError(f"--log {file}: {error.strerror}") from error
    for entry, count, line in zip(KNOWN_LINES, counts, last, strict=True):
        if count:
            times = "once" if count == 1 else f"{count:,} times, the last time"
            observation = f"in the log {times}: {line[:_SHOWN_CHARACTERS]}"
            yield Answer(entry.question, observation, entry.reason, entry.command.format(store=store), entry.is_fault)
