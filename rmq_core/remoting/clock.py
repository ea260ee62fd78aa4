"""Clocks: the time of day, as protocol and files have it, and a steady one, by which everything waits."""

import time


def now_ms() -> int:
    """Milliseconds since 1970. Administrators and NTP may set this clock, forward and back."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Milliseconds of a clock that nobody sets: for durations."""
    return time.monotonic_ns() // 1_000_000
