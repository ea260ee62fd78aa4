"""Times in milliseconds since 1970, as options and arguments give them."""

from typing import Final

_SECONDS: Final = range(1_000_000_000, 10_000_000_000)


def check_milliseconds(value: int) -> int:
    """Return a time, or refuse a number of the year 1970 in milliseconds, and of 2001 to 2286 in seconds.

    Raises:
        ValueError: naming the time in milliseconds.
    """
    if value in _SECONDS:
        raise ValueError(f"expected milliseconds since 1970, and {value} is seconds: {value}000")
    return value
