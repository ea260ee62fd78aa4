"""The store's background thread: creates the next log file, flushes ConsumeQueues and Index, deletes old files.

The thread shares little with the thread that appends: the queues of files to flush, and the progress that
dispatch publishes after each batch.
"""

import errno
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rmq_core.store.commitlog.flush import PAGE_BYTES
from rmq_core.store.commitlog.log import LogFile
from rmq_core.store.dispatch.dispatch import DispatchProgress
from rmq_core.store.files.watermark import Watermark
from rmq_core.store.parts import StoreParts
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.index import NO_TAGS
from rmq_formats.codecs.layout import UNIT_BYTES

_LOGGER = logging.getLogger(__name__)
# With more dirty queue files, flushes wait for the thorough interval or ``_MAX_UNFLUSHED_LOG_BYTES``.
_FEW_FILES: Final = 64
_MAX_UNFLUSHED_LOG_BYTES: Final = 256 << 20  # bounds the bytes that a recovery dispatches again
_RETRY_S: Final = 1.0  # between two tries to remove a file, unless ``redelete_interval_ms`` is longer
# Resources are exhausted, so that the next try may succeed.
RETRIABLE_ERRNOS: Final = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC}


@dataclass(slots=True)
class _Removal:
    """A queued removal of a file.

    Attributes:
        forced_at: monotonic time at which the file is removed despite readers; None before the first try.
    """

    remove: Callable[[], object]
    pause_s: float
    is_read: Callable[[], bool] | None
    forced_at: float | None = None


