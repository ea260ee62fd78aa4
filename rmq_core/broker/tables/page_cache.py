"""Whether an append has just taken too long. Source: ``DefaultMessageStore#isOSPageCacheBusy``."""

import asyncio


class PageCache:
    """Whether an append has just taken too long.

    Attributes:
        busy_ms: how long it took; 0 while the store is not busy.
        timeout_s: how long an append may take.
    """

    def __init__(self, timeout_ms: int) -> None:
        """Start without an append; ``timeout_ms`` is ``osPageCacheBusyTimeOutMills``."""
        self.busy_ms = 0
        self.timeout_s = timeout_ms / 1000

    def note_slow_append(self, seconds: float) -> None:
        """Have the store count as busy for this turn of the loop and the next, which read what has come meanwhile."""
        self.busy_ms = max(1, int(seconds * 1000))
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._end)

    def _end(self) -> None:
        self.busy_ms = 0
