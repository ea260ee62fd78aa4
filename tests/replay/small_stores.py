"""Small logs to replay, and replays of them that reach no cluster."""

import argparse
from pathlib import Path

from jobs import replay
from rmq_formats.codecs.record import MessageToStore
from rmq_offline.replay.source import Replay
from tests.support.stores.store_files import write_commitlog
from tests.support.stores.verified_stores import FILE_BYTES, FIRST_MS, message


def make_log(store: Path, count: int = 200, text: str = "message", first_ms: int = FIRST_MS) -> list[int]:
    """Write a log of messages of the topic Orders in four queues; return their physical offsets."""
    messages = [orders_message(number, f"{text} {number}".encode()) for number in range(count)]
    return write_commitlog(store, messages, FILE_BYTES, first_ms)


def orders_message(number: int, body: bytes, **changes: object) -> MessageToStore:
    """Make a message of the topic Orders in one of four queues."""
    return message(number, **{"topic": "Orders", "queue_id": number % 4, "body": body, **changes})


def log_files(store: Path) -> list[Path]:
    """List the files of a log, in its order."""
    return sorted((store / "commitlog").iterdir())


def parse(store: Path, *more: str) -> argparse.Namespace:
    """Parse the arguments of a replay to a name server that does not answer."""
    arguments = ["--store", str(store), "--to-namesrv", "127.0.0.1:1", "--store-id", "small", *more]
    parsed: argparse.Namespace = replay.parser().parse_args(arguments)
    return parsed


def make_replay(store: Path, *more: str) -> Replay:
    """Make a replay to a name server that does not answer."""
    parsed = parse(store, *more)
    replay.check(parsed)
    return replay.replay_of(parsed)


def run_dry(store: Path, *more: str) -> tuple[dict[str, object], int]:
    """Count the messages of a replay: report and exit code."""
    parsed = parse(store, "--dry-run", *more)
    replay.check(parsed)
    return replay.main(parsed, None)  # type: ignore[arg-type]
