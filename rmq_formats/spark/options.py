"""The read options of the sources: names are Kafka's where Spark's Kafka source has one.

An unknown option, or a value that cannot be used, is an OptionError that names it: an option that is
silently passed over would read the wrong rows.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from rmq_formats.access.query import (
    MAX_LONG,
    MIN_LONG,
    AccessPath,
    Query,
    Queue,
    QueueBounds,
    ReadOptions,
    parse_tags,
)
from rmq_formats.arrow_schema import Mode
from rmq_formats.errors import OptionError, RmqError
from rmq_formats.message_id import decode_message_id

DEFAULT_SPLIT_BYTES: Final = 128 << 20

EARLIEST: Final = -2  # Kafka's numbers for the two ends of a queue
LATEST: Final = -1

_SIZE = re.compile(r"(\d{1,18})([kmgKMG]?)[bB]?", re.ASCII)
_SIZE_SHIFT = {"": 0, "k": 10, "m": 20, "g": 30}
_INTEGER = re.compile(r"-?\d{1,18}", re.ASCII)

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a read was given.

    Attributes:
        path: root of the store, absolute or a URI.
        columns: names in the wanted order; None is all.
        read: which rows, and how they are given out.
        access_path: how records are to be found.
        split_bytes: bytes that a partition is to read, about.
        min_partitions: at least so many, about.
        pushdown: take Spark's filters.
        starting: ``startingOffsets`` where it is one word, EARLIEST or LATEST.
        max_trigger_bytes: of a stream's micro batch.
        max_trigger_offsets: records of a stream's micro batch.
        fail_on_data_loss: whether a stream fails when what it was to read is gone.
    """

    path: str
    columns: tuple[str, ...] | None = None
    read: ReadOptions = field(default_factory=lambda: ReadOptions(columns=()))
    access_path: AccessPath = AccessPath.AUTO
    split_bytes: int = DEFAULT_SPLIT_BYTES
    min_partitions: int = 1
    pushdown: bool = False
    starting: int = EARLIEST
    max_trigger_bytes: int | None = None
    max_trigger_offsets: int | None = None
    fail_on_data_loss: bool = True

    @property
    def query(self) -> Query:
        """Which rows are wanted."""
        return self.read.query


_COMMON: Final = ("path", "columns", "mode", "splitBytes", "minPartitions")
_QUEUES: Final = ("subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets")
COMMITLOG_OPTIONS: Final = (
    *_COMMON,
    *_QUEUES,
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingPhysicalOffset",
    "endingPhysicalOffset",
    "key",
    "uniqKey",
    "msgId",
    "tags",
    "accessPath",
    "verifyCrc",
    "decompress",
    "pushdown",
    "failOnDataLoss",
    "maxBytesPerTrigger",
    "maxOffsetsPerTrigger",
)
CONSUMEQUEUE_OPTIONS: Final = (*_COMMON, *_QUEUES)
INDEX_OPTIONS: Final = _COMMON


