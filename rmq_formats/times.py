"""Times in milliseconds since 1970, as options and arguments give them."""

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
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


def bound_ms(moment: datetime) -> int:
    """Convert a bound of times to milliseconds since 1970; a datetime without a zone is UTC.

    It is rounded up: a time in milliseconds is before the result exactly where it is before the bound.
    """
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return -((_EPOCH - aware) // timedelta(milliseconds=1))
