"""Builds stores whose log and queues have had a life: topics made again, recoveries, clock jumps, closed gaps."""

import json
from collections.abc import Mapping
from pathlib import Path

from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.consumequeue import PRE_BLANK, Unit
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.layout import BLANK_BYTES, MAGIC_BLANK, UNIT_BYTES
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import MessageToStore, encode_record

FIRST_MS = 1_795_230_000_000
LOG_FILE_BYTES = 65536
QUEUE_FILE_BYTES = 2000
HOST = Host.parse("127.0.0.1:10911")


class LogWriter:
    """Writer of a log as a broker writes it, which remembers the units that are dispatched.

    Attributes:
        end: physical offset where the next record goes.
        units: by topic, queue id and place in the queue.
    """

    def __init__(self, file_bytes: int = LOG_FILE_BYTES) -> None:
        self.file_bytes = file_bytes
        self.end = 0
        self.files: dict[int, bytearray] = {}
        self.units: dict[tuple[str, int, int], Unit] = {}

    def add(
        self,
        topic: str,
        queue_offset: int,
        body: str,
        timestamp_ms: int,
        *,
        queue_id: int = 0,
        place: int | None = None,
    ) -> int:
        """Append a record, and its unit at ``place``, or at its queue offset; return its physical offset."""
        message = MessageToStore(
            topic=topic,
            queue_id=queue_id,
            body=body.encode(),
            born_timestamp_ms=timestamp_ms,
            born_host=HOST,
            store_host=HOST,
            properties_bytes=encode_properties({"KEYS": f"k{queue_offset}"}),
        )
        record = self._encode(message, queue_offset, timestamp_ms)
        left = self.file_bytes - self.end % self.file_bytes
        if len(record) + BLANK_BYTES > left:
            self.write(self.end, left.to_bytes(4, "big") + (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big"))
            self.end += left
            record = self._encode(message, queue_offset, timestamp_ms)
        begin = self.end
        self.write(begin, record)
        self.end += len(record)
        self.units[topic, queue_id, queue_offset if place is None else place] = Unit(begin, len(record), 0)
        return begin

    def _encode(self, message: MessageToStore, queue_offset: int, timestamp_ms: int) -> bytes:
        return encode_record(
            message, queue_offset=queue_offset, physical_offset=self.end, store_timestamp_ms=timestamp_ms
        )

    def write(self, physical_offset: int, data: bytes) -> None:
        """Overwrite bytes of one file."""
        start = physical_offset // self.file_bytes * self.file_bytes
        image = self.files.setdefault(start, bytearray(self.file_bytes))
        image[physical_offset - start : physical_offset - start + len(data)] = data

    def cut(self, physical_offset: int) -> None:
        """Cut the log as a recovery does: in memory, and the units behind the cut with it."""
        self.end = physical_offset
        self.units = {name: unit for name, unit in self.units.items() if unit.physical_offset < physical_offset}

    def forget(self, topic: str) -> None:
        """Delete a topic's queues."""
        self.units = {name: unit for name, unit in self.units.items() if name[0] != topic}

    def save(self, root: Path, *, is_running: bool = False, topics: Mapping[str, int] | None = None) -> Path:
        """Write log, queues and config."""
        (root / "commitlog").mkdir(parents=True)
        for start, image in self.files.items():
            (root / "commitlog" / f"{start:020d}").write_bytes(image)
        self._save_queues(root)
        if is_running:
            (root / "abort").write_text("1")
        if topics is not None:
            _save_topics(root, topics)
        return root

    def _save_queues(self, root: Path) -> None:
        queues: dict[tuple[str, int], dict[int, Unit]] = {}
        for (topic, queue_id, place), unit in self.units.items():
            queues.setdefault((topic, queue_id), {})[place] = unit
        per_file = QUEUE_FILE_BYTES // UNIT_BYTES
        for (topic, queue_id), units in queues.items():
            directory = root / "consumequeue" / topic / str(queue_id)
            directory.mkdir(parents=True)
            first, last = min(units), max(units)
            for number in range(first // per_file, last // per_file + 1):
                image = bytearray(QUEUE_FILE_BYTES)
                for place in range(number * per_file, (number + 1) * per_file):
                    at = place % per_file * UNIT_BYTES
                    if place in units:
                        image[at : at + UNIT_BYTES] = units[place].encode()
                    elif place < first:
                        image[at : at + UNIT_BYTES] = PRE_BLANK
                (directory / f"{number * QUEUE_FILE_BYTES:020d}").write_bytes(image)


def _save_topics(root: Path, topics: Mapping[str, int]) -> None:
    (root / "config").mkdir()
    table = {
        name: {
            "topicName": name,
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": 6,
            "order": False,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "attributes": {},
        }
        for name, queues in topics.items()
    }
    version = {"counter": 1, "stateVersion": 0, "timestamp": FIRST_MS}
    (root / "config" / "topics.json").write_text(json.dumps({"dataVersion": version, "topicConfigTable": table}))


def save_checkpoint(root: Path, timestamp_ms: int, *, flushed_ms: int | None = None) -> None:
    """Write a checkpoint of a log that is dispatched up to a time, and flushed up to it, or up to another."""
    checkpoint = Checkpoint(timestamp_ms if flushed_ms is None else flushed_ms, timestamp_ms, timestamp_ms)
    (root / "checkpoint").write_bytes(checkpoint.encode())


def recovered_log(*, kept: int = 50, lost: int = 40, new: int = 10, file_bytes: int = LOG_FILE_BYTES) -> LogWriter:
    """Write a log that was cut and written anew, so that half an old record and whole ones stand behind its end."""
    log, now = LogWriter(file_bytes), FIRST_MS
    for number in range(kept):
        now += 1000
        log.add("Orders", number, f"kept {number:03}", now)
    cut = log.end
    for number in range(kept, kept + lost):
        now += 1000
        log.add("Orders", number, f"LOST {number:03}", now)
    log.cut(cut)
    now += 60_000
    for number in range(kept, kept + new):
        now += 1000
        log.add("Orders", number, f"new message {number:05}", now)
    return log
