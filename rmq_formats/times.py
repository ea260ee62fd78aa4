"""Times in milliseconds since 1970, as options and arguments give them."""

from typing import Final

_SECONDS: Final = range(1_000_000_000, 10_000_000_000)
_MICROSECONDS: Final = range(1_000_000_000_000_000, 10_000_000_000_000_000)


def check_milliseconds(value: int) -> int:
    """Return a time, or refuse a number that is of 2001 to 2286 in seconds or microseconds.

    In milliseconds the first is of the year 1970, the second after the year 9999.

    Raises:
        ValueError: naming the time in milliseconds.
    """
    if value in _SECONDS:
        raise ValueError(f"expected milliseconds since 1970, and {value} is seconds: {value}000")
    if value in _MICROSECONDS:
        raise ValueError(f"expected milliseconds since 1970, and {value} is microseconds: {value // 1000}")
    return value
