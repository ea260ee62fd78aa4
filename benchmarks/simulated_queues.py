"""Simulated object stores of ten million queues with one message each, and of a million light queues (LMQ).

Listings, log and queue files are computed. The product's ``ArrowStorage`` and the layers above read them; requests are
counted and take no time.
"""

import re
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow.fs as pafs
from numpy.typing import NDArray

from benchmarks.simulated_store import LOG, ROOT, OpenFile, SimulatedStore
from rmq_formats.codecs import paths, record_layout
from rmq_formats.codecs.consumequeue import Unit
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.layout import UNIT_BYTES
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import MessageToStore, encode_record

TOPICS: Final = 1000
QUEUES: Final = f"{ROOT}/consumequeue"
FILE: Final = paths.segment_name(0)
_TIME_MS: Final = 1_700_000_000_000
_DIGITS: Final = 4
_END_BYTES: Final = 1 << 20  # of zeros behind the last record
_TOPIC: Final = re.compile(rf"{QUEUES}/Topic(\d{{{_DIGITS}}})")
_QUEUE: Final = re.compile(rf"{_TOPIC.pattern}/(\d+)")
_FILE: Final = re.compile(rf"{_QUEUE.pattern}/{FILE}")
OWN_QUEUES: Final = 1000  # of the topic that the messages are sent to
_LIGHT_TOPIC: Final = "Devices"
_LIGHT_DIGITS: Final = 7
_LIGHT_NAME: Final = "%LMQ%device"
_LIGHT_FIRST: Final = f"{_LIGHT_NAME}{0:0{_LIGHT_DIGITS}}"
_LIGHT_DIRECTORY: Final = re.compile(rf"{QUEUES}/(?:{_LIGHT_NAME}(\d{{{_LIGHT_DIGITS}}})|{_LIGHT_TOPIC})")
_LIGHT_QUEUE: Final = re.compile(rf"{QUEUES}/(?:{_LIGHT_NAME}(\d{{{_LIGHT_DIGITS}}})/0|{_LIGHT_TOPIC}/(\d+))")
_LIGHT_FILE: Final = re.compile(rf"{_LIGHT_QUEUE.pattern}/{FILE}")
_LIGHT_PROPERTIES: Final = {"INNER_MULTI_DISPATCH": f"{_LIGHT_FIRST},{_LIGHT_FIRST}", "INNER_MULTI_QUEUE_OFFSET": "0,0"}


def encode_small_record(
    topic: str, properties: dict[str, str], queue_offset: int = 0, physical_offset: int = 0
) -> bytes:
    """Encode a record with a body of 16 bytes; simulated logs repeat a single record."""
    host = Host.parse("127.0.0.1:10911")
    message = MessageToStore(
        topic=topic,
        queue_id=0,
        body=b"x" * 16,
        born_timestamp_ms=_TIME_MS,
        born_host=host,
        store_host=host,
        properties_bytes=encode_properties(properties),
    )
    return encode_record(
        message, queue_offset=queue_offset, physical_offset=physical_offset, store_timestamp_ms=_TIME_MS
    )


@dataclass
class ManyQueues(SimulatedStore):
    """A store of one CommitLog file with records of the same size, and of queues with a file each."""

    IMAGE: ClassVar[NDArray[np.uint8]]  # of a record
    TOPIC: ClassVar[re.Pattern[str]]  # directories of topics
    QUEUE: ClassVar[re.Pattern[str]]  # directories of queues

    segments: int = 1
    round_trip_s: float = 0
    messages: int = 0
    queue_file_bytes: int = 400
    open_files: int = 0
    most_open_files: int = 0

    def __post_init__(self) -> None:
        self.segment_bytes = self.messages * len(self.IMAGE) + _END_BYTES

    def listed(self, directory: str) -> list[pafs.FileInfo]:
        """Describe the entries of a directory."""
        names = [f"{directory}/{name}" for name in self.names(directory)]
        if directory == QUEUES or self.TOPIC.fullmatch(directory):
            return [pafs.FileInfo(name, pafs.FileType.Directory) for name in names]
        return [self.info(name) for name in names]

    def info(self, name: str) -> pafs.FileInfo:
        """Describe a file or directory."""
        directory, _, file = name.rpartition("/")
        if file == FILE and (directory == LOG or self.QUEUE.fullmatch(directory)):
            size_bytes = self.segment_bytes if directory == LOG else self.queue_file_bytes
            return pafs.FileInfo(name, pafs.FileType.File, size=size_bytes)
        is_directory = name in {ROOT, LOG, QUEUES} or self.TOPIC.fullmatch(name) or self.QUEUE.fullmatch(name)
        return pafs.FileInfo(name, pafs.FileType.Directory if is_directory else pafs.FileType.NotFound)

    def opened(self, path: str, size_bytes: int) -> OpenFile:
        """Return an open file, which is counted."""
        self.open_files += 1
        self.most_open_files = max(self.most_open_files, self.open_files)

        def read_at(size: int, offset: int) -> bytes:
            with self.requests.one(0):
                return self.log(offset, size) if path.startswith(LOG) else self.queue(path)[offset : offset + size]

        def close() -> None:
            self.open_files -= 1

        return OpenFile(size_bytes, read_at, close)

    def log(self, offset: int, size: int) -> bytes:
        """Return bytes of the log, zeros after the last record."""
        width = len(self.IMAGE)
        first, end = offset // width, min(self.messages, -(-(offset + size) // width))
        numbers = np.arange(first, max(first, end))
        rows = np.tile(self.IMAGE, (len(numbers), 1))
        put_number(rows, record_layout.RECORD_PHYSICAL_OFFSET_AT, numbers * width, ">i8")
        self.fill(rows, numbers)
        skipped = offset - first * width
        return rows.tobytes()[skipped : skipped + size].ljust(min(size, self.segment_bytes - offset), b"\0")

    def fill(self, rows: NDArray[np.uint8], numbers: NDArray[np.int64]) -> None:
        """Write the fields of messages with these numbers, int64[n], into records, uint8[n, size]."""
        raise NotImplementedError

    def queue(self, path: str) -> bytes:
        """Return a queue's file."""
        raise NotImplementedError

    def file_of(self, numbers: list[int]) -> bytes:
        """Return the file of a queue that has these messages."""
        width = len(self.IMAGE)
        units = b"".join(Unit(number * width, width, 0).encode() for number in numbers)
        return units.ljust(self.queue_file_bytes, b"\0")


