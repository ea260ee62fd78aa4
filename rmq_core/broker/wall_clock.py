"""The time of day as a broker stamps records with it, and how old a record is where that clock was set meanwhile.

A record has the time of day at which it was stored. After the clock was set back an hour, a record of a minute ago
would seem to come from the future, and after it was set forward, to be an hour old. Whether a step came before or after
a record is told by the place of the record in the log.

Example: a record at 1000 was stored at 12:00:00; the clock is set to 11:00:00 while the log ends at 1200; at 11:00:05
the record is 5 s old, for its place is before that end.
"""

from collections.abc import Callable
from typing import Final

_LEAST_STEP_MS: Final = 1000  # smaller differences add up until they are one
_MOST_STEPS: Final = 256


class WallClock:
    """Gives the time of day, and notices where it is set."""

    def __init__(self, wall_ms: Callable[[], int], steady_ms: Callable[[], int], log_end: Callable[[], int]) -> None:
        """Prepare.

        Args:
            wall_ms: the time of day, ms since 1970.
            steady_ms: the time of a clock that nobody sets.
            log_end: the physical offset at which the next record will be.
        """
        self._wall_ms = wall_ms
        self._steady_ms = steady_ms
        self._log_end = log_end
        self._steps: list[tuple[int, int]] = []  # the log's end at a step, and by how much the clock was set
        self.lead_ms = wall_ms() - steady_ms()  # of the time of day over the steady clock

    def __call__(self) -> int:
        """The time of day, ms since 1970."""
        wall_ms = self._wall_ms()
        step_ms = wall_ms - self._steady_ms() - self.lead_ms
        if not -_LEAST_STEP_MS < step_ms < _LEAST_STEP_MS:
            self._steps.append((self._log_end(), step_ms))
            del self._steps[:-_MOST_STEPS]
            self.lead_ms += step_ms
        return wall_ms

    def age_ms(self, timestamp_ms: int, physical_offset: int) -> int:
        """How long ago a record was stamped.

        Args:
            timestamp_ms: the time of day that it has.
            physical_offset: its place in the log.
        """
        age_ms = self() - timestamp_ms
        return age_ms - sum(step_ms for end, step_ms in self._steps if physical_offset < end)
