"""The CommitLog's flush thread: group commit, one fsync for many waiting appends.

A failed fsync is final. The kernel has dropped the pages that it could not write, so that a second fsync
would succeed without writing those pages. So the store refuses appends, and acknowledges none that wait.

Source: ``CommitLog.GroupCommitService``, ``FlushRealTimeService``, which retry.
"""

import threading
from collections.abc import Callable
from typing import Final

from rmq_core.store.commitlog.log import CommitLog
from rmq_core.store.files.disk import Disk
from rmq_core.store.files.threads import Threads

PAGE_BYTES: Final = 4096
FlushListener = Callable[[int], None]
FaultListener = Callable[[OSError], None]


class LogFlusher:
    """The thread that fsyncs the CommitLog, and the offset up to which it has.

    Attributes:
        flushed_offset: physical offset below which the log is on the disk.
        fault: the error that ended flushing; None without an error.
    """

    def __init__(
        self,
        log: CommitLog,
        disk: Disk,
        threads: Threads,
        interval_ms: int | None,
        *,
        least_pages: int = 0,
        thorough_interval_ms: int = 10_000,
    ) -> None:
        """Create the thread; ``start`` runs it.

        Args:
            interval_ms: how often to flush without a request; None flushes on request only.
            least_pages: new pages that a flush without a request waits for, unless the thorough interval is over.
        """
        self.flushed_offset = 0
        self.fault: OSError | None = None
        self._is_over = False  # the fault listeners have been called
        self._log = log
        self._disk = disk
        self._interval = None if interval_ms is None else interval_ms / 1000
        self._threads = threads
        self._fsync_lock = threading.Lock()
        self._progress = threading.Condition()
        self._flush_listeners: list[FlushListener] = []
        self._fault_listeners: list[FaultListener] = []
        self._worker = threads.worker("rmq-store-flush", self._run_once)
        self._least_pages = least_pages
        self._thorough_s = thorough_interval_ms / 1000
        self._flushed_at = threads.monotonic_s()
        self._is_requested = False
        self.wake = self._worker.wake  # makes the thread check whether a flush is due

    def request(self) -> None:
        """Request a flush of all bytes appended so far, without waiting."""
        self._is_requested = True
        self.wake()

    @property
    def is_due(self) -> bool:
        """True if enough pages are dirty, or the flush interval is over. Source: ``MappedFile#isAbleToFlush``."""
        pages = self._log.max_offset // PAGE_BYTES - self.flushed_offset // PAGE_BYTES
        return pages >= self._least_pages or self._threads.monotonic_s() - self._flushed_at >= self._thorough_s

    def on_flushed(self, listener: FlushListener) -> None:
        """Register a callback for each new ``flushed_offset``; it runs on the thread that flushed, so be brief."""
        self._flush_listeners.append(listener)

    def on_fault(self, listener: FaultListener) -> None:
        """Register a callback for the error that ends flushing, called once on the thread of the error."""
        self._fault_listeners.append(listener)

    def start(self, flushed_offset: int) -> None:
        """Start the thread; the log below ``flushed_offset`` is on the disk already."""
        self.flushed_offset = flushed_offset
        self._worker.start(self._interval)

    def wait(self, physical_offset: int, timeout_s: float | None = None) -> bool:
        """Wait until the log is flushed up to an offset; False on a timeout or an error."""

        def is_done() -> bool:
            return self.flushed_offset >= physical_offset or self._is_over

        self._threads.wait_for(self._progress, is_done, timeout_s)
        return self.flushed_offset >= physical_offset

    def fail(self, error: OSError) -> None:
        """End all flushing because of an I/O error of any thread.

        Waiting threads are woken last, after the listeners have made the store refuse appends.
        """
        with self._progress:
            if self.fault is not None:
                return
            self.fault = error
        for listener in self._fault_listeners:
            listener(error)
        with self._progress:
            self._is_over = True
            self._progress.notify_all()

    def flush(self) -> bool:
        """Flush all appended bytes on the calling thread; return False if this or an earlier flush failed."""
        with self._fsync_lock:
            if self.fault is not None:
                return False
            target, self._flushed_at = self._log.max_offset, self._threads.monotonic_s()
            if target > self.flushed_offset:
                try:
                    self._fsync_files_from(self.flushed_offset)
                except OSError as error:
                    self.fail(error)
                    return False
                with self._progress:
                    self.flushed_offset = target
                    self._progress.notify_all()
                for listener in self._flush_listeners:
                    listener(target)
            return True

    def _fsync_files_from(self, begin: int) -> None:
        for file in self._log.files.copy():  # in the order of the log, so that a crash leaves no hole
            if file.end > begin:
                self._disk.sync(file.descriptor)

    def stop(self) -> None:
        """Flush a last time, and stop the thread."""
        self._is_requested = True
        self._worker.stop()

    def _run_once(self) -> float | None:
        is_requested, self._is_requested = self._is_requested, False
        if is_requested or self._least_pages == 0 or self.is_due:
            self.flush()
        return self._interval if self.fault is None else None
