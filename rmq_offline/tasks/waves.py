"""Tasks over the splits of a log: their work area, their number, and the check of split boundaries."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

from rmq_formats.scan.splits import Split

WORK_DIRECTORY: Final = ".rmq-rebuild"  # below the root that is published into
PARTITION_BYTES: Final = 512 << 20  # bytes of log for each task that writes queues
MAX_PARTITIONS: Final = 256
EARLY_PARTITIONS: Final = 16
_EARLY_BYTES: Final = 4 << 20
MAX_REPORTED: Final = 1000  # findings that a report lists; all are counted


class Area(Protocol):
    """Work area in which a rebuild's tasks write intermediate files, notes of done tasks, and ``new/``, the result."""

    def path(self, name: str) -> str:
        """Return the path or URI of a file."""
        ...

    def exists(self, name: str) -> bool:
        """Return whether a file exists; one that does is complete."""
        ...

    def read_text(self, name: str) -> str:
        """Read a small text file."""
        ...

    def read_bytes(self, name: str) -> bytes:
        """Read a file whole."""
        ...

    def write(self, name: str, write: Callable[[Path], None]) -> None:
        """Write a file atomically, by a function of a path: a reader sees all of the file or none."""
        ...

    def note_files(self, task: str, files: Mapping[str, int]) -> None:
        """Note the files below ``new/`` that a task has written, with their sizes in bytes, for the publication."""
        ...


def partition_count(splits: Sequence[Split]) -> int:
    """Return the number of tasks that write queues, by the log's bytes: the number of queues comes later.

    Even a small log may have a hundred thousand queues, each of which costs a file: hence several tasks early.
    """
    total = sum(split.size_bytes for split in splits)
    return min(MAX_PARTITIONS, max(1 + total // PARTITION_BYTES, min(EARLY_PARTITIONS, 1 + total // _EARLY_BYTES)))


def write_whole(path: Path, work: Path, write: Callable[[Path], None]) -> None:
    """Write a file under a temporary name, then rename it: a reader sees all of it or none.

    A killed task leaves its half elsewhere, as a broker does not start if a queue has a foreign file.
    """
    temporary = work / "part" / f"{path.name}.{uuid.uuid4().hex}"
    write(temporary)
    temporary.replace(path)


class Scanned(Protocol):
    """First and last position of a split's scan."""

    @property
    def begin_physical_offset(self) -> int:
        """Physical offset of the split's first frame."""
        ...

    @property
    def end_physical_offset(self) -> int:
        """Physical offset where the walk ended: the first frame of the next split."""
        ...


AnyScan = TypeVar("AnyScan", bound=Scanned)


def rescan_misaligned_splits(
    splits: Sequence[Split], results: Sequence[AnyScan], scan_again: Callable[[Split, int], AnyScan]
) -> list[AnyScan]:
    """Check that each split of a file began where the one before it ended; scan again those that did not.

    A record's body may, by malice, hold a record's bytes with the very offset where they stand. A split
    that begins inside such a body takes them for a frame; a walk from the file's start does not.
    """
    corrected = list(results)
    for number in range(1, len(splits)):
        split, before = splits[number], splits[number - 1]
        end = corrected[number - 1].end_physical_offset
        if split.path == before.path and corrected[number].begin_physical_offset != end:
            corrected[number] = scan_again(split, end - split.file_offset)
    return corrected


def write_text(area: Area, name: str, text: str) -> None:
    """Write a small text file."""

    def write(target: Path) -> None:
        target.write_text(text, encoding="utf-8")

    area.write(name, write)
