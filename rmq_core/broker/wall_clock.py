"""Time of day for records, and the age of a record across changes of the clock.

A record has the time of day of its write. After the clock was set back an hour, a record of a minute ago seems to come
from the future; after the clock was set forward, the record seems an hour old. The physical offset of a record shows
whether the change came before or after the record.

Example: a record at 1000 was stored at 12:00:00; the clock is set to 11:00:00 while the log ends at 1200; at 11:00:05
the record is 5 s old, for its offset is before that end.
"""

from collections.abc import Callable
from typing import Final

_LEAST_STEP_MS: Final = 1000  # smaller differences add up to a step
_MOST_STEPS: Final = 256


class WallClock:
    """Time of day, with the changes of the clock."""

    def __init__(self, wall_ms: Callable[[], int], steady_ms: Callable[[], int], log_end: Callable[[], int]) -> None:
        """Begin without changes of the clock; ``log_end`` is the physical offset at which the next record will be."""
        self._wall_ms = wall_ms
        self._steady_ms = steady_ms
        self._log_end = log_end
        self._steps: list[tuple[int, int]] = []  # the log's end at a step, and by how much the clock was set
        self.lead_ms = wall_ms() - steady_ms()  # of the time of day over the steady clock

    def __call__(self) -> int:
        """Return the time of day, ms since 1970."""
        wall_ms = self._wall_ms()
        step_ms = wall_ms - self._steady_ms() - self.lead_ms
        if not -_LEAST_STEP_MS < step_ms < _LEAST_STEP_MS:
            self._steps.append((self._log_end(), step_ms))
            del self._steps[:-_MOST_STEPS]
            self.lead_ms += step_ms
        return wall_ms

    def age_ms(self, timestamp_ms: int, physical_offset: int) -> int:
        """Return the age of a record."""
        age_ms = self() - timestamp_ms
        return age_ms - sum(step_ms for end, step_ms in self._steps if physical_offset < end)