@dataclass
class SimulatedQueues(ManyQueues):
    """A store with a queue for each message: message n is in topic n % TOPICS and queue n // TOPICS."""

    IMAGE = np.frombuffer(encode_small_record(f"Topic{0:0{_DIGITS}}", {}), dtype=np.uint8)
    TOPIC, QUEUE = _TOPIC, _QUEUE

    def names(self, directory: str) -> list[str]:
        """Return the entries of a directory."""
        if directory == ROOT:
            return ["commitlog", "consumequeue"]
        if directory == QUEUES:
            return [f"Topic{number:0{_DIGITS}}" for number in range(TOPICS)]
        if _TOPIC.fullmatch(directory):
            return [str(number) for number in range(self.messages // TOPICS)]
        return [FILE] if directory == LOG or _QUEUE.fullmatch(directory) else []

    def queue(self, path: str) -> bytes:
        """Return a queue's file."""
        topic, queue_id = map(int, _FILE.fullmatch(path).groups())  # type: ignore[union-attr] # it was opened
        return self.file_of([queue_id * TOPICS + topic])

    def fill(self, rows: NDArray[np.uint8], numbers: NDArray[np.int64]) -> None:
        """Write the topics and queues of records."""
        put_digits(rows, self.IMAGE.tobytes().index(b"Topic0") + len("Topic"), numbers % TOPICS, _DIGITS)
        put_number(rows, record_layout.RECORD_QUEUE_ID_AT, numbers // TOPICS, ">i4")


def put_digits(rows: NDArray[np.uint8], at: int, values: NDArray[np.int64], digits: int) -> None:
    """Write numbers, int64[n], as decimal digits into rows, uint8[n, size]."""
    for digit in range(digits):
        rows[:, at + digit] = ord("0") + values // 10 ** (digits - 1 - digit) % 10


def put_number(rows: NDArray[np.uint8], at: int, values: NDArray[np.int64], width: str) -> None:
    """Write numbers, int64[n], into rows, uint8[n, size]."""
    swapped = values.astype(width)
    rows[:, at : at + swapped.itemsize] = swapped.view(np.uint8).reshape(len(values), swapped.itemsize)


@dataclass
class SimulatedLightQueues(ManyQueues):
    """A store with a light queue for each message: message n is in light queues n and n + 1, and in queue n % 1000.

    Each light queue has its own directory of a topic, as in the smaller store of ``shapes``.
    """

    IMAGE = np.frombuffer(encode_small_record(_LIGHT_TOPIC, _LIGHT_PROPERTIES), dtype=np.uint8)
    TOPIC, QUEUE = _LIGHT_DIRECTORY, _LIGHT_QUEUE

    def __post_init__(self) -> None:
        super().__post_init__()
        self.queue_file_bytes = self.messages // OWN_QUEUES * UNIT_BYTES

    def names(self, directory: str) -> list[str]:
        """Return the entries of a directory."""
        if directory == ROOT:
            return ["commitlog", "consumequeue"]
        if directory == QUEUES:
            return [_LIGHT_TOPIC, *(f"{_LIGHT_NAME}{number:0{_LIGHT_DIGITS}}" for number in range(self.messages))]
        if match := _LIGHT_DIRECTORY.fullmatch(directory):
            return ["0"] if match[1] else [str(number) for number in range(OWN_QUEUES)]
        return [FILE] if directory == LOG or _LIGHT_QUEUE.fullmatch(directory) else []

    def queue(self, path: str) -> bytes:
        """Return a queue's file."""
        light, own_queue = _LIGHT_FILE.fullmatch(path).groups()  # type: ignore[union-attr] # it was opened
        if light is None:
            return self.file_of(list(range(int(own_queue), self.messages, OWN_QUEUES)))
        number = int(light)
        return self.file_of(sorted([number, (number or self.messages) - 1]))

    def fill(self, rows: NDArray[np.uint8], numbers: NDArray[np.int64]) -> None:
        """Write the queues and queue offsets of records."""
        image, last = self.IMAGE.tobytes(), self.messages - 1
        places_at = image.index(b"0,0")
        put_number(rows, record_layout.RECORD_QUEUE_ID_AT, numbers % OWN_QUEUES, ">i4")
        put_number(rows, record_layout.RECORD_QUEUE_OFFSET_AT, numbers // OWN_QUEUES, ">i8")
        put_digits(rows, image.index(_LIGHT_NAME.encode()) + len(_LIGHT_NAME), numbers, _LIGHT_DIGITS)
        put_digits(
            rows, image.rindex(_LIGHT_NAME.encode()) + len(_LIGHT_NAME), (numbers + 1) % self.messages, _LIGHT_DIGITS
        )
        put_digits(rows, places_at, (numbers > 0).astype(np.int64), 1)
        put_digits(rows, places_at + len("0,"), (numbers == last).astype(np.int64), 1)
