"""Options of the source ``rmq``: named as in Spark's Kafka source where that has one.

- ``namesrv`` is ``host:port`` of the name servers, separated by semicolons.
- ``subscribe``, ``subscribePattern`` (the whole topic must match; system and retry topics only where they are
  subscribed to by name) and ``assign``, ``{"Orders": ["broker-a:0", 1]}``, choose queues. A queue is
  ``broker:number``; the number alone will do where only one broker has it.
- ``startingOffsets`` (inclusive) is ``earliest``, ``latest``, ``group``, or JSON by topic and queue,
  ``{"Orders": {"broker-a:0": 100, "1": -2}}``; ``endingOffsets`` (exclusive) likewise, without ``group``.
  Queues that the JSON leaves out are read whole. -2 is earliest, -1 is latest.
- ``startingTimestamp``, ``endingTimestamp`` by store timestamp; ``…OffsetsByTimestamp`` as JSON by queue. All
  conditions that are given hold at once.
- ``group``: consumer group of the pulls; ``startingOffsets=group`` begins at its offsets, and
  ``commitOffsetsToGroup`` commits what a stream has processed.
- ``tags`` (``a || b``) and ``sql`` (SQL92 over properties) are applied by the brokers.
- ``accessKey``, ``secretKey``, ``securityToken``, or ``credentialsFile`` that has them, sign requests; ``useTLS`` and
  ``tls.client.…`` are TLS. Spark hides the values of those that are secret by their names (``spark.redaction.regex``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from rmq_formats.arrow.schema import Mode
from rmq_formats.errors import OptionError
from rmq_formats.read.query import parse_tags
from rmq_formats.spark.options import values
from rmq_formats.spark.options.read import OptionFields, OptionParser
from rmq_formats.spark.options.values import EARLIEST, LATEST
from rmq_formats.sql92 import SqlError, compile_expression
from rmq_formats.times import check_milliseconds

ALL_TAGS: Final = "*"
GROUP: Final = -3  # value of ``starting``: the consumer group's offsets
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST, "group": GROUP}

ACCESS_OPTIONS: Final = (
    "credentialsFile", "accessKey", "secretKey", "secretKeyFile", "securityToken", "useTLS",
    "tls.client.trustCertPath", "tls.client.certPath", "tls.client.keyPath", "tls.client.keyPassword",
    "tls.client.authServer", "tls.client.serverName",
)  # fmt: skip
WRITE_OPTIONS: Final = ("namesrv", "topic", "group", "batchBytes", *ACCESS_OPTIONS)
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "path"})  # options that Spark hands on to a stream's sink
_BATCH_BYTES: Final = 256 << 10
_MAX_BATCH_BYTES: Final = 4 << 20  # what brokers take by default (maxMessageSize)


class ClusterQueue(NamedTuple):
    """A queue of a broker in the cluster."""

    topic: str
    broker: str
    queue_id: int

    @property
    def name(self) -> str:
        return f"{self.broker}:{self.queue_id}"


class ClusterQueueName(NamedTuple):
    """Queue as an option names it; without a broker where only one queue has that number."""

    topic: str
    broker: str | None
    queue_id: int


ByQueue = Mapping[ClusterQueueName, int]
_NONE: Final[ByQueue] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ClusterReadOptions:
    """Parsed options of a read. One of ``topics``, ``pattern`` and ``assigned`` chooses queues; the others are None.

    Attributes:
        starting: EARLIEST, LATEST or GROUP, for queues that ``starts`` leaves out.
        starts: offsets by queue.
        ends: offsets by queue, exclusive; other queues are read to their end.
        first_ms: smallest store timestamp.
        end_ms: one past the largest store timestamp.
        commits: whether a stream commits its offsets to the group.
        min_partitions: number of partitions at least, about.
        max_trigger_offsets: messages of a stream's micro batch.
        tags: ``*``, or tags with ``||`` between them.
        access: credentials and TLS, by the options' names; see ``client.resolve_access``.
    """

    namesrv: str
    topics: tuple[str, ...] | None
    pattern: str | None
    assigned: tuple[ClusterQueueName, ...] | None
    starting: int
    starts: ByQueue
    ends: ByQueue
    first_ms: int | None
    end_ms: int | None
    first_times_ms: ByQueue
    end_times_ms: ByQueue
    group: str | None
    commits: bool
    min_partitions: int
    max_trigger_offsets: int | None
    tags: str
    sql: str | None
    columns: tuple[str, ...] | None
    mode: Mode
    verify_crc: bool
    decompress: bool
    fail_on_data_loss: bool
    access: Mapping[str, str] = field(repr=False)

    @property
    def has_end(self) -> bool:
        return bool(self.ends or self.end_times_ms) or self.end_ms is not None


@dataclass(frozen=True, slots=True)
class ClusterWriteOptions:
    """Parsed options of a write. Without ``topic`` a column has topics; ``batch_bytes`` is a request's size, about."""

    namesrv: str
    topic: str | None
    group: str
    batch_bytes: int
    access: Mapping[str, str] = field(repr=False)


