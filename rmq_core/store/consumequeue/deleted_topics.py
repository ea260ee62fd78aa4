"""The file ``config/droppedTopics.json``: topics that were deleted, and up to where their messages are dead.

Messages of a deleted topic stay in the log until that is cleaned. Without this note a recovery would make queues of
them again; and where the topic is made anew, its queue offsets begin at 0 again. The file is ours; the original
passes over it.
"""

from collections.abc import Mapping
from typing import Final

from rmq_core.store.files import config_files
from rmq_core.store.files.disk import Disk
from rmq_formats.codecs import paths

_FILE: Final = "droppedTopics.json"


class DeletedTopics:
    """Topics that were deleted.

    Attributes:
        ends: by topic, a physical offset: records of the topic before that belong into no queue.
    """

    def __init__(self, root: str, disk: Disk) -> None:
        """Load the file of the store at ``root``."""
        self._path = f"{paths.config_dir(root)}/{_FILE}"
        self._disk = disk
        self.ends = config_files.load_numbers(self._path, disk)

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
        config_files.save(self._path, config_files.dump_numbers(ends), self._disk)
        self.ends.clear()  # others hold this table
        self.ends.update(ends)
