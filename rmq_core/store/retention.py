"""Removes what is too old, or what the disk has no room for.

Source: ``CleanCommitLogService``, ``CleanConsumeQueueService``, ``MappedFileQueue#deleteExpiredFileByTime``.
"""

import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from rmq_core.store.config import StoreConfig, delete_hours
from rmq_core.store.disk import Disk

_HOUR_MS: Final = 3_600_000
# Bounds that the original puts on its two ratios.
_WARNING_BOUNDS: Final = (0.35, 0.90)
_FORCIBLY_BOUNDS: Final = (0.30, 0.85)


class Pressure(IntEnum):
    """How full the disk is."""

    NONE = 0
    RECLAIM = 1  # above ``diskMaxUsedSpaceRatio``: delete what is old enough at any hour
    FORCE = 2  # above ``diskSpaceCleanForciblyRatio``: delete the oldest files, whatever their age
    FULL = 3  # above ``diskSpaceWarningLevelRatio``: take no more messages


@dataclass(frozen=True, slots=True)
class CleanReport:
    """What a round of cleaning did.

    Attributes:
        pressure: of the disk.
        log_files: CommitLog files removed.
        queue_files: ConsumeQueue files removed.
        index_files: IndexFiles removed.
    """

    pressure: Pressure
    log_files: int = 0
    queue_files: int = 0
    index_files: int = 0


class Retention:
    """The rules of one store."""

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self._config = config
        self._disk = disk
        self._hours = delete_hours(config.delete_when)
        self._warning = _bounded(config.disk_warning_ratio, _WARNING_BOUNDS)
        self._forcibly = _bounded(config.disk_clean_forcibly_ratio, _FORCIBLY_BOUNDS)

    def pressure(self) -> Pressure:
        """How full the disks of log and queues are; the fuller one counts."""
        used = max(self._disk.used_ratio(self._config.commitlog_path), self._disk.used_ratio(self._config.root))
        if used > self._warning:
            return Pressure.FULL
        if used > self._forcibly:
            return Pressure.FORCE
        return Pressure.RECLAIM if used > self._config.disk_max_used_ratio / 100 else Pressure.NONE

    def expired(self, paths: list[str], now_ms: int, pressure: Pressure, *, manually: bool = False) -> int:
        """How many of the log's files, from the oldest on, are to be removed now.

        Args:
            paths: of the files, in order; the last is never removed.
            now_ms: the time.
            pressure: of the disk.
            manually: an operator asks for it, whatever the hour.
        """
        in_time = time.localtime(now_ms // 1000).tm_hour in self._hours
        if not (in_time or manually or pressure >= Pressure.RECLAIM):
            return 0
        at_once = pressure >= Pressure.FORCE and self._config.clean_forcibly
        count = 0
        for path in paths[:-1][: self._config.delete_batch]:
            written_ms = Path(path).stat().st_mtime_ns // 1_000_000
            if not at_once and now_ms < written_ms + self._config.file_reserved_hours * _HOUR_MS:
                break
            count += 1
        return count


def _bounded(percent: int, bounds: tuple[float, float]) -> float:
    return min(max(percent / 100, bounds[0]), bounds[1])