def read_options(options: Mapping[str, str]) -> ClusterReadOptions:
    """Parse the options of a read. Raises OptionError."""
    parser = OptionParser("rmq", options, READ_OPTIONS)
    ways = sorted(parser.names() & {"subscribe", "subscribePattern", "assign"})
    if len(ways) != 1:
        raise OptionError(
            f"rmq needs one of subscribe, subscribePattern and assign, not {' and '.join(ways) or 'none'}"
        )
    starting, starts = parser.get_or("startingOffsets", _offsets(EARLIEST), (EARLIEST, _NONE))
    ending, ends = parser.get_or("endingOffsets", _offsets(LATEST), (LATEST, _NONE))
    if ending != LATEST or EARLIEST in ends.values():
        raise OptionError("option endingOffsets of rmq: only latest, or offsets by queue, leave something to read")
    read = ClusterReadOptions(
        namesrv=_namesrv(parser),
        starting=starting,
        starts=starts,
        ends={queue: offset for queue, offset in ends.items() if offset != LATEST},
        access=access_settings(parser),
        **parser.fields(_READ_FIELDS),
    )
    if read.group is None and (starting == GROUP or read.commits):
        raise OptionError("option group of rmq is missing: startingOffsets=group and commitOffsetsToGroup need it")
    if read.sql is not None and read.tags != ALL_TAGS:
        raise OptionError("options tags and sql of rmq exclude each other")
    return read


def write_options(options: Mapping[str, str]) -> ClusterWriteOptions:
    """Parse the options of a write; raises as ``read_options``."""
    rmq_options = {name: value for name, value in options.items() if name.lower() not in _SPARKS_OWN}
    parser = OptionParser("rmq", rmq_options, WRITE_OPTIONS)
    batch_bytes = parser.get_or("batchBytes", values.size, _BATCH_BYTES)
    if batch_bytes > _MAX_BATCH_BYTES:
        raise OptionError(f"option batchBytes of rmq cannot be {batch_bytes}: brokers take {_MAX_BATCH_BYTES} at most")
    return ClusterWriteOptions(
        _namesrv(parser),
        parser.get("topic", values.text),
        parser.get_or("group", values.text, "SPARK_PRODUCER"),
        batch_bytes,
        access_settings(parser),
    )


def batch_only(options: ClusterReadOptions) -> ClusterReadOptions:
    """Return the options, or refuse those that only a stream can have. Raises OptionError."""
    if options.starting == LATEST or LATEST in options.starts.values():
        raise OptionError("option startingOffsets of rmq cannot be latest for a batch: there would be nothing to read")
    if options.commits:
        raise OptionError("option commitOffsetsToGroup of rmq is for streams: a batch does not tell when it is done")
    return options


def stream_only(options: ClusterReadOptions) -> ClusterReadOptions:
    """Return the options, or refuse those that only a batch can have. Raises OptionError."""
    if options.has_end:
        raise OptionError("a stream has no end: leave out the ending… options, or read a batch")
    return options


def access_settings(parser: OptionParser) -> dict[str, str]:
    """Return the set options of credentials and TLS, by name."""
    settings = {name: parser.get(name, str) for name in ACCESS_OPTIONS}
    return {name: value for name, value in settings.items() if value is not None}


