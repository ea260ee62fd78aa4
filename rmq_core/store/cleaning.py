"""Has old files of log, queues and Index go, in a store that is open.

Source: ``CleanCommitLogService``, ``CleanConsumeQueueService``.
"""

from functools import partial
from pathlib import Path

from rmq_core.store.background import Background
from rmq_core.store.config import StoreConfig
from rmq_core.store.disk import Disk
from rmq_core.store.dispatch import Dispatch
from rmq_core.store.flush import LogFlusher
from rmq_core.store.index import Index
from rmq_core.store.log import CommitLog
from rmq_core.store.queues import QueueTable
from rmq_core.store.refusals import Refusals
from rmq_core.store.retention import CleanReport, Pressure, Retention


class Cleaner:
    """Does what ``Retention`` says."""

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        log: CommitLog,
        queues: QueueTable,
        index: Index | None,
        dispatch: Dispatch,
        background: Background,
        flusher: LogFlusher,
        refusals: Refusals,
    ) -> None:
        """Work on these parts of a store; ``background`` removes the files."""
        self._disk = disk
        self._log = log
        self._queues = queues
        self._index = index
        self._dispatch = dispatch
        self._background = background
        self._flusher = flusher
        self._refusals = refusals
        self._retention = Retention(config, disk)

    def clean(self, now_ms: int, *, manually: bool = False) -> CleanReport:
        """Remove what is too old, or what the disk has no room for; call it every ten seconds.

        Args:
            now_ms: the time.
            manually: whatever the hour, as an operator asks.
        """
        pressure = self._retention.pressure()
        if pressure is Pressure.FULL:
            self._refusals.add("disk", "the disk is nearly full")
        else:
            self._refusals.remove("disk")
        log = self._log
        done = min(self._dispatch.offset, self._flusher.flushed_offset)
        ended = [file.path for file in log.files if file.start + file.size <= done]
        last = [log.files[-1].path] if log.files else []
        count = self._retention.expired(ended + last, now_ms, pressure, manually=manually)
        for _ in range(count):
            self._background.remove_later(partial(self._remove_file, log.remove_first().path))
        queue_files, index_files = self._drop_expired() if count else (0, 0)
        return CleanReport(pressure, count, queue_files, index_files)

    def _remove_file(self, path: str) -> None:
        self._disk.remove(path)
        self._disk.sync_directory(str(Path(path).parent))

    def _drop_expired(self) -> tuple[int, int]:
        """Remove queue and Index files below the log's new beginning. Source: ``CleanConsumeQueueService``."""
        log_min = self._log.min_offset
        queue_files = 0
        for queue in self._queues:
            queue_files += queue.remove_expired(log_min)
            queue.correct_min(log_min)
        expired = [] if self._index is None else self._index.remove_expired(log_min)
        self._dispatch.note()
        if expired:  # no watermark may name a file that is gone
            self._background.remove_later(self._background.force)
        for file in expired:
            self._background.remove_later(partial(self._disk.remove, file.path))
        return queue_files, len(expired)
