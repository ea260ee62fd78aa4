"""Times of message bodies: texts as Spark's casts take them, and numbers since 1970; of the years 1 to 9999 alone.

Other engines read no more years, and pyiceberg cannot write their statistics.
"""

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Context, Decimal, Inexact, InvalidOperation
from typing import Final
from zoneinfo import ZoneInfo

UNITS: Final = {"s": Decimal(1_000_000), "ms": Decimal(1000), "us": Decimal(1), "ns": Decimal("0.001")}
"""Microseconds of each unit."""
YEARS: Final = "years 1 to 9999"
_EPOCH_DAYS: Final = datetime.date(1970, 1, 1).toordinal()
_DAY_US: Final = 86_400_000_000
_FIRST_US: Final = (1 - _EPOCH_DAYS) * _DAY_US
_LAST_US: Final = (datetime.date.max.toordinal() + 1 - _EPOCH_DAYS) * _DAY_US - 1
_NO_ZONES: Final = frozenset({"Factory", "localtime", "posixrules"})  # files beside zones, of each machine its own
_MAX_DIGITS: Final = 40  # limit: the largest time has 18, in microseconds
_EXACT: Final = Context(prec=100, traps=[Inexact, InvalidOperation])
# Source: SparkDateTimeUtils#parseTimestampString, #stringToDate
_DATE: Final = r"\+?(\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})"
_DATE_TEXT: Final = re.compile(rf"{_DATE}(?:[T ].*)?)?)?", re.ASCII | re.DOTALL)
_TIME_TEXT: Final = re.compile(
    rf"{_DATE}(?:[T ](?:(\d{{1,2}})(?::(\d{{1,2}})(?::(\d{{1,2}})(?:\.(\d*))?)?)?)? ?(\D.*|[+-].*)?)?)?)?", re.ASCII
)
_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2})(?::?(\d{2}))?)?", re.ASCII)
_UTC: Final = frozenset({"Z", "UTC", "GMT", "UT"})


@dataclass(frozen=True, slots=True)
class TimeUnits:
    """Units of numbers in columns of times.

    Attributes:
        default: None reads seconds for TIMESTAMP, and no numbers for other types.
        by_column: units of columns by their paths; nested columns have them too.
    """

    default: str | None = None
    by_column: Mapping[str, str] = field(default_factory=dict)

    def of_column(self, path: str) -> str | None:
        """Return the unit for a column, or for a column around it; None without one."""
        while path:
            if path in self.by_column:
                return self.by_column[path]
            path = path.rpartition(".")[0]
        return None


def in_range(time_us: int) -> bool:
    """Return whether a time in microseconds since 1970 is of the years 1 to 9999."""
    return _FIRST_US <= time_us <= _LAST_US


def is_date(days: int) -> bool:
    """Return whether a number of days since 1970 is of the years 1 to 9999."""
    return 1 <= days + _EPOCH_DAYS <= datetime.date.max.toordinal()


def number_us(text: str, unit: str) -> int | None:
    """Convert a JSON number to microseconds since 1970, cut to them; None if it is outside of the years 1 to 9999."""
    try:
        number = _EXACT.multiply(_EXACT.create_decimal(text), UNITS[unit])
    except (Inexact, InvalidOperation):  # of more digits than any time has
        return None
    if number.adjusted() > _MAX_DIGITS:
        return None
    time_us = int(number.to_integral_value(ROUND_FLOOR))
    return time_us if in_range(time_us) else None


def text_us(text: str, zone: str | None) -> int | None:
    """Convert an ISO text to microseconds since 1970, cut to them; None if it is none of the years 1 to 9999.

    Args:
        text: as of Spark's cast to TIMESTAMP; a time without a date gives None.
        zone: zone of texts without one; None is for TIMESTAMP_NTZ: wall clock, and a text with a zone gives None.
    """
    match = _TIME_TEXT.fullmatch(text.strip())
    if match is None:
        return None
    days = _days(match[1], match[2], match[3])
    hour, minute, second = (int(part or 0) for part in match.group(4, 5, 6))
    if days is None or hour > 23 or minute > 59 or second > 59:  # of a clock
        return None
    micros = int((match[7] or "")[:6].ljust(6, "0"))
    local_us = days * _DAY_US + (hour * 3600 + minute * 60 + second) * 1_000_000 + micros
    named = match[8]
    if zone is None:
        return local_us if named is None else None
    if named is not None and match[4] is None:
        return None
    offset_us = _offset_us(local_us, named or zone)
    return None if offset_us is None or not in_range(local_us - offset_us) else local_us - offset_us


def text_days(text: str) -> int | None:
    """Convert an ISO text to days since 1970, passing over a time behind it; None if it is none of 1 to 9999."""
    match = _DATE_TEXT.fullmatch(text.strip())
    return None if match is None else _days(match[1], match[2], match[3])


def number_days(text: str, unit: str) -> int | None:
    """Convert a number to the days since 1970 of its time in UTC; see ``number_us``."""
    time_us = number_us(text, unit)
    return None if time_us is None else time_us // _DAY_US


def _days(year: str, month: str | None, day: str | None) -> int | None:
    try:
        return datetime.date(int(year), int(month or 1), int(day or 1)).toordinal() - _EPOCH_DAYS
    except ValueError:
        return None


def _offset_us(local_us: int, zone: str) -> int | None:
    """Return how far a zone's wall clock is ahead of UTC, in microseconds; None if there is no such zone."""
    if zone in _UTC:
        return 0
    match = _OFFSET.fullmatch(zone)
    if match is not None:
        hours, minutes, seconds = (int(part or 0) for part in match.group(2, 3, 4))
        ahead = hours * 3600 + minutes * 60 + seconds
        if ahead > 18 * 3600 or minutes > 59 or seconds > 59:  # java.time.ZoneOffset
            return None
        return (ahead if match[1] == "+" else -ahead) * 1_000_000
    if zone in _NO_ZONES:
        return None
    try:
        wall = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=local_us)  # of the zone
        ahead_of = wall.replace(tzinfo=ZoneInfo(zone)).utcoffset()
    except (ValueError, OverflowError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        return None
    return None if ahead_of is None else ahead_of // datetime.timedelta(microseconds=1)
