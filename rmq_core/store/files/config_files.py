"""Config files with a backup: ``.bak`` has the text before the last change, and is read if the file is lost.

The original overwrites a file in place; here the file is replaced as a whole. The store itself has one such file, with
the deleted topics. Source: ``ConfigManager#persist``, ``#load``, ``MixAll#string2File``.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from rmq_core.store.files.disk import Disk
from rmq_formats.codecs import paths
from rmq_formats.codecs.fastjson import loads
from rmq_formats.errors import DecodeError

T = TypeVar("T")


def save(path: str, text: bytes, disk: Disk, *, is_retry: bool = False, backs_up_former_text: bool = True) -> None:
    """Write a config file if its text has changed, and the former text to ``.bak``.

    Args:
        text: encoded by the caller, as encoding a large text in another thread would block the event loop.
        is_retry: the last write failed, and may have changed the file without forcing it.
        backs_up_former_text: False if the former text has secrets, such as passwords. Then ``.bak`` gets the new text,
            too, and is written first, so that no former text is left on return.
    """
    disk.make_durable_directory(str(Path(path).parent))
    try:
        former_text = disk.read_file(path)
    except FileNotFoundError:
        former_text = b""
    if former_text == text and not is_retry:
        return
    if former_text and (former_text != text or not backs_up_former_text):
        disk.replace(f"{path}.bak", former_text if backs_up_former_text else text)
    disk.replace(path, text)
    if not former_text and not backs_up_former_text:  # a ``.bak`` alone would mean that the file was lost
        disk.replace(f"{path}.bak", text)


def load(path: str, parse: Callable[[str], T], disk: Disk) -> T | None:
    """Read and parse a config file, or its ``.bak`` if that fails; None if neither can be read.

    Args:
        parse: raises DecodeError or ValueError if the text is invalid.
    """
    for candidate in (path, f"{path}.bak"):
        try:
            text = disk.read_file(candidate).decode("utf-8")
            if text:
                return parse(text)
        except (OSError, DecodeError, ValueError):
            continue
    return None


def dump_numbers(numbers: Mapping[str, int]) -> bytes:
    """Encode a table of numbers as JSON."""
    return json.dumps(dict(numbers), sort_keys=True).encode()


def load_numbers(path: str, disk: Disk) -> dict[str, int]:
    """Read a JSON table of numbers; empty if there is none."""

    def parse(text: str) -> dict[str, int]:
        document = loads(text)
        if not isinstance(document, dict):
            raise DecodeError("not a JSON object")
        return {str(name): number for name, number in document.items() if isinstance(number, int)}

    return load(path, parse, disk) or {}


class DeletedTopics:
    """Deleted topics, and the physical offset before which their records are dead: ``config/droppedTopics.json``.

    Messages of a deleted topic stay in the log until the log is cleaned. Without this file a recovery would make queues
    of them again, also when the topic was recreated with queue offsets from 0 on. The original ignores the file.

    Attributes:
        ends: physical offset by topic: earlier records of the topic belong into no queue.
    """

    def __init__(self, root: str, disk: Disk) -> None:
        self._path = f"{paths.config_dir(root)}/droppedTopics.json"
        self._disk = disk
        self.ends = load_numbers(self._path, disk)

    def record(self, ends: Mapping[str, int], log_min: int) -> bool:
        """Record deleted topics durably, each with the log's end at the time of the deletion.

        Returns whether the file has changed; an OSError changes nothing.

        Args:
            ends: a lower offset than the recorded one changes nothing.
            log_min: begin of the log; topics that were deleted before that are removed from the file.
        """
        new_ends = {topic: end for topic, end in ends.items() if end > self.ends.get(topic, 0) and end >= log_min}
        if new_ends:
            self._set({topic: end for topic, end in (self.ends | new_ends).items() if end >= log_min})
        return bool(new_ends)

    def cut(self, log_end: int) -> None:
        """Limit the offsets to the end of a log that was cut, as later records will be new."""
        if any(end > log_end for end in self.ends.values()):
            self._set({topic: min(end, log_end) for topic, end in self.ends.items()})

    def clear(self) -> None:
        """Clear all deleted topics, as the log with their messages no longer exists.

        An existing log retains topics with an offset beyond its end: it may have lost its last files in a power
        failure, or be the log of a lagging slave.
        """
        if self.ends:
            self._set({})

    def _set(self, ends: dict[str, int]) -> None:
        save(self._path, dump_numbers(ends), self._disk)
        self.ends.clear()  # other objects refer to this table, so it is changed in place
        self.ends.update(ends)