def _namesrv(parser: OptionParser) -> str:
    namesrv = parser.get("namesrv", values.text)
    if namesrv is None:
        raise OptionError("option namesrv of rmq is missing: host:port of a name server")
    return namesrv


def _tags(text: str) -> str:
    if parse_tags(text) == frozenset():
        raise ValueError("no tag in the expression")
    return text.strip() or ALL_TAGS


def _sql(text: str) -> str:
    """Return a SQL92 expression that parses: brokers ignore one that does not."""
    try:
        compile_expression(text)
    except SqlError as error:
        raise ValueError(str(error)) from error
    return text


def _offsets(default: int) -> Callable[[str], tuple[int, ByQueue]]:
    """Return a parser of a word, or of offsets by queue; ``default`` is the word for queues that these leave out."""

    def parse(text: str) -> tuple[int, ByQueue]:
        word = _WORDS.get(text.strip().lower())
        if word is not None:
            return word, _NONE
        numbers = _numbers(text)
        for value in numbers.values():
            if value < EARLIEST:
                raise ValueError(f"offset {value} is out of range")
        return default, numbers

    return parse


def _numbers(text: str) -> ByQueue:
    """Parse ``{"topic": {"broker:0": 123}}`` to numbers by queue."""
    numbers = {}
    for topic, queues in values.json_object(text).items():
        if not isinstance(queues, dict):
            raise ValueError(f"{topic!r} must have an object of queues")
        for name, value in queues.items():
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"queue {name!r} of {topic!r} must have an integer")
            numbers[queue_name(topic, name)] = value
    return numbers


def _times(text: str) -> ByQueue:
    """Parse ``{"topic": {"broker:0": 1767225600000}}``, milliseconds since 1970, as ``_numbers``."""
    times = _numbers(text)
    for time_ms in times.values():
        if not 0 <= check_milliseconds(time_ms) < 1 << 63:
            raise ValueError(f"expected milliseconds since 1970, not {time_ms}")
    return times


def _parse_assigned(text: str) -> tuple[ClusterQueueName, ...]:
    assigned = []
    for topic, queues in values.json_object(text).items():
        if not isinstance(queues, list) or not all(isinstance(name, str | int) for name in queues):
            raise ValueError(f'{topic!r} must have a list of queues, such as ["broker-a:0", 1]')
        assigned += [queue_name(topic, str(name)) for name in queues]
    return tuple(assigned)


def queue_name(topic: str, name: str) -> ClusterQueueName:
    """Parse ``broker:number`` or ``number`` to a queue name. Raises ValueError."""
    broker, _, number = name.rpartition(":")
    if not (number.isascii() and number.isdecimal()) or len(number) > 9:
        raise ValueError(f"queue {name!r} of {topic!r}: expected broker:number, or number")
    return ClusterQueueName(topic, broker or None, int(number))


_READ_FIELDS: Final[OptionFields] = {  # fields of ``ClusterReadOptions``
    "subscribe": ("topics", values.names, None),
    "subscribePattern": ("pattern", values.pattern, None),
    "assign": ("assigned", _parse_assigned, None),
    "startingTimestamp": ("first_ms", values.timestamp_ms, None),
    "endingTimestamp": ("end_ms", values.timestamp_ms, None),
    "startingOffsetsByTimestamp": ("first_times_ms", _times, _NONE),
    "endingOffsetsByTimestamp": ("end_times_ms", _times, _NONE),
    "group": ("group", values.text, None),
    "commitOffsetsToGroup": ("commits", values.boolean, False),
    "minPartitions": ("min_partitions", values.positive, 1),
    "maxOffsetsPerTrigger": ("max_trigger_offsets", values.positive, None),
    "tags": ("tags", _tags, ALL_TAGS),
    "sql": ("sql", _sql, None),
    "columns": ("columns", values.names, None),
    "mode": ("mode", values.mode, Mode.PERMISSIVE),
    "verifyCrc": ("verify_crc", values.boolean, True),
    "decompress": ("decompress", values.boolean, True),
    "failOnDataLoss": ("fail_on_data_loss", values.boolean, True),
}
READ_OPTIONS: Final = ("namesrv", *_READ_FIELDS, "startingOffsets", "endingOffsets", *ACCESS_OPTIONS)
