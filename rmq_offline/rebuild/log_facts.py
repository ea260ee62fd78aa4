"""Facts of a CommitLog for the tasks that write queues: its bounds, and its damaged and missing ranges.

Messages in such a range had queue offsets.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.record_frame import Damage
from rmq_formats.scan.splits import Split
from rmq_offline.tasks.work_files import Area, read_longs, write_longs
from rmq_offline.verify.log_facts import LogFacts

_FACTS = "spill/facts.msgpack"


class ScannedSplit(Protocol):
    """Facts of a split's scan about the log's ranges."""

    @property
    def end_physical_offset(self) -> int:
        """Physical offset at which the walk ended; -1 for an empty split."""

    @property
    def has_end_mark(self) -> bool:
        """Whether the walk reached the file's end mark."""

    @property
    def damage_count(self) -> int:
        """Number of damaged ranges."""


def _damages(number: int) -> str:
    return f"spill/damages-{number:06d}.msgpack"


def spill_damages(area: Area, split_number: int, damages: Sequence[Damage]) -> None:
    """Write the damaged ranges of a split; most splits have none."""
    if damages:
        rows = [(item.physical_offset, item.physical_offset + item.size) for item in damages]
        write_longs(area, _damages(split_number), rows=np.array(rows, dtype=np.int64).reshape(-1))


def write_log_facts(
    area: Area, splits: Sequence[Split], scans: Sequence[ScannedSplit], lost: Sequence[tuple[int, int]] = ()
) -> None:
    """Write the log's bounds, and its unreadable ranges: damage, missing and cut files, ``lost`` ones with fillers."""
    gaps = _file_gaps(splits, scans)
    ranges = []
    end = start = splits[0].file_offset if splits else 0
    for split, scan in zip(splits, scans, strict=True):
        if scan.damage_count:
            ranges.append(read_longs(area, _damages(split.number))["rows"].reshape(-1, 2))
        if split.data_end > 0:  # a file that a broker made ahead has no data
            end = max(end, split.file_offset + split.file_bytes if scan.has_end_mark else scan.end_physical_offset)
    ranges.append(gaps[gaps[:, 1] <= end])  # before a file made ahead nothing is missing
    overwritten = np.minimum(np.array(lost, dtype=np.int64).reshape(-1, 2), end)
    ranges.append(overwritten[overwritten[:, 0] < end])  # at a torn tail the log ends
    rows = np.concatenate(ranges)
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    bounds = np.array([start, end], dtype=np.int64)
    write_longs(area, _FACTS, bounds=bounds, begins=rows[:, 0], ends=rows[:, 1])


def _file_gaps(splits: Sequence[Split], scans: Sequence[ScannedSplit]) -> NDArray[np.int64]:
    """Find the ranges between files: from the end of a file, or of a walk without an end mark, to the next file."""
    gaps: list[tuple[int, int]] = []
    before: int | None = None
    for split, scan in zip(splits, scans, strict=True):
        if before is not None and split.start == 0 and before < split.file_offset:
            gaps.append((before, split.file_offset))
        if scan.has_end_mark:
            before = split.file_offset + split.file_bytes
        else:
            before = max(scan.end_physical_offset, split.file_offset)
    return np.array(gaps, dtype=np.int64).reshape(-1, 2)


def read_log_facts(area: Area) -> LogFacts:
    """Read what ``write_log_facts`` wrote."""
    arrays = read_longs(area, _FACTS)
    start, end = arrays["bounds"].tolist()
    return LogFacts(start, end, arrays["begins"], arrays["ends"])
