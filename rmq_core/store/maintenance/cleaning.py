"""Deletes expired files and topics of an open store.

Source: ``CleanCommitLogService``, ``CleanConsumeQueueService``, ``DefaultMessageStore#deleteTopics``.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Final

from rmq_core.store.commitlog.append import Appender
from rmq_core.store.commitlog.log import LogFile
from rmq_core.store.config import StoreConfig, delete_hours
from rmq_core.store.files.config_files import DeletedTopics
from rmq_core.store.files.disk import Disk
from rmq_core.store.maintenance.background import RETRIABLE_ERRNOS, Background
from rmq_core.store.maintenance.reput import LiveDispatch
from rmq_core.store.parts import StoreParts

_HOUR_MS: Final = 3_600_000
# Bounds that the original puts on its two ratios.
_WARNING_BOUNDS: Final = (0.35, 0.90)
_FORCIBLY_BOUNDS: Final = (0.30, 0.85)


class Pressure(IntEnum):
    """Level of disk usage."""

    NONE = 0
    RECLAIM = 1  # above ``diskMaxUsedSpaceRatio``: delete what is old enough at any hour
    FORCE = 2  # above ``diskSpaceCleanForciblyRatio``: delete the oldest files, whatever their age
    FULL = 3  # above ``diskSpaceWarningLevelRatio``: take no more messages


@dataclass(frozen=True, slots=True)
class CleanReport:
    """Result of one round of cleaning."""

    pressure: Pressure
    log_files: int = 0
    queue_files: int = 0
    index_files: int = 0


class Retention:
    """Retention policy of one store: which files are expired, and how full the disk is."""

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self._config = config
        self._disk = disk
        self._hours = delete_hours(config.delete_when)
        self._warning = _bounded(config.disk_warning_ratio, _WARNING_BOUNDS)
        self._forcibly = _bounded(config.disk_clean_forcibly_ratio, _FORCIBLY_BOUNDS)

    def pressure(self) -> Pressure:
        """Disk usage of log and queues; the fuller disk counts."""
        used = max(self._disk.used_ratio(self._config.commitlog_path), self._disk.used_ratio(self._config.root))
        if used > self._warning:
            return Pressure.FULL
        if used > self._forcibly:
            return Pressure.FORCE
        return Pressure.RECLAIM if used > self._config.disk_max_used_ratio / 100 else Pressure.NONE

    def expired(self, paths: list[str], now_ms: int, pressure: Pressure, *, manually: bool = False) -> int:
        """How many of the files that may be removed, from the oldest on, are to be deleted now."""
        in_time = time.localtime(now_ms // 1000).tm_hour in self._hours
        if not (in_time or manually or pressure >= Pressure.RECLAIM):
            return 0
        at_once = pressure >= Pressure.FORCE and self._config.clean_forcibly
        count = 0
        for path in paths[: self._config.delete_batch]:
            written_ms = Path(path).stat().st_mtime_ns // 1_000_000
            if not at_once and now_ms < written_ms + self._config.file_reserved_hours * _HOUR_MS:
                break
            count += 1
        return count


def _bounded(percent: int, bounds: tuple[float, float]) -> float:
    return min(max(percent / 100, bounds[0]), bounds[1])


class Cleaner:
    """Removes expired files of log, queues and Index according to ``Retention``."""

    def __init__(self, parts: StoreParts, background: Background) -> None:
        self._disk = parts.disk
        self._log = parts.log
        self._queues = parts.queues
        self._index = parts.index
        self._dispatch = parts.dispatch
        self._background = background
        self._flusher = parts.flusher
        self._refusals = parts.refusals
        self._config = parts.config
        self._retention = Retention(parts.config, parts.disk)

    def clean(self, now_ms: int, *, manually: bool = False) -> CleanReport:
        """Delete expired files, or the oldest if the disk is too full; call it every ten seconds.

        Args:
            manually: an operator asks for it, whatever the hour.
        """
        pressure = self._retention.pressure()
        if pressure is Pressure.FULL:
            self._refusals.add("disk", "the disk is nearly full")
        else:
            self._refusals.remove("disk")
        log = self._log
        done = min(self._dispatch.offset, self._flusher.flushed_offset)
        # The last one stays, even where it is full: it has the place of the next record.
        ended = [file for file in log.files[:-1] if file.start + file.size <= done]
        # The ends of queues are told by units alone where their records are gone: those are forced before.
        while ended and ended[-1].start + ended[-1].size > self._background.watermark.dispatched:
            ended.pop()
            self._background.request_flush()
        if ended and not self._has_forced_record(ended[-1].start + ended[-1].size):
            ended.pop()
        count = self._retention.expired([file.path for file in ended], now_ms, pressure, manually=manually)
        del ended  # who holds a file or its map is a reader of it
        for remove, is_read in [self._removal(log.remove_first()) for _ in range(count)]:
            self._background.remove_later(remove, pause_ms=self._config.delete_log_interval_ms, is_read=is_read)
        queue_files, index_files = self._drop_expired() if count else (0, 0)
        return CleanReport(pressure, count, queue_files, index_files)

    def _has_forced_record(self, physical_offset: int) -> bool:
        """Return whether a flushed record begins at an offset; without such a record the log would begin at 0 anew."""
        record = self._log.record(physical_offset)
        return record is not None and physical_offset + len(record) <= self._flusher.flushed_offset

    def _removal(self, file: LogFile) -> tuple[Callable[[], None], Callable[[], bool]]:
        """Return what removes a file, and what tells whether somebody reads the file."""
        return partial(self._remove_file, file.path), file.track_readers()

    def _remove_file(self, path: str) -> None:
        self._disk.remove(path)
        self._disk.sync_directory(str(Path(path).parent))

    def _drop_expired(self) -> tuple[int, int]:
        """Remove queue and Index files below the log's new beginning. Source: ``CleanConsumeQueueService``."""
        log_min = self._log.min_offset
        queue_files = 0
        for queue in self._queues:
            queue_files += queue.expire_files(log_min)
            queue.correct_min(log_min)
        open_files = self._queues.open_files
        while open_files.expired_directories:
            removal = partial(open_files.remove_expired, open_files.expired_directories.popleft())
            self._background.remove_later(removal, pause_ms=self._config.delete_queue_interval_ms)
        expired = [] if self._index is None else self._index.remove_expired(log_min)
        self._dispatch.note()
        if expired:  # no watermark may name a file that is gone
            self._background.remove_later(self._background.flush)
        for file in expired:
            self._background.remove_later(partial(self._disk.remove, file.path))
        return queue_files, len(expired)


