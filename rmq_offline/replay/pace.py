"""Pace of a replay with a rate: portions of messages, each with a time before which the next one waits.

Time that passes without sends, as in a long scan or while a broker restarts, gives credit for a single portion.
"""

from typing import Final

_PORTIONS_PER_S: Final = 10


class Pace:
    """Computes the pauses between portions.

    Attributes:
        portion: number of messages in a portion.
    """

    def __init__(self, rate: int, now_s: float) -> None:
        """Create the pace of a rate, which is messages a second."""
        self.portion = max(1, rate // _PORTIONS_PER_S)
        self._rate = rate
        self._due_s = now_s

    def pause_s(self, messages: int, now_s: float) -> float:
        """Return the seconds to wait after a number of messages, which were sent at this time."""
        self._due_s = max(self._due_s, now_s - self.portion / self._rate) + messages / self._rate
        return max(0.0, self._due_s - now_s)
