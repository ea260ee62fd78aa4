"""A simulated object store of ten million queues, each with one message: listings, log and queue files are computed.

``ArrowStorage`` and all above it are the product's own; no request takes time, they are counted.
"""

import re
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow.fs as pafs
from numpy.typing import NDArray

from benchmarks.simulated_store import ROOT, Requests, SimulatedStore
from rmq_formats.codecs import paths
from rmq_formats.codecs.consumequeue import Unit
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.record import MessageToStore, encode_record
from rmq_formats.codecs.record_layout import RECORD_PHYSICAL_OFFSET_AT, RECORD_QUEUE_ID_AT

TOPICS: Final = 1000
QUEUE_FILE_BYTES: Final = 400
_DIGITS: Final = 4
_END_BYTES: Final = 1 << 20  # of zeros behind the last record
_LOG: Final = f"{ROOT}/commitlog"
_QUEUES: Final = f"{ROOT}/consumequeue"
_TOPIC: Final = re.compile(rf"{_QUEUES}/Topic(\d{{{_DIGITS}}})")
_QUEUE: Final = re.compile(rf"{_TOPIC.pattern}/(\d+)")
_FILE: Final = re.compile(rf"{_QUEUE.pattern}/0{{20}}")


def _record() -> bytes:
    host = Host.parse("127.0.0.1:10911")
    message = MessageToStore(
        topic=f"Topic{0:0{_DIGITS}}", queue_id=0, body=b"x" * 16, born_timestamp_ms=1_700_000_000_000, born_host=host,
        store_host=host, properties_bytes=b"",
    )  # fmt: skip
    return encode_record(message, queue_offset=0, physical_offset=0, store_timestamp_ms=1_700_000_000_000)


_RECORD: Final = np.frombuffer(_record(), dtype=np.uint8)
_DIGITS_AT: Final = _record().index(b"Topic0") + len("Topic")


class _Open:
    """An open file whose bytes are computed; it is counted until it is closed."""

    def __init__(self, store: "SimulatedQueues", path: str, size_bytes: int) -> None:
        self._store, self._path, self._size_bytes = store, path, size_bytes
        store.open_files += 1
        store.most_open_files = max(store.most_open_files, store.open_files)

    def size(self) -> int:
        return self._size_bytes

    def read_at(self, size: int, offset: int) -> bytes:
        with self._store.requests.one(0):
            if (found := _FILE.fullmatch(self._path)) is None:
                return self._store.log(offset, size)
            data = self._store.unit(int(found[1]), int(found[2])).ljust(QUEUE_FILE_BYTES, b"\0")
            return data[offset : offset + size]

    def close(self) -> None:
        self._store.open_files -= 1


@dataclass
class SimulatedQueues(SimulatedStore):
    """A store of one CommitLog file and a queue for each of its messages.

    Attributes:
        queues: of each topic.
        open_files: of this process.
        most_open_files: that there were at once.
    """

    segments: int = 1
    round_trip_s: float = 0
    queues: int = 10_000
    open_files: int = 0
    most_open_files: int = 0
    requests: Requests = field(default_factory=Requests)

    def __post_init__(self) -> None:
        self.segment_bytes = self.queues * TOPICS * len(_RECORD) + _END_BYTES

    def names(self, directory: str) -> list[str]:
        """What a directory holds."""
        if directory == ROOT:
            return ["commitlog", "consumequeue"]
        if directory == _LOG:
            return [paths.segment_name(0)]
        if directory == _QUEUES:
            return [f"Topic{number:0{_DIGITS}}" for number in range(TOPICS)]
        if _TOPIC.fullmatch(directory):
            return [str(number) for number in range(self.queues)]
        return [paths.segment_name(0)] if _QUEUE.fullmatch(directory) else []

    def listed(self, directory: str) -> list[pafs.FileInfo]:
        """Describe what a directory holds."""
        names = [f"{directory}/{name}" for name in self.names(directory)]
        if directory == _QUEUES or _TOPIC.fullmatch(directory):
            return [pafs.FileInfo(name, pafs.FileType.Directory) for name in names]
        return [self.info(name) for name in names]

    def info(self, name: str) -> pafs.FileInfo:
        """Describe a file or directory."""
        if name == f"{_LOG}/{paths.segment_name(0)}":
            return pafs.FileInfo(name, pafs.FileType.File, size=self.segment_bytes)
        if _FILE.fullmatch(name):
            return pafs.FileInfo(name, pafs.FileType.File, size=QUEUE_FILE_BYTES)
        is_directory = name in {ROOT, _LOG, _QUEUES} or _TOPIC.fullmatch(name) or _QUEUE.fullmatch(name)
        return pafs.FileInfo(name, pafs.FileType.Directory if is_directory else pafs.FileType.NotFound)

    def opened(self, path: str, size_bytes: int) -> _Open:
        """An open file."""
        return _Open(self, path, size_bytes)

    def unit(self, topic: int, queue_id: int) -> bytes:
        """The unit of a queue's message."""
        return Unit((queue_id * TOPICS + topic) * len(_RECORD), len(_RECORD), 0).encode()

    def log(self, offset: int, size: int) -> bytes:
        """Bytes of the log: message n is that of topic n % TOPICS and queue n // TOPICS."""
        first, end = offset // len(_RECORD), min(self.queues * TOPICS, -(-(offset + size) // len(_RECORD)))
        numbers = np.arange(first, max(first, end))
        rows = np.tile(_RECORD, (len(numbers), 1))
        topics, places = numbers % TOPICS, numbers * len(_RECORD)
        for digit in range(_DIGITS):
            rows[:, _DIGITS_AT + digit] = ord("0") + topics // 10 ** (_DIGITS - 1 - digit) % 10
        rows[:, RECORD_QUEUE_ID_AT : RECORD_QUEUE_ID_AT + 4] = _big_endian(numbers // TOPICS, ">i4")
        rows[:, RECORD_PHYSICAL_OFFSET_AT : RECORD_PHYSICAL_OFFSET_AT + 8] = _big_endian(places, ">i8")
        skipped = offset - first * len(_RECORD)
        return rows.tobytes()[skipped : skipped + size].ljust(min(size, self.segment_bytes - offset), b"\0")


def _big_endian(values: NDArray[np.int64], width: str) -> NDArray[np.uint8]:
    swapped = values.astype(width)
    return swapped.view(np.uint8).reshape(len(values), swapped.itemsize)