class Background:
    """The background thread of a store: creates log files ahead, flushes queues and Index, removes files."""

    def __init__(self, parts: StoreParts) -> None:
        self.watermark = Watermark()  # the last written watermark
        self._parts = parts
        self._config = parts.config
        self._disk = parts.disk
        self._log = parts.log
        self._index = parts.index
        self._flusher = parts.flusher
        self._creation_lock = threading.Lock()  # held while a log file is created
        self._lacks_file = False  # the last log file could not be created; logged once
        self._wanted_start: int | None = None
        self._prepared: LogFile | None = None
        self._to_remove: deque[_Removal] = deque()
        self._is_removal_stuck = False  # the first queued removal has failed; logged once
        self._remove_at = 0.0  # monotonic time of the next removal
        self._fsync_lock = threading.Lock()  # held while queues, Index and checkpoint files are flushed
        self._thorough_at = 0.0
        self._index_at = 0.0
        self._is_flush_requested = False
        self._is_stopping = False
        self._due_at = 0.0
        self._interval_s = parts.config.flush_consumequeue_interval_ms / 1000
        self._monotonic_s = parts.threads.monotonic_s
        self._worker = parts.threads.worker("rmq-store-background", self._run_once)

    def start(self) -> None:
        """Start the thread."""
        self._thorough_at = self._index_at = now = self._monotonic_s()
        self._due_at = now + self._interval_s
        self._worker.start(self._interval_s)

    def prepare(self, start: int) -> None:
        """Request the CommitLog file that begins at a physical offset to be created ahead; does not wait."""
        self._wanted_start = start
        self._worker.wake()

    def roll(self) -> bool:
        """Roll the log over to the file created ahead, or to one created now; False if that fails."""
        start = self._log.start + self._config.commitlog_file_bytes
        try:
            with self._creation_lock:
                self._wanted_start = None
                file, self._prepared = self._prepared, None
                if file is None or file.start != start:
                    file = self._log.create(start)
            self._log.roll(file)
        except OSError as error:
            if not self._lacks_file:  # each further append tries again
                self._log_error("cannot create a CommitLog file", error)
            self._lacks_file = True
            return False
        self._lacks_file = False
        return True

    def remove_later(
        self, removal: Callable[[], object], *, pause_ms: int = 0, is_read: Callable[[], bool] | None = None
    ) -> None:
        """Queue the removal of a file for the thread, as removing a large file is slow.

        Args:
            removal: called again after an ``OSError``.
            pause_ms: pause before the next removal.
            is_read: returns whether the file has readers, which delay the removal for a limited time.
        """
        self._to_remove.append(_Removal(removal, pause_ms / 1000, is_read))
        self._worker.wake()

    def request_flush(self) -> None:
        """Request the thread to fsync the queues before the interval is over."""
        self._is_flush_requested = True
        self._worker.wake()

    def stop(self) -> None:
        """Stop the thread, and remove a file that was created ahead and not used."""
        self._is_stopping = True
        self._worker.stop()
        if self._prepared is not None:
            self._disk.remove(self._prepared.path)
            self._disk.sync_directory(self._log.directory)
            self._prepared = None

    def _run_once(self) -> float:
        self._create_next_file()
        self._remove()
        if self._is_flush_requested or self._monotonic_s() >= self._due_at:
            self.flush_if_due()
            self._due_at = self._monotonic_s() + self._interval_s
        now, next_at = self._monotonic_s(), self._due_at
        if self._to_remove:
            next_at = min(next_at, self._remove_at or now + _RETRY_S)
        return max(next_at - now, 0)

    def _create_next_file(self) -> None:
        with self._creation_lock:
            if self._wanted_start is None:
                return
            try:
                self._prepared = self._log.create(self._wanted_start)
            except OSError:
                return  # ``roll`` will have the same error
            finally:
                self._wanted_start = None

    def _remove(self) -> None:
        """Remove files in the order in which they were queued.

        A failed removal is tried again in the next run, and later removals wait. Otherwise the log would have a hole if
        the file reappears, at the next start or after a loss of power, and a later file does not.
        """
        while self._to_remove and (self._is_stopping or self._monotonic_s() >= self._remove_at):
            removal = self._to_remove[0]
            is_removed = not self._has_to_wait(removal) and self._try_to_remove(removal)
            pause_s = removal.pause_s if is_removed else self._config.redelete_interval_ms / 1000
            self._remove_at = self._monotonic_s() + pause_s if pause_s else 0.0
            if not is_removed:
                return
            self._to_remove.popleft()

    def _try_to_remove(self, removal: _Removal) -> bool:
        try:
            removal.remove()
        except OSError as error:  # the files stay and use disk space
            if not self._is_removal_stuck:
                self._log_error("an old file cannot be removed, the removal is retried", error)
            self._is_removal_stuck = True
            return False
        self._is_removal_stuck = False
        return True

    def _log_error(self, problem: str, error: OSError) -> None:
        _LOGGER.error(f"%(store)s: {problem}: %(error)s", {"store": self._config.root, "error": error})

    def _has_to_wait(self, removal: _Removal) -> bool:
        """Return whether readers delay the removal, and their time is not over. Source: ``ReferenceResource``."""
        if self._is_stopping or removal.is_read is None or not removal.is_read():
            return False
        now = self._monotonic_s()
        if removal.forced_at is None:
            removal.forced_at = now + self._config.destroy_forcibly_interval_ms / 1000
        return now < removal.forced_at

    def flush_if_due(self) -> None:
        """Flush queues and Index if their interval is over, or many bytes were dispatched since their last flush."""
        now = self._monotonic_s()
        config = self._config
        progress = self._parts.dispatch.progress
        is_requested, self._is_flush_requested = self._is_flush_requested, False
        if not is_requested and config.flush_least_pages and not self._flusher.is_due:
            return
        least_pages = config.flush_consumequeue_least_pages
        dirty_files = len(self._parts.queues.open_files.dirty) + self._parts.dispatch.writer.dirty_count
        new_unit_bytes = (progress.unit_total - self.watermark.unit_total) * UNIT_BYTES
        with_units = (
            is_requested
            or (not least_pages and dirty_files <= _FEW_FILES)
            or 0 < least_pages <= new_unit_bytes // PAGE_BYTES
            or progress.offset - self.watermark.dispatched > _MAX_UNFLUSHED_LOG_BYTES
            or now - self._thorough_at >= config.flush_thorough_interval_ms / 1000
        )
        with_index = (
            now - self._index_at >= config.flush_index_interval_ms / 1000
            or progress.offset - self.watermark.index_dispatched > _MAX_UNFLUSHED_LOG_BYTES
        )
        if with_units or with_index:
            self.flush(units=with_units, keys=with_index)

    def flush(self, *, units: bool = True, keys: bool = True, clean: bool = False) -> bool:
        """Flush the log and the dispatched units and keys, then write watermark and checkpoint; False if that fails.

        Args:
            clean: mark the store as shut down in order, as all records are dispatched.
        """
        with self._fsync_lock:
            progress, last_watermark = self._parts.dispatch.progress, self.watermark
            flushed_units = last_watermark.dispatched, last_watermark.unit_total
            units = units and (progress.offset, progress.unit_total) != flushed_units
            keys = keys and self._index is not None and progress.offset != last_watermark.index_dispatched
            if not self._flusher.flush():
                return False
            if not (units or keys or clean or self._flusher.flushed_offset > last_watermark.log_flushed):
                return True
            try:
                is_done = not units or self._fsync_queues()
                if is_done:
                    if keys:
                        self._fsync_index()
                    has_index = self._index is not None
                    self._write(progress, units=units or clean, keys=has_index and (keys or clean), clean=clean)
            except OSError as error:
                if error.errno not in RETRIABLE_ERRNOS:
                    self._flusher.fail(error)
                return False
            now = self._monotonic_s()
            self._thorough_at = now if units else self._thorough_at
            self._index_at = now if keys else self._index_at
            return is_done

    def _fsync_queues(self) -> bool:
        files = self._parts.queues.open_files
        for file in self._parts.dispatch.writer.collect_dirty_files():
            files.note_dirty(file)
        for _ in range(len(files.dirty)):
            file = files.dirty.popleft()
            file.is_dirty = False
            if file.is_dropped:
                continue
            try:
                self._fsync_path(file.path)
            except OSError as error:
                if error.errno not in RETRIABLE_ERRNOS:
                    raise
                file.is_dirty = True
                files.dirty.append(file)
                return False
        self._fsync_directories(files.new_directories)
        return True

    def _fsync_directories(self, directories: deque[str]) -> None:
        names = sorted({directories.popleft() for _ in range(len(directories))})
        for number, directory in enumerate(names):
            try:
                self._disk.sync_directory(directory)
            except FileNotFoundError:  # removed with its topic
                continue
            except OSError:
                directories.extend(names[number:])
                raise

    def _fsync_path(self, path: str) -> None:
        try:
            descriptor = self._disk.open(path)
        except FileNotFoundError:  # removed with its topic, or with the oldest messages
            return
        try:
            self._disk.sync(descriptor)
        except OSError as error:  # even of a full disk: a second fsync would find the pages clean, and write nothing
            self._flusher.fail(error)
            raise
        finally:
            self._disk.close(descriptor)

    def _fsync_index(self) -> None:
        index = self._index
        assert index is not None
        for _ in range(len(index.dirty)):
            file = index.dirty.popleft()
            try:
                file.fsync()
            except OSError as error:  # a second fsync would write nothing
                self._flusher.fail(error)
                raise
        self._fsync_directories(index.new_directories)

    def _write(self, progress: DispatchProgress, *, units: bool, keys: bool, clean: bool) -> None:
        """Write watermark and checkpoint for the units and keys that were flushed up to ``progress``."""
        old_checkpoint = self._parts.checkpoint_files.checkpoint
        watermark = self.watermark._replace(clean=clean, log_flushed=self._flusher.flushed_offset)
        timestamp_ms = old_checkpoint.logics_msg_timestamp_ms
        index_timestamp_ms = old_checkpoint.index_msg_timestamp_ms
        if units:
            watermark = watermark._replace(dispatched=progress.offset, unit_total=progress.unit_total)
            timestamp_ms = progress.timestamp_ms
        if keys:
            watermark = watermark._replace(
                index_dispatched=progress.offset,
                index_name=progress.index_name,
                index_files=progress.index_files,
                index_header=progress.index_header,
            )
            index_timestamp_ms = progress.index_full_ms
        self.watermark = watermark
        if self._index is not None and not clean:
            # After a crash the original removes the IndexFiles that were not full, and dispatches the log again from
            # the earlier of the first two times on: later times would lose the removed keys (apache/rocketmq #3868,
            # #8007).
            timestamp_ms = min(timestamp_ms, index_timestamp_ms)
        checkpoint = Checkpoint(
            physic_msg_timestamp_ms=timestamp_ms,
            logics_msg_timestamp_ms=timestamp_ms,
            index_msg_timestamp_ms=index_timestamp_ms,
            master_flushed_offset=old_checkpoint.master_flushed_offset,
            # Brokers from 5.5 on write it, too; with 0 they use the times above after a crash.
            logics_physical_offset=progress.offset if clean and self._parts.dispatch.tags_from != NO_TAGS else 0,
        )
        self._parts.checkpoint_files.write(watermark, checkpoint)
