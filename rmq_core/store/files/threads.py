"""All threads of a store and a broker, and their clock, in one class, so that the lab can take their turns itself."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final

Turn = Callable[[], float | None]
"""Does what is to be done now; gives the seconds to the next turn, None for none until somebody asks for it."""
_JOIN_SECONDS: Final = 60.0


class Worker:
    """A thread that takes its turn when it is asked to, and when the time that the last turn gave is over."""

    def __init__(self, name: str, turn: Turn) -> None:
        """Name a thread; ``start`` runs it."""
        self._turn = turn
        self._woken = threading.Event()
        self._is_stopping = False
        self._wait_s: float | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.wake: Callable[[], None] = self._woken.set  # asks for a turn, and does not wait

    def start(self, wait_s: float | None) -> None:
        """Start the thread; its first turn is in some seconds, or when it is asked for."""
        self._wait_s = wait_s
        self._thread.start()

    def stop(self) -> None:
        """Have it take a last turn, and wait for its end."""
        self._is_stopping = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        wait_s = self._wait_s
        while True:
            self._woken.wait(wait_s)
            self._woken.clear()
            is_last = self._is_stopping
            wait_s = self._turn()
            if is_last:
                return


class Threads:
    """The threads of this process."""

    def monotonic_s(self) -> float:
        """Seconds of a clock that nobody sets."""
        return time.monotonic()

    def worker(self, name: str, turn: Turn) -> Worker:
        """Return a thread that takes turns; it is to be started."""
        return Worker(name, turn)

    def pool(self, name: str, count: int) -> Executor:
        """So many threads for calls that wait for the disk."""
        return ThreadPoolExecutor(count, name)

    def wait_for(self, changed: threading.Condition, holds: Callable[[], bool], timeout_s: float | None) -> None:
        """Wait until something holds that other threads bring about, who notify of it; or until the time is over."""
        with changed:
            changed.wait_for(holds, timeout_s)
