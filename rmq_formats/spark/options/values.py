"""Parsers of option values; each raises ValueError with the accepted values."""

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from rmq_formats.arrow.schema import Mode
from rmq_formats.read.query import AccessPath, Queue
from rmq_formats.storage.queue_logs import LogKind
from rmq_formats.times import bound_ms, check_milliseconds, is_day

_Value = TypeVar("_Value")

EARLIEST: Final = -2  # Kafka's numbers for the two ends of a queue
LATEST: Final = -1

_SIZE = re.compile(r"(\d{1,18})([kmgKMG]?)[bB]?", re.ASCII)
_SIZE_SHIFT = {"": 0, "k": 10, "m": 20, "g": 30}
_MAX_LONG: Final = (1 << 63) - 1
_INTEGER = re.compile(r"-?\d{1,18}", re.ASCII)


def offsets(default: int) -> Callable[[str], dict[Queue, int]]:
    """Parse offsets by queue; the default end may be omitted or written as its number or word."""
    word, number = ("earliest", EARLIEST) if default == EARLIEST else ("latest", LATEST)
    other_word, other = ("latest", LATEST) if default == EARLIEST else ("earliest", EARLIEST)

    def parse(text: str) -> dict[Queue, int]:
        lowered = text.strip().lower()
        if lowered == word or (lowered == other_word and default == EARLIEST):
            return {}  # startingOffsets=latest is for streams; see refuse_stream_options
        if lowered == other_word:
            raise ValueError("a batch would have nothing to read")
        queue_offsets = {}
        for queue, value in queue_numbers(text).items():
            if value == other:
                raise ValueError(f"{other} ({other_word}) leaves nothing to read")
            if value < 0 and value != number:
                raise ValueError(f"offset {value} is out of range")
            if value != number:
                queue_offsets[queue] = value
        return queue_offsets

    return parse


def word_or_json(text: str) -> int:
    """Parse ``startingOffsets`` to EARLIEST or LATEST; JSON by queue counts as EARLIEST."""
    return LATEST if text.strip().lower() == "latest" else EARLIEST


def times(text: str) -> dict[Queue, int]:
    """Parse timestamps in ms by queue; negative ones are left out."""
    return {queue: check_milliseconds(value) for queue, value in queue_numbers(text).items() if value >= 0}


def queue_numbers(text: str) -> dict[Queue, int]:
    """Parse ``{"topic": {"0": 123}}`` to numbers by queue."""
    numbers: dict[Queue, int] = {}
    for topic, queues in json_object(text).items():
        if not isinstance(queues, dict):
            raise ValueError(f"{topic!r} must have an object of queues")
        for queue_id, value in queues.items():
            if not _INTEGER.fullmatch(queue_id) or not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"queue {queue_id!r} of {topic!r} must have an integer")
            if abs(value) > _MAX_LONG:
                raise ValueError(f"queue {queue_id!r} of {topic!r} has {value}, which is no 64-bit integer")
            numbers[topic, int(queue_id)] = value
    return numbers


def assignment(text: str) -> dict[str, frozenset[int]]:
    """Parse ``{"topic": [0, 1]}`` to queues by topic."""
    queues_by_topic = {}
    for topic, queues in json_object(text).items():
        if not isinstance(queues, list) or not all(type(queue_id) is int for queue_id in queues):
            raise ValueError(f"{topic!r} must have a list of queue ids")
        if any(queue_id < 0 for queue_id in queues):
            raise ValueError(f"{topic!r} has a queue id below 0")
        queues_by_topic[topic] = frozenset(queues)
    return queues_by_topic


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object. Raises ValueError: a name comes twice, so that a member would be lost."""
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{repeated!r} comes twice")
    return members


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object without repeated names."""
    try:
        value = json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError('expected a JSON object by topic, such as {"TopicTest":{"0":100}}')
    return value


