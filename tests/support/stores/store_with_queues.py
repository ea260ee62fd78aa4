"""Small stores with the queues of odd lives, written unit by unit."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rmq_formats.codecs.consumequeue import PRE_BLANK, Unit
from rmq_formats.codecs.hashing import tags_code
from rmq_formats.codecs.layout import UNIT_BYTES
from tests.support.stores.store_files import write_commitlog
from tests.support.stores.verified_stores import FILE_BYTES, FIRST_MS, log_path, message, patch

QUEUE_BYTES = 400
Placed = dict[int, Unit]


def write_queue(store: Path, units: Placed, topic: str = "Orders", queue_id: int = 0) -> None:
    """Write a queue's files, with pre-blanks before the first unit."""
    directory = store / "consumequeue" / topic / str(queue_id)
    directory.mkdir(parents=True)
    per_file = QUEUE_BYTES // UNIT_BYTES
    for first in range(min(units) // per_file * per_file, max(units) + 1, per_file):
        found = [
            units[place].encode() if place in units else PRE_BLANK if place < min(units) else bytes(UNIT_BYTES)
            for place in range(first, first + per_file)
        ]
        (directory / f"{first * UNIT_BYTES:020d}").write_bytes(b"".join(found))


def write_log(store: Path, offsets: Sequence[int], *others: str, **changes: object) -> list[Unit]:
    """Write records of queue Orders/0 with these queue offsets, then one of each other topic; return their units."""
    topics = ["Orders"] * len(offsets) + list(others)
    offsets = [*offsets, *(0 for _ in others)]
    messages = [message(number, topic=topic, queue_id=0, **changes) for number, topic in enumerate(topics)]
    placed = write_commitlog(store, messages, FILE_BYTES, FIRST_MS)
    units = []
    for number, (physical_offset, queue_offset) in enumerate(zip(placed, offsets, strict=True)):
        path, position = log_path(store, physical_offset)
        patch(path, position + 20, queue_offset.to_bytes(8, "big"))
        size = int.from_bytes(path.read_bytes()[position : position + 4], "big")
        units.append(Unit(physical_offset, size, tags_code(f"T{number % 3}")))
    return units


def write_config(store: Path, *topics: str, offsets: Mapping[str, Mapping[str, int]] | None = None) -> None:
    (store / "config").mkdir()
    table = {topic: {"topicName": topic} for topic in topics}
    (store / "config" / "topics.json").write_text(json.dumps({"dataVersion": {}, "topicConfigTable": table}))
    (store / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets or {}}))
