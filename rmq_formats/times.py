"""Times of options and arguments, in milliseconds since 1970."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS: Final = range(1_000_000_000, 10_000_000_000)
_MICROSECONDS: Final = range(1_000_000_000_000_000, 10_000_000_000_000_000)
_DAYS: Final = range(19_700_101, 21_000_101)
_DAYS_AND_TIMES: Final = range(19_700_101_000_000, 21_000_101_000_000)
_DAY: Final = re.compile(r"(?:19|20)\d{6}", re.ASCII)


def is_day(text: str) -> bool:
    """Return whether a text is a day of ISO 8601 without hyphens, as 20260731, rather than milliseconds."""
    return _DAY.fullmatch(text) is not None


def check_milliseconds(value: int) -> int:
    """Return a time, or refuse a number that is rather a time of 2001 to 2286 in other units, or a date's digits.

    As milliseconds, seconds and a day's digits are times of 1970, digits of a day and a time are after the year 2500,
    and microseconds after the year 9999.

    Raises:
        ValueError: naming the time in milliseconds.
    """
    if value in _SECONDS:
        raise ValueError(f"expected milliseconds since 1970, and {value} is seconds: {value}000")
    if value in _MICROSECONDS:
        raise ValueError(f"expected milliseconds since 1970, and {value} is microseconds: {value // 1000}")
    if value in _DAYS or value in _DAYS_AND_TIMES:
        raise ValueError(f"expected milliseconds since 1970, and {value} is a date")
    return value


def bound_ms(moment: datetime) -> int:
    """Convert a bound to milliseconds since 1970, rounded up, so that the same times in ms are before the bound.

    A datetime without a zone is UTC.
    """
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return -((_EPOCH - aware) // timedelta(milliseconds=1))
