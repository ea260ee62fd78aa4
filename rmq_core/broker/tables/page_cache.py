"""Detection of slow appends: the page cache is busy."""

import asyncio


class PageCache:
    """State of the page cache: busy after a slow append.

    Attributes:
        busy_ms: time of the slow append; 0 while the store is not busy.
        timeout_s: longest time of an append that is not slow.
    """

    def __init__(self, timeout_ms: int) -> None:
        """Start without an append; ``timeout_ms`` is ``osPageCacheBusyTimeOutMills``."""
        self.busy_ms = 0
        self.timeout_s = timeout_ms / 1000

    def note_slow_append(self, seconds: float) -> None:
        """Mark the store as busy for this turn of the loop and the next, with the requests read meanwhile."""
        self.busy_ms = max(1, int(seconds * 1000))
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._end)

    def _end(self) -> None:
        self.busy_ms = 0
