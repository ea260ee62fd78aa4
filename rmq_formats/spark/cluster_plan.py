"""Which stretches of which queues a read of ``rmq`` takes, fixed when it is planned."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rmq_formats.errors import ClusterError, OptionError
from rmq_formats.spark.cluster_options import GROUP, ByQueue, ClusterQueue, ClusterReadOptions, QueueName
from rmq_formats.spark.option_values import EARLIEST, LATEST
from rmq_formats.topics import RETRY_PREFIX, SYSTEM_TOPIC_PATTERN

if TYPE_CHECKING:
    from rmq_formats.spark.cluster_link import ClusterLink

# Every cluster and broker has a topic of its name, too, without messages.
_NOT_BY_PATTERN: Final = re.compile(rf"{SYSTEM_TOPIC_PATTERN}|{RETRY_PREFIX}.*")

Offsets = dict[ClusterQueue, int]


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a queue: one task.

    Attributes:
        queue: which.
        begin: the first offset.
        end: one past the last.
    """

    queue: ClusterQueue
    begin: int
    end: int


def chosen_queues(link: "ClusterLink", options: ClusterReadOptions) -> list[ClusterQueue]:
    """The queues that the options choose, in order.

    Raises:
        ClusterError: a topic or queue that is not there, or a cluster that does not answer.
    """
    topics: Iterable[str]
    if options.topics is not None:
        topics = options.topics
    elif options.pattern is not None:
        pattern = re.compile(options.pattern)
        topics = [topic for topic in link.topics() if pattern.fullmatch(topic) and not _NOT_BY_PATTERN.fullmatch(topic)]
    else:
        topics = {name.topic for name in options.assigned or ()}
    queues = sorted(queue for topic in sorted(set(topics)) for queue in link.queues(topic))
    if options.assigned is not None:
        return sorted(find_queue(queues, name) for name in options.assigned)
    return queues


def find_queue(queues: Iterable[ClusterQueue], name: QueueName) -> ClusterQueue:
    """The queue that an option names.

    Raises:
        OptionError: there is none, or more than one.
    """
    found = [
        queue for queue in queues
        if queue.topic == name.topic and queue.queue_id == name.queue_id and name.broker in (None, queue.broker)
    ]  # fmt: skip
    said = f"queue {name.queue_id}" if name.broker is None else f"queue {name.broker}:{name.queue_id}"
    if not found:
        raise OptionError(f"{said} of {name.topic!r} is not among those that are read")
    if len(found) > 1:
        raise OptionError(f"{said} of {name.topic!r} is on several brokers: {', '.join(one.name for one in found)}")
    return found[0]


def starting_offsets(
    link: "ClusterLink",
    options: ClusterReadOptions,
    queues: list[ClusterQueue],
    bounds: Mapping[ClusterQueue, tuple[int, int]],
) -> Offsets:
    """Where each queue begins: all conditions hold at once. Raises ClusterError, OptionError."""
    starts = _resolved(queues, options.starts)
    committed = link.committed(queues, options.group) if options.starting == GROUP and options.group else {}
    begins: Offsets = {}
    for queue in queues:
        low, high = bounds[queue]
        asked = starts.get(queue, options.starting)
        begins[queue] = {EARLIEST: low, LATEST: high, GROUP: committed.get(queue) or low}.get(asked, asked)
    times = _resolved(queues, options.first_times_ms)
    if options.first_ms is not None:
        times = {queue: max(options.first_ms, times.get(queue, 0)) for queue in queues}
    for queue, offset in link.at_times(times).items():
        begins[queue] = max(begins[queue], offset)
    return begins


def ending_offsets(
    link: "ClusterLink",
    options: ClusterReadOptions,
    queues: list[ClusterQueue],
    bounds: Mapping[ClusterQueue, tuple[int, int]],
) -> Offsets:
    """Where each queue ends; no later than it does now. Raises ClusterError, OptionError."""
    asked = _resolved(queues, options.ends)
    ends = {queue: min(bounds[queue][1], asked.get(queue, bounds[queue][1])) for queue in queues}
    times = _resolved(queues, options.end_times_ms)
    if options.end_ms is not None:
        times = {queue: min(options.end_ms, times.get(queue, options.end_ms)) for queue in queues}
    for queue, offset in link.at_times(times).items():
        ends[queue] = min(ends[queue], offset)
    return ends


def _resolved(queues: list[ClusterQueue], by_name: ByQueue) -> Offsets:
    return {find_queue(queues, name): value for name, value in by_name.items()}


def missing(begins: Offsets, bounds: Mapping[ClusterQueue, tuple[int, int]]) -> list[tuple[ClusterQueue, int, int]]:
    """Queues whose first messages are gone, or that have become shorter: queue, from, up to where."""
    found = []
    for queue, begin in begins.items():
        low, high = bounds[queue]
        if begin < low:
            found.append((queue, begin, low))
        elif begin > high:
            found.append((queue, high, begin))
    return found


def check_present(
    begins: Offsets, bounds: Mapping[ClusterQueue, tuple[int, int]], fails: bool
) -> tuple[Offsets, list[str]]:
    """Offsets that are there, and what was lost.

    Raises:
        ClusterError: something was, and that is to be an error.
    """
    lost = [gone(queue, first, last) for queue, first, last in missing(begins, bounds)]
    if lost and fails:
        raise ClusterError(f"{lost[0]}; with failOnDataLoss=false the rest is read")
    return {queue: min(max(begin, bounds[queue][0]), bounds[queue][1]) for queue, begin in begins.items()}, lost


def gone(queue: ClusterQueue, begin: int, end: int) -> str:
    """A stretch of a queue that is not there."""
    return f"{queue.topic} {queue.name}: offsets {begin} to {end - 1} are gone"


def spans(begins: Offsets, ends: Offsets, min_partitions: int) -> list[Span]:
    """Tasks: one for each queue, or more where more are wanted."""
    whole = [Span(queue, begins[queue], ends[queue]) for queue in sorted(ends) if begins[queue] < ends[queue]]
    total = sum(span.end - span.begin for span in whole)
    piece = max(1, -(-total // min_partitions)) if min_partitions > len(whole) else max(1, total)
    return [
        Span(span.queue, begin, min(begin + piece, span.end))
        for span in whole
        for begin in range(span.begin, span.end, piece)
    ]


def limited(begins: Offsets, ends: Offsets, limit: int) -> Offsets:
    """Ends with at most so many offsets before them, shared out by what each queue has; never none."""
    total = sum(ends[queue] - begins[queue] for queue in ends)
    if total <= limit:
        return ends
    found: Offsets = {}
    left = limit
    for queue in sorted(ends):
        have = ends[queue] - begins[queue]
        share = min(have, left, -(-have * limit // total))
        found[queue] = begins[queue] + share
        left -= share
    return found
