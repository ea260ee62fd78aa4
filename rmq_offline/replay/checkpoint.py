"""Checkpoint of a replay: a file that is replaced atomically, bound to one store, choice of messages and target."""

import json
from dataclasses import asdict, dataclass
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
        messages: number of messages sent in all runs; a message sent twice counts twice.
        fingerprint: of the log before that offset, see ``log_fingerprint``; None if unknown.
    """

    replay: str
    next_physical_offset: int
    messages: int
    fingerprint: str | None = None


class ReplayCheckpoint:
    """Loads and saves the progress of a replay, in a directory that the first write creates."""

    def __init__(self, directory: str, replay: str) -> None:
        self.path = Path(directory) / _FILE
        self._replay = replay

    def load(self) -> ReplayProgress | None:
        """Load the progress of earlier runs of this replay; None before the first one. Raises StoreError."""
        try:
            values = json.loads(self.path.read_text(encoding="utf-8"))
            next_physical_offset, fingerprint = int(values["next_physical_offset"]), values.get("fingerprint")
            progress = ReplayProgress(values["replay"], next_physical_offset, int(values["messages"]), fingerprint)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise StoreError(f"{self.path}: not the checkpoint of a replay") from error
        if progress.replay != self._replay:
            raise StoreError(
                f"{self.path}: the checkpoint of another replay ({progress.replay}); "
                f"this one is {self._replay}: give another --checkpoint"
            )
        if "fingerprint" not in values and next_physical_offset == 0:
            return None  # version 0.2.0 saved 0 until messages were acknowledged, wherever the log began
        return progress

    def save(self, next_physical_offset: int, messages: int, fingerprint: str | None = None) -> None:
        """Replace the file. Raises StoreError."""
        progress = ReplayProgress(self._replay, next_physical_offset, messages, fingerprint)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with root_directory(self.path.parent) as directory:
                replace_file(directory, self.path.name, f"{json.dumps(asdict(progress))}\n".encode())
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror}") from error
