"""Query conditions on CommitLog records; each row satisfies all conditions."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from rmq_formats.arrow.schema import Mode
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.errors import OptionError
from rmq_formats.storage.queue_logs import COMMITLOG_ONLY, Logs

MAX_LONG: Final = (1 << 63) - 1
MIN_LONG: Final = -(1 << 63)

Queue = tuple[str, int]


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Range of queue offsets and store timestamps of one queue; ends are exclusive."""

    first_offset: int = MIN_LONG
    end_offset: int = MAX_LONG
    first_ms: int = MIN_LONG
    end_ms: int = MAX_LONG


class Include(StrEnum):
    """Selection of the log's records."""

    LIVE = "live"  # records that consumers get: a queue names them, or will after dispatch
    LOG = "log"  # all records
    UNQUEUED = "unqueued"  # records that no queue names: of a topic's former life, repeats, leftovers


ANY_QUEUE: Final = -1  # in ``Query.bounds``: each queue of the topic without its own bounds
EVERYTHING: Final = QueueBounds()
NOTHING: Final = QueueBounds(first_offset=0, end_offset=0, first_ms=0, end_ms=0)


@dataclass(frozen=True, slots=True)
class Query:
    """Conditions that select records.

    A query by topics selects what consumers get: what a ConsumeQueue names, or will name once it is dispatched.
    That leaves out half messages and rollbacks of transactions (sys_flag), and what ``Include.LIVE`` leaves out.
    A query by key selects what RocketMQ's Index holds: all records but rollbacks. A query without either reads the log
    itself.

    Names of light queues (LMQ) count as topics: records that stand in one are selected by their place there.

    Attributes:
        topics: the topics; None is any.
        topic_pattern: a regular expression that the whole topic matches; None is any.
        queues: the queues of each topic; None is all of them.
        bounds: ranges of queues, in queue offsets as consumers count them; a queue without one is selected whole.
        first_ms: smallest store timestamp; None is any.
        end_ms: one past the largest.
        first_physical_offset: records that begin here or later.
        end_physical_offset: records that begin before here.
        tags: any of these; None is any tag or none.
        key: one of the parts of KEYS.
        uniq_key: the UNIQ_KEY.
        msg_id: store host and physical offset of an offset message id.
        include: which records; None is LIVE in a query by topics, else LOG.
        with_damage: whether damaged ranges become rows though conditions look at fields, which a damaged range lacks.
        topic_values: topics that Spark's filters ask for; unlike ``topics`` they do not make it a query by topics.
    """

    topics: frozenset[str] | None = None
    topic_pattern: str | None = None  # regular expression that the whole topic matches
    queues: Mapping[str, frozenset[int]] | None = None
    bounds: Mapping[Queue, QueueBounds] = field(default_factory=dict)  # a queue without bounds is selected whole
    first_ms: int | None = None  # store timestamps
    end_ms: int | None = None
    first_physical_offset: int = 0
    end_physical_offset: int = MAX_LONG
    tags: frozenset[str] | None = None  # any of these; None also selects messages without a tag
    key: str | None = None  # one of the parts of KEYS
    uniq_key: str | None = None
    msg_id: tuple[Host, int] | None = None  # store host and physical offset of an offset message id
    topic_values: frozenset[str] | None = None  # in Spark's filters; these do not make a query by topics
    include: Include | None = None  # None is LIVE in a query by topics, else LOG
    with_damage: bool = False  # damaged ranges become rows although conditions compare fields

    def __post_init__(self) -> None:
        """Refuse a plain string in place of a set of strings. Raises OptionError."""
        for name, texts in (("topics", self.topics), ("tags", self.tags)):
            if not isinstance(texts, frozenset | None):
                raise OptionError(f"{name} {texts!r} of a query: give a frozenset of texts")

    @property
    def reads_queues(self) -> bool:
        """True if the query selects only records that are dispatched to ConsumeQueues."""
        return self.topics is not None or self.topic_pattern is not None or self.queues is not None

    @property
    def included(self) -> Include:
        """Selection of the log's records, with the default of the query."""
        return self.include or (Include.LIVE if self.reads_queues else Include.LOG)

    @property
    def reads_index(self) -> bool:
        """True if the query selects only records that are dispatched to the Index."""
        return self.key is not None or self.uniq_key is not None

    @property
    def named_topics(self) -> frozenset[str] | None:
        """Topics that the query names one by one; None if it names none."""
        return self.topics if self.queues is None else frozenset(self.queues)

    @property
    def reads_light_queues(self) -> bool:
        """True if the query names light queues (LMQ), one by one or by a pattern with the prefix of light queues."""
        names = self.named_topics
        if names is None:
            names = frozenset() if self.topic_pattern is None else frozenset([self.topic_pattern])
        return any(name.startswith(LIGHT_QUEUE_PREFIX) for name in names)

    @property
    def has_time(self) -> bool:
        """True if the query bounds store timestamps, on one side or both."""
        return self.first_ms is not None or self.end_ms is not None

    @property
    def includes_damage(self) -> bool:
        """True if damaged ranges become rows: no condition looks at fields, or ``with_damage`` is set."""
        return self.with_damage or (
            not (self.reads_queues or self.reads_index or self.has_time or self.bounds)
            and self.included is Include.LOG
            and self.tags is None
            and self.msg_id is None
            and self.topic_values is None
        )

    @property
    def time_bounds(self) -> tuple[int, int]:
        """Return the smallest store timestamp and one past the largest, in ms."""
        first = MIN_LONG if self.first_ms is None else self.first_ms
        return first, MAX_LONG if self.end_ms is None else self.end_ms

    def wants_topic(self, topic: str) -> bool:
        """Return whether records of a topic are selected."""
        if self.topics is not None and topic not in self.topics:
            return False
        is_light = topic.startswith(LIGHT_QUEUE_PREFIX)  # the values are of records' own topics
        if self.topic_values is not None and topic not in self.topic_values and not is_light:
            return False
        if self.topic_pattern is not None and re.fullmatch(self.topic_pattern, topic) is None:
            return False
        return self.queues is None or topic in self.queues

    def queue_bounds(self, topic: str, queue_id: int) -> QueueBounds:
        """Return the selected queue offsets of a queue."""
        if not self.wants_topic(topic) or (self.queues is not None and queue_id not in self.queues[topic]):
            return NOTHING
        return self.bounds.get((topic, queue_id), self.bounds.get((topic, ANY_QUEUE), EVERYTHING))