class _Given:
    """Options by name, whatever the case; each read is checked and an error names the option."""

    def __init__(self, source: str, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        names = {name.lower(): name for name in known}
        for name in options:
            if name.lower() not in names:
                raise OptionError(f"unknown option {name!r} of {source}; there are {', '.join(known)}")
        self._source = source
        self._values = {names[name.lower()]: str(value) for name, value in options.items()}

    def get(self, name: str, parse: Callable[[str], _Value]) -> _Value | None:
        value = self._values.get(name)
        if value is None:
            return None
        try:
            return parse(value)
        except (ValueError, RmqError) as error:
            shown = value if len(value) <= 80 else value[:77] + "..."
            raise OptionError(f"option {name} of {self._source} cannot be {shown!r}: {error}") from error

    def get_or(self, name: str, parse: Callable[[str], _Value], default: _Value) -> _Value:
        value = self.get(name, parse)
        return default if value is None else value

    def names(self) -> frozenset[str]:
        return frozenset(self._values)


def commitlog_options(options: Mapping[str, str]) -> SourceOptions:
    """Options of ``rmq_commitlog``.

    Raises:
        OptionError: naming the option that is unknown or has a bad value.
    """
    given = _Given("rmq_commitlog", options, COMMITLOG_OPTIONS)
    query = _queue_query(given)
    query = replace(
        query,
        first_ms=given.get("startingTimestamp", _timestamp_ms),
        end_ms=given.get("endingTimestamp", _timestamp_ms),
        first_physical_offset=given.get_or("startingPhysicalOffset", _natural, 0),
        end_physical_offset=given.get_or("endingPhysicalOffset", _natural, MAX_LONG),
        tags=given.get("tags", parse_tags),
        key=given.get("key", _text),
        uniq_key=given.get("uniqKey", _text),
        msg_id=given.get("msgId", decode_message_id),
    )
    common = _common(given)
    return replace(
        common,
        read=replace(
            common.read,
            query=query,
            verify_crc=given.get_or("verifyCrc", _boolean, True),
            decompress=given.get_or("decompress", _boolean, False),
        ),
        access_path=given.get_or("accessPath", _access_path, AccessPath.AUTO),
        pushdown=given.get_or("pushdown", _boolean, False),
        starting=given.get_or("startingOffsets", _word_or_json, EARLIEST),
        max_trigger_bytes=given.get("maxBytesPerTrigger", _size),
        max_trigger_offsets=given.get("maxOffsetsPerTrigger", _positive),
        fail_on_data_loss=given.get_or("failOnDataLoss", _boolean, True),
    )


def consumequeue_options(options: Mapping[str, str]) -> SourceOptions:
    """Options of ``rmq_consumequeue``. Raises OptionError."""
    given = _Given("rmq_consumequeue", options, CONSUMEQUEUE_OPTIONS)
    common = _common(given)
    return replace(common, read=replace(common.read, query=_queue_query(given)))


def index_options(options: Mapping[str, str]) -> SourceOptions:
    """Options of ``rmq_index``. Raises OptionError."""
    return _common(_Given("rmq_index", options, INDEX_OPTIONS))


def batch_only(options: SourceOptions) -> SourceOptions:
    """The options, if a batch can be read with them.

    Raises:
        OptionError: a batch that would begin at the latest offset, where Kafka's source refuses it too.
    """
    if options.starting == LATEST:
        raise OptionError("option startingOffsets cannot be latest for a batch: there would be nothing to read")
    return options


def _common(given: _Given) -> SourceOptions:
    path = given.get("path", _path)
    if path is None:
        raise OptionError("option path is missing: give the store's root to load()")
    return SourceOptions(
        path=path,
        columns=given.get("columns", _names),
        read=ReadOptions(columns=(), mode=given.get_or("mode", _mode, Mode.PERMISSIVE)),
        split_bytes=given.get_or("splitBytes", _size, DEFAULT_SPLIT_BYTES),
        min_partitions=given.get_or("minPartitions", _positive, 1),
    )


def _queue_query(given: _Given) -> Query:
    ways = sorted(given.names() & {"subscribe", "subscribePattern", "assign"})
    if len(ways) > 1:
        raise OptionError(f"options {' and '.join(ways)} exclude each other")
    topics = given.get("subscribe", _names)
    query = Query(
        topics=None if topics is None else frozenset(topics),
        topic_pattern=given.get("subscribePattern", _pattern),
        queues=given.get("assign", _assignment),
    )
    starts = _by_queue(given, "startingOffsets", _offsets(EARLIEST))
    ends = _by_queue(given, "endingOffsets", _offsets(LATEST))
    first_times = _by_queue(given, "startingOffsetsByTimestamp", _times)
    end_times = _by_queue(given, "endingOffsetsByTimestamp", _times)
    queues = starts.keys() | ends.keys() | first_times.keys() | end_times.keys()
    for topic, queue_id in sorted(queues):
        if not query.reads_queues:
            raise OptionError("offsets of queues need subscribe, subscribePattern or assign")
        if query.queue_bounds(topic, queue_id).first_offset == query.queue_bounds(topic, queue_id).end_offset:
            raise OptionError(f"offsets are given for queue {queue_id} of {topic!r}, which is not subscribed to")
    bounds = {
        queue: QueueBounds(
            starts.get(queue, MIN_LONG),
            ends.get(queue, MAX_LONG),
            first_times.get(queue, MIN_LONG),
            end_times.get(queue, MAX_LONG),
        )
        for queue in sorted(queues)
    }
    return replace(query, bounds=bounds)


def _by_queue(
    given: _Given, name: str, parse: Callable[[str], dict[Queue, int]]
) -> dict[Queue, int]:
    return given.get_or(name, parse, {}) if name in given.names() else {}


def _offsets(default: int) -> Callable[[str], dict[Queue, int]]:
    """Offsets by queue; the end that is meant anyway may be left out, or given by its number or word."""
    word, number = ("earliest", EARLIEST) if default == EARLIEST else ("latest", LATEST)
    other_word, other = ("latest", LATEST) if default == EARLIEST else ("earliest", EARLIEST)

    def parse(text: str) -> dict[Queue, int]:
        lowered = text.strip().lower()
        if lowered == word or (lowered == other_word and default == EARLIEST):
            return {}  # startingOffsets=latest is a stream's; see batch_only
        if lowered == other_word:
            raise ValueError("a batch would have nothing to read")
        found = {}
        for queue, value in _queue_numbers(text).items():
            if value == other:
                raise ValueError(f"{other} ({other_word}) leaves nothing to read")
            if value < 0 and value != number:
                raise ValueError(f"offset {value}")
            if value != number:
                found[queue] = value
        return found

    return parse


def _word_or_json(text: str) -> int:
    return LATEST if text.strip().lower() == "latest" else EARLIEST


def _times(text: str) -> dict[Queue, int]:
    return {queue: value for queue, value in _queue_numbers(text).items() if value >= 0}


def _queue_numbers(text: str) -> dict[Queue, int]:
    """``{"topic": {"0": 123}}`` by queue."""
    found: dict[Queue, int] = {}
    for topic, queues in _json_object(text).items():
        if not isinstance(queues, dict):
            raise ValueError(f"{topic!r} must have an object of queues")
        for queue_id, value in queues.items():
            if not _INTEGER.fullmatch(queue_id) or not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"queue {queue_id!r} of {topic!r} must have an integer")
            found[topic, int(queue_id)] = value
    return found


