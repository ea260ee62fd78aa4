"""Plans a read of ``rmq``: queues and offset ranges, fixed when it is planned."""

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from rmq_formats.codecs.topics import RETRY_PREFIX, SYSTEM_TOPIC_PATTERN
from rmq_formats.errors import ClusterError, NoTopicError, OptionError
from rmq_formats.spark.options.values import EARLIEST, LATEST
from rmq_lakehouse.live.options import GROUP, ByQueue, ClusterQueue, ClusterQueueName, ClusterReadOptions

# Topics named after the cluster and its brokers need no exclusion: they have no messages.
_NOT_BY_PATTERN: Final = re.compile(rf"{SYSTEM_TOPIC_PATTERN}|{RETRY_PREFIX}.*")

_log = logging.getLogger("rmq_formats.spark")
Offsets = dict[ClusterQueue, int]


@dataclass(frozen=True, slots=True)
class Span:
    """Offset range of a queue, which one task reads; ``end`` is exclusive."""

    queue: ClusterQueue
    begin: int
    end: int


class QueueConnection(Protocol):
    """Connection to the queues of a running cluster (``client.ClusterConnection``) or of another source."""

    def topics(self) -> list[str]:
        """List all topics, sorted."""

    def queues(self, topic: str) -> list[ClusterQueue]:
        """List the readable queues of a topic; NoTopicError if there is no such topic."""

    def bounds(self, queues: Iterable[ClusterQueue]) -> Mapping[ClusterQueue, tuple[int, int]]:
        """Find min and max offset of each queue; the max offset is that of its next message."""

    def at_times(self, times_ms: Mapping[ClusterQueue, int]) -> Mapping[ClusterQueue, int]:
        """Find the first offset of each queue whose message was stored at a time or later."""

    def committed(self, queues: Iterable[ClusterQueue], group: str) -> Mapping[ClusterQueue, int | None]:
        """Find a consumer group's committed offsets; None where it has none."""


def chosen_queues(
    link: QueueConnection, options: ClusterReadOptions, met_queues: Collection[ClusterQueue] = ()
) -> list[ClusterQueue]:
    """List the queues that the options choose, in order.

    Args:
        met_queues: those that a stream has met; they may be missing, as of a deleted topic or a broker that is down.

    Raises:
        ClusterError: the cluster does not respond.
        NoTopicError: a topic of the options is at no name server.
        OptionError: a queue of the options is at no broker.
    """
    topics: Iterable[str]
    if options.topics is not None:
        topics = options.topics
    elif options.pattern is not None:
        pattern = re.compile(options.pattern)
        topics = [topic for topic in link.topics() if pattern.fullmatch(topic) and not _NOT_BY_PATTERN.fullmatch(topic)]
    else:
        topics = {name.topic for name in options.assigned or ()}
    met_topics = {queue.topic for queue in met_queues}
    queues: list[ClusterQueue] = []
    for topic in sorted(set(topics)):
        try:
            readable_queues = link.queues(topic)
            queues += readable_queues
            if not readable_queues:
                _log.warning("%s: no queue of the topic can be read", topic)
        except NoTopicError:
            if topic not in met_topics:
                raise
    if options.assigned is None:
        return sorted(queues)
    present = [name for name in options.assigned if _matches(queues, name) or not _matches(met_queues, name)]
    return sorted(find_queue(queues, name) for name in present)


def _matches(queues: Iterable[ClusterQueue], name: ClusterQueueName) -> list[ClusterQueue]:
    return [
        queue
        for queue in queues
        if queue.topic == name.topic and queue.queue_id == name.queue_id and name.broker in (None, queue.broker)
    ]


def find_queue(queues: Iterable[ClusterQueue], name: ClusterQueueName) -> ClusterQueue:
    """Find the queue that an option names. Raises OptionError."""
    matches = _matches(queues, name)
    label = f"queue {name.queue_id}" if name.broker is None else f"queue {name.broker}:{name.queue_id}"
    if not matches:
        raise OptionError(f"{label} of {name.topic!r} is not among the queues that the options choose")
    if len(matches) > 1:
        raise OptionError(
            f"{label} of {name.topic!r} is on several brokers: {', '.join(match.name for match in matches)}"
        )
    return matches[0]


