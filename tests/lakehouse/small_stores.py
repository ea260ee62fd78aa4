"""Stores of a few records, without Spark."""

from collections.abc import Sequence
from pathlib import Path

from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.record import MessageToStore
from tests.support.stores.store_files import write_commitlog

FILE_BYTES = 4096
HOST = Host(bytes([127, 0, 0, 1]), 10911)


def write(
    store: Path, bodies: Sequence[tuple[str, bytes]], first_ms: int = 1_700_000_000_000, file_bytes: int = FILE_BYTES
) -> list[int]:
    """Write a log of (topic, body); the same beginning gives the same bytes. The physical offsets."""
    messages = [
        MessageToStore(topic=topic, queue_id=0, body=body, born_timestamp_ms=first_ms, born_host=HOST, store_host=HOST)
        for topic, body in bodies
    ]
    return write_commitlog(store, messages, file_bytes, first_ms)


def plain(count: int) -> list[tuple[str, bytes]]:
    """Messages of two topics."""
    return [("Odd" if number % 2 else "Even", b"%d" % number * (1 + number % 40)) for number in range(count)]