def _assignment(text: str) -> dict[str, frozenset[int]]:
    found = {}
    for topic, queues in _json_object(text).items():
        if not isinstance(queues, list) or not all(type(queue_id) is int for queue_id in queues):
            raise ValueError(f"{topic!r} must have a list of queue ids")
        found[topic] = frozenset(queues)
    return found


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError('expected a JSON object by topic, such as {"TopicTest":{"0":100}}')
    return value


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError("a list of names, separated by commas")
    return names


def _text(text: str) -> str:
    if not text:
        raise ValueError("it is empty")
    return text


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression ({error})") from error
    return text


def _path(text: str) -> str:
    if not text:
        raise ValueError("it is empty")
    path = text if "://" in text else str(Path(text).absolute())
    return path.rstrip("/").removesuffix("/commitlog") or "/"


def _boolean(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError("true or false")
    return text.lower() == "true"


def _natural(text: str) -> int:
    if not _INTEGER.fullmatch(text) or int(text) < 0:
        raise ValueError("a number of bytes, 0 or more")
    return int(text)


def _positive(text: str) -> int:
    if not _INTEGER.fullmatch(text) or int(text) < 1:
        raise ValueError("a number, 1 or more")
    return int(text)


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) < 1:
        raise ValueError("a number of bytes, such as 134217728 or 128m")
    return int(match[1]) << _SIZE_SHIFT[match[2].lower()]


def _timestamp_ms(text: str) -> int:
    if _INTEGER.fullmatch(text.strip()):
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("milliseconds, or a time as 2026-03-01T08:00:00Z") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // _MILLISECOND


_MILLISECOND = datetime(1970, 1, 1, microsecond=1000) - datetime(1970, 1, 1)


def _mode(text: str) -> Mode:
    try:
        return Mode(text.upper())
    except ValueError:
        raise ValueError(f"one of {', '.join(Mode)}") from None


def _access_path(text: str) -> AccessPath:
    choices = {path.value: path for path in AccessPath if path is not AccessPath.MESSAGE_ID}
    if text.lower() not in choices:
        raise ValueError(f"one of {', '.join(choices)}")
    return choices[text.lower()]