def starting_offsets(
    link: QueueConnection,
    options: ClusterReadOptions,
    queues: list[ClusterQueue],
    bounds: Mapping[ClusterQueue, tuple[int, int]],
) -> Offsets:
    """Determine the first offset of each queue that meets all conditions. Raises ClusterError, OptionError."""
    starts = _resolve_queues(queues, options.starts)
    committed = link.committed(queues, options.group) if options.starting == GROUP and options.group else {}
    begins: Offsets = {}
    for queue in queues:
        low, high = bounds[queue]
        start = starts.get(queue, options.starting)
        offset = committed.get(queue)
        begins[queue] = {EARLIEST: low, LATEST: high, GROUP: low if offset is None else offset}.get(start, start)
    times = _resolve_queues(queues, options.first_times_ms)
    if options.first_ms is not None:
        times = {queue: max(options.first_ms, times.get(queue, 0)) for queue in queues}
    for queue, offset in link.at_times(times).items():
        begins[queue] = max(begins[queue], offset)
    return begins


def ending_offsets(
    link: QueueConnection,
    options: ClusterReadOptions,
    queues: list[ClusterQueue],
    bounds: Mapping[ClusterQueue, tuple[int, int]],
) -> Offsets:
    """Determine the ending offset of each queue, at most its max offset now. Raises ClusterError, OptionError."""
    requested_ends = _resolve_queues(queues, options.ends)
    for queue, end in requested_ends.items():
        if end > bounds[queue][1]:
            _log.warning("%s %s: ends at %d, before endingOffsets %d", queue.topic, queue.name, bounds[queue][1], end)
    ends = {queue: min(bounds[queue][1], requested_ends.get(queue, bounds[queue][1])) for queue in queues}
    times = _resolve_queues(queues, options.end_times_ms)
    if options.end_ms is not None:
        times = {queue: min(options.end_ms, times.get(queue, options.end_ms)) for queue in queues}
    for queue, offset in link.at_times(times).items():
        ends[queue] = min(ends[queue], offset)
    return ends


def _resolve_queues(queues: list[ClusterQueue], by_name: ByQueue) -> Offsets:
    offsets: Offsets = {}
    for name, value in by_name.items():
        queue = find_queue(queues, name)
        if queue in offsets:
            raise OptionError(f"queue {queue.name} of {queue.topic!r} is named twice: by its number and by its broker")
        offsets[queue] = value
    return offsets


def check_present(
    begins: Offsets, bounds: Mapping[ClusterQueue, tuple[int, int]], fails: bool
) -> tuple[Offsets, list[str]]:
    """Move starting offsets into the queues' bounds; describe the lost ranges. Raises ClusterError."""
    lost = []
    for queue, begin in begins.items():
        low, high = bounds[queue]
        if begin < low:
            lost.append(missing_offsets_message(queue, begin, low))
        elif begin > high:
            lost.append(missing_offsets_message(queue, high, begin))
    if lost and fails:
        raise ClusterError(f"{lost[0]}; with failOnDataLoss=false the rest is read")
    return {queue: min(max(begin, bounds[queue][0]), bounds[queue][1]) for queue, begin in begins.items()}, lost


def missing_offsets_message(queue: ClusterQueue, begin: int, end: int) -> str:
    """Describe an offset range of a queue that the broker no longer has."""
    return f"{queue.topic} {queue.name}: offsets {begin} to {end - 1} are missing"


def spans(begins: Offsets, ends: Offsets, min_partitions: int) -> list[Span]:
    """Plan the tasks: one for each queue, or more where more partitions are wanted."""
    whole = [Span(queue, begins[queue], ends[queue]) for queue in sorted(ends) if begins[queue] < ends[queue]]
    total = sum(span.end - span.begin for span in whole)
    piece = max(1, -(-total // min_partitions)) if min_partitions > len(whole) else max(1, total)
    return [
        Span(span.queue, begin, min(begin + piece, span.end))
        for span in whole
        for begin in range(span.begin, span.end, piece)
    ]


def limit_ends(begins: Offsets, ends: Offsets, limit: int) -> Offsets:
    """Lower the ends to so many messages in all, shared out by each queue's backlog; at least one."""
    total = sum(ends[queue] - begins[queue] for queue in ends)
    if total <= limit:
        return ends
    limited_ends: Offsets = {}
    remaining = limit
    for queue in sorted(ends):
        have = ends[queue] - begins[queue]
        share = min(have, remaining, -(-have * limit // total))
        limited_ends[queue] = begins[queue] + share
        remaining -= share
    return limited_ends
