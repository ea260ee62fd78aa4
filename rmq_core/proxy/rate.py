"""A limit of so many calls a second.

Source: ``ClientProcessor``, which has a ``RateLimiter`` of Guava's.
"""

import time


class Rate:
    """Rate limiter of calls, which allows the unused calls of up to one second at once."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._permits = per_second
        self._refilled_s = time.monotonic()

    def try_acquire(self) -> bool:
        """Count a call; return False if the call exceeds the rate."""
        now_s = time.monotonic()
        self._permits = min(self._per_second, self._permits + (now_s - self._refilled_s) * self._per_second)
        self._refilled_s = now_s
        if self._permits < 1:
            return False
        self._permits -= 1
        return True
