"""Checkpoint of a replay: a file that is replaced atomically, bound to one store, choice of messages and target."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmq_formats.errors import StoreError
from rmq_formats.storage.contained import replace_file, root_directory

_FILE: Final = "replay.json"


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """Progress of a replay.

    Attributes:
        replay: identity of the replay; a checkpoint of another replay is refused.
        next_physical_offset: the target has all selected records before this offset.
        messages: number of messages sent in all runs; one that was sent again counts again.
    """

    replay: str
    next_physical_offset: int
    messages: int


class ReplayCheckpoint:
    """Loads and saves the progress of a replay."""

    def __init__(self, directory: str, replay: str) -> None:
        """Create the checkpoint of a directory.

        Args:
            directory: the checkpoint's directory; created on the first write.
        """
        self._path = Path(directory) / _FILE
        self._replay = replay

    def load(self) -> ReplayProgress | None:
        """Load the progress of the runs before; None before the first run.

        Raises:
            StoreError: the checkpoint cannot be read, or is that of another replay.
        """
        try:
            values = json.loads(self._path.read_text(encoding="utf-8"))
            progress = ReplayProgress(values["replay"], int(values["next_physical_offset"]), int(values["messages"]))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise StoreError(f"{self._path}: not the checkpoint of a replay") from error
        if progress.replay != self._replay:
            raise StoreError(
                f"{self._path}: the checkpoint of another replay ({progress.replay}); "
                f"this one is {self._replay}: give another --checkpoint"
            )
        return progress

    def save(self, next_physical_offset: int, messages: int) -> None:
        """Replace the file. Raises StoreError."""
        text = json.dumps({"replay": self._replay, "next_physical_offset": next_physical_offset, "messages": messages})
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with root_directory(self._path.parent) as directory:
                replace_file(directory, self._path.name, f"{text}\n".encode())
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}") from error
