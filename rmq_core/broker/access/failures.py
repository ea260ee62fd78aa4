"""Counts of refusals by host: frequent refusals are delayed, and too many close the connection."""

from collections.abc import Callable
from typing import Final

FREE: Final = 50  # refusals of a host in a window; later ones are delayed
PATIENCE: Final = 1000  # refusals after which the connection is closed
WAIT_S: Final = 0.5
_WINDOW_MS: Final = 60_000
_MOST_HOSTS: Final = 10_000


class Failures:
    """Refusals of each host in the current window."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._by_host: dict[str, tuple[int, int]] = {}  # count, and end of the window

    def count(self, host: str) -> int:
        """Count a refusal of a host; return the number in the window."""
        now_ms = self._clock_ms()
        count, end_ms = self._by_host.get(host, (0, 0))
        if now_ms >= end_ms:
            count, end_ms = 0, now_ms + _WINDOW_MS
        if len(self._by_host) >= _MOST_HOSTS:
            self._by_host.clear()
        self._by_host[host] = count + 1, end_ms
        return count + 1