class TopicDeletions:
    """Removes the queues of deleted topics. Their messages stay in the log until that is cleaned."""

    def __init__(
        self,
        parts: StoreParts,
        deleted_topics: DeletedTopics,
        appender: Appender,
        live: LiveDispatch,
        background: Background,
    ) -> None:
        self._log = parts.log
        self._queues = parts.queues
        self._dispatch = parts.dispatch
        self._flusher = parts.flusher
        self._deleted_topics = deleted_topics
        self._appender = appender
        self._live = live
        self._background = background
        self._monotonic_s = parts.threads.monotonic_s
        self._begin = 0

    def begin(self) -> None:
        """Note where the log begins, as the store is opened: what is cleaned later may be there after a kill."""
        self._begin = self._log.min_offset

    def delete(self, topics: Collection[str], ends: Mapping[str, int]) -> int:
        """Remove the queues of topics; returns how many had any. ``MessageStore.remove_deleted`` removes their files.

        The log's end is noted for each topic. It is forced first: a note beyond what a loss of power leaves would
        count for nothing, in the place of an earlier one.

        Args:
            ends: physical offsets up to which records are dead, of topics that were created again meanwhile.

        Raises:
            OSError: the log cannot be forced, or the note not be written; no topic is deleted then.
        """
        if not self._flusher.flush() and self._flusher.fault is not None:
            raise self._flusher.fault
        self._live.run()
        return self.drop({**dict.fromkeys(topics, self._log.max_offset), **ends})

    def drop(self, ends: Mapping[str, int], *, at_least: bool = False) -> int:
        """Remove the queues of topics that were deleted when the log ended at some offset; returns of how many topics.

        The queues' files are left to ``MessageStore.remove_deleted``.

        Args:
            ends: these physical offsets, by topic. The log may go further, or not be there yet, at a slave.
            at_least: they may have been deleted later, and what a queue has after that is dead as well.

        Raises:
            OSError: the note cannot be written; no topic is deleted then.
        """
        if at_least:
            ends = {topic: self._queues.dead_until(topic, end) for topic, end in ends.items()}
        try:
            if not self._deleted_topics.note(ends, self._begin):
                return 0
        except OSError as error:
            if (
                error.errno not in RETRIABLE_ERRNOS
            ):  # the note may be there: at the next start, what came now would be dead
                self._flusher.fail(error)
            raise
        self._dispatch.writer.clear_cache()
        removed = self._queues.remove_topics(ends, self._dispatch.offset)
        self._appender.evict_queues(ends.keys())
        self._dispatch.note()
        self._background.request_flush()
        return removed

    def remove_files(self, seconds: float) -> bool:
        """Remove files of the queues of deleted topics, for so long at most; return whether some are left."""
        end_s = self._monotonic_s() + seconds
        return self._queues.remove_files(lambda: self._monotonic_s() > end_s)
