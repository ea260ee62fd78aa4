"""Values of the arguments of ``jobs/export_delta.py``; each function raises OptionError that names the argument."""

import argparse
import re
from typing import Final

from rmq_formats.errors import OptionError
from rmq_formats.lakehouse.command.arguments import QUEUE_BOUNDS
from rmq_formats.lakehouse.spec import TypedTopic, load_spec
from rmq_formats.read.query import Queue
from rmq_formats.spark.job import option_name, parse_argument
from rmq_formats.spark.options import values

_INTERVAL: Final = re.compile(r"([0-9]{1,9}) ?(millisecond|second|minute|hour|day)s?", re.ASCII)
_SECONDS: Final = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600, "day": 86400}


def pairs_of(arguments: argparse.Namespace, option: str) -> dict[str, str]:
    """Parse an argument that may come often, KEY=VALUE."""
    pairs = [text.partition("=") for text in getattr(arguments, option)]
    for name, sign, _ in pairs:
        if not name or not sign:
            raise OptionError(f"{option_name(option)} {name!r}: expected KEY=VALUE")
    return {name: value for name, _, value in pairs}


def typed_topics(arguments: argparse.Namespace) -> list[TypedTopic]:
    """Load the topics of the spec. Its file is read once a run, so that checks and export see the same topics."""
    if arguments.typed is None:
        return []
    if arguments.typed_topics is None:
        arguments.typed_topics = load_spec(arguments.typed)
    topics: list[TypedTopic] = arguments.typed_topics
    return topics


def names_of(arguments: argparse.Namespace, option: str) -> tuple[str, ...] | None:
    """Parse a comma list; None where it is not given."""
    return parse_argument(arguments, option, values.names)


def check_queues(arguments: argparse.Namespace) -> None:
    """Refuse bounds of queues of topics that are not exported."""
    topics = names_of(arguments, "topics") or ()
    if arguments.table is None:
        topics = tuple(topic.topic for topic in typed_topics(arguments))
    for name in QUEUE_BOUNDS:
        for topic, queue_id in sorted(queues_of(arguments, name)):
            if topic not in topics:
                source = "--topics" if arguments.table is not None else "the spec"
                raise OptionError(
                    f"{option_name(name)}: queue {queue_id} of {topic!r}, a topic that {source} does not name"
                )


def queues_of(arguments: argparse.Namespace, name: str) -> dict[Queue, int]:
    """Parse a bound of queues; empty for words that mean all messages."""
    if name.endswith("timestamp"):
        return parse_argument(arguments, name, values.times) or {}
    if name == "starting_offsets" and (getattr(arguments, name) or "").strip().lower() == "latest":
        raise OptionError(f"{option_name(name)} 'latest': there would be nothing to export")
    return (
        parse_argument(
            arguments, name, values.offsets(values.EARLIEST if name == "starting_offsets" else values.LATEST)
        )
        or {}
    )


def limits(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the option of the stream source that limits a micro batch."""
    max_bytes = parse_argument(arguments, "max_bytes_per_trigger", values.size)
    return {} if max_bytes is None else {"maxBytesPerTrigger": str(max_bytes)}


def interval_s(arguments: argparse.Namespace) -> float | None:
    """Return the time between rounds, in seconds; None where they end."""
    match = _INTERVAL.fullmatch(arguments.trigger_interval)
    if match is None:
        raise OptionError(
            f"--trigger-interval {arguments.trigger_interval!r}: a time such as '10 seconds' or '1 minute'"
        )
    return int(match[1]) * _SECONDS[match[2]] if arguments.mode == "stream" else None
