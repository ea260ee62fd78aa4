"""Threads and clock of a store and a broker, in one class, so that the lab can schedule each run."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final

WorkerRun = Callable[[], float | None]
"""Runs the work that is due; returns the seconds to the next run, None to wait for ``Worker.wake``."""
_JOIN_SECONDS: Final = 60.0


class Worker:
    """Thread that runs a function on request, and after the delay that the last run returned."""

    def __init__(self, name: str, run: WorkerRun) -> None:
        """Create a thread that is not started."""
        self._run_once = run
        self._woken = threading.Event()
        self._is_stopping = False
        self._wait_s: float | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.wake: Callable[[], None] = self._woken.set  # requests a run, without waiting

    def start(self, wait_s: float | None) -> None:
        """Start the thread; the first run is after ``wait_s`` seconds or at ``wake``."""
        self._wait_s = wait_s
        self._thread.start()

    def stop(self) -> None:
        """Run the function once more, and wait for the thread's end."""
        self._is_stopping = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._woken.wait(self._wait_s)
            self._woken.clear()
            is_last = self._is_stopping
            self._wait_s = self._run_once()


class Threads:
    """The threads of this process."""

    monotonic_s = staticmethod(time.monotonic)  # seconds of a clock that is never set back

    def worker(self, name: str, run: WorkerRun) -> Worker:
        """Return a worker that is not started yet."""
        return Worker(name, run)

    def pool(self, name: str, count: int) -> Executor:
        """Return a pool of ``count`` threads for calls that wait for the disk."""
        return ThreadPoolExecutor(count, name)

    def wait_for(self, changed: threading.Condition, is_done: Callable[[], bool], timeout_s: float | None) -> None:
        """Wait until other threads make a condition true and notify, or until the timeout."""
        with changed:
            changed.wait_for(is_done, timeout_s)
