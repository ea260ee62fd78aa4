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
from rmq_core.store.config import delete_hours
from rmq_core.store.maintenance.background import RETRIABLE_ERRNOS, Background
from rmq_core.store.maintenance.reput import LiveDispatch
from rmq_core.store.parts import StoreParts

_HOUR_MS: Final = 3_600_000


class Pressure(IntEnum):
    """Level of disk usage."""

    NONE = 0
    RECLAIM = 1  # above ``diskMaxUsedSpaceRatio``: delete expired files at any hour
    FORCE = 2  # above ``diskSpaceCleanForciblyRatio``: delete the oldest files, whatever their age
    FULL = 3  # above ``diskSpaceWarningLevelRatio``: refuse appends


@dataclass(frozen=True, slots=True)
class CleanReport:
    """Result of one round of cleaning."""

    pressure: Pressure
    log_files: int = 0
    queue_files: int = 0
    index_files: int = 0


class Cleaner:
    """Removes expired files of log, queues and Index."""

    def __init__(self, parts: StoreParts, background: Background) -> None:
        self._parts = parts
        self._log = parts.log
        self._background = background
        self._hours = delete_hours(parts.config.delete_when)
        # The original puts these bounds on its two ratios.
        self._warning = min(max(parts.config.disk_warning_ratio / 100, 0.35), 0.90)
        self._forcibly = min(max(parts.config.disk_clean_forcibly_ratio / 100, 0.30), 0.85)

    def clean(self, now_ms: int, *, manually: bool = False) -> CleanReport:
        """Delete expired files, or the oldest if the disk is too full; call it every ten seconds.

        Args:
            manually: an operator requests the cleaning, so that the hour does not matter.
        """
        pressure = self._pressure()
        if pressure is Pressure.FULL:
            self._parts.refusals.add("disk", "the disk is nearly full")
        else:
            self._parts.refusals.remove("disk")
        log = self._log
        flushed_end = min(self._parts.dispatch.offset, self._parts.flusher.flushed_offset)
        # The last file stays, even if it is full: its end is the position of the next record.
        removable_files = [file for file in log.files[:-1] if file.end <= flushed_end]
        # Without their records, only the units show where queues end: the units must be flushed before.
        while removable_files and removable_files[-1].end > self._background.watermark.dispatched:
            removable_files.pop()
            self._background.request_flush()
        if removable_files and not self._has_flushed_record(removable_files[-1].end):
            removable_files.pop()
        expired_count = self._count_expired(removable_files, now_ms, pressure, manually)
        del removable_files  # a reference to a file would count as a reader
        for remove, is_read in [self._prepare_removal(log.remove_first()) for _ in range(expired_count)]:
            self._background.remove_later(remove, pause_ms=self._parts.config.delete_log_interval_ms, is_read=is_read)
        queue_files, index_files = self._remove_expired_queue_and_index_files() if expired_count else (0, 0)
        return CleanReport(pressure, expired_count, queue_files, index_files)

    def _pressure(self) -> Pressure:
        """Return the pressure on the fuller of the disks of log and queues."""
        config, disk = self._parts.config, self._parts.disk
        used_ratio = max(disk.used_ratio(config.commitlog_path), disk.used_ratio(config.root))
        if used_ratio > self._warning:
            return Pressure.FULL
        if used_ratio > self._forcibly:
            return Pressure.FORCE
        return Pressure.RECLAIM if used_ratio > config.disk_max_used_ratio / 100 else Pressure.NONE

    def _count_expired(self, files: list[LogFile], now_ms: int, pressure: Pressure, manually: bool) -> int:
        """Return how many of the removable files, in the order of age, are to be deleted now."""
        config = self._parts.config
        is_cleaning_hour = time.localtime(now_ms // 1000).tm_hour in self._hours
        if not (is_cleaning_hour or manually or pressure >= Pressure.RECLAIM):
            return 0
        ignores_age = pressure >= Pressure.FORCE and config.clean_forcibly
        count = 0
        for file in files[: config.delete_batch]:
            written_ms = Path(file.path).stat().st_mtime_ns // 1_000_000
            if not ignores_age and now_ms < written_ms + config.file_reserved_hours * _HOUR_MS:
                break
            count += 1
        return count

    def _has_flushed_record(self, physical_offset: int) -> bool:
        """Return whether a flushed record begins at an offset; without a record, the log would begin at 0 again."""
        record = self._log.record(physical_offset)
        return record is not None and physical_offset + len(record) <= self._parts.flusher.flushed_offset

    def _prepare_removal(self, file: LogFile) -> tuple[Callable[[], None], Callable[[], bool]]:
        """Return the function that removes a file, and the function that returns whether the file has readers."""
        return partial(self._remove_file, file.path), file.track_readers()

    def _remove_file(self, path: str) -> None:
        self._parts.disk.remove(path)
        self._parts.disk.sync_directory(str(Path(path).parent))

    def _remove_expired_queue_and_index_files(self) -> tuple[int, int]:
        """Remove queue and Index files of messages before the log's begin. Source: ``CleanConsumeQueueService``."""
        parts, log_min = self._parts, self._log.min_offset
        queue_files = 0
        for queue in parts.queues:
            queue_files += queue.expire_files(log_min)
            queue.correct_min(log_min)
        open_files = parts.queues.open_files
        while open_files.expired_directories:
            removal = partial(open_files.remove_expired, open_files.expired_directories.popleft())
            self._background.remove_later(removal, pause_ms=parts.config.delete_queue_interval_ms)
        expired = [] if parts.index is None else parts.index.remove_expired(log_min)
        parts.dispatch.publish_progress()
        if expired:  # the watermark must not name a removed file
            self._background.remove_later(self._background.flush)
        for file in expired:
            self._background.remove_later(partial(parts.disk.remove, file.path))
        return queue_files, len(expired)


class TopicDeletions:
    """Removes the queues of deleted topics. Their messages stay in the log until that is cleaned."""

    def __init__(self, parts: StoreParts, appender: Appender, live: LiveDispatch, background: Background) -> None:
        self._parts = parts
        self._queues = parts.queues
        self._appender = appender
        self._live = live
        self._background = background
        self._begin = 0

    def begin(self) -> None:
        """Record the log's begin when the store is opened, as files cleaned later may reappear after a kill."""
        self._begin = self._parts.log.min_offset

    def delete(self, topics: Collection[str], ends: Mapping[str, int]) -> int:
        """Remove the queues of topics, and return the number of topics that had queues.

        ``MessageStore.remove_deleted`` removes the files. The log's end is recorded for each topic. The log is flushed
        first: an offset beyond the log's end after a loss of power would be useless, and replace an earlier one. After
        an OSError no topic is deleted.

        Args:
            ends: physical offsets before which records are dead, for topics that were created again meanwhile.
        """
        flusher = self._parts.flusher
        if not flusher.flush() and flusher.fault is not None:
            raise flusher.fault
        self._live.run()
        return self.delete_before({**dict.fromkeys(topics, self._parts.log.max_offset), **ends})

    def delete_before(self, ends: Mapping[str, int], *, at_least: bool = False) -> int:
        """Remove the queues of topics that were deleted at some end of the log; return the number of topics.

        ``MessageStore.remove_deleted`` removes the files. After an OSError no topic is deleted.

        Args:
            ends: the log's end at the deletion, by topic; on a slave, the log may be longer, or shorter.
            at_least: the topics may have been deleted later, so that later records of their queues are dead, too.
        """
        if at_least:
            ends = {topic: self._queues.extend_dead_end(topic, end) for topic, end in ends.items()}
        try:
            if not self._queues.deleted_topics.record(ends, self._begin):
                return 0
        except OSError as error:
            # The topic may be recorded as deleted: after a start, new records would be dead.
            if error.errno not in RETRIABLE_ERRNOS:
                self._parts.flusher.fail(error)
            raise
        self._parts.dispatch.writer.clear_cache()
        removed_count = self._queues.remove_topics(ends, self._parts.dispatch.offset)
        self._appender.evict_queues(ends.keys())
        self._parts.dispatch.publish_progress()
        self._background.request_flush()
        return removed_count

    def remove_files(self, seconds: float) -> bool:
        """Remove files of deleted topics' queues for ``seconds`` at most; return whether files remain."""
        monotonic_s = self._parts.threads.monotonic_s
        end_s = monotonic_s() + seconds
        return self._queues.remove_files(lambda: monotonic_s() > end_s)
