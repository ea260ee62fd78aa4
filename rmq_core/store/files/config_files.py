"""Config files with a backup: the text before the last change stays in ``.bak``, which is read if the file is lost.

The original overwrites a file in place; here it is replaced whole. Of a store itself there is one such file, which
has the deleted topics.

Source: ``ConfigManager#persist``, ``#load``, ``MixAll#string2File``.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from rmq_core.store.files.disk import Disk
from rmq_formats.codecs import paths
from rmq_formats.codecs.fastjson import loads
from rmq_formats.errors import DecodeError

T = TypeVar("T")
_DELETED_TOPICS: Final = "droppedTopics.json"


def save(path: str, text: bytes, disk: Disk, *, again: bool = False, keeps_former: bool = True) -> None:
    """Write a config file if its text has changed; the text before goes to ``.bak``.

    Args:
        text: what it is to hold, in UTF-8: a thread that encoded a large one would keep the event loop from working.
        again: the last write failed, and may have changed the file without forcing it.
        keeps_former: False where the text before has what must not stay, such as passwords: ``.bak`` has the new text
            then, too, and is written first, so that none of the former is left when this returns.

    Raises:
        OSError: it cannot be written.
    """
    disk.make_durable_directory(str(Path(path).parent))
    try:
        before = disk.read_file(path)
    except FileNotFoundError:
        before = b""
    if before == text and not again:
        return
    if before and (before != text or not keeps_former):
        disk.replace(f"{path}.bak", before if keeps_former else text)
    disk.replace(path, text)
    if not before and not keeps_former:  # a copy without its file would look as if that had been lost
        disk.replace(f"{path}.bak", text)


def load(path: str, parse: Callable[[str], T], disk: Disk) -> T | None:
    """Read and parse a config file, or its ``.bak`` if that fails; None if neither can be read.

    Args:
        parse: makes a value of its text; DecodeError and ValueError mean that it cannot.
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
    """Topics that were deleted, and up to where their messages are dead: ``config/droppedTopics.json``.

    Messages of a deleted topic stay in the log until that is cleaned. Without this note a recovery would make queues of
    them again; and where the topic is made anew, its queue offsets begin at 0 again. The file is ours; the original
    passes over it.

    Attributes:
        ends: by topic, a physical offset: records of the topic before that belong into no queue.
    """

    def __init__(self, root: str, disk: Disk) -> None:
        self._path = f"{paths.config_dir(root)}/{_DELETED_TOPICS}"
        self._disk = disk
        self.ends = load_numbers(self._path, disk)

    def note(self, ends: Mapping[str, int], log_min: int) -> bool:
        """Note that topics were deleted when the log was as long as some physical offsets; it is on the disk then.

        Args:
            ends: these offsets, by topic; one below what is known changes nothing.
            log_min: where the log begins for sure: topics that were deleted before that are forgotten.

        Returns:
            Whether anything is new.

        Raises:
            OSError: it cannot be written; nothing has changed then.
        """
        new = {topic: end for topic, end in ends.items() if end > self.ends.get(topic, 0) and end >= log_min}
        if new:
            self._set({topic: end for topic, end in (self.ends | new).items() if end >= log_min})
        return bool(new)

    def cut(self, log_end: int) -> None:
        """Limit the offsets of deleted topics to the log's end, which may have been cut. Later records are new."""
        if any(end > log_end for end in self.ends.values()):
            self._set({topic: min(end, log_end) for topic, end in self.ends.items()})

    def clear(self) -> None:
        """Clear all deleted topics, as the log with their messages no longer exists.

        Topics deleted beyond the end of an existing log stay: the log may have lost its last files with its power, or
        may be a lagging slave's.
        """
        if self.ends:
            self._set({})

    def _set(self, ends: dict[str, int]) -> None:
        save(self._path, dump_numbers(ends), self._disk)
        self.ends.clear()  # others hold this table
        self.ends.update(ends)