def names(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of names."""
    stripped = tuple(name.strip() for name in text.split(","))
    if not all(stripped):
        raise ValueError("expected a list of names, separated by commas")
    return stripped


def log_kind(text: str) -> LogKind:
    """Parse a ``LogKind``."""
    try:
        return LogKind(text.strip().lower())
    except ValueError:
        raise ValueError(f"give {', '.join(LogKind)}") from None


def text(text: str) -> str:
    """Parse a text that is not empty."""
    if not text:
        raise ValueError("it is empty")
    return text


def pattern(text: str) -> str:
    """Parse a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression ({error})") from error
    return text


def for_broker(text: str, broker: str | None) -> str:
    """Select a broker's queues in JSON: ``broker:0`` is a queue of one broker, ``0`` a queue of every broker.

    Args:
        text: ``{"topic": {"0": 123, "broker-a:0": 100}}`` or ``{"topic": [0, "broker-a:1"]}``, else unchanged.
        broker: name of the broker; None selects only queues of every broker.
    """
    if not text.lstrip().startswith("{"):
        return text
    selected: dict[str, Any] = {}
    for topic, queues in json_object(text).items():
        selected[topic] = queues
        if isinstance(queues, dict):
            shared = {name: value for name, value in queues.items() if ":" not in name}
            named = {_queue(name): value for name, value in queues.items() if _broker(name) == broker is not None}
            selected[topic] = shared | named
        elif isinstance(queues, list):
            names = [name for name in queues if isinstance(name, str) and ":" in name]
            queue_ids = [int(_queue(name)) for name in names if _broker(name) == broker is not None]
            selected[topic] = [queue_id for queue_id in queues if queue_id not in names] + queue_ids
    return json.dumps(selected)


def brokers_named(text: str) -> frozenset[str]:
    """Return the brokers in JSON of queues by topic, see ``for_broker``."""
    if not text.lstrip().startswith("{"):
        return frozenset()
    names = [name for queues in json_object(text).values() if isinstance(queues, dict | list) for name in queues]
    return frozenset(_broker(name) or "" for name in names if isinstance(name, str) and ":" in name)


def _broker(name: str) -> str | None:
    return name.rpartition(":")[0] or None


def _queue(name: str) -> str:
    queue_id = name.rpartition(":")[2]
    if not _INTEGER.fullmatch(queue_id):
        raise ValueError(f"queue {name!r} must be a number, or broker:number")
    return queue_id


def path_list(text: str) -> tuple[str, ...]:
    """Parse a JSON list of paths, as Spark passes those of ``load([...])``."""
    try:
        paths = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(paths, list) or not paths or not all(isinstance(element, str) for element in paths):
        raise ValueError("expected a list of paths")
    return tuple(path(element) for element in paths)


def toml_path(text: str) -> str:
    """Parse the path of a TOML file that names stores."""
    if not text.endswith(".toml"):
        raise ValueError("expected a TOML file that names brokers and roots, such as cluster.toml")
    return path(text)


def path(text: str) -> str:
    """Parse a local path, made absolute, or a URI; a store's ``commitlog`` stands for the store."""
    if not text:
        raise ValueError("it is empty")
    absolute = text if "://" in text else str(Path(text).absolute())
    return absolute.rstrip("/").removesuffix("/commitlog") or "/"


def _choice(expected: str, choices: Mapping[str, _Value]) -> Callable[[str], _Value]:
    """Make a parser of words in lower case to their values."""

    def parse(text: str) -> _Value:
        if text.lower() not in choices:
            raise ValueError(f"expected {expected}")
        return choices[text.lower()]

    return parse


_ACCESS_PATHS: Final = [path for path in AccessPath if path is not AccessPath.MESSAGE_ID]
boolean: Final = _choice("true or false", {"true": True, "false": False})
missing_stores: Final = _choice("fail or row", {"fail": False, "row": True})
mode: Final = _choice(f"one of {', '.join(Mode)}", {mode.lower(): mode for mode in Mode})
access_path: Final = _choice(f"one of {', '.join(_ACCESS_PATHS)}", {path.value: path for path in _ACCESS_PATHS})


def natural(text: str) -> int:
    """Parse an integer from 0 on."""
    if not _INTEGER.fullmatch(text) or int(text) < 0:
        raise ValueError("expected a number of bytes, 0 or more")
    return int(text)


def positive(text: str) -> int:
    """Parse an integer from 1 on."""
    if not _INTEGER.fullmatch(text) or int(text) < 1:
        raise ValueError("expected a number, 1 or more")
    return int(text)


def size(text: str) -> int:
    """Parse a number of bytes, also with k, m or g."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) < 1:
        raise ValueError("expected a number of bytes, such as 134217728 or 128m")
    return int(match[1]) << _SIZE_SHIFT[match[2].lower()]


def timestamp_ms(text: str) -> int:
    """Parse milliseconds since 1970, or a time in ISO 8601, without a zone in UTC."""
    if _INTEGER.fullmatch(text.strip()) and not is_day(text.strip()):
        return check_milliseconds(int(text))
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("expected milliseconds, or a time as 2026-03-01T08:00:00Z") from None
    return bound_ms(moment)
