"""A limit of so many calls a second.

Source: ``ClientProcessor``, which has a ``RateLimiter`` of Guava's.
"""

import time


class Rate:
    """Takes so many calls a second, and those of a second that had none at once."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._left = per_second
        self._then_s = time.monotonic()

    def take(self) -> bool:
        """Count a call; False if it is too many."""
        now_s = time.monotonic()
        self._left = min(self._per_second, self._left + (now_s - self._then_s) * self._per_second)
        self._then_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True