def parse_include(value: Include | str | None) -> Include | None:
    """Parse the name of an ``Include``; None stays None. Raises OptionError."""
    try:
        return None if value is None else Include(value)
    except ValueError:
        raise OptionError(f"include {value!r}: give {', '.join(Include)}") from None


class AccessPath(StrEnum):
    """Access path: how records are found."""

    AUTO = "auto"
    SCAN = "scan"
    CONSUMEQUEUE = "consumequeue"
    INDEX = "index"
    MESSAGE_ID = "msgId"  # not an option: chosen for message ids, which are offsets


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of reading: columns, damage mode, and what is done to bodies.

    Attributes:
        columns: names, of ``rmq_formats.arrow.schema.COMMITLOG``.
        by_topic: whether batches have rows of one topic, see ``record_batches``.
    """

    columns: tuple[str, ...]  # of ``rmq_formats.arrow.schema.COMMITLOG``
    query: Query = Query()
    mode: Mode = Mode.PERMISSIVE
    verify_crc: bool = True
    decompress: bool = False
    logs: Logs = COMMITLOG_ONLY
    by_topic: bool = False  # see ``record_batches``

    @property
    def verifies_crc(self) -> bool:
        """True if CRCs are verified; False if neither ``record_error`` nor the mode could show a failure."""
        return self.verify_crc and (self.mode is not Mode.PERMISSIVE or "record_error" in self.columns)


def parse_tags(expression: str) -> frozenset[str] | None:
    """Parse a tag expression ``a || b``; None for ``*`` and for an empty expression, which stand for all tags.

    Source: ``FilterAPI#buildSubscriptionData``.
    """
    if expression.strip() in {"", "*"}:
        return None
    return frozenset(tag.strip() for tag in expression.split("||") if tag.strip())
