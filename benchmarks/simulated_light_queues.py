"""A simulated object store of a million light queues (LMQ), each of which has a topic's directory of its own.

A message for each light queue goes to the next one too, as in the store that ``shapes`` makes of a tenth of them.
"""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulated_queues import FILE, QUEUES, ManyQueues, put_digits, put_number, record_image
from benchmarks.simulated_store import LOG, ROOT
from rmq_formats.codecs.layout import UNIT_BYTES
from rmq_formats.codecs.record_layout import RECORD_QUEUE_ID_AT, RECORD_QUEUE_OFFSET_AT

OWN_QUEUES: Final = 1000  # of the topic that the messages are sent to
_TOPIC: Final = "Devices"
_DIGITS: Final = 7
_NAME: Final = "%LMQ%device"
_FIRST: Final = f"{_NAME}{0:0{_DIGITS}}"
_DIRECTORY: Final = re.compile(rf"{QUEUES}/(?:{_NAME}(\d{{{_DIGITS}}})|{_TOPIC})")
_QUEUE: Final = re.compile(rf"{QUEUES}/(?:{_NAME}(\d{{{_DIGITS}}})/0|{_TOPIC}/(\d+))")
_FILE: Final = re.compile(rf"{_QUEUE.pattern}/{FILE}")
_PROPERTIES: Final = {"INNER_MULTI_DISPATCH": f"{_FIRST},{_FIRST}", "INNER_MULTI_QUEUE_OFFSET": "0,0"}


@dataclass
class SimulatedLightQueues(ManyQueues):
    """A store of a light queue for each of its messages: number n is in those of n and n + 1, and in queue n % 1000."""

    IMAGE = np.frombuffer(record_image(_TOPIC, _PROPERTIES), dtype=np.uint8)
    TOPIC, QUEUE = _DIRECTORY, _QUEUE

    def __post_init__(self) -> None:
        super().__post_init__()
        self.queue_file_bytes = self.messages // OWN_QUEUES * UNIT_BYTES

    def names(self, directory: str) -> list[str]:
        """Return the entries of a directory."""
        if directory == ROOT:
            return ["commitlog", "consumequeue"]
        if directory == QUEUES:
            return [_TOPIC, *(f"{_NAME}{number:0{_DIGITS}}" for number in range(self.messages))]
        if match := _DIRECTORY.fullmatch(directory):
            return ["0"] if match[1] else [str(number) for number in range(OWN_QUEUES)]
        return [FILE] if directory == LOG or _QUEUE.fullmatch(directory) else []

    def queue(self, path: str) -> bytes:
        """Return a queue's file."""
        light, own_queue = _FILE.fullmatch(path).groups()  # type: ignore[union-attr] # it was opened
        if light is None:
            return self.file_of(list(range(int(own_queue), self.messages, OWN_QUEUES)))
        number = int(light)
        return self.file_of(sorted([number, (number or self.messages) - 1]))

    def fill(self, rows: NDArray[np.uint8], numbers: NDArray[np.int64]) -> None:
        """Write the queues and queue offsets of records."""
        image, last = self.IMAGE.tobytes(), self.messages - 1
        places_at = image.index(b"0,0")
        put_number(rows, RECORD_QUEUE_ID_AT, numbers % OWN_QUEUES, ">i4")
        put_number(rows, RECORD_QUEUE_OFFSET_AT, numbers // OWN_QUEUES, ">i8")
        put_digits(rows, image.index(_NAME.encode()) + len(_NAME), numbers, _DIGITS)
        put_digits(rows, image.rindex(_NAME.encode()) + len(_NAME), (numbers + 1) % self.messages, _DIGITS)
        put_digits(rows, places_at, (numbers > 0).astype(np.int64), 1)
        put_digits(rows, places_at + len("0,"), (numbers == last).astype(np.int64), 1)
