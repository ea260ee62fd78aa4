"""Clocks: the time of day for the protocol and files, and a steady clock for waits."""

import time


def now_ms() -> int:
    """Milliseconds since 1970. Administrators and NTP may set this clock, forward and back."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Milliseconds of the steady clock, for durations."""
    return time.monotonic_ns() // 1_000_000
