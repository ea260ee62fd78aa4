"""Tasks over the splits of a log: the number of partitions, and the check of split boundaries."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from rmq_formats.scan.splits import Split

PARTITION_BYTES: Final = 512 << 20  # bytes of log for each task that writes queues
MAX_PARTITIONS: Final = 256
EARLY_PARTITIONS: Final = 16
_EARLY_BYTES: Final = 4 << 20
MAX_REPORTED: Final = 1000  # findings that a report lists; all are counted


def partition_count(splits: Sequence[Split]) -> int:
    """Return the number of tasks that write queues, by the log's bytes: the number of queues comes later.

    Even a small log may have a hundred thousand queues, each of which costs a file: hence several tasks early.
    """
    total = sum(split.size_bytes for split in splits)
    return min(MAX_PARTITIONS, max(1 + total // PARTITION_BYTES, min(EARLY_PARTITIONS, 1 + total // _EARLY_BYTES)))


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
