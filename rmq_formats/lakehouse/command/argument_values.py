"""Values of the arguments of ``jobs/export_delta.py``; each function raises OptionError that names the argument."""

import argparse
import re
from typing import Final

from rmq_formats.errors import OptionError
from rmq_formats.lakehouse.command.arguments import QUEUE_BOUNDS
from rmq_formats.lakehouse.spec import TypedTopic, load_spec
from rmq_formats.read.query import Queue
from rmq_formats.spark.job import option_name, parsed
from rmq_formats.spark.options import values

_INTERVAL: Final = re.compile(r"([0-9]{1,9}) ?(millisecond|second|minute|hour|day)s?", re.ASCII)
_SECONDS: Final = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600, "day": 86400}


def pairs_of(given: argparse.Namespace, option: str) -> dict[str, str]:
    """Parse an argument that may come often, KEY=VALUE."""
    pairs = [text.partition("=") for text in getattr(given, option)]
    for name, sign, _ in pairs:
        if not name or not sign:
            raise OptionError(f"{option_name(option)} {name!r}: expected KEY=VALUE")
    return {name: value for name, _, value in pairs}


def typed_topics(given: argparse.Namespace) -> list[TypedTopic]:
    """Load the topics of the spec; its file is read once a run, so that what was checked is what is done."""
    if given.typed is None:
        return []
    if given.typed_topics is None:
        given.typed_topics = load_spec(given.typed)
    topics: list[TypedTopic] = given.typed_topics
    return topics


def names_of(given: argparse.Namespace, option: str) -> tuple[str, ...] | None:
    """Parse a comma list; None where it is not given."""
    return parsed(given, option, values.names)


def check_queues(given: argparse.Namespace) -> None:
    """Refuse bounds of queues of topics that are not exported."""
    chosen = names_of(given, "topics") or ()
    if given.table is None:
        chosen = tuple(topic.topic for topic in typed_topics(given))
    for name in QUEUE_BOUNDS:
        for topic, queue_id in sorted(queues_of(given, name)):
            if topic not in chosen:
                where = "--topics" if given.table is not None else "the spec"
                raise OptionError(
                    f"{option_name(name)}: queue {queue_id} of {topic!r}, a topic that {where} does not name"
                )


def queues_of(given: argparse.Namespace, name: str) -> dict[Queue, int]:
    """Parse a bound of queues; none where a word says that all is wanted."""
    if name.endswith("timestamp"):
        return parsed(given, name, values.times) or {}
    if name == "starting_offsets" and (getattr(given, name) or "").strip().lower() == "latest":
        raise OptionError(f"{option_name(name)} 'latest': there would be nothing to export")
    return parsed(given, name, values.offsets(values.EARLIEST if name == "starting_offsets" else values.LATEST)) or {}


def limits(given: argparse.Namespace) -> dict[str, str]:
    """Return the option of the stream source that limits a micro batch."""
    most = parsed(given, "max_bytes_per_trigger", values.size)
    return {} if most is None else {"maxBytesPerTrigger": str(most)}


def interval_s(given: argparse.Namespace) -> float | None:
    """Return the time between rounds, in seconds; None where they end."""
    told = _INTERVAL.fullmatch(given.trigger_interval)
    if told is None:
        raise OptionError(f"--trigger-interval {given.trigger_interval!r}: a time such as '10 seconds' or '1 minute'")
    return int(told[1]) * _SECONDS[told[2]] if given.mode == "stream" else None
